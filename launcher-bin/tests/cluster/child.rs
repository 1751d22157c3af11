//! A `lattice` that a test started.

use std::process::Output;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::io::AsyncReadExt;
use tokio::process::Child;

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
