//! Every flag is supported, refused, or ignored, with a note if users may miss its effect. No flag is lost because a later program has another
//! value.

use super::*;
use crate::flag::{Meaning, Takes};
use crate::idle::{Allocation, IDLE, Value};

/// Notes that are reported without `-v`.
#[track_caller]
fn reported(line: &str) -> Vec<String> {
    let words = shlex::split(line).unwrap().into_iter().map(OsString::from).collect::<Vec<_>>();
    let called = Called::of(&words).expect("a line of another launcher");
    called.translate().unwrap_or_else(|error| panic!("{line}: {error}")).warnings
}

/// A flag as typed, with a value that does not mean "nothing" for any flag.
fn typed(name: &str, takes: Takes) -> String {
    let dashed = if name.len() == 1 { format!("-{name}") } else { format!("--{name}") };
    match takes {
        Takes::Nothing => dashed,
        Takes::Optional => format!("{dashed}{}x", if name.len() == 1 { "" } else { "=" }),
        Takes::Value => format!("{dashed} x"),
        Takes::Pair => format!("{dashed} a_parameter x"),
    }
}

#[test]
fn every_flag_that_is_ignored_is_reported_as_its_row_has_it_and_every_refused_one_is_refused() {
    let mut seen = [0; 3];
    for front_end in [FrontEnd::Srun, FrontEnd::Mpiexec(Name::Mpiexec)] {
        for flag in front_end.flags() {
            for name in flag.names {
                let line = format!("{} {} ./a", front_end.name(), typed(name, flag.takes));
                match flag.meaning {
                    Meaning::Ignored(notice, reason) => {
                        let expected = usize::from(notice.is_due(Some("x".as_ref()), Allocation::Missing));
                        let notes = reported(&line);
                        assert_eq!(notes.len(), expected, "{line}: {notes:?}");
                        assert!(notes.iter().all(|note| note.ends_with(&format!("is ignored: {reason}"))), "{notes:?}");
                        seen[expected] += 1;
                    }
                    Meaning::Refused(instead) => {
                        refused(&line, instead);
                        seen[2] += 1;
                    }
                    _ => {}
                }
            }
        }
    }
    for flag in IDLE {
        let takes = match flag.value {
            Value::No => Takes::Nothing,
            Value::Optional => Takes::Optional,
            Value::Required => Takes::Value,
        };
        let expected = usize::from(flag.notice.is_due(Some("x".as_ref()), Allocation::Missing));
        let line = format!("srun {} ./a", typed(flag.long, takes));
        assert_eq!(reported(&line).len(), expected, "{line}");
    }
    assert!(seen.iter().all(|seen| *seen > 20), "{seen:?}");
}

/// With each of these flags, users expect a limit, CPUs, GPUs, a display or a file that Lattice does not provide.
#[test]
fn flags_whose_effect_is_missed_are_never_ignored_in_silence() {
    for flag in [
        "--exact",
        "--exclusive",
        "--mem=100M",
        "--mem-per-cpu 1G",
        "--gpus=2",
        "-G 2",
        "--gres=gpu:2",
        "-L matlab",
        "-C haswell",
        "-p gpu",
        "--cpus-per-gpu=4",
        "--cpu-freq=high",
        "--mail-type=END",
    ] {
        let notes = reported(&format!("srun {flag} {flag} ./a"));
        assert_eq!(notes.len(), 1, "{flag}: {notes:?}");
    }
    for flag in ["--mem=0", "--gres=none", "-A account", "--overlap", "-s", "--qos=x"] {
        assert!(reported(&format!("srun {flag} ./a")).is_empty(), "{flag}");
    }
    assert!(reported("srun --jobid=7 -p gpu -C haswell ./a").is_empty(), "its nodes are chosen already");
    assert_eq!(reported("mpirun --mca rmaps_base_mapping x --mca plm rsh -np 1 ./a").len(), 1);
    for (line, expected) in [
        ("mpirun --max-restarts 3 ./a", "a rank that fails is not started again"),
        ("mpirun --spawn-timeout 10 ./a", "type --timeout SECONDS"),
        ("mpirun --runtime-options max-restarts=2 ./a", "a rank that fails is not started again"),
        ("srun --begin=now+1hour ./a", "type it to `at`"),
        ("srun -d afterok:7 ./a", "start it by the command before it"),
        ("srun --tres-bind=gres/nic:closest ./a", "gres/gpu:HOW is"),
        ("srun --jobid=7 --x11 ./a", "no connection is forwarded from the nodes"),
    ] {
        refused(line, expected);
    }
    for line in ["mpirun --max-restarts 0 --spawn-timeout 0 -np 1 ./a", "srun --x11 ./a"] {
        assert!(reported(line).is_empty(), "{line}");
    }
}

