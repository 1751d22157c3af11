//! Children of a fork server: they have nothing of the daemon's, become users, and leave nothing.
//!
//! The program has several roles: with the word `daemon` it starts a child and waits until it is killed; without, it is the test. The
//! children receive a stream through their door, and run the order in its first line.

mod world;

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};

use nix::errno::Errno;
use nix::libc;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, Uid};
use rank_spawner::{
    Account, DescriptorSocket, ForkEvent, ForkServer, ForkedProcess, Label, Limit, LimitedResource, OwnCgroup, Passed,
    Privileges, RankExit, become_user,
};
use world::{Counting, Tests, ask, eventually, next, ordered, pids, runs, started};

fn main() {
    let tests = Tests::from_args();
    let is_daemon = std::env::args().nth(1).as_deref() == Some("daemon");
    let server = (!tests.lists()).then(|| {
        ForkServer::fork(Box::new(child) as rank_spawner::ChildMain, Box::<Counting>::default(), None).unwrap()
    });
    if let (true, Some(server)) = (is_daemon, &server) {
        return daemon(server);
    }
    if let (Some("asks"), Some(server)) = (std::env::args().nth(1).as_deref(), &server) {
        return std::env::args().skip(2).for_each(|order| print!("{}", answer(server, &order)));
    }
    let check = |name: &str, test: fn(&ForkServer)| tests.check(name, || test(server.as_ref().unwrap()));
    check("a_child_has_nothing_of_the_daemons", a_child_has_nothing_of_the_daemons);
    check("orders_pass_the_gate_or_start_nothing", orders_pass_the_gate_or_start_nothing);
    check("a_daemon_has_its_children_killed_and_nobody_elses", a_daemon_has_its_children_killed_and_nobody_elses);
    check("a_child_is_ready_before_it_is_asked_for", a_child_is_ready_before_it_is_asked_for);
    check("what_a_killed_child_left_behind_is_killed", what_a_killed_child_left_behind_is_killed);
    check("nothing_outruns_the_end_of_a_control_group", nothing_outruns_the_end_of_a_control_group);
    check("another_childs_processes_are_not_touched", another_childs_processes_are_not_touched);
    check("many_are_asked_for_at_once", many_are_asked_for_at_once);
    check("a_child_that_cannot_be_watched_is_no_child", a_child_that_cannot_be_watched_is_no_child);
    check("a_daemon_without_descriptors_is_told_so_and_goes_on", a_daemon_without_descriptors_is_told_so_and_goes_on);
    check("a_killed_daemon_leaves_nothing", |_| a_killed_daemon_leaves_nothing());
    check("a_child_can_stay_who_it_is", a_child_can_stay_who_it_is);
    if Uid::effective().is_root() {
        check("a_child_becomes_a_user_for_good", a_child_becomes_a_user_for_good);
        check("setuid_programs_can_be_allowed", setuid_programs_can_be_allowed);
        check("an_unknown_user_is_nobody", an_unknown_user_is_nobody);
        check("a_user_finds_no_key_of_the_user_before", |_| a_user_finds_no_key_of_the_user_before());
        check("children_are_no_better_protected_than_others", |_| children_are_no_better_protected_than_others());
    } else {
        println!("not root: becoming other users is left out");
    }
}

/// Two processes that lose their parent at once, the second one without environment and in its own session.
const LEAVE: &str = "(sleep 1000 > /dev/null 2>&1 & echo $!); (env -i setsid sleep 1000 > /dev/null 2>&1 & echo $!)";

/// Forks and exits, in its own session each time, so fast that no process table shows it. It keeps its standard output open, prints a
/// line, and ends by itself if it is not killed.
const CHAIN: &str = r#"use POSIX; $| = 1; print "begun\n"; $end = time + 120;
    while (time < $end) { $child = fork; POSIX::_exit(0) if $child; POSIX::setsid(); }"#;

