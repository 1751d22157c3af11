mod ignored;
mod lines;
mod tables;

use lattice_console::formatting::typed_line;

use super::flag::find;
use super::front_end::FrontEnd;
use super::mpiexec::Name;
use super::*;

/// Translation of a line to a line of `lattice launch`, with its notes.
fn read(line: &str) -> Result<(String, Vec<String>), String> {
    let words = shlex::split(line).unwrap().into_iter().map(OsString::from).collect::<Vec<_>>();
    let called = Called::of(&words).expect("a line of another launcher");
    match called.translate() {
        Ok(Translation { words, notes, .. }) => {
            let line = typed_line("launch", &words);
            Ok((line.strip_prefix("lattice launch ").unwrap_or_default().to_owned(), notes))
        }
        Err(error) => Err(error.to_string()),
    }
}

/// Checks the translation of a line.
#[track_caller]
fn means(line: &str, expected: &str) {
    let (words, _) = read(line).unwrap_or_else(|error| panic!("{line}: {error}"));
    assert_eq!(words, expected, "{line}");
}

#[track_caller]
fn refused(line: &str, expected: &str) {
    match read(line) {
        Err(error) => assert!(error.contains(expected), "{line}: {error}"),
        Ok((words, _)) => panic!("{line} means {words}"),
    }
}

