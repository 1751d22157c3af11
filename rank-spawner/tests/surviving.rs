//! Fork servers that outlive their daemons: the next daemon receives kept children unchanged, and in the end nothing of them is left.
//!
//! The program has several roles. With the words `daemon DIRECTORY LEASE` it is a daemon that starts four children and waits until it is
//! killed. Without, it is the test, and the next daemon.

mod world;

use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, socket};
use nix::unistd::Pid;
use rank_spawner::{
    DescriptorSocket, ForkEvent, ForkServer, ForkedProcess, KeptProcess, KeptState, Label, OwnCgroup, Passed, RankExit,
    Survival, TakenUp,
};
use world::{Counting, Tests, ask, eventually, next, ordered, pids, runs, started};

/// Lease in seconds, longer than any test.
const LONG: &str = "1000";

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if let ["daemon", directory, lease] = words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        return daemon(Path::new(directory), lease.parse().unwrap());
    }
    let tests = Tests::from_args();
    tests.check("the_next_daemon_has_what_was_kept", the_next_daemon_has_what_was_kept);
    tests.check("what_is_forgotten_is_kept_for_nobody", what_is_forgotten_is_kept_for_nobody);
    tests.check("a_daemon_that_is_killed_in_turn_has_a_successor", a_daemon_that_is_killed_in_turn_has_a_successor);
    tests.check("nothing_is_left_when_the_lease_is_over", nothing_is_left_when_the_lease_is_over);
    tests.check("a_daemon_that_orders_the_end_leaves_nothing", a_daemon_that_orders_the_end_leaves_nothing);
    tests.check("a_server_that_was_taken_up_makes_no_children", a_server_that_was_taken_up_makes_no_children);
    tests.check("a_stranger_at_the_socket_changes_nothing", a_stranger_at_the_socket_changes_nothing);
    tests.check(
        "a_daemon_that_is_too_old_hears_which_version_it_needs",
        a_daemon_that_is_too_old_hears_which_version_it_needs,
    );
}

/// Answers with a line on each stream that arrives through its door, until the door closes; `exit` ends it with leftovers.
fn child(door: DescriptorSocket, _: Option<OwnCgroup>) {
    let _ = ordered(&door);
    while let Some(Passed { bytes, descriptor }) = door.receive_blocking().unwrap() {
        if bytes == b"exit" {
            Command::new("sh").args(["-c", "sleep 1000 > /dev/null 2>&1 &"]).stdin(Stdio::null()).status().unwrap();
            return;
        }
        UnixStream::from(descriptor).write_all(&[b"I was told ", &bytes[..], b"\n"].concat()).unwrap();
    }
}

/// Starts three kept children, of which one ends on request, and one child that is not kept. Then waits until it is killed.
fn daemon(directory: &Path, lease: u64) {
    let survival = Survival { directory: directory.to_owned(), lease: Duration::from_secs(lease) };
    let server =
        ForkServer::fork(Box::new(child) as rank_spawner::ChildMain, Box::<Counting>::default(), Some(&survival))
            .unwrap();
    let children: Vec<ForkedProcess> = (0..4).map(|_| started(&server)).collect();
    for (number, child) in children[..3].iter().enumerate() {
        server.keep(child, &Label::new(format!("child {number}").as_bytes()).unwrap()).unwrap();
    }
    let numbers: Vec<_> = children.iter().map(|child| child.pid.to_string()).collect();
    println!("{}", numbers.join(" "));
    let mut order = String::new();
    std::io::stdin().read_line(&mut order).unwrap();
    match order.trim() {
        "end" => server.end().unwrap(),
        "forget" => children[..3].iter().for_each(|child| server.forget(child.pid).unwrap()),
        _ => {}
    }
    println!("done");
    std::thread::park();
}

/// A daemon with its children; the first three are kept.
struct Before {
    daemon: Child,
    output: BufReader<ChildStdout>,
    children: Vec<Pid>,
    directory: tempfile::TempDir,
}

