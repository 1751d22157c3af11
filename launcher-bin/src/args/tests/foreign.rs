//! Lines that users of srun, mpiexec and mpirun type, and have in scripts.

use super::*;

/// Error message of a refused line, up to the usage.
fn message(line: &str) -> String {
    let error = parse(line.split(' ').map(OsString::from)).unwrap_err();
    assert!(error.use_stderr(), "{line} must not look like success");
    let text = error.to_string();
    text.split("\n\nUsage:").next().unwrap_or_default().to_owned()
}

#[test]
fn lines_of_other_launchers_that_mean_the_same_here_are_read() {
    for (line, ranks, nodes, per_node) in [
        ("-np 4 ./a", Some(4), None, None),
        ("-n 4 ./a", Some(4), None, None),
        ("-n4 ./a", Some(4), None, None),
        ("--ntasks=4 --nodes=2 ./a", Some(4), Some(2), None),
        ("-N2 -n8 --ntasks-per-node=4 ./a", Some(8), Some(2), Some(4)),
        ("-N 2 --ntasks-per-node 4 -l ./a", None, Some(2), Some(4)),
    ] {
        let args = launch(line);
        let seen = (args.first.ranks, args.placement.nodes.map(|nodes| nodes.most), args.placement.tasks_per_node);
        assert_eq!(seen, (ranks, nodes, per_node), "{line}");
        assert_eq!(args.first.command, ["./a"], "{line}");
    }
}

#[test]
fn programs_of_an_mpmd_line_have_their_own_ranks() {
    let check = |line: &str, expected: &[(&str, Option<u32>)]| {
        let args = launch(line);
        let programs = std::iter::once(&args.first).chain(args.more.iter().map(|next| &next.program));
        let seen: Vec<_> = programs.map(|program| (program.command[0].to_str().unwrap(), program.ranks)).collect();
        assert_eq!(seen, expected, "{line}");
    };
    check("-n 1 ./a : -n 3 ./b", &[("./a", Some(1)), ("./b", Some(3))]);
    check("-np 1 ./a x y : -np 2 ./b : -np=3 ./c", &[("./a", Some(1)), ("./b", Some(2)), ("./c", Some(3))]);
    check("-n 1 ./a : ./b", &[("./a", Some(1)), ("./b", None)]);
    check("./a :x : ./b x:", &[("./a", None), ("./b", None)]);
}

#[test]
fn an_mpmd_line_with_a_hole_is_refused() {
    for line in
        ["lattice launch ./a : : ./b", "lattice launch ./a :", "lattice launch : ./a", "lattice launch ./a : -n 2"]
    {
        assert!(message(line).contains("required arguments were not provided"), "{line}: {}", message(line));
    }
}

#[test]
fn a_word_of_another_launcher_is_answered_with_one_tip_and_nothing_else() {
    for (line, expected) in [
        ("lattice launch -ppn 2 ./a", "error: unexpected argument '-ppn' found\n\n  tip: type --tasks-per-node K"),
        ("lattice launch -f h ./a", "error: unexpected argument '-f' found\n\n  tip: type --hostfile FILE"),
        (
            "lattice launch -genvall ./a",
            "error: unexpected argument '-genvall' found\n\n  tip: leave it out: all variables are passed on; --export=LIST for some of them",
        ),
        (
            "lattice launch -bind-to core ./a",
            "error: unexpected argument '-bind-to' found\n\n  tip: type --cpu-bind=none|threads|cores|l3caches|numa|sockets|gpus|nics, and -c N for the CPUs of each rank",
        ),
        (
            "lattice launch --lable ./a",
            "error: unexpected argument '--lable' found\n\n  tip: a similar argument exists: '--label'",
        ),
        ("lattice launch --zzz ./a", "error: unexpected argument '--zzz' found"),
        (
            "lattice prun -n 2 ./a",
            "error: unrecognized subcommand 'prun'\n\n  tip: did you mean: lattice launch -n 2 ./a",
        ),
        (
            "lattice sbatch job.sh",
            "error: unrecognized subcommand 'sbatch'\n\n  tip: did you mean: lattice batch job.sh",
        ),
        ("lattice squeue", "error: unrecognized subcommand 'squeue'\n\n  tip: did you mean: lattice queue"),
        ("lattice sinfo", "error: unrecognized subcommand 'sinfo'\n\n  tip: did you mean: lattice nodes"),
        ("lattice scancel 7", "error: unrecognized subcommand 'scancel'\n\n  tip: did you mean: lattice cancel 7"),
        (
            "lattice salloc -N 2",
            "error: unrecognized subcommand 'salloc'\n\n  tip: did you mean: lattice alloc create -N 2",
        ),
        ("lattice sattach 7", "error: unrecognized subcommand 'sattach'\n\n  tip: did you mean: lattice attach 7"),
    ] {
        assert_eq!(message(line), expected, "{line}");
    }
}

#[test]
fn a_word_of_another_launcher_is_found_behind_flags_of_ours_and_in_later_programs() {
    for line in [
        "lattice launch -n 2 --label -ppn 2 ./a",
        "lattice launch --env A=1 -w n0 -ppn 2 ./a",
        "lattice launch ./a : -n 1 -ppn 2 ./b",
    ] {
        assert!(message(line).contains("'-ppn' found\n\n  tip: type --tasks-per-node K"), "{line}: {}", message(line));
    }
}

#[test]
fn a_value_that_looks_like_a_word_of_another_launcher_is_a_value() {
    let args = launch("--env X=-hosts --output=-np --chdir=-wdir ./a");
    assert_eq!(args.first.env[0].value, Some("-hosts".into()));
    assert_eq!(args.first.chdir, Some("-wdir".into()));
    assert_eq!(args.streams.output.map(|template| template.to_text()), Some("-np".into()));
}
