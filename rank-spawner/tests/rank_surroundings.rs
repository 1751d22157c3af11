//! State that a rank's program starts with.

mod world;

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use lattice_inventory::ThisNode;
use nix::fcntl::{FcntlArg, FdFlag, OFlag, fcntl};
use nix::libc;
use nix::sys::signal::{SigHandler, SigSet, Signal, signal};
use nix::unistd::pipe2;
use pmi_core::ids::Rank;
use rank_spawner::{
    Arguments, CpuBind, Environment, Limit, LimitedResource, MemoryPolicy, Object, Program, RankCommand, RankExit,
    Spawner, Stdio, plan_here, usable_here,
};
use world::{line, output, shell, shell_with, wait};

fn spawner() -> Spawner {
    Spawner::new().unwrap()
}

/// Output of `script` as a rank that `change` has modified.
fn printed(script: &str, change: impl FnOnce(&mut RankCommand)) -> String {
    let spawner = spawner();
    let mut command = shell(0, script);
    change(&mut command);
    let mut rank = spawner.start(command).unwrap();
    let text = String::from_utf8(output(&mut rank)).unwrap();
    assert_eq!(wait(&rank), RankExit::Code(0), "{text}");
    text.trim_end().to_owned()
}

#[test]
fn descriptors_are_the_standard_ones_the_pmi_socket_and_the_jobs_memory() {
    // A descriptor that is not close-on-exec, such as one that a library left open.
    let (leaky, _writer) = pipe2(OFlag::empty()).unwrap();
    // Descriptors of the shell: `true` prevents the shell from becoming the `ls`.
    let list = "ls /proc/$$/fd; true";
    assert_eq!(printed(list, |_| {}), "0\n1\n2\n30");
    assert_eq!(printed(list, |command| command.pmi = false), "0\n1\n2");
    let memory: Arc<OwnedFd> = Arc::new(File::open("/dev/zero").unwrap().into());
    assert_eq!(printed(list, |command| command.job_memory = Some(Arc::clone(&memory))), "0\n1\n2\n30\n31");
    let alone = |command: &mut RankCommand| command.node_memory = Some(Arc::clone(&memory));
    assert_eq!(printed(list, alone), "0\n1\n2\n30\n32");
    let without_pmi = |command: &mut RankCommand| {
        command.pmi = false;
        command.job_memory = Some(Arc::clone(&memory));
    };
    assert_eq!(printed("ls /proc/$$/fd; readlink /proc/$$/fd/31", without_pmi), "0\n1\n2\n31\n/dev/zero");
    drop(leaky);
}

#[test]
fn the_pmi_socket_connects_the_rank_with_the_server() {
    let spawner = spawner();
    let mut rank = spawner.start(shell(0, "read word <&30; echo \"got $word\" >&30")).unwrap();
    let mut server = UnixStream::from(rank.pmi.take().unwrap());
    server.set_nonblocking(false).unwrap();
    server.write_all(b"init\n").unwrap();
    let mut answer = String::new();
    // The stream ends only if the rank alone held its end.
    server.read_to_string(&mut answer).unwrap();
    assert_eq!(answer, "got init\n");
    assert_eq!(wait(&rank), RankExit::Code(0));
}

#[test]
fn standard_streams_lead_where_they_shall() {
    let spawner = spawner();
    let (reader, writer) = pipe2(OFlag::O_CLOEXEC).unwrap();
    let shared = Arc::new(writer);
    let mut command = shell(0, "cat; echo err >&2");
    command.stdin = Stdio::Pipe;
    command.stderr = Stdio::Fd(Arc::clone(&shared));
    let mut rank = spawner.start(command).unwrap();
    File::from(rank.stdin.take().unwrap()).write_all(b"through").unwrap();
    assert_eq!(output(&mut rank), b"through");
    assert_eq!(wait(&rank), RankExit::Code(0));
    drop(shared);
    assert_eq!(world::read_to_end(reader), b"err\n");
}