impl Before {
    fn new(lease: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let mut daemon = Command::new(std::env::current_exe().unwrap());
        daemon
            .arg("daemon")
            .arg(directory.path().join("forks"))
            .arg(lease)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut daemon = daemon.spawn().unwrap();
        let mut line = String::new();
        let mut output = BufReader::new(daemon.stdout.take().unwrap());
        output.read_line(&mut line).unwrap();
        Self { daemon, output, children: pids(&line), directory }
    }

    /// Directory of the fork servers; only their user can access it.
    fn path(&self) -> PathBuf {
        self.directory.path().join("forks")
    }

    fn order(&mut self, word: &str) {
        writeln!(self.daemon.stdin.as_mut().unwrap(), "{word}").unwrap();
        let mut done = String::new();
        self.output.read_line(&mut done).unwrap();
        assert_eq!(done, "done\n");
    }

    fn kill(&mut self) {
        self.daemon.kill().unwrap();
        self.daemon.wait().unwrap();
    }

    fn take_up(&self) -> Option<TakenUp> {
        ForkServer::take_up_all(&self.path(), None).unwrap().pop().map(Result::unwrap)
    }

    fn has_socket(&self) -> bool {
        std::fs::read_dir(self.path()).unwrap().count() > 0
    }

    fn any_runs(&self) -> bool {
        self.children.iter().any(|&pid| runs(pid))
    }

    #[track_caller]
    fn leaves_nothing(&self) {
        eventually("all children end", || !self.any_runs());
        eventually("the server ends", || !self.has_socket());
    }
}

/// Exit of a child. Children that are not kept may end before it.
fn ended(server: &ForkServer, expected: Pid) -> RankExit {
    loop {
        match next(server) {
            ForkEvent::Ended { pid, exit } if pid == expected => return exit,
            ForkEvent::Ended { .. } => {}
            other => panic!("{other:?}"),
        }
    }
}

fn running(child: &KeptProcess) -> &ForkedProcess {
    match &child.state {
        KeptState::Running(process) => process,
        KeptState::Ended(exit) => panic!("{} has ended: {exit}", child.pid),
    }
}

/// Answer of a child to `word` through its door.
fn told(process: &ForkedProcess, word: &str) -> String {
    let (mut ours, theirs) = UnixStream::pair().unwrap();
    process.door.send(word.as_bytes(), theirs.as_fd()).unwrap();
    drop(theirs);
    let mut said = String::new();
    ours.read_to_string(&mut said).unwrap();
    said
}

fn labels(taken_up: &TakenUp) -> Vec<String> {
    let text = |child: &KeptProcess| String::from_utf8(child.label.read().unwrap()).unwrap();
    let mut labels: Vec<_> = taken_up.children.iter().map(text).collect();
    labels.sort_unstable();
    labels
}

fn the_next_daemon_has_what_was_kept() {
    let mut before = Before::new(LONG);
    let killed = before.children[1];
    kill(killed, Signal::SIGKILL).unwrap();
    eventually("it is reaped", || !std::fs::exists(format!("/proc/{killed}")).unwrap());
    before.kill();
    eventually("what was not kept ends", || !runs(before.children[3]));
    let taken_up = before.take_up().unwrap();
    assert_eq!(labels(&taken_up), ["child 0", "child 1", "child 2"]);
    for child in &taken_up.children {
        match &child.state {
            KeptState::Ended(exit) => {
                assert_eq!((child.pid, exit.shell_code()), (killed, 128 + 9));
            }
            KeptState::Running(process) => {
                assert_eq!((process.pid, told(process, "hello")), (child.pid, "I was told hello\n".to_owned()));
            }
        }
    }
    // One more child ends while the next daemon is connected, and leaves a process.
    let ends = taken_up.children.iter().find(|child| child.pid == before.children[2]).unwrap();
    assert_eq!(told(running(ends), "exit"), "");
    assert_eq!(ended(&taken_up.server, before.children[2]), RankExit::Code(2));
    let TakenUp { server, children, .. } = taken_up;
    children.iter().for_each(|child| server.forget(child.pid).unwrap());
    drop(children);
    before.leaves_nothing();
    drop(server);
}

