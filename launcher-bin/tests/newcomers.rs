//! Lines of users of `srun` or `mpiexec`: lines that work, and lines with an answer that contains the line to type.

use std::process::{Command, Output};

/// Runs `lattice` with these words, without a cluster. Returns exit code, standard output and standard error.
fn typed(words: &[&str]) -> (Option<i32>, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lattice"));
    command.args(words).env_remove("LATTICE_ALLOC_ID").env_remove("LATTICE_API_URL");
    let Output { status, stdout, stderr } = command.output().unwrap();
    (status.code(), String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap())
}

fn words(line: &str) -> Vec<&str> {
    line.split(' ').collect()
}

#[test]
fn spellings_of_mpiexec_and_srun_start_ranks() {
    for line in [
        "launch -np 2 --pmi=none echo x",
        "launch --np 2 --pmi=none echo x",
        "launch -np=2 --pmi=none echo x",
        "launch -n 2 --ntasks-per-node 2 --pmi=none echo x",
        "launch --ntasks-per-node=2 --pmi=none echo x",
        "launch --pmi=none -np 1 echo x : -np 1 echo x",
    ] {
        assert_eq!(typed(&words(line)), (Some(0), "x\nx\n".to_owned(), String::new()), "{line}");
    }
    assert_eq!(typed(&words("launch -l --pmi=none echo x")).1, "[0] x\n");
}

/// Lines of srun, mpiexec and mpirun that have the same meaning here, on this machine.
#[test]
fn lines_of_other_launchers_start_ranks() {
    for (line, expected) in [
        ("run -n 2 --pmi=none echo x", "x\nx\n"),
        ("mpiexec -np 2 echo x", "x\nx\n"),
        ("mpiexec -n 1 -hosts localhost echo x : -n 1 echo x", "x\nx\n"),
        ("mpirun --host localhost:2 echo x", "x\nx\n"),
        ("mpirun --allow-run-as-root --oversubscribe --tag-output -np 1 echo x", "[0] x\n"),
        ("srun -n 2 echo x", "x\nx\n"),
        ("srun -N1 -n1 -l -A account -t 10:00 --overlap --mem=0 echo x", "[0] x\n"),
        ("launch -N 1 -w localhost -n 2 -A account --pmi=none echo x", "x\nx\n"),
    ] {
        assert_eq!(typed(&words(line)), (Some(0), expected.to_owned(), String::new()), "{line}");
    }
    let seen = |line: &str| typed(&words(line)).1;
    assert_eq!(seen("mpiexec -genv A 1 -n 1 printenv A"), "1\n");
    assert_eq!(seen("mpiexec -wdir /usr -n 1 /bin/pwd"), "/usr\n");
    assert_eq!(seen("mpirun -x A=2 --mca btl self -np 1 printenv A OMPI_MCA_btl"), "2\nself\n");
    assert_eq!(seen("srun --export=NONE,A=1 -n1 true"), "");
    assert_eq!(seen("srun --export=A=1 -n1 printenv A"), "1\n");
    assert_eq!(seen("mpiexec -genv A {rank} -n 1 printenv A"), "{rank}\n");
    assert_eq!(seen("srun -n1 printenv SLURM_PROCID SLURM_NTASKS SLURM_NNODES"), "0\n1\n1\n");
    let (code, _, stderr) = typed(&words("srun -n 2 -v -p name true"));
    assert_eq!(code, Some(0));
    assert!(
        stderr.contains(
            "lattice: this means: lattice launch --kill-on-bad-exit=0 --stdin=all --slurm-env --ntasks=2 true"
        ),
        "{stderr}"
    );
    assert!(stderr.contains("lattice: note: -p is ignored: there are no accounts"), "{stderr}");
}

/// Regression: `--mem=100M` set no limit and `--exact` assigned no CPUs, and no message reported this.
#[test]
fn options_that_are_ignored_and_may_be_missed_are_reported_once_and_not_with_quiet() {
    for (line, ignored) in [
        ("srun -n1 --mem=100M --exact --overlap echo x", ["--mem", "--exact"]),
        ("launch -n1 --mem=100M --exclusive -s echo x", ["--exclusive", "--mem"]),
        (
            "mpirun --mca rmaps_base_pattern_x 1 --report-child-jobs-separately -np 1 echo x",
            ["--report-child", "rmaps"],
        ),
    ] {
        let (code, stdout, stderr) = typed(&words(line));
        assert_eq!((code, stdout.as_str()), (Some(0), "x\n"), "{line}: {stderr}");
        assert_eq!(stderr.matches("is ignored").count(), 2, "{line}: {stderr}");
        for flag in ignored {
            assert_eq!(stderr.matches(&format!("lattice: note: {flag}")).count(), 1, "{line}: {stderr}");
        }
    }
    assert_eq!(typed(&words("-q srun -n1 --mem=100M echo x")).2, "");
}