#[test]
fn lines_of_srun_mean_a_launch() {
    const USUAL: &str = "--kill-on-bad-exit=0 --stdin=all --slurm-env";
    for (line, flags, rest) in [
        (
            "srun -N1 -n1 ./m : -N2 --ntasks-per-node=4 ./w : -w n[0-1] ./x",
            "--nodes=1 ",
            "--ntasks=1 ./m : --nodes=2 --tasks-per-node=4 ./w : '--nodelist=n[0-1]' ./x",
        ),
        ("srun ./a", "", "./a"),
        (
            "srun -N2 -n8 --ntasks-per-node=4 -l ./a -n 2",
            "--nodes=2 --tasks-per-node=4 --label ",
            "--ntasks=8 ./a -n 2",
        ),
        ("lattice srun --ntasks 4 ./a", "", "--ntasks=4 ./a"),
        ("srun -lun 2 ./a", "--label --unbuffered ", "--ntasks=2 ./a"),
        ("srun -N 1-2 ./a", "--nodes=1-2 ", "./a"),
        ("srun --nodel a,b -x c ./a", "--nodelist=a,b --exclude=c ", "./a"),
        ("srun -A acct -p debug -J name --mem=4G --exclusive --qos q ./a", "--job-name=name ", "./a"),
        ("srun -n4 --gpus-per-task=a100:1 ./a", "--gpus-per-task=1 ", "--ntasks=4 ./a"),
        ("srun --gpu-bind=verbose,closest ./a", "--gpu-bind=closest ", "./a"),
        ("srun --gpu-bind=map_gpu:0,1 ./a", "--gpu-bind=map_gpu:0,1 ", "./a"),
        ("srun --task-prolog=./p --task-epilog ./e ./a", "--task-prolog=./p --task-epilog=./e ", "./a"),
        ("srun -m cyclic ./a", "--distribution=cyclic ", "./a"),
        ("srun -m plane=4 ./a", "--distribution=plane=4 ", "./a"),
        ("srun -N2 -r2 ./a", "--nodes=2 --relative=2 ", "./a"),
        ("srun -t 10:00 -W 5 --signal USR1@30 ./a", "--time=10:00 --wait=5 --signal=USR1@30 ", "./a"),
        ("srun -D /tmp --export=ALL,A=1 ./a", "--export=ALL,A=1 ", "--chdir=/tmp ./a"),
        ("srun -D /tmp ./a : ./b : -D /usr ./c", "", "--chdir=/tmp ./a : --chdir=/tmp ./b : --chdir=/usr ./c"),
        ("srun --mpi=pmi2 --multi-prog conf", "--multi-prog ", "conf"),
        ("srun --mpi=none ./a", "--pmi=none ", "./a"),
        ("srun --jobid=7 --overlap -O -s ./a", "--alloc=7 --overcommit --tasks-per-node=1 ", "./a"),
        ("srun --jobid=7 -n2 ./a", "--alloc=7 --no-overcommit ", "--ntasks=2 ./a"),
        ("srun ./a : -n 2 ./b", "", "./a : --ntasks=2 ./b"),
        ("srun -v -- -odd", "", "-- -odd"),
    ] {
        means(line, &format!("{flags}{USUAL} {rest}"));
    }
    for (flags, bound) in [
        ("--cpu_bind=verbose,cores -m block:cyclic", "--show-map --cpu-bind=cores {} --distribution=block:cyclic"),
        ("--cpu-bind=cores -m plane=2", "--cpu-bind=cores {} --distribution=plane=2:cyclic"),
        ("--cpu-bind=ldoms -m block:block", "--cpu-bind=ldoms {} --distribution=block:block"),
        ("--cpu-bind=sockets -m cyclic:fcyclic:block", "--cpu-bind=sockets {} --distribution=cyclic:fcyclic"),
        ("--cpu-bind=cores -m block:*", "--cpu-bind=cores {} --distribution=block:cyclic"),
        ("--cpu-bind=threads -m block:*:block", "--cpu-bind=threads {} --distribution=block:cyclic"),
        ("--cpu-bind=threads -m *:block:*", "--cpu-bind=threads {} '--distribution=*:block'"),
        ("-c2 -m block:fcyclic", "--cpus-per-task=2 {} --distribution=block:fcyclic"),
        ("--hint=nomultithread", "--hint=nomultithread {} '--distribution=*:cyclic'"),
        ("--hint=nomultithread --threads-per-core=1", "--threads-per-core=1 {} '--distribution=*:cyclic'"),
        ("--threads-per-core=2 --hint=multithread", "--threads-per-core=2 {} '--distribution=*:cyclic'"),
        ("--hint=nomultithread --cpu-bind=cores", "--cpu-bind=cores --threads-per-core=1 {} '--distribution=*:cyclic'"),
        ("--hint=nomultithread --cpu-bind=none", "--cpu-bind=none {} '--distribution=*:cyclic'"),
        (
            "--hint=compute_bound --threads-per-core=1",
            "--threads-per-core=1 --cpu-bind=cores {} '--distribution=*:cyclic'",
        ),
        ("--threads-per-core 1 -m block", "--threads-per-core=1 {} --distribution=block:cyclic"),
        (
            "--cpu-bind=mask_cpu:0x1,0x2 -c 2",
            "--cpu-bind=mask_cpu:0x1,0x2 --cpus-per-task=2 {} '--distribution=*:cyclic'",
        ),
        ("-c4", "--cpus-per-task=4 {} '--distribution=*:cyclic'"),
    ] {
        let usual = bound.replace("{}", "--kill-on-bad-exit=0 --stdin=all");
        means(&format!("srun {flags} ./a"), &format!("{usual} --slurm-env ./a"));
    }
    means("srun -K -i none ./a", "--kill-on-bad-exit --stdin=none --slurm-env ./a");
    means("srun --pty -n1 bash -i", "--pty --kill-on-bad-exit=0 --slurm-env --ntasks=1 bash -i");
    means("srun --pty=3 bash", "--pty --kill-on-bad-exit=0 --slurm-env bash");
    for (flags, ours) in [
        ("--bcast --compress=lz4", "--bcast --compress"),
        ("--bcast --compress", "--bcast --compress"),
        ("--bcast --compress=none", "--bcast"),
        ("--bcast --send-libs --bcast-exclude=NONE", "--bcast --send-libs=yes --bcast-exclude=NONE"),
        ("--send-libs", ""),
        ("--bcast --send-libs=no --bcast-exclude /opt,/lib", "--bcast --send-libs=no --bcast-exclude=/opt,/lib"),
    ] {
        let ours = format!("{ours} --kill-on-bad-exit=0 --stdin=all --slurm-env ./a");
        means(&format!("srun {flags} ./a"), ours.trim_start());
    }
    means("srun --bcast=/tmp/a ./a", "--bcast=/tmp/a --kill-on-bad-exit=0 --stdin=all --slurm-env ./a");
    means("srun --propagate ./a", "--propagate --kill-on-bad-exit=0 --stdin=all --slurm-env ./a");
    means("srun --propagate=STACK ./a", "--propagate=STACK --kill-on-bad-exit=0 --stdin=all --slurm-env ./a");
    means("srun -u ./a", "--unbuffered --kill-on-bad-exit=0 --stdin=all --slurm-env ./a");
    means("srun -k ./a", "--no-kill --kill-on-bad-exit=0 --stdin=all --slurm-env ./a");
    means("srun --no-kill=off ./a", "--kill-on-bad-exit=0 --stdin=all --slurm-env ./a");
    means("srun -K1 -i0 ./a", "--kill-on-bad-exit=1 --stdin=0 --slurm-env ./a");
    means(
        "srun -o out.%t --open-mode=append ./a",
        "--output=out.%t --append --kill-on-bad-exit=0 --stdin=all --error=out.%t --slurm-env ./a",
    );
    means("srun -o none -e all ./a", "--output=/dev/null --kill-on-bad-exit=0 --stdin=all --slurm-env ./a");
}