/// Main function of a child. It receives a stream through its door and runs the order in the first line.
fn child(door: DescriptorSocket, _: Option<OwnCgroup>) {
    // Spare children of the fork server never receive an order.
    let Some((gate, asked)) = ordered(&door) else { return };
    let Some(Passed { descriptor, .. }) = door.receive_blocking().unwrap() else { return };
    let mut socket = UnixStream::from(descriptor);
    let mut order = String::new();
    BufReader::new(socket.try_clone().unwrap()).read_line(&mut order).unwrap();
    let words: Vec<&str> = order.split_whitespace().collect();
    match words[..] {
        ["ordered"] => write!(socket, "{gate:?} {}", String::from_utf8(asked).unwrap()).unwrap(),
        ["files"] => {
            let name = fs::read_to_string("/proc/self/comm").unwrap();
            let files = fs::read_dir("/proc/self/fd").unwrap().count() - 1;
            let place = std::env::current_dir().unwrap();
            let status = fs::read_to_string("/proc/self/status").unwrap();
            write!(socket, "{} {files} {}\n{status}", name.trim(), place.display()).unwrap();
        }
        ["leave"] => {
            let left = Command::new("sh").args(["-c", LEAVE]).stdin(Stdio::null()).output().unwrap();
            socket.write_all(String::from_utf8(left.stdout).unwrap().replace('\n', " ").as_bytes()).unwrap();
            socket.write_all(b"\n").unwrap();
            // Runs until the daemon closes the door.
            while door.receive_blocking().unwrap().is_some() {}
        }
        ["chain"] => {
            let mut chain = Command::new("perl").args(["-e", CHAIN]).stdout(OwnedFd::from(socket)).spawn().unwrap();
            chain.wait().unwrap();
            // Runs until the daemon closes the door or kills it, with the chain below this process.
            while door.receive_blocking().unwrap().is_some() {}
        }
        ["as", uid, script] => {
            become_user(&Account::of(uid.parse().unwrap()).unwrap(), &Privileges::default()).unwrap();
            let said =
                Command::new("sh").arg("-c").arg(script.replace('~', " ")).stdin(Stdio::null()).output().unwrap();
            socket.write_all(&[said.stdout, said.stderr].concat()).unwrap();
        }
        ["become", uid, setuid_programs] => {
            let nofile = Limit { resource: LimitedResource::Nofile, soft: 100, hard: 200 };
            let privileges = Privileges { setuid_programs: setuid_programs == "true", limits: vec![nofile] };
            let result = Account::of(uid.parse().unwrap()).map_err(|error| error.to_string());
            let result =
                result.and_then(|account| become_user(&account, &privileges).map_err(|error| error.to_string()));
            match result {
                Ok(()) => {
                    let read = |file: &str| fs::read_to_string(format!("/proc/self/{file}")).unwrap();
                    write!(socket, "{}{}", read("status"), read("limits")).unwrap();
                }
                Err(text) => write!(socket, "{text}").unwrap(),
            }
        }
        _ => {}
    }
}

fn ended(server: &ForkServer, expected: Pid) -> RankExit {
    match next(server) {
        ForkEvent::Ended { pid, exit } if pid == expected => exit,
        other => panic!("{other:?}"),
    }
}

/// Sends an order to a child; returns the stream for its answer.
fn tell(process: &ForkedProcess, order: &str) -> UnixStream {
    let (mut socket, theirs) = UnixStream::pair().unwrap();
    process.door.send(b"order", theirs.as_fd()).unwrap();
    writeln!(socket, "{order}").unwrap();
    socket
}

/// Full answer of a child to one order, until the child ends.
fn answer(server: &ForkServer, order: &str) -> String {
    let process = started(server);
    let mut said = String::new();
    tell(&process, order).read_to_string(&mut said).unwrap();
    assert_eq!(ended(server, process.pid), RankExit::Code(0));
    said
}

