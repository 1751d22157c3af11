//! Debuggers find the ranks: debuggers that run the launcher, through MPIR, and debuggers that attach later, through `lattice debug`. The
//! tests require gdb, which `cargo xtask setup` installs.

use std::path::Path;

use lattice_tests::mpi::{MPICHS, OPEN_MPIS};
use lattice_tests::{Command, Outcome, built};

/// Commands of gdb for a launcher without types. They print the table in the layout of the interface, and whether its processes are
/// stopped.
const LOOK: &str = r#"printf "size %d state %d\n", *(int *) &MPIR_proctable_size, *(int *) &MPIR_debug_state
set $entry = *(long **) &MPIR_proctable
printf "first %s\n", *(char **) ($entry + 1)
eval "shell grep ^State /proc/%d/status", *(int *) ($entry + 2)
printf "second %s\n", *(char **) ($entry + 4)
eval "shell grep ^State /proc/%d/status", *(int *) ($entry + 5)
continue"#;

/// Returns gdb with C expressions. By default it selects the language of the program, if the program has line tables.
fn gdb() -> Command {
    Command::new("gdb").words("-q -nx -batch -ex").arg("set language c")
}

/// Runs `begin` and [`LOOK`] in gdb, with a launch of two ranks.
fn under_gdb(begin: &str, flags: &str, program: &Path) -> Outcome {
    let mut gdb = gdb();
    for command in begin.lines().chain(LOOK.lines()) {
        gdb = gdb.arg("-ex").arg(command);
    }
    gdb.arg("--args").arg(built::lattice()).words("launch -n 2").words(flags).arg(program).run()
}

#[track_caller]
fn shows_stopped_ranks(outcome: &Outcome, program: &Path) {
    let stopped = outcome.text().matches("State:\tT (stopped)").count();
    outcome.check(stopped == 2, || format!("should show two stopped ranks, not {stopped}"));
    let program = program.display();
    outcome.prints("size 2 state 1\n").prints(&format!("first {program}\n")).prints(&format!("second {program}\n"));
    outcome.prints("rank 0 of 2").prints("rank 1 of 2").prints("exited normally");
}

#[test]
fn a_debugger_that_runs_the_launcher_finds_the_ranks_before_their_first_instruction() {
    for flavour in [MPICHS[1], OPEN_MPIS[1]] {
        let program = flavour.program("hello");
        shows_stopped_ranks(&under_gdb("break MPIR_Breakpoint\nrun", "--stop-at-start", &program), &program);
    }
}

/// Debuggers with support for the interface write a variable of the launcher before its first instruction.
#[test]
fn a_debugger_that_knows_the_interface_needs_no_flag() {
    let program = MPICHS[1].program("hello");
    let begin = "starti\nset *(int *) &MPIR_being_debugged = 1\nbreak MPIR_Breakpoint\ncontinue";
    shows_stopped_ranks(&under_gdb(begin, "", &program), &program);
}

/// The launcher stops once more, before it ends the other ranks.
#[test]
fn a_debugger_is_told_why_a_launch_is_ended() {
    let look = r#"printf "state %d: %s\n", *(int *) &MPIR_debug_state, *(char **) &MPIR_debug_abort_string"#;
    let mut gdb = gdb();
    for command in ["break MPIR_Breakpoint", "run", "continue", look, "continue"] {
        gdb = gdb.arg("-ex").arg(command);
    }
    let script = "[ $LATTICE_RANK = 0 ] || exec sleep 1000; sleep 0.2; exit 7";
    let outcome = gdb.arg("--args").arg(built::lattice()).words("launch -n 2 --pmi none").bash(script).run();
    outcome.prints("\nstate 2: rank 0 ").prints("exited with code 07");
}

/// Symbols that strip keeps: debuggers use the installed program.
#[test]
fn what_debuggers_look_up_are_dynamic_symbols() {
    let outcome = Command::new("nm").words("-D --defined-only").arg(built::lattice()).run();
    for symbol in [
        "Breakpoint",
        "being_debugged",
        "debug_state",
        "debug_abort_string",
        "i_am_starter",
        "partial_attach_ok",
        "acquired_pre_main",
        "proctable",
        "proctable_size",
    ] {
        outcome.prints(&format!(" MPIR_{symbol}\n"));
    }
}

/// The ranks have not executed any instruction, and a signal continues all of them.
#[test]
fn stopped_ranks_are_debugged_by_their_launch_and_let_go_by_a_signal() {
    let script = r#"lattice launch -n 2 --stop-at-start "$1" >out 2>said & launch=$!
        until grep -q 'all ranks are stopped' said; do sleep 0.05; done
        id=$(grep -o 'lattice debug [a-z0-9]*' said | cut -d' ' -f3)
        until lattice status $id >/dev/null 2>&1; do sleep 0.05; done
        lattice debug $id --ranks 0-1 -- -batch -nx -ex 'info inferiors' -ex 'x/i $pc'; echo code $?
        lattice debug $id --ranks 7; lattice debug nosuchid
        cat out; lattice signal $id CONT; wait $launch && cat out"#;
    let directory = tempfile::tempdir().unwrap();
    let program = MPICHS[1].program("hello");
    let path = format!("{}:{}", built::lattice().parent().unwrap().display(), std::env::var("PATH").unwrap());
    let command = Command::new("bash").arg("-c").arg(script).arg("bash").arg(&program);
    let outcome = command.directory(directory.path()).env("PATH", &path).run();
    outcome.exits(0).prints("* 1 ").prints("  2 ").prints("_start").prints("code 0\nrank ");
    outcome.says("has no rank 7; it has ranks 0 to 1");
}
