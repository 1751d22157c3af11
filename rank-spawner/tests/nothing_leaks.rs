//! Five hundred consecutive starts leave no descriptor, thread or zombie. The test is alone in its file because it counts
//! the descriptors, threads and children of the whole process.

mod world;

use std::fs;

use nix::errno::Errno;
use nix::sys::signal::{SigHandler, Signal, signal};
use nix::sys::wait::waitpid;
use rank_spawner::{RankExit, Spawner, Stdio};
use world::{descriptors, shell, wait};

fn threads() -> usize {
    fs::read_dir("/proc/self/task").unwrap().count()
}

#[test]
fn five_hundred_starts_leave_nothing() {
    #[expect(unsafe_code, reason = "a test of an inherited disposition")]
    // SAFETY: ignoring a signal installs no handler.
    unsafe {
        // As inherited from some parents: the kernel would discard the exit status of ranks.
        signal(Signal::SIGCHLD, SigHandler::SigIgn).unwrap();
    }
    let before = (descriptors(), threads());
    let spawner = Spawner::new().unwrap();
    for round in 0..500 {
        let mut command = shell(round, "exit 0");
        (command.stdin, command.stderr) = (Stdio::Pipe, Stdio::Pipe);
        if round % 5 == 4 {
            command.directory = Some("/no/such".into());
            assert!(spawner.start(command).is_err());
        } else {
            assert_eq!(wait(&spawner.start(command).unwrap()), RankExit::Code(0));
        }
    }
    drop(spawner);
    assert_eq!((descriptors(), threads()), before);
    assert_eq!(waitpid(None, None), Err(Errno::ECHILD));
}