fn line_of(socket: &UnixStream) -> Vec<Pid> {
    let mut line = String::new();
    BufReader::new(socket).read_line(&mut line).unwrap();
    pids(&line)
}

/// Value of one field of `/proc/PID/status`.
fn field<'a>(status: &'a str, name: &str) -> &'a str {
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.unwrap_or_else(|| panic!("no {name} in {status}")).trim()
}

fn a_child_has_nothing_of_the_daemons(server: &ForkServer) {
    let said = answer(server, "files");
    let (first, status) = said.split_once('\n').unwrap();
    assert_eq!(first, files_of_a_child(server));
    assert_eq!(field(status, "SigBlk"), "0000000000000000");
    // Only SIGPIPE is ignored; two more belong to the C library, which allows no change.
    let ignored = u64::from_str_radix(field(status, "SigIgn"), 16).unwrap();
    assert_eq!(ignored & !(0b11 << 31), 1 << (Signal::SIGPIPE as u32 - 1));
    assert_eq!(field(status, "Threads"), "1");
}

fn orders_pass_the_gate_or_start_nothing(server: &ForkServer) {
    let told = |word: &[u8]| {
        server.tell(&Label::new(word).unwrap()).unwrap();
        let ForkEvent::Told(Some(answer)) = next(server) else { panic!("no answer") };
        answer.read().unwrap()[0]
    };
    let before = told(b"a word");
    let process = started(server);
    let mut said = String::new();
    tell(&process, "ordered").read_to_string(&mut said).unwrap();
    assert_eq!(said, format!("[{}] work", before + 1), "the child has what the gate has said, and its order");
    assert_eq!(ended(server, process.pid), RankExit::Code(0));
    let refused = |order: &Label| {
        server.request(order).unwrap();
        let ForkEvent::Refused(why) = next(server) else { panic!("not refused") };
        String::from_utf8(why.read().unwrap()).unwrap()
    };
    assert_eq!(refused(&Label::new(b"no").unwrap()), "that is no order");
    // The server reads neither memory that can still change, nor a file that could block it.
    let open = tempfile::tempfile().unwrap();
    assert!(refused(&Label::from(OwnedFd::from(open))).starts_with("the order for a session cannot be read: "));
    let (reader, _writer) = UnixStream::pair().unwrap();
    assert!(refused(&Label::from(OwnedFd::from(reader))).starts_with("the order for a session cannot be read: "));
    assert_eq!(told(b"another"), before + 2, "the gate heard of none of them");
}

/// A daemon without privileges cannot signal its children.
fn a_daemon_has_its_children_killed_and_nobody_elses(server: &ForkServer) {
    let mut stranger = Command::new("sleep").arg("1000").spawn().unwrap();
    let process = started(server);
    for pid in [stranger.id() as i32, 1, 0, -1] {
        server.kill(Pid::from_raw(pid)).unwrap();
    }
    server.kill(process.pid).unwrap();
    assert_eq!(ended(server, process.pid), RankExit::Signal { signal: 9, core_dumped: false });
    assert!(stranger.try_wait().unwrap().is_none());
    stranger.kill().unwrap();
    stranger.wait().unwrap();
}

/// Name, number of descriptors and working directory of a child; two of the descriptors belong to its control group.
fn files_of_a_child(server: &ForkServer) -> &'static str {
    if server.ungrouped().is_none() { "lattice-session 7 /" } else { "lattice-session 5 /" }
}

fn a_child_is_ready_before_it_is_asked_for(server: &ForkServer) {
    // The spare was made in idle time, so the server need not fork for a request.
    let spare = || {
        let mine = children_of(nix::unistd::getpid());
        mine.into_iter().flat_map(children_of).collect::<Vec<_>>()
    };
    eventually("there is a spare child", || spare().len() == 1);
    let before = spare()[0];
    let process = started(server);
    assert_eq!(process.pid, before);
    process.kill().unwrap();
    assert_eq!(ended(server, process.pid), RankExit::Signal { signal: 9, core_dumped: false });
}

