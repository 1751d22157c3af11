//! Lines that people type who come from `srun` or `mpiexec`: what works, and what is answered with the words to type here.

use std::process::{Command, Output};

/// Exit code, standard output and standard error of `lattice` with these words, without a cluster.
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

#[test]
fn a_line_that_is_not_understood_runs_nothing_and_does_not_look_like_success() {
    for (line, tip) in [
        ("launch -hosts localhost -n 2 echo x", "tip: nodes are those of an allocation: -w NODES"),
        ("launch -host localhost echo x", "tip: nodes are those of an allocation: -w NODES"),
        ("launch -machinefile hosts echo x", "tip: type --hostfile FILE"),
        ("launch -genv A 1 echo x", "tip: type --env NAME=VALUE"),
        ("launch -wdir /tmp echo x", "tip: type --chdir DIR"),
        ("launch -t 10:00 echo x", "tip: type --timeout TIME"),
        ("launch -J name echo x", "tip: leave it out"),
        ("launch --multi-prog file", "tip: separate programs by a lone `:`"),
        ("launch --pty bash", "tip: leave it out: ranks have no terminal here"),
        ("launch --cpus-per-task=2 echo x", "tip: type --cpu-bind=map:LIST"),
        ("run -n 2 ./a.out", "tip: did you mean: lattice launch -n 2 ./a.out"),
        ("mpiexec -np 2 ./a.out", "tip: did you mean: lattice launch -np 2 ./a.out"),
        ("submit ./a.out", "tip: did you mean: lattice launch --detach ./a.out"),
        ("./a.out", "tip: did you mean: lattice launch ./a.out"),
        ("-n 4 ./a.out", "tip: did you mean: lattice launch -n 4 ./a.out"),
        ("ps", "tip: did you mean: lattice launches"),
        ("kill x", "tip: did you mean: lattice abort"),
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
