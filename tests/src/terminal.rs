//! Terminals of commands: the controlling terminal of a command, like that of a window. The test reads its output and types on it.

use std::fs::{self, File};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Mutex;

use nix::pty::{OpenptyResult, Winsize, openpty};

/// A terminal.
#[derive(Debug)]
pub struct Terminal {
    driver: OwnedFd,
    /// The terminal itself, until its command receives it.
    terminal: Mutex<Option<OwnedFd>>,
    path: PathBuf,
}

impl Terminal {
    pub(crate) fn open(rows: u16, columns: u16) -> Self {
        let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        let OpenptyResult { master, slave } = openpty(&size, None).expect("/dev/ptmx and /dev/pts are there");
        let path = fs::read_link(format!("/proc/self/fd/{}", slave.as_raw_fd())).expect("/proc is mounted");
        Self { driver: master, terminal: Mutex::new(Some(slave)), path }
    }

    /// Words before a program that is the first process on the terminal.
    pub(crate) const FIRST_PROCESS: [&str; 2] = ["setsid", "--ctty"];

    pub(crate) fn give_to(&self, command: &mut Command) {
        let terminal = self.terminal.lock().unwrap().take().expect("a terminal is given to one command");
        let copy = || Stdio::from(terminal.try_clone().expect("there are descriptors left"));
        command.stdin(copy()).stdout(copy()).stderr(copy());
        // Tests wait for text without colours, unless they test the colours.
        if !command.get_envs().any(|(name, _)| name == "NO_COLOR") {
            command.env("NO_COLOR", "1");
        }
    }

    /// Returns the output of the command.
    pub(crate) fn screen(&self) -> File {
        self.driver.try_clone().expect("there are descriptors left").into()
    }

    /// Returns the input of the command.
    pub(crate) fn keyboard(&self) -> File {
        self.screen()
    }

    /// Changes the size, as a user does by resizing the window.
    pub fn resize(&self, rows: u16, columns: u16) {
        self.stty(&["rows", &rows.to_string(), "columns", &columns.to_string()]);
    }

    /// Returns true if a program reads whole lines, which the terminal echoes.
    pub fn edits_lines(&self) -> bool {
        let settings = self.stty(&["-a"]);
        settings.contains(" icanon ") && settings.contains(" echo ")
    }

    fn stty(&self, arguments: &[&str]) -> String {
        let output = Command::new("stty").arg("-F").arg(&self.path).args(arguments).output();
        let output = output.expect("stty is a part of coreutils");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }
}

/// A shell without start-up files, with the prompt `ready>`.
pub const INTERACTIVE: &str = "env PS1=ready> bash --norc --noprofile -i";

/// Tests a shell that `command` starts on a terminal: its terminal and the size, Ctrl-C, Ctrl-Z and jobs. The shell exits with 7.
///
/// # Panics
/// Panics if the behaviour differs from that on a local terminal.
#[track_caller]
pub fn try_a_shell(command: crate::Command) -> crate::Outcome {
    let mut running = command.on_terminal(40, 100).start();
    running.wait_for_stdout("ready>");
    // The typed text, which the shell echoes, contains none of the awaited texts.
    running.type_in("tty; stty size; echo fi'rst'\n");
    running.wait_for_stdout("/dev/pts/");
    running.wait_for_stdout("40 100");
    running.wait_for_stdout("first");
    running.terminal().resize(50, 120);
    running.type_in("until [ \"$(stty size)\" = '50 120' ]; do sleep 0.1; done; echo si'zed'\n");
    running.wait_for_stdout("sized");
    // The job prints this when it has the foreground. Before that Ctrl-C would not reach it.
    running.type_in("sh -c 'echo beg\"un\"; exec sleep 999'\n");
    running.wait_for_stdout("begun");
    running.type_in("\u{3}");
    running.type_in("echo sta'tus' $?\n");
    running.wait_for_stdout("status 130");
    running.type_in("sh -c 'trap \"echo conti\"nued CONT; echo wor\"king\"; while :; do :; done'\n");
    running.wait_for_stdout("working");
    running.type_in("\u{1a}");
    running.wait_for_stdout("Stopped");
    running.type_in("jobs | grep -c Stop'ped'; fg\n");
    // The job is continued when it has the foreground.
    running.wait_for_stdout("continued");
    running.type_in("\u{3}");
    running.type_in("echo fini'shed' $?; exit 7\n");
    running.wait_for_stdout("finished 130");
    running.finish()
}