fn children_of(parent: Pid) -> Vec<Pid> {
    unreaped_children_of(parent).into_iter().filter(|&pid| runs(pid)).collect()
}

/// Children of a process, zombies included.
fn unreaped_children_of(parent: Pid) -> Vec<Pid> {
    let all = fs::read_dir("/proc").unwrap().filter_map(|entry| entry.unwrap().file_name().to_str()?.parse().ok());
    let parent_of = |pid: i32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        stat[stat.rfind(')')? + 1..].split_whitespace().nth(1)?.parse().ok()
    };
    all.filter(|&pid| parent_of(pid) == Some(parent.as_raw())).map(Pid::from_raw).collect()
}

fn what_a_killed_child_left_behind_is_killed(server: &ForkServer) {
    let process = started(server);
    let left = line_of(&tell(&process, "leave"));
    assert_eq!(left.len(), 2);
    assert!(left.iter().all(|&pid| runs(pid)));
    process.kill().unwrap();
    assert_eq!(ended(server, process.pid), RankExit::Signal { signal: 9, core_dumped: false });
    eventually("what it left is killed and reaped", || {
        left.iter().all(|pid| !fs::exists(format!("/proc/{pid}")).unwrap())
    });
}

fn nothing_outruns_the_end_of_a_control_group(server: &ForkServer) {
    if let Some(reason) = server.ungrouped() {
        println!("not tried, for here are no control groups: {reason}");
        return;
    }
    for ends_in_order in [false, true] {
        let process = started(server);
        let pid = process.pid;
        let mut chain = BufReader::new(tell(&process, "chain"));
        let mut line = String::new();
        chain.read_line(&mut line).unwrap();
        assert_eq!(line, "begun\n");
        let expected = if ends_in_order {
            drop(process);
            RankExit::Code(2)
        } else {
            process.kill().unwrap();
            RankExit::Signal { signal: 9, core_dumped: false }
        };
        assert_eq!(ended(server, pid), expected);
        // The other end must be closed by now, not some time later.
        chain.get_ref().set_nonblocking(true).unwrap();
        assert_eq!(chain.read_to_string(&mut line).map_err(|error| error.kind()), Ok(0), "the chain goes on");
    }
}

fn another_childs_processes_are_not_touched(server: &ForkServer) {
    let (one, two) = (started(server), started(server));
    let (of_one, of_two) = (line_of(&tell(&one, "leave")), line_of(&tell(&two, "leave")));
    one.kill().unwrap();
    ended(server, one.pid);
    eventually("what it left is killed", || !of_one.iter().any(|&pid| runs(pid)));
    assert!(of_two.iter().all(|&pid| runs(pid)));
    let pid = two.pid;
    drop(two);
    // The child exits normally, and reports leftovers.
    assert_eq!(ended(server, pid), RankExit::Code(2));
    eventually("the other's too", || !of_two.iter().any(|&pid| runs(pid)));
}

fn many_are_asked_for_at_once(server: &ForkServer) {
    (0..20).for_each(|_| ask(server));
    let mut at_work: Vec<_> = Vec::new();
    for _ in 0..20 {
        match next(server) {
            ForkEvent::Started(process) => at_work.push(process),
            other => panic!("{other:?}"),
        }
    }
    at_work.clear();
    for _ in 0..20 {
        assert!(matches!(next(server), ForkEvent::Ended { exit: RankExit::Code(0), .. }));
    }
}