#[test]
fn what_is_not_understood_is_refused_with_what_to_type() {
    refused("mpiexec --tag-outputs ./a", "a similar one exists: '--tag-output'");
    refused("mpiexec -zzz ./a", "mpiexec has no flag '-zzz' here");
    refused("mpiexec -n", "type -n VALUE; lattice mpiexec --help shows what it takes");
    refused("mpiexec -l=3 ./a", "'-l=3' has no value\n\n  tip: type -l alone");
    refused("mpiexec --map-by magic ./a", "'--map-by magic' is not possible here: ranks are mapped by slot");
    refused("mpirun --bind-to cpu-list:ordered -np 2 ./a", "type --cpu-list CORES beside it");
    refused("mpiexec -configfile /nonexistent", "cannot read /nonexistent");
    refused("srun --n 2 ./a", "'--n' may be any of --ntasks, --nodes");
    refused("srun --ntask-per-node 2 ./a", "a similar one exists: '--ntasks-per-node'");
    refused("srun --signal=USR1@10 ./a", "type -t TIME as well");
    refused("srun --signal=B:USR1@10 -t 5 ./a", "B: is of batch scripts");
    refused("mpirun --xterm 1 ./a", "mpiexec -n 1 xterm -e ./a.out");
    refused("mpirun --xml ./a", "type --json, for output as JSON");
    refused("mpirun --nolocal ./a", "type lattice launch -x NODE");
    refused("srun -m planes ./a", "none of block, cyclic, plane=N and arbitrary");
    refused("srun -m arbitrary ./a", "SLURM_HOSTFILE names no file");
}

#[test]
fn flags_that_are_ignored_are_noted() {
    let (_, notes) = read(&format!("srun --uid={} ./a", nix::unistd::getuid())).unwrap();
    assert!(notes[0].ends_with("ranks are yours anyway"), "{notes:?}");
    let (words, notes) = read("srun --open-mode=append ./a").unwrap();
    assert!(!words.contains("--append") && notes == ["--open-mode is ignored without --output or --error"]);
    let (words, _) = read("srun --open-mode=append -o x ./a").unwrap();
    assert!(words.contains("--append"), "{words}");
    let (words, _) = read("srun --signal=R:USR1@10 -t 5 --gpus-per-task=0 ./a").unwrap();
    assert!(words.contains("--signal=USR1@10") && !words.contains("gpus"), "{words}");
    let (_, notes) = read("mpirun --use-hwthread-cpus --mca plm rsh ./a").unwrap();
    assert_eq!(notes, ["note: plm=rsh is ignored: it is for Open MPI's own launcher"]);
}

#[test]
fn what_people_type_twice_or_shorten_means_what_it_does_there() {
    means(
        "mpirun --stream-buffering 0 -n 3 ./a",
        "--unbuffered --tasks-per=1:core --universe-size=slots --cpu-bind=numa:over=numa:or-none --ntasks=3 ./a",
    );
    means(
        "mpirun --host a:2 --host b -n 3 ./a",
        "--host=a:2,b:1 --universe-size=slots --cpu-bind=numa:over=numa:or-none --ntasks=3 ./a",
    );
    let (words, _) = read("mpiexec -outfile-pattern x.%h.%r -n 2 ./a").unwrap();
    assert!(words.contains("--output=x.%N.%r"), "{words}");
    refused("mpiexec -outfile-pattern x.%t ./a", "--timestamp puts it before lines");
    let (words, _) = read("srun -N 1k --export=ALL,NO_SUCH_VARIABLE,PATH ./a").unwrap();
    assert!(words.contains("--nodes=1024") && words.contains("--export=ALL,PATH"), "{words}");
}

#[test]
fn questions_are_answered() {
    for (line, expected) in [
        ("srun --version", "slurm 22.05.8"),
        ("srun -V", "slurm 22.05.8"),
        ("srun --cpu-bind=help", "--cpu-bind=[verbose,|quiet,]TYPE binds the CPUs of each task:\n\tnone\n"),
        ("srun --mem_bind=help", "--mem-bind=[verbose,|quiet,]TYPE[,prefer] binds the memory of each task:\n\tnone\n"),
        ("srun --mpi=list", "MPI plugin types are...\n\tnone\n"),
        ("srun --help", "Usage: lattice srun"),
        ("mpirun --version", "mpiexec of Lattice"),
        ("mpirun.openmpi --version", "mpirun (Open MPI)"),
        ("mpiexec.hydra --version", "HYDRA build details"),
        ("mpirun --mca a b --version", "mpirun (Open MPI)"),
        ("mpiexec -genvall -V", "HYDRA build details"),
        ("mpiexec -help", "Usage: lattice mpiexec"),
    ] {
        let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        let called = Called::of(&words).unwrap();
        let answer = called.translate().unwrap_err();
        assert!(!answer.use_stderr() && answer.to_string().contains(expected), "{line}: {answer}");
    }
}