#[test]
fn our_ends_are_closed_by_an_exec() {
    let spawner = spawner();
    let mut command = shell(0, "cat");
    (command.stdin, command.stderr) = (Stdio::Pipe, Stdio::Pipe);
    let mut rank = spawner.start(command).unwrap();
    let ends = [&rank.stdin, &rank.stdout, &rank.stderr, &rank.pmi].map(|end| end.as_ref().unwrap().as_fd());
    for end in ends.into_iter().chain([rank.as_fd()]) {
        let flags = FdFlag::from_bits_retain(fcntl(end, FcntlArg::F_GETFD).unwrap());
        assert!(flags.contains(FdFlag::FD_CLOEXEC));
    }
    rank.stdin = None;
    assert_eq!(wait(&rank), RankExit::Code(0));
}

#[test]
fn signals_are_as_in_a_fresh_process() {
    let spawner = spawner();
    let check = |when: &str| {
        // `cat` installs no handlers, and the shell passes on its signal actions.
        let mut rank = spawner.start(shell(0, "exec cat /proc/self/status")).unwrap();
        let lines = String::from_utf8(output(&mut rank)).unwrap();
        let lines: Vec<&str> =
            lines.lines().filter(|line| ["SigBlk", "SigIgn", "SigCgt"].contains(&&line[..6.min(line.len())])).collect();
        let none = ["SigBlk", "SigIgn", "SigCgt"].map(|kind| format!("{kind}:\t0000000000000000"));
        assert_eq!(lines, none, "{when}");
        wait(&rank);
    };
    check("with the actions of this program");
    #[expect(unsafe_code, reason = "a test of inherited dispositions")]
    // SAFETY: ignoring a signal installs no handler. The kernel's `sigaction` has four words; the first is the handler. The C library reserves
    // signal 33, and does not use it in this program.
    unsafe {
        signal(Signal::SIGUSR1, SigHandler::SigIgn).unwrap();
        let ignore = [libc::SIG_IGN as libc::c_ulong, 0, 0, 0];
        let no_old = std::ptr::null_mut::<libc::c_void>();
        assert_eq!(libc::syscall(libc::SYS_rt_sigaction, 33, ignore.as_ptr(), no_old, 8), 0);
    }
    SigSet::from(Signal::SIGUSR2).thread_block().unwrap();
    check("with others that came after the first start");
}

/// The kernel shares the CPUs among sessions. In the launcher's session, a rank that reads from the terminal would also be stopped as a
/// background process. `lattice launch` is tested on a terminal.
#[test]
fn a_rank_leads_a_session_of_its_own() {
    let spawner = spawner();
    let rank = spawner.start(shell(0, "read -r stat < /proc/$$/stat; echo $stat")).unwrap();
    let stat = line(&rank);
    let fields: Vec<&str> = stat.split(' ').collect();
    assert_eq!(fields[4], rank.pid().to_string(), "the process group");
    assert_eq!(fields[5], rank.pid().to_string(), "the session");
    assert_eq!(fields[6], "0", "a terminal");
    wait(&rank);
}

#[test]
fn directory_umask_limits_and_cpus_are_set() {
    assert_eq!(printed("pwd -P", |command| command.directory = Some("/usr".into())), "/usr");
    assert_eq!(printed("umask", |command| command.umask = Some(0o027)), "0027");
    let nofile = Limit { resource: LimitedResource::Nofile, soft: 16, hard: 64 };
    let core = Limit { resource: LimitedResource::Core, soft: 0, hard: Limit::UNLIMITED };
    // The PMI socket remains with a limit below its number.
    let limits = "ulimit -Sn; ulimit -Hn; ulimit -Sc; echo hi >&30";
    assert_eq!(printed(limits, |command| command.limits = Arc::new([nofile, core])), "16\n64\n0");
    let cpus = plan_here(&ThisNode::default(), &CpuBind::to(Object::Core), 64)
        .unwrap()
        .into_iter()
        .flatten()
        .next_back()
        .unwrap();
    let script = "grep Cpus_allowed_list /proc/self/status | cut -f2";
    assert_eq!(printed(script, |command| command.bound_to.cpus = Some(cpus.clone())), cpus.to_string());
}

