//! Ranks started by a command of the standard library.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Command, Stdio};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::Signal;
use pmi_core::ids::Rank;
use rank_spawner::{RankExit, RankProcess, StartError, Step};

fn exit_of(process: &RankProcess) -> RankExit {
    poll(&mut [PollFd::new(process.as_fd(), PollFlags::POLLIN)], PollTimeout::from(10_000_u16))
        .expect("a pidfd can be waited for");
    process.try_wait().expect("nobody else reaps it").expect("it has ended")
}

/// All output of a nonblocking pipe. A process that another test is starting may still hold the other end.
fn all_of(pipe: OwnedFd) -> String {
    let (mut pipe, mut text) = (File::from(pipe), String::new());
    loop {
        poll(&mut [PollFd::new(pipe.as_fd(), PollFlags::POLLIN)], PollTimeout::NONE).expect("a pipe can be waited for");
        match pipe.read_to_string(&mut text) {
            Ok(_) => return text,
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
        }
    }
}

#[test]
fn a_rank_of_a_standard_command_is_read_and_reaped_as_any_other() {
    let mut command = Command::new("sh");
    command.args(["-c", "echo found; exit 3"]).stdin(Stdio::null()).stdout(Stdio::piped());
    let mut process = RankProcess::start(Rank(7), &mut command).unwrap();
    assert_eq!((process.rank, exit_of(&process)), (Rank(7), RankExit::Code(3)));
    assert_eq!(all_of(process.stdout.take().expect("a pipe was asked for")), "found\n");
    assert!(process.stdin.is_none() && process.stderr.is_none() && process.pmi.is_none());
}

#[test]
fn a_signal_reaches_the_group_of_a_standard_command() {
    let mut command = Command::new("sh");
    command.args(["-c", "sleep 1000; exit 4"]).stdin(Stdio::null());
    let process = RankProcess::start(Rank(0), &mut command).unwrap();
    process.signal_group(Signal::SIGKILL).unwrap();
    assert!(matches!(exit_of(&process), RankExit::Signal { .. }), "{:?}", process.try_wait());
    assert_eq!(process.signal_group(Signal::SIGKILL), Err(Errno::ESRCH), "it was reaped");
}

#[test]
fn a_program_that_does_not_exist_is_an_error_of_its_start() {
    let error = RankProcess::start(Rank(1), &mut Command::new("/nonexistent/program")).unwrap_err();
    assert!(matches!(error, StartError::Step { step: Step::Exec, errno: Errno::ENOENT, .. }), "{error:?}");
    assert!(error.to_string().contains("/nonexistent/program"), "{error}");
}