/// Regression: the options of the last program applied to all programs.
#[test]
fn programs_that_differ_in_an_option_of_the_launch_start_nothing() {
    for line in
        ["srun -n1 -o a.out echo a : -n1 -o b.out echo b", "mpiexec -n 1 -genv A 1 echo a : -n 1 -genv A 2 echo b"]
    {
        let (code, stdout, stderr) = typed(&words(line));
        assert_eq!((code, stdout.as_str()), (Some(125), ""), "{line}");
        assert!(stderr.contains("differs between the programs: program 1 has"), "{stderr}");
    }
    let (code, stdout, stderr) = typed(&words("mpirun -np 1 -x A=1 printenv A : -np 1 -x A=2 printenv A"));
    let mut lines: Vec<&str> = stdout.lines().collect();
    lines.sort_unstable();
    assert_eq!((code, lines), (Some(0), vec!["1", "2"]), "{stderr}");
}

/// When a task fails, srun does not end the other tasks. It exits with the highest exit code.
#[test]
fn srun_waits_for_all_tasks() {
    let script = "sleep 0.$((2 - SLURM_PROCID)); echo end; exit $((SLURM_PROCID * 3))";
    let (code, stdout, _) = typed(&["srun", "-n", "2", "sh", "-c", script]);
    assert_eq!((code, stdout.as_str()), (Some(3), "end\nend\n"));
}

/// A link with the name of another launcher acts as that launcher.
#[test]
fn a_link_named_mpiexec_or_srun_speaks_its_words() {
    let directory = tempfile::tempdir().unwrap();
    for (name, flags) in [("mpiexec", "-np 2 -wdir /"), ("mpirun", "--host localhost:2"), ("srun", "-n2 -D /")] {
        let link = directory.path().join(name);
        std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_lattice"), &link).unwrap();
        let output = Command::new(link).args(flags.split(' ')).args(["echo", "x"]).output().unwrap();
        assert_eq!(String::from_utf8(output.stdout).unwrap(), "x\nx\n", "{name}");
    }
}

/// Ranks with different programs, in one file.
#[test]
fn programs_of_a_file_run_as_their_ranks() {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    std::io::Write::write_all(&mut file, b"0 echo first %t\n1-2 echo other %t:%o\n").unwrap();
    let path = file.path().to_str().unwrap();
    for launcher in ["srun", "launch"] {
        let (code, stdout, stderr) = typed(&[launcher, "--multi-prog", path]);
        let mut lines: Vec<&str> = stdout.lines().collect();
        lines.sort_unstable();
        assert_eq!((code, lines), (Some(0), vec!["first 0", "other 1:0", "other 2:1"]), "{stderr}");
    }
}

#[test]
fn a_line_that_is_not_understood_runs_nothing_and_does_not_look_like_success() {
    for (line, tip) in [
        ("launch -hosts localhost -n 2 echo x", "tip: type --host HOST:N,..., or -w NODES"),
        ("launch -host elsewhere echo x", "elsewhere is not this machine"),
        ("launch -genv A 1 echo x", "tip: type --env NAME=VALUE"),
        ("launch --timeout 10:00 echo x", "not a duration"),
        ("launch --cpus-per-task=0 echo x", "invalid value '0' for '--cpus-per-task <N>'"),
        ("launch --cpus-per-task=60000 echo x", "let them share with --overcommit"),
        ("launch --bind-to core echo x", "tip: type --cpu-bind=none|threads|cores"),
        ("submit ./a.out", "tip: did you mean: lattice batch ./a.out"),
        ("./a.out", "tip: did you mean: lattice launch ./a.out"),
        ("-n 4 ./a.out", "tip: did you mean: lattice launch -n 4 ./a.out"),
        ("squeue", "tip: did you mean: lattice queue"),
        ("scancel x", "tip: did you mean: lattice cancel"),
        ("mpiexec --magic echo x", "mpiexec has no flag '--magic' here"),
        ("srun -N 2 echo x", "--nodes needs the nodes of an allocation"),
    ] {
        let (code, stdout, stderr) = typed(&words(line));
        assert_eq!((code, stdout.as_str()), (Some(125), ""), "{line}");
        assert!(stderr.contains(tip), "{line}: {stderr}");
        assert!(stderr.lines().all(|line| line.starts_with("lattice: ")), "{line}: {stderr}");
    }
}

#[test]
fn help_is_an_answer_however_it_is_asked_for() {
    for line in ["launch -help", "launch --help", "launch -h", "help launch", "--help"] {
        let (code, stdout, stderr) = typed(&words(line));
        assert_eq!((code, stderr.as_str()), (Some(0), ""), "{line}");
        assert!(stdout.contains("Usage:"), "{line}");
    }
    let (code, stdout, stderr) = typed(&[]);
    assert_eq!((code, stdout.as_str()), (Some(125), ""), "nobody asked for help");
    assert!(stderr.contains("Usage: lattice"));
}

#[test]
fn words_behind_the_program_are_its_own() {
    let line = "launch --pmi=none echo -np 4 -hosts a -help";
    assert_eq!(typed(&words(line)), (Some(0), "-np 4 -hosts a -help\n".to_owned(), String::new()));
}

#[test]
fn a_line_that_is_only_tried_starts_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let made = directory.path().join("made");
    let (code, stdout, _) = typed(&["srun", "--test-only", "-n", "1", "touch", made.to_str().unwrap()]);
    assert_eq!(code, Some(0));
    assert!(stdout.contains("touch") && !made.exists(), "{stdout}");
}
