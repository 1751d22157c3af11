//! `--pty`: a separate terminal for rank 0, on one machine.

use lattice_tests::terminal::{INTERACTIVE, try_a_shell};
use lattice_tests::{Command, built, lattice, launch};
use nix::sys::signal::Signal;

#[test]
fn a_shell_on_rank_0_is_one_at_a_terminal() {
    try_a_shell(launch("--pty").words(INTERACTIVE)).exits(7);
}

#[test]
fn srun_gives_a_shell_a_terminal_as_well() {
    try_a_shell(lattice("srun --pty -n 1").words(INTERACTIVE)).exits(7);
}

#[test]
fn our_terminal_is_as_before_after_every_end() {
    let check = |ends: &str, code: i32| {
        let line = format!("{ends}; code=$?; stty -a | grep -oE -- '-?(icanon|echo|opost)\\b'; exit $code");
        let outcome = Command::new("bash")
            .words("-c")
            .arg(line)
            .env("LATTICE", built::lattice())
            .on_terminal(24, 80)
            .start()
            .finish();
        outcome.exits(code);
        outcome.check(!outcome.text().contains("-icanon"), || format!("the terminal is raw after {ends}"));
        outcome.prints("icanon").prints("opost");
    };
    check("$LATTICE launch --pty true", 0);
    check("$LATTICE launch --pty sh -c 'exit 3'", 3);
    check("$LATTICE launch --pty ./there-is-no-such-program", 127);
    check("$LATTICE launch --pty sh -c 'stty raw -echo; kill -KILL $$'", 137);
    check("timeout --foreground -s TERM 1 $LATTICE launch --pty sleep 1000", 124);
    check("timeout --foreground -s INT 1 $LATTICE launch --pty sleep 1000", 124);
    check("timeout --foreground -s HUP 1 $LATTICE launch --pty sleep 1000", 124);
}

#[test]
fn our_terminal_is_the_shells_while_we_are_stopped_and_raw_again_after() {
    let mut running = launch("--pty").words(INTERACTIVE).on_terminal(24, 80).start();
    running.wait_for_stdout("ready");
    let (terminal, stat) = (running.terminal(), format!("/proc/{}/stat", running.pid()));
    assert!(!terminal.edits_lines());
    running.signal(Signal::SIGTSTP);
    running.wait_until("it is stopped", || std::fs::read_to_string(&stat).unwrap().contains(") T "));
    assert!(terminal.edits_lines());
    terminal.resize(31, 99);
    running.signal(Signal::SIGCONT);
    running.wait_until("the terminal is raw", || !terminal.edits_lines());
    running.type_in("until [ \"$(stty size)\" = '31 99' ]; do sleep 0.1; done; echo si'zed'; exit 5\n");
    running.wait_for_stdout("sized");
    running.finish().exits(5);
}

#[test]
fn the_other_ranks_read_nothing_and_their_lines_begin_at_the_left() {
    let script = r#"if [ $LATTICE_RANK = 0 ]; then [ -t 0 ] && [ -t 1 ] && [ -t 2 ] && read -r line && echo "read $line"
        else cat; echo other; [ -t 1 ] || echo no terminal; fi"#;
    let mut running = launch("-n 2 --pmi none --label --pty").bash(script).on_terminal(24, 80).start();
    running.wait_for_stdout("[1] other\r\n[1] no terminal\r\n");
    running.type_in("a line\r");
    running.finish().exits(0).prints("read a line\r\n");
}

#[test]
fn without_a_terminal_here_rank_0_is_fed_from_standard_input() {
    let script = "tty; stty size; cat; echo behind; cat; exit 3";
    let outcome = launch("--pty").bash(script).input("typed\nhalf a line").run();
    outcome.exits(3).prints("/dev/pts/").prints("24 80\r\n").prints("half a linebehind\r\n");
    // The terminal echoes the text, and `cat` repeats it.
    for typed in ["typed\r\n", "half a line"] {
        outcome.check(outcome.text().matches(typed).count() == 2, || format!("{typed:?} should be there twice"));
    }
}

#[test]
fn a_shell_without_any_input_ends() {
    launch("--pty").words("bash --norc -i").run().exits(0).prints("exit");
    launch("--pty").words("bash --norc -i").input("exit 9\n").run().exits(9);
}

#[test]
fn nothing_of_a_flood_is_lost() {
    let outcome = launch("--pty").words("seq 200000").run();
    let lines = outcome.exits(0).text().lines().map(str::to_owned);
    assert!(lines.eq((1..=200_000).map(|number| number.to_string())));
}

/// A terminal that a background process holds has no end of file.
#[test]
fn what_is_left_behind_on_the_terminal_does_not_hold_up_the_end() {
    let script = "trap '' HUP; sleep 1000 & setsid sleep 1000 & exit 4";
    launch("--pty").bash(script).run().exits(4);
}

#[test]
fn what_a_terminal_makes_no_sense_with_is_refused() {
    for flags in ["--stdin all", "--output f", "--error f", "--json"] {
        launch(flags).words("--pty true").run().exits(125).says("--pty");
    }
}