#[test]
fn numbers_of_tasks_and_cpus_of_each_gpu_are_honoured() {
    for (flags, ours) in [
        ("-n 4 --ntasks-per-gpu=2", "--gpu-bind=single:2 --tasks-per=2:gpu {} --ntasks=4"),
        ("--gpus=a100:2 --ntasks-per-gpu=2", "--gpu-bind=single:2 --tasks-per=2:gpu {} --ntasks=4"),
        ("--ntasks-per-gpu=2", "--gpu-bind=single:2 --tasks-per=2:gpu {}"),
        ("--ntasks-per-gpu=2 --gpu-bind=closest", "--gpu-bind=closest --tasks-per=2:gpu {}"),
    ] {
        let usual = "--kill-on-bad-exit=0 --stdin=all --slurm-env";
        means(&format!("srun {flags} ./a"), &format!("{} ./a", ours.replace("{}", usual)));
    }
    for (flags, cpus) in [
        ("--gpus-per-task=2 --cpus-per-gpu=4", 8),
        ("--ntasks-per-gpu=2 --cpus-per-gpu=8", 4),
        ("--tres-per-task=cpu:3,gres/gpu=1", 3),
    ] {
        let (words, _) = read(&format!("srun {flags} ./a")).unwrap();
        assert!(words.contains(&format!("--cpus-per-task={cpus} ")), "{flags}: {words}");
    }
    refused("srun --ntasks-per-gpu=0 ./a", "a number from 1 on");
}

/// Regression test: `srun -c2 ./a : -c1 ./b` bound both programs with one CPU, and `-o a.out` and `-o b.out` both wrote to b.out.
#[test]
fn programs_that_differ_in_a_flag_of_the_launch_are_refused() {
    for (line, expected) in [
        ("srun -c2 ./a : -c1 ./b", "-c differs between the programs: program 1 has 2, and program 2 has 1;"),
        ("srun -c2 ./a : ./b", "-c differs between the programs: program 1 has 2, and program 2 does not have it;"),
        ("srun ./a : --cpu-bind=none ./b", "--cpu-bind differs between the programs: program 1 does not have it"),
        ("srun -o a ./a : -o b ./b", "-o differs"),
        ("srun ./a : -o b ./b", "-o differs"),
        ("srun -e a ./a : -e b ./b", "-e differs"),
        ("srun -i none ./a : -i all ./b", "-i differs"),
        ("srun -t 5 ./a : -t 6 ./b", "-t differs"),
        (
            "srun -l ./a : ./b : -c 2 ./c",
            "-c differs between the programs: program 1 does not have it, and program 3 has 2;",
        ),
        ("srun --gpus-per-task=1 ./a : --gpus-per-task=2 ./b", "--gpus-per-task differs"),
        ("srun --mem-bind=local ./a : ./b", "--mem-bind differs"),
        ("srun --hint=nomultithread ./a : ./b", "--hint differs"),
        ("srun -m cyclic ./a : -m block ./b", "-m differs"),
        ("srun --container=x ./a : --container=y ./b", "--container-image differs"),
        (
            "srun ./a : --pty ./b",
            "--pty differs between the programs: program 1 does not have it, and program 2 has it;",
        ),
        ("mpiexec -n 1 -bind-to core ./a : -n 1 -bind-to none ./b", "--bind-to differs"),
        ("mpiexec -genv A 1 ./a : -genv A 2 ./b", "--genv differs"),
        ("mpirun --mca btl self ./a : --mca btl tcp ./b", "--mca differs"),
        ("mpirun --mca btl self -N 1 ./a : --mca pml ob1 -N 2 ./b", "-N differs"),
        ("mpiexec -outfile-pattern a ./a : -outfile-pattern b ./b", "--outfile-pattern differs"),
    ] {
        refused(line, expected);
    }
    for line in [
        "srun -c2 -o x ./a : -c2 ./b",
        "srun -t 5 -l -J x ./a : ./b",
        "srun -o x ./a : -o x ./b",
        "srun -v --mem=1G ./a : -Q --mem=2G ./b",
        "srun -N1 -n1 -D /tmp ./a : -N2 -n2 -w n1,n2 -D /usr ./b",
        "mpiexec -l -n 1 ./a : -n 1 ./b",
        "mpiexec -n 1 ./a : -l -n 1 ./b",
        "mpirun --mca btl self ./a : --mca pml ob1 ./b",
        "mpiexec -n 1 -host a -wdir /tmp -env A 1 ./a : -n 2 -host b -wdir /usr -env A 2 ./b",
    ] {
        read(line).unwrap_or_else(|error| panic!("{line}: {error}"));
    }
}

/// Measured with Open MPI 4.1.8 and 5.0.11: a value after a `:` applies to the program there only.
#[test]
fn a_variable_of_one_program_is_not_that_of_another() {
    let (words, _) = read("mpirun -n 1 -x A=1 ./a : -n 1 -x A=2 ./b : -n 1 ./c").unwrap();
    let programs: Vec<&str> = words.split(" : ").collect();
    assert!(programs[0].ends_with("--env=A=1 --ntasks=1 ./a"), "{words}");
    assert_eq!(programs[1..], ["--env=A=1 --ntasks=1 --env=A=2 ./b", "--env=A=1 --ntasks=1 ./c"]);
}
