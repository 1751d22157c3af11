//! A failed start reports the rank, the step, its object and the reason, and leaves nothing.

mod world;

use std::fs;
use std::num::NonZeroUsize;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::{Arc, mpsc};

use nix::errno::Errno;
use nix::sys::signal::Signal;
use pmi_core::ids::Rank;
use rank_spawner::{
    Arguments, Environment, Limit, LimitedResource, Program, RankCommand, RankExit, Spawner, StartError, Step,
};
use world::{shell, wait};

/// Error of rank 3, with a program that `spoil` changes after it was resolved.
fn spoiled(spoil: impl FnOnce(&Path)) -> (StartError, String) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("program");
    fs::copy("/bin/true", &path).unwrap();
    let program = Program::resolve(path.as_os_str(), None, Path::new("/")).unwrap();
    spoil(&path);
    let environment = Environment::new([("A", "b")]).unwrap().for_rank([("C", "d")]).unwrap();
    let command = RankCommand::new(Rank(3), program, Arguments::new(["program"]).unwrap(), environment);
    let error = Spawner::new().unwrap().start(command).unwrap_err();
    let text = error.to_string().replace(directory.path().to_str().unwrap(), "");
    (error, text)
}

#[test]
fn a_program_that_cannot_be_executed_is_named() {
    let (error, text) = spoiled(|path| fs::remove_file(path).unwrap());
    assert_eq!(text, "rank 3: cannot execute /program: No such file or directory");
    assert!(matches!(error, StartError::Step { rank: Rank(3), step: Step::Exec, errno: Errno::ENOENT, .. }));
    let (_, text) = spoiled(|path| fs::set_permissions(path, fs::Permissions::from_mode(0o644)).unwrap());
    assert_eq!(text, "rank 3: cannot execute /program: Permission denied");
    // A file of unknown format is not passed to a shell.
    let (_, text) = spoiled(|path| fs::write(path, "echo hello").unwrap());
    assert_eq!(text, "rank 3: cannot execute /program: Exec format error");
}

const IMPOSSIBLE: Limit = Limit { resource: LimitedResource::Nofile, soft: 2, hard: 1 };

#[test]
fn each_step_has_its_words() {
    let spawner = Spawner::new().unwrap();
    let check = |change: fn(&mut RankCommand), expected: &str| {
        let mut command = shell(3, "exit 0");
        change(&mut command);
        assert_eq!(spawner.start(command).unwrap_err().to_string(), expected);
    };
    let absent = "rank 3: cannot enter directory /no/such: No such file or directory";
    check(|command| command.directory = Some("/no/such".into()), absent);
    check(|command| command.directory = Some("/\0".into()), "rank 3: cannot enter directory /\0: Invalid argument");
    let cpus = "rank 3: cannot bind to CPUs: Invalid argument";
    check(|command| command.bound_to.cpus = Some("8000".parse().unwrap()), cpus);
    let limit = "rank 3: cannot set the limit nofile: Invalid argument";
    check(|command| command.limits = Arc::new([IMPOSSIBLE]), limit);
}

#[test]
fn arguments_beyond_the_kernels_limit_are_the_kernels_to_refuse() {
    let mut command = shell(3, "exit 0");
    command.arguments = Arguments::new(vec!["x".repeat(100_000); 200]).unwrap();
    let error = Spawner::new().unwrap().start(command).unwrap_err();
    assert!(matches!(error, StartError::Step { step: Step::Exec, errno: Errno::E2BIG, .. }), "{error}");
}

#[test]
fn after_a_failure_the_rest_is_given_up_and_everything_is_reported_once() {
    // With several threads, one may fail before another has begun an earlier rank.
    let spawner = Spawner::with_threads(NonZeroUsize::MIN).unwrap();
    let commands = (0..40).map(|rank| {
        let mut command = shell(rank, "exec sleep 1000");
        command.directory = (rank == 10).then(|| "/no/such".into());
        command
    });
    let (sender, receiver) = mpsc::channel();
    spawner.start_all(commands, move |result| sender.send(result).unwrap());
    let (mut started, mut failed, mut given_up) = (Vec::new(), Vec::new(), Vec::new());
    for result in receiver {
        match result {
            Ok(rank) => started.push(rank),
            Err(StartError::GivenUp { rank }) => given_up.push(rank),
            Err(error) => failed.push(error.to_string()),
        }
    }
    assert_eq!(failed, ["rank 10: cannot enter directory /no/such: No such file or directory"]);
    assert_eq!(started.iter().map(|rank| rank.rank.0).collect::<Vec<_>>(), (0..10).collect::<Vec<_>>());
    assert_eq!(given_up, (11..40).map(Rank).collect::<Vec<_>>());
    for rank in &started {
        rank.signal(Signal::SIGKILL).unwrap();
        assert_eq!(wait(rank), RankExit::Signal { signal: 9, core_dumped: false });
    }
    // The spawner continues to work.
    assert_eq!(wait(&spawner.start(shell(0, "exit 4")).unwrap()), RankExit::Code(4));
}
