//! A `lattice` that a test started.

use std::process::{Output, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::io::AsyncReadExt;
use tokio::process::{Child, Command};

use crate::fake::{Fake, soon};

/// Waits for the end of a command. Returns exit code, standard output and standard error.
pub(crate) async fn ended(child: Child) -> (Option<i32>, String, String) {
    let Output { status, stdout, stderr } = soon(child.wait_with_output()).await.unwrap();
    (status.code(), String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap())
}

/// Runs a command with these words to its end; see [`ended`].
pub(crate) async fn run(fake: &Fake, line: &str) -> (Option<i32>, String, String) {
    ended(fake.lattice(line).spawn().unwrap()).await
}

/// Returns the text of a line on a terminal, which `script` of util-linux creates.
pub(crate) async fn on_a_terminal(fake: &Fake, line: &str) -> String {
    let mut script = Command::new("script");
    script.args(["-qec", &format!("{} {line}", env!("CARGO_BIN_EXE_lattice")), "/dev/null"]).env("NO_COLOR", "1");
    for (name, value) in fake.lattice(line).as_std().get_envs() {
        match value {
            Some(value) => script.env(name, value),
            None => script.env_remove(name),
        };
    }
    let child = script.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    ended(child.expect("script is a part of util-linux")).await.1.replace("\r\n", "\n")
}

/// Sends a signal to a running command.
pub(crate) fn signal(child: &Child, signal: Signal) {
    kill(Pid::from_raw(child.id().expect("it runs").cast_signed()), signal).unwrap();
}

/// Repeats a signal after a delay, because two equal signals of a process in quick succession count as one.
pub(crate) async fn insist(child: &Child, again: Signal) {
    tokio::time::sleep(Duration::from_millis(300)).await;
    signal(child, again);
}

/// Reads the child's standard error until it contains `wanted`.
pub(crate) async fn says(child: &mut Child, wanted: &str) {
    let stderr = child.stderr.as_mut().expect("a pipe");
    let mut seen = Vec::new();
    while !String::from_utf8_lossy(&seen).contains(wanted) {
        let mut buffer = [0; 512];
        let len = soon(stderr.read(&mut buffer)).await.unwrap();
        assert!(len > 0, "it said {:?}, and not {wanted:?}", String::from_utf8_lossy(&seen));
        seen.extend_from_slice(&buffer[..len]);
    }
}
