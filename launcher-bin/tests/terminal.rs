//! `lattice launch` on a terminal that `script` of util-linux creates.

use std::io::Write;
use std::process::{Command, Stdio};

/// Runs `line` on a terminal with the input `typed`. Returns the text on the terminal, and the exit code.
fn on_a_terminal(line: &str, typed: &str) -> (String, Option<i32>) {
    let line = format!("{} {line}", env!("CARGO_BIN_EXE_lattice"));
    let mut script = Command::new("timeout");
    script.args(["-k", "1", "30", "script", "-qec", &line, "/dev/null"]);
    let mut child =
        script.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("script is a part of util-linux");
    child.stdin.take().expect("a pipe").write_all(typed.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    (String::from_utf8_lossy(&output.stdout).into_owned(), output.status.code())
}

/// An interactive shell requests the terminal's foreground process group. In the background of that terminal, it would be stopped.
#[test]
fn an_interactive_shell_runs_and_ends_instead_of_being_stopped() {
    let (seen, code) = on_a_terminal("launch -n 1 bash --norc -i", "echo sum: $((40 + 2))\nexit 7\n");
    assert!(seen.contains("sum: 42"), "{seen}");
    assert_eq!(code, Some(7), "{seen}");
}

/// NO_COLOR is of no-color.org.
#[test]
fn help_and_errors_have_colours_on_a_terminal_only() {
    let lattice = env!("CARGO_BIN_EXE_lattice");
    for line in ["--help", "launch -h", "launch --help=pmi", "launch --help", "launch --lable true"] {
        let seen = |environment: &str| {
            let line = format!("env {environment} {lattice} {line}");
            let mut script = Command::new("script");
            let output = script.args(["-qec", &line, "/dev/null"]).stdin(Stdio::null()).output().unwrap();
            String::from_utf8_lossy(&output.stdout).into_owned()
        };
        let coloured = seen("-u NO_COLOR TERM=xterm");
        assert!(coloured.contains("\x1b["), "{line}: {coloured}");
        for plain in [seen("NO_COLOR=1 TERM=xterm"), seen("-u NO_COLOR TERM=dumb")] {
            assert!(!plain.contains('\x1b') && plain.contains("lattice"), "{line}: {plain}");
        }
        let piped = Command::new(lattice).args(line.split(' ')).env_remove("NO_COLOR").output().unwrap();
        assert!(![piped.stdout, piped.stderr].concat().contains(&0x1b), "{line}");
    }
}

#[test]
fn a_rank_that_asks_for_the_terminal_is_told_that_there_is_none() {
    let (seen, code) = on_a_terminal("launch -n 1 -- sh -c 'read answer < /dev/tty; echo asked'", "");
    assert!(seen.contains("/dev/tty"), "{seen}");
    assert_ne!(code, Some(124), "it hangs: {seen}");
}
