//! Shared parts of tests with real processes: commands from shell scripts, and waits with a deadline.

#![allow(dead_code, reason = "each test file uses its part")]

use std::fs;
use std::io::Read;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::unistd::Pid;
use pmi_core::ids::Rank;
use rank_spawner::{
    Arguments, DescriptorSocket, Environment, ForkEvent, ForkServer, ForkedProcess, Gate, Label, LaunchTag, Passed,
    Program, RankCommand, RankExit, RankProcess, Stdio,
};

/// Long enough for the slowest machine; only a failing test reaches it.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Tests of a program with its own `main`. They are listed and selected as in the usual harness, so that test runners support the
/// program.
pub(crate) struct Tests {
    lists: bool,
    /// Tests selected by name; all tests if empty.
    chosen: Vec<String>,
}

impl Tests {
    pub(crate) fn from_args() -> Self {
        let (flags, chosen): (Vec<String>, _) = std::env::args().skip(1).partition(|word| word.starts_with("--"));
        let has = |flag| flags.iter().any(|word| word == flag);
        if has("--list") && has("--ignored") {
            // No test is ignored.
            std::process::exit(0);
        }
        Self { lists: has("--list"), chosen }
    }

    /// True if the names of the tests are requested, and no test must run.
    pub(crate) fn lists(&self) -> bool {
        self.lists
    }

    pub(crate) fn check(&self, name: &str, test: impl FnOnce()) {
        if self.lists {
            println!("{name}: test");
        } else if self.chosen.is_empty() || self.chosen.iter().any(|chosen| chosen == name) {
            let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(test));
            println!("test {name} ... {}", if outcome.is_ok() { "ok" } else { "FAILED" });
            outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        }
    }
}

/// A rank that runs `script` in a shell, with stdout as a pipe.
pub(crate) fn shell(rank: u32, script: &str) -> RankCommand {
    shell_with(rank, script, &[])
}

/// A rank that runs `script` in a shell with these variables, with stdout as a pipe. The shell is bash: other shells cannot redirect to
/// two-digit descriptors such as the PMI socket.
pub(crate) fn shell_with(rank: u32, script: &str, variables: &[(&str, &str)]) -> RankCommand {
    let base = Environment::new([("PATH", std::env::var_os("PATH").unwrap())]).unwrap();
    let program = Program::resolve("bash".as_ref(), None, Path::new("/")).unwrap();
    let arguments = Arguments::new(["bash", "-c", script]).unwrap();
    let environment = base.for_rank(variables.iter().copied()).unwrap();
    RankCommand { stdout: Stdio::Pipe, ..RankCommand::new(Rank(rank), program, arguments, environment) }
}

/// The same for a rank of a launch with a tag.
pub(crate) fn tagged(rank: u32, tag: &LaunchTag, script: &str) -> RankCommand {
    shell_with(rank, script, &[(LaunchTag::VARIABLE, tag.value())])
}

/// Waits for the end of a rank.
pub(crate) fn wait(process: &RankProcess) -> RankExit {
    let mut polled = [PollFd::new(process.as_fd(), PollFlags::POLLIN)];
    let timeout = PollTimeout::try_from(PATIENCE).unwrap();
    assert_eq!(poll(&mut polled, timeout), Ok(1), "rank {} does not end", process.rank);
    process.try_wait().unwrap().expect("a readable pidfd means that the process has ended")
}

/// All output of a rank on its stdout.
pub(crate) fn output(process: &mut RankProcess) -> Vec<u8> {
    read_to_end(process.stdout.take().unwrap())
}

/// All bytes that can be read from `fd`.
pub(crate) fn read_to_end(fd: OwnedFd) -> Vec<u8> {
    make_blocking(&fd);
    let mut bytes = Vec::new();
    fs::File::from(fd).read_to_end(&mut bytes).unwrap();
    bytes
}

/// One line from the stdout of a rank, which may write more later.
pub(crate) fn line(process: &RankProcess) -> String {
    let fd = process.stdout.as_ref().unwrap();
    make_blocking(fd);
    let mut line = Vec::new();
    let mut byte = [0];
    while nix::unistd::read(fd, &mut byte).unwrap() == 1 && byte != *b"\n" {
        line.push(byte[0]);
    }
    String::from_utf8(line).unwrap()
}

fn make_blocking(fd: &OwnedFd) {
    fcntl(fd, FcntlArg::F_SETFL(OFlag::empty())).unwrap();
}

/// Process numbers in a text.
pub(crate) fn pids(text: &str) -> Vec<Pid> {
    text.split_whitespace().map(|number| Pid::from_raw(number.parse().unwrap())).collect()
}

/// True if the process runs; false for a zombie.
pub(crate) fn runs(pid: Pid) -> bool {
    match fs::read_to_string(format!("/proc/{pid}/stat")) {
        Ok(stat) => !stat[stat.rfind(')').unwrap()..].starts_with(") Z"),
        Err(_) => false,
    }
}

/// Polls until `condition` is true.
pub(crate) fn eventually(what: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "never: {what}");
        std::thread::yield_now();
    }
}

/// Numbers of all descriptors of this process.
pub(crate) fn descriptors() -> Vec<i32> {
    let directory = nix::dir::Dir::open("/proc/self/fd", OFlag::O_DIRECTORY, nix::sys::stat::Mode::empty()).unwrap();
    let own = directory.as_raw_fd();
    let mut directory = directory;
    let numbers = directory.iter().filter_map(|entry| entry.unwrap().file_name().to_str().unwrap().parse().ok());
    numbers.filter(|&number| number != own).collect()
}

/// Next message of a fork server; it must arrive.
pub(crate) fn next(server: &ForkServer) -> ForkEvent {
    loop {
        if let Some(news) = server.next_event().unwrap() {
            return news;
        }
        let mut polled = [PollFd::new(server.as_fd(), PollFlags::POLLIN)];
        assert_eq!(poll(&mut polled, PollTimeout::try_from(PATIENCE).unwrap()), Ok(1), "no news");
    }
}

/// Gate that admits all orders except those that begin with `no`. It sends each child the same data as its answers to the daemon: the
/// number of earlier orders and messages.
#[derive(Default)]
pub(crate) struct Counting(u8);

impl Gate for Counting {
    fn admit(&mut self, order: Vec<u8>) -> Result<Vec<u8>, String> {
        if order.starts_with(b"no") {
            return Err("that is no order".to_owned());
        }
        Ok(self.hear(order))
    }

    fn hear(&mut self, _: Vec<u8>) -> Vec<u8> {
        self.0 = self.0.wrapping_add(1);
        vec![self.0]
    }
}

/// The gate's answer and the order that a child received; `None` if the child receives no order.
pub(crate) fn ordered(door: &DescriptorSocket) -> Option<(Vec<u8>, Vec<u8>)> {
    let Passed { bytes, descriptor } = door.receive_blocking().unwrap()?;
    Some((bytes, Label::from(descriptor).read().unwrap()))
}

/// Requests a child.
pub(crate) fn ask(server: &ForkServer) {
    server.request(&Label::new(b"work").unwrap()).unwrap();
}

/// Requests a child from a fork server, and returns it.
pub(crate) fn started(server: &ForkServer) -> ForkedProcess {
    ask(server);
    match next(server) {
        ForkEvent::Started(process) => process,
        other => panic!("{other:?}"),
    }
}