/// The server runs out of descriptors after the fork and before it can watch the child.
fn a_child_that_cannot_be_watched_is_no_child(server: &ForkServer) {
    let forks = children_of(nix::unistd::getpid())[0];
    eventually("there is a spare child", || children_of(forks).len() == 1);
    let before = limit_of_files(forks);
    // The server closes the spare's socket when it hands the spare out. Two descriptors are then left, and the next child needs three.
    set_limit_of_files(forks, &first_beyond_one_free(forks).to_string());
    let process = started(server);
    ask(server);
    assert!(matches!(next(server), ForkEvent::NotStarted(Errno::EMFILE)));
    // The server retries from time to time.
    eventually("none is left of those that failed", || unreaped_children_of(forks) == [process.pid]);
    set_limit_of_files(forks, &before);
    let another = started(server);
    for process in [process, another] {
        process.kill().unwrap();
        assert_eq!(ended(server, process.pid), RankExit::Signal { signal: 9, core_dumped: false });
    }
}

/// Limit that leaves a process one descriptor more than it has.
fn first_beyond_one_free(pid: Pid) -> usize {
    let open = fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
    let open: Vec<usize> = open.map(|entry| entry.unwrap().file_name().to_str().unwrap().parse().unwrap()).collect();
    (0..).filter(|number| !open.contains(number)).nth(1).unwrap()
}

/// Soft limit on open files.
fn limit_of_files(pid: Pid) -> String {
    let limits = fs::read_to_string(format!("/proc/{pid}/limits")).unwrap();
    let files = limits.lines().find_map(|line| line.strip_prefix("Max open files")).unwrap();
    files.split_whitespace().next().unwrap().to_owned()
}

fn set_limit_of_files(pid: Pid, soft: &str) {
    let args = ["--pid".to_owned(), pid.to_string(), format!("--nofile={soft}:")];
    assert!(Command::new("prlimit").args(args).status().unwrap().success());
}

/// The daemon can receive none, or one, of the two descriptors of the requested child.
fn a_daemon_without_descriptors_is_told_so_and_goes_on(server: &ForkServer) {
    let order = Label::new(b"work").unwrap();
    for free in 0..2 {
        let open = open_descriptors();
        let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
        let limit = (0..).filter(|number| !open.contains(number)).nth(free).unwrap();
        setrlimit(Resource::RLIMIT_NOFILE, limit, hard).unwrap();
        server.request(&order).unwrap();
        let refused = next(server);
        setrlimit(Resource::RLIMIT_NOFILE, soft, hard).unwrap();
        assert!(matches!(refused, ForkEvent::NotStarted(Errno::EMFILE)), "{free} free: {refused:?}");
        assert_eq!(open_descriptors(), open, "what arrived of the child's is closed");
        // The lost descriptors close the child's door.
        assert!(matches!(next(server), ForkEvent::Ended { exit: RankExit::Code(0), .. }));
        assert!(answer(server, "files").starts_with(files_of_a_child(server)), "the next one is served");
    }
}

/// The numbers of this process's open descriptors.
fn open_descriptors() -> Vec<u64> {
    (0..1024).filter(|number| fs::symlink_metadata(format!("/proc/self/fd/{number}")).is_ok()).collect()
}

/// Starts a child that leaves processes, prints all process numbers, and waits until it is killed.
fn daemon(server: &ForkServer) {
    let process = started(server);
    let left = line_of(&tell(&process, "leave"));
    let forks = children_of(nix::unistd::getpid());
    let all: Vec<_> = left.iter().chain(&forks).chain([&process.pid]).map(ToString::to_string).collect();
    println!("{}", all.join(" "));
    std::thread::park();
}