#[test]
fn a_file_of_programs_is_read_line_by_line() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("conf");
    std::fs::write(&file, "# two programs\n-n 1 \\\n  ./m 'a \\\nb'\n\n-n 3 -env A 1 ./w\n").unwrap();
    let file = file.display();
    means(&format!("mpiexec -configfile {file}"), "--ntasks=1 ./m 'a b' : --ntasks=3 --env=A=1 ./w");
    means(
        &format!("mpirun --app {file}"),
        "--tasks-per=1:core --universe-size=slots --cpu-bind=numa:over=numa:or-none --ntasks=1 ./m 'a b' : --ntasks=3 --env=A=1 ./w",
    );
    let nested = directory.path().join("nested");
    std::fs::write(&nested, format!("-configfile {}\n", nested.display())).unwrap();
    refused(&format!("mpiexec -configfile {}", nested.display()), "a file of programs names no other one");
    means(
        &format!("mpiexec -configfile {file} : -configfile {file}"),
        &["--ntasks=1 ./m 'a b' : --ntasks=3 --env=A=1 ./w"; 2].join(" : "),
    );
    let hosts = directory.path().join("hosts");
    std::fs::write(&hosts, "a:4\nb slots=2\na\n").unwrap();
    let hosts = hosts.display();
    means(&format!("mpiexec -f {hosts} ./a"), &format!("--hostfile={hosts} ./a"));
    means(&format!("mpiexec -f {hosts} -ppn 1 ./a"), "--tasks-per-node=1 --nodelist=a,b ./a");
    let names = directory.path().join("names");
    std::fs::write(&names, "a\nb\n").unwrap();
    let plain = names.display();
    let (words, _) = read(&format!("mpirun -tag-output --hostfile {plain} -np 3 ./a")).unwrap();
    assert!(words.contains("--nodelist=a,b --tasks-per=1:core ") && !words.contains("--hostfile"), "{words}");
    let (words, _) = read(&format!("mpirun --hostfile {plain} --mca btl self --map-by slot:PE=4 -np 3 ./a")).unwrap();
    assert!(words.contains("--nodelist=a,b ") && !words.contains("--tasks-per"), "{words}");
    let (words, _) = read(&format!("mpirun --hostfile {plain} --mca btl self --map-by ppr:1:l3cache ./a")).unwrap();
    assert!(words.contains("--nodelist=a,b ") && words.contains("--tasks-per=1:l3cache "), "{words}");
    let (words, _) = read(&format!("mpirun -tag-output --hostfile {hosts} -np 3 ./a")).unwrap();
    assert!(words.contains("--host=a:4,b:2,a:1 ") && !words.contains("--tasks-per"), "{words}");
    means(&format!("mpiexec -f {plain} -np 2 ./a"), "--host=a:1,b:1 --ntasks=2 ./a");
    let (words, _) = read(&format!("srun -w {} ./a", names.display())).unwrap();
    assert!(words.starts_with("--nodelist=a,b "), "{words}");
    let (words, _) = read(&format!("srun -F {0} -x {0} ./a", names.display())).unwrap();
    assert!(words.starts_with("--nodelist=a,b --exclude=a,b "), "{words}");
    refused("srun --nodefile hosts ./a", "cannot read hosts");
}

#[test]
fn a_program_is_looked_for_where_path_says() {
    means("mpiexec -path /nonexistent:/bin -n 1 sh -c x", "--ntasks=1 /bin/sh -c x");
    means("mpiexec -path /nonexistent sh", "sh");
}

#[test]
fn every_name_is_in_its_table_once() {
    for front_end in [FrontEnd::Mpiexec(Name::Mpirun), FrontEnd::Srun] {
        let mut names: Vec<&str> = front_end.flags().iter().flat_map(|flag| flag.names).copied().collect();
        if front_end == FrontEnd::Srun {
            names.extend(idle::IDLE.iter().map(|idle| idle.long));
        }
        names.sort_unstable();
        let count = names.len();
        names.dedup();
        assert_eq!(names.len(), count, "{front_end:?}");
    }
}