fn what_is_forgotten_is_kept_for_nobody() {
    let mut before = Before::new(LONG);
    before.order("forget");
    before.kill();
    before.leaves_nothing();
    assert!(before.take_up().is_none());
}

fn a_daemon_that_is_killed_in_turn_has_a_successor() {
    let mut before = Before::new(LONG);
    before.kill();
    for turn in 0..3 {
        let taken_up = before.take_up().unwrap();
        assert_eq!(taken_up.children.len(), 3, "turn {turn}");
        // The next daemon also receives an end that this daemon did not forget.
        if turn == 1 {
            running(&taken_up.children[0]).kill().unwrap();
            assert_eq!(ended(&taken_up.server, taken_up.children[0].pid).shell_code(), 128 + 9);
        }
    }
    let TakenUp { server, children, .. } = before.take_up().unwrap();
    let has_ended = |child: &&KeptProcess| matches!(child.state, KeptState::Ended(_));
    assert_eq!(children.iter().filter(has_ended).count(), 1);
    server.end().unwrap();
    drop(children);
    before.leaves_nothing();
}

fn nothing_is_left_when_the_lease_is_over() {
    let mut before = Before::new("1");
    before.kill();
    before.leaves_nothing();
    assert!(before.take_up().is_none());
}

fn a_daemon_that_orders_the_end_leaves_nothing() {
    let mut before = Before::new(LONG);
    before.order("end");
    // The doors close only after the daemon has closed its ends as well.
    before.kill();
    before.leaves_nothing();
}

fn a_server_that_was_taken_up_makes_no_children() {
    let mut before = Before::new(LONG);
    before.kill();
    let taken_up = before.take_up().unwrap();
    ask(&taken_up.server);
    let answer =
        std::iter::repeat_with(|| next(&taken_up.server)).find(|news| !matches!(news, ForkEvent::Ended { .. }));
    assert!(matches!(answer, Some(ForkEvent::NotStarted(Errno::ESHUTDOWN))), "{answer:?}");
    drop(taken_up);
    // Daemons that connect at the same time wait for each other.
    let taken_up = before.take_up().unwrap();
    taken_up.server.end().unwrap();
    drop(taken_up);
    before.leaves_nothing();
}

/// Request of a daemon, of a version before the first, that adopts a server.
const TAKE_UP_TOO_OLD: [u8; 12] = [37, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

/// Connection to the running fork server.
fn connected(before: &Before) -> OwnedFd {
    let path = std::fs::read_dir(before.path()).unwrap().next().unwrap().unwrap().path();
    let stranger = socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None).unwrap();
    connect(stranger.as_raw_fd(), &UnixAddr::new(&path).unwrap()).unwrap();
    stranger
}

fn a_daemon_that_is_too_old_hears_which_version_it_needs() {
    let mut before = Before::new(LONG);
    before.kill();
    let daemon = connected(&before);
    nix::unistd::write(&daemon, &TAKE_UP_TOO_OLD).unwrap();
    let mut packet = [0; 16];
    let length = nix::unistd::read(&daemon, &mut packet).unwrap();
    assert_eq!(packet[..length], [16_i32, 1, 0].map(i32::to_ne_bytes).concat());
    assert_eq!(nix::unistd::read(&daemon, &mut packet), Ok(0), "nothing is handed over");
    let taken_up = before.take_up().unwrap();
    assert_eq!(taken_up.children.len(), 3);
    taken_up.server.end().unwrap();
    drop(taken_up);
    before.leaves_nothing();
}

fn a_stranger_at_the_socket_changes_nothing() {
    let mut before = Before::new(LONG);
    before.kill();
    for packet in [&b""[..], b"nonsense", &TAKE_UP_TOO_OLD] {
        let stranger = connected(&before);
        if !packet.is_empty() {
            nix::unistd::write(&stranger, packet).unwrap();
        }
    }
    let taken_up = before.take_up().unwrap();
    assert_eq!(taken_up.children.len(), 3);
    taken_up.server.end().unwrap();
    drop(taken_up);
    before.leaves_nothing();
}