fn a_killed_daemon_leaves_nothing() {
    let program = std::env::current_exe().unwrap();
    let mut daemon = Command::new(program).arg("daemon").stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(daemon.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let family = pids(&line);
    assert!(family.len() >= 4 && family.iter().all(|&pid| runs(pid)), "{line}");
    kill(Pid::from_raw(daemon.id() as i32), Signal::SIGKILL).unwrap();
    daemon.wait().unwrap();
    eventually("all of it ends", || !family.iter().any(|&pid| runs(pid)));
}

fn a_child_can_stay_who_it_is(server: &ForkServer) {
    let me = Uid::effective();
    let said = answer(server, &format!("become {me} false"));
    assert_eq!(field(&said, "Uid").split_whitespace().next(), Some(me.to_string().as_str()));
}

/// User number of `nobody`.
const NOBODY: u32 = 65534;
/// Another user that every Debian system has.
const GAMES: u32 = 5;

fn a_child_becomes_a_user_for_good(server: &ForkServer) {
    let said = answer(server, &format!("become {NOBODY} false"));
    assert_eq!(field(&said, "Uid"), "65534\t65534\t65534\t65534");
    assert_eq!(field(&said, "Gid"), "65534\t65534\t65534\t65534");
    let groups = Command::new("id").args(["-G", "nobody"]).output().unwrap();
    assert_eq!(field(&said, "Groups"), String::from_utf8(groups.stdout).unwrap().trim());
    for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
        assert_eq!(field(&said, set), "0000000000000000", "{set}");
    }
    assert_eq!(field(&said, "NoNewPrivs"), "1");
    let files = said.lines().find_map(|line| line.strip_prefix("Max open files")).unwrap();
    assert_eq!(files.split_whitespace().collect::<Vec<_>>(), ["100", "200", "files"]);
}

/// Output of this program as another daemon. A shell starts it after this command, and its children run these orders.
fn asked(before: &str, orders: &[String]) -> String {
    let script = format!(r#"{before} "$0" asks "$@""#);
    let program = std::env::current_exe().unwrap();
    let asked = Command::new("sh").args(["-c", &script]).arg(program).args(orders).output().unwrap();
    assert!(asked.status.success(), "{}", String::from_utf8_lossy(&asked.stderr));
    String::from_utf8(asked.stdout).unwrap()
}

/// A daemon with a session keyring, like a systemd service. One user stores a key in its session keyring, another user searches for it.
fn a_user_finds_no_key_of_the_user_before() {
    let perl = |call: i64, arguments: &str| format!("perl -e '@a=({arguments});print(0<syscall({call},@a)?1:0)'");
    // KEYCTL_JOIN_SESSION_KEYRING and KEYCTL_SEARCH, in the session keyring.
    let joined = format!("perl -e '@a=(1,0); 0<syscall({},@a) or die; exec @ARGV' --", libc::SYS_keyctl);
    let name = r#""user","lattice-test""#;
    let add = perl(libc::SYS_add_key, &format!("{name},\"secret\",6,-3"));
    let search = perl(libc::SYS_keyctl, &format!("10,-3,{name},0"));
    let order = |uid: u32, script: &str| format!("as {uid} {}", script.replace(' ', "~"));
    let orders = [order(NOBODY, &format!("{add};{search}")), order(GAMES, &search), order(NOBODY, &search)];
    assert_eq!(asked(&joined, &orders), "1100");
}

/// A daemon that its unit protects from the OOM killer.
fn children_are_no_better_protected_than_others() {
    let protect = "echo -500 2>/dev/null >/proc/self/oom_score_adj";
    if !Command::new("sh").args(["-c", protect]).stderr(Stdio::null()).status().unwrap().success() {
        println!("not tried, for root lacks CAP_SYS_RESOURCE here");
        return;
    }
    let read = format!("as {NOBODY} cat~/proc/self/oom_score_adj;echo~-1~>/proc/self/oom_score_adj");
    let said = asked(&format!("{protect} && exec"), &[read]);
    assert!(said.starts_with("0\n") && said.contains("Permission denied"), "{said}");
}

fn setuid_programs_can_be_allowed(server: &ForkServer) {
    let said = answer(server, &format!("become {NOBODY} true"));
    assert_eq!(field(&said, "NoNewPrivs"), "0");
    assert_ne!(field(&said, "CapBnd"), "0000000000000000");
    assert_eq!(field(&said, "CapEff"), "0000000000000000");
}

fn an_unknown_user_is_nobody(server: &ForkServer) {
    assert_eq!(answer(server, "become 12345 false"), "user 12345 is not known on this node");
}