/// Each flag in the helps of the launchers is supported, refused with an alternative, or ignored with a reason.
#[test]
fn each_flag_that_a_launcher_helps_with_is_known() {
    let words =
        |table: &'static str| table.lines().filter(|line| !line.starts_with('#')).flat_map(str::split_whitespace);
    // Flags with a special effect, which `mpiexec` reads outside of the table.
    let special = ["configfile", "app", "info", "N", "c", "s"];
    let of_mpiexec: Vec<&str> = words(include_str!("../testdata/mpiexec-flags.txt")).collect();
    assert!(of_mpiexec.len() > 200, "{}", of_mpiexec.len());
    for name in of_mpiexec {
        assert!(find(mpiexec::FLAGS, name).is_some() || special.contains(&name), "mpiexec has no flag {name}");
    }
    for name in words(include_str!("../testdata/srun-flags.txt")).filter(|name| *name != "usage") {
        let of_idle =
            |idle: &idle::Idle| idle.long == name || idle.short.is_some_and(|short| name == short.to_string());
        assert!(find(srun::FLAGS, name).is_some() || idle::IDLE.iter().any(of_idle), "srun has no flag {name}");
    }
}

#[test]
fn flags_of_a_few_people_mean_what_they_do_there() {
    means("mpirun --ppr 2:socket ./a", "--tasks-per=2:socket --cpu-bind=numa:cores=1:or-none ./a");
    means(
        "mpirun --bycore --bind-to core -np 2 ./a",
        "--tasks-per=1:core --universe-size=slots --cpu-bind=cores --ntasks=2 ./a",
    );
    means(
        "mpirun -s -np 2 ./a",
        "--bcast --tasks-per=1:core --universe-size=slots --cpu-bind=cores:or-none --ntasks=2 ./a",
    );
    means("mpiexec -s all -n 2 ./a", "--stdin=all --ntasks=2 ./a");
    means("mpiexec -cpu-bind list:0-1,4:2 ./a", "--cpu-bind=map:0-1+4,2 ./a");
    means("mpiexec -cpu-bind 3 ./a", "--cpu-bind=threads:cpus=3:overcommit ./a");
    means("mpiexec -rankmap 1,0,(0,2,1) -hosts a,b -n 4 ./a", "--host=b:1,a:1,a:1,b:1 --ntasks=4 ./a");
    means(
        "mpirun --set-env A=1 --unset-env B --bind-to none -np 1 ./a",
        "--tasks-per=1:core --universe-size=slots --cpu-bind=none --env=A=1 --env-remove=B --ntasks=1 ./a",
    );
    means(
        "mpirun --runtime-options error-nonzero-status=0,timeout=5 --stop-on-exec -np 1 ./a",
        "--kill-on-bad-exit=0 --timeout=5 --stop-at-start --tasks-per=1:core --universe-size=slots --cpu-bind=cores:or-none --ntasks=1 ./a",
    );
    means(
        "mpirun --add-host a:2 --add-host b -np 3 ./a",
        "--host=a:2,b:1 --universe-size=slots --cpu-bind=numa:over=numa:or-none --ntasks=3 ./a",
    );
    refused("mpirun --runtime-options recover,exec-agent=gdb ./a", "mpirun -np 4 gdb ./a.out");
    refused("mpirun --runtime-options e ./a", "the words are error-nonzero-status, ");
    refused("mpirun --report-uri - ./a", "without the address of a server");
    refused("mpiexec -rankmap 0,2 -hosts a,b ./a", "the line names 2 hosts, which are counted from 0");
    refused("mpiexec -rankmap 0,1 ./a", "type -hosts a,b beside it");
    refused("mpiexec -cpu-bind cores ./a", "type -bind-to core");
    refused("mpiexec -gtool 'vtune:0' ./a", "start the tool as the program");
}

#[test]
fn coming_from_is_what_the_tables_say() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/reference/coming-from.md");
    let text = document::coming_from();
    if std::env::var_os("LATTICE_WRITE_DOCS").is_some() {
        std::fs::write(path, &text).unwrap();
    }
    let written = std::fs::read_to_string(path).unwrap_or_default();
    assert!(
        written == text,
        "docs/reference/coming-from.md is old: LATTICE_WRITE_DOCS=1 cargo test -p lattice-dialects coming_from"
    );
}

proptest::proptest! {
    /// No words of a user cause a panic.
    #[test]
    fn any_words_are_a_line_or_an_error(words in proptest::collection::vec("[-a-zN0-9:=,]{0,6}", 0..6), srun: bool) {
        let words: Vec<OsString> = words.into_iter().map(OsString::from).collect();
        let front_end = if srun { FrontEnd::Srun } else { FrontEnd::Mpiexec(Name::Mpiexec) };
        let _ = translate(front_end, &words);
    }
}