/// A program may bind itself as soon as it runs, as `taskset` and OpenMP do.
#[test]
fn the_cpus_that_a_rank_was_given_are_not_those_that_its_program_chose() {
    let spawner = spawner();
    let usable = usable_here(&ThisNode::default()).unwrap().cpus();
    let last = usable.iter().last().unwrap();
    let mut command = shell(0, &format!("exec taskset -c {last} grep Cpus_allowed_list /proc/self/status"));
    command.bound_to.cpus = Some(usable.clone());
    let mut rank = spawner.start(command).unwrap();
    let text = String::from_utf8(output(&mut rank)).unwrap();
    assert_eq!(wait(&rank), RankExit::Code(0), "{text}");
    assert_eq!(text.split_whitespace().last(), Some(last.to_string().as_str()));
    assert_eq!(rank.given_cpus, Some(usable));
    // For an unbound rank the kernel is not queried.
    let rank = spawner.start(shell(0, "true")).unwrap();
    wait(&rank);
    assert_eq!(rank.given_cpus, None);
}

/// The kernel shows the policy of a process with each of its mappings, if it has NUMA.
#[test]
fn memory_comes_from_the_nodes_that_were_asked_for() {
    let check = |policy: Option<MemoryPolicy>, expected: &str| {
        let script = "read -r _ policy _ < /proc/self/numa_maps; echo $policy";
        if Path::new("/proc/self/numa_maps").exists() {
            assert_eq!(printed(script, |command| command.bound_to.memory = policy), expected);
        } else if let Some(policy) = policy {
            let mut command = shell(0, "true");
            command.bound_to.memory = Some(policy);
            let refused = spawner().start(command).unwrap_err().to_string();
            assert!(refused.contains("cannot bind its memory to NUMA nodes"), "{refused}");
        }
    };
    let first = || "0".parse().unwrap();
    check(None, "default");
    check(Some(MemoryPolicy::Bound(first())), "bind:0");
    check(Some(MemoryPolicy::Preferred(first())), "prefer:0");
    check(Some(MemoryPolicy::Local), "local");
    let mut absent = shell(3, "true");
    absent.bound_to.memory = Some(MemoryPolicy::Bound("60000".parse().unwrap()));
    let refused = spawner().start(absent).unwrap_err().to_string();
    assert!(refused.starts_with("rank 3: cannot bind its memory to NUMA nodes: "), "{refused}");
}

#[test]
fn the_environment_is_exactly_what_was_asked_for() {
    let long = "x".repeat(100 << 10);
    let own = [("LONG", long.as_str()), ("LINES", "a\nb=c d"), ("PATH", "/bin:/usr/bin")];
    let spawner = spawner();
    let mut rank = spawner.start(shell_with(0, "tr '\\0' '|' < /proc/$$/environ; true", &own)).unwrap();
    let text = String::from_utf8(output(&mut rank)).unwrap();
    assert_eq!(text, format!("PATH=/bin:/usr/bin|LONG={long}|LINES=a\nb=c d|"));
    wait(&rank);
}

#[test]
fn arguments_and_values_may_be_any_bytes() {
    let bytes = std::ffi::OsStr::from_bytes(b"\xff\xfe \"'");
    let program = Program::resolve("printenv".as_ref(), None, Path::new("/")).unwrap();
    let environment = Environment::new([("RAW", bytes)]).unwrap().for_rank::<&str, &str>([]).unwrap();
    let mut command = RankCommand::new(Rank(0), program, Arguments::new(["printenv", "RAW"]).unwrap(), environment);
    command.stdout = Stdio::Pipe;
    let spawner = spawner();
    let mut rank = spawner.start(command).unwrap();
    assert_eq!(output(&mut rank), [bytes.as_bytes(), b"\n"].concat());
    wait(&rank);
}

#[test]
fn a_relative_directory_is_the_callers() {
    let here = std::env::current_dir().unwrap();
    let expected = here.join("tests").canonicalize().unwrap();
    let seen = printed("pwd -P", |command| command.directory = Some(PathBuf::from("tests")));
    assert_eq!(Path::new(&seen), expected);
}
