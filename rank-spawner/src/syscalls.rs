//! Safe wrappers of system calls for which nix has no suitable safe wrapper.

#![expect(unsafe_code, reason = "raw system calls; each has a safety comment")]

use std::ffi::{c_int, c_ulong};
use std::mem;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;
use std::thread;
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::libc;
use nix::sys::signal::{Signal, kill};
use nix::sys::stat::Mode;
use nix::unistd::{ForkResult, Pid, gettid};

use crate::exit::RankExit;

/// Descriptor of the process that now has the number `pid`. It is close-on-exec.
pub(crate) fn pidfd_open(pid: Pid) -> nix::Result<OwnedFd> {
    // SAFETY: the call takes two integers and touches no memory of this process.
    let fd = Errno::result(unsafe { libc::syscall(libc::SYS_pidfd_open, pid.as_raw(), 0) })?;
    // SAFETY: the kernel has just made this descriptor, so it has no other owner; descriptors fit their type.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as RawFd) })
}

/// Sends `signal` to the process of `pidfd`, never to a later process with the same number.
pub(crate) fn pidfd_send_signal(pidfd: BorrowedFd<'_>, signal: Signal) -> nix::Result<()> {
    let no_info = ptr::null::<libc::siginfo_t>();
    // SAFETY: `pidfd` is open while borrowed, and the kernel accepts a null `siginfo_t`.
    let sent = unsafe { libc::syscall(libc::SYS_pidfd_send_signal, pidfd.as_raw_fd(), signal as c_int, no_info, 0) };
    Errno::result(sent).map(drop)
}

/// Fails with `ESRCH` if the process of `pidfd` has been reaped; until then its number is not reused.
pub(crate) fn pidfd_is_unreaped(pidfd: BorrowedFd<'_>) -> nix::Result<()> {
    let no_info = ptr::null::<libc::siginfo_t>();
    // SAFETY: as above; the number 0 sends no signal.
    let sent = unsafe { libc::syscall(libc::SYS_pidfd_send_signal, pidfd.as_raw_fd(), 0, no_info, 0) };
    Errno::result(sent).map(drop)
}

/// Packet from a socket, with its descriptors.
pub(crate) struct Packet {
    /// Number of received bytes; 0 if the other end is closed.
    pub(crate) len: usize,
    /// Received descriptors, close-on-exec.
    pub(crate) descriptors: Vec<OwnedFd>,
}

/// Receives one packet and the descriptors in its ancillary data. If this process runs out of descriptors, fewer arrive than were sent.
///
/// nix's `recvmsg` returns no descriptor if one was cut off (`MSG_CTRUNC`), so the received ones would stay open indefinitely.
pub(crate) fn receive_packet(socket: BorrowedFd<'_>, bytes: &mut [u8]) -> nix::Result<Packet> {
    /// Room for four descriptors, aligned like a `cmsghdr`, without room for a part of another descriptor after them.
    #[repr(C)]
    struct Ancillary {
        header: libc::cmsghdr,
        descriptors: [RawFd; 4],
    }
    // SAFETY: both types consist of integers and pointers, for which zero is valid.
    let (mut ancillary, mut message): (Ancillary, libc::msghdr) = unsafe { (mem::zeroed(), mem::zeroed()) };
    let mut part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = (&raw mut ancillary).cast();
    message.msg_controllen = size_of::<Ancillary>() as _;
    // SAFETY: the message describes `bytes` and `ancillary`, which outlive the call and have no other borrow.
    let len = Errno::result(unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, libc::MSG_CMSG_CLOEXEC) })?;
    let is_rights = (ancillary.header.cmsg_level, ancillary.header.cmsg_type) == (libc::SOL_SOCKET, libc::SCM_RIGHTS);
    let received = ancillary.header.cmsg_len.saturating_sub(mem::offset_of!(Ancillary, descriptors));
    let count = if is_rights { received / size_of::<RawFd>() } else { 0 };
    let numbers = ancillary.descriptors.into_iter().take(count);
    // SAFETY: the kernel has just made these descriptors for this message, so they have no other owner.
    let descriptors = numbers.map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }).collect();
    Ok(Packet { len: len as usize, descriptors })
}

/// Makes a new pseudo-terminal: the driving end, which does not block, and the terminal itself (Linux 4.13). Both are close-on-exec, and neither
/// becomes the controlling terminal of this process.
pub(crate) fn open_terminal() -> nix::Result<(OwnedFd, OwnedFd)> {
    let flags = OFlag::O_RDWR | OFlag::O_NOCTTY | OFlag::O_CLOEXEC;
    let driver = open(c"/dev/ptmx", flags | OFlag::O_NONBLOCK, Mode::empty())?;
    let unlocked: c_int = 0;
    // SAFETY: the kernel reads one integer, which outlives the call.
    Errno::result(unsafe { libc::ioctl(driver.as_raw_fd(), libc::TIOCSPTLCK, &raw const unlocked) })?;
    let terminal = terminal_of(driver.as_fd())?;
    Ok((driver, terminal))
}

/// Opens the terminal of `driver` once more, by the descriptor, since its name may belong to another file system here.
pub(crate) fn terminal_of(driver: BorrowedFd<'_>) -> nix::Result<OwnedFd> {
    let flags = OFlag::O_RDWR | OFlag::O_NOCTTY | OFlag::O_CLOEXEC;
    // SAFETY: the call takes an integer and touches no memory of this process.
    let terminal = Errno::result(unsafe { libc::ioctl(driver.as_raw_fd(), libc::TIOCGPTPEER, flags.bits()) })?;
    // SAFETY: the kernel has just made this descriptor, so it has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(terminal) })
}

/// Rows and columns of a terminal.
pub(crate) fn terminal_size(terminal: BorrowedFd<'_>) -> nix::Result<(u16, u16)> {
    let mut size = libc::winsize { ws_row: 0, ws_col: 0, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: the kernel writes to `size`, which this function owns and which has the type that it fills.
    Errno::result(unsafe { libc::ioctl(terminal.as_raw_fd(), libc::TIOCGWINSZ, &raw mut size) })?;
    Ok((size.ws_row, size.ws_col))
}

/// Sets rows and columns of a terminal.
pub(crate) fn set_terminal_size(terminal: BorrowedFd<'_>, (rows, columns): (u16, u16)) -> nix::Result<()> {
    let size = libc::winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: the kernel reads `size`, which outlives the call.
    Errno::result(unsafe { libc::ioctl(terminal.as_raw_fd(), libc::TIOCSWINSZ, &raw const size) }).map(drop)
}

/// Child to wait for.
#[derive(Clone, Copy)]
pub(crate) enum Child<'fd> {
    /// Child with this pidfd.
    Pidfd(BorrowedFd<'fd>),
    /// Child with this number; no other code may reap it.
    Number(Pid),
}

/// Reaps `child` if it has ended; `None` if it still runs.
///
/// nix's `waitid` reaps a child that a real-time signal killed, then fails because it has no name for the signal.
pub(crate) fn try_reap(child: Child<'_>) -> nix::Result<Option<RankExit>> {
    waitid(child, libc::WEXITED | libc::WNOHANG)
}

/// Waits until `child` has ended, and reaps it. Also works for a child of [`fork_quietly`].
pub(crate) fn reap(child: Child<'_>) -> nix::Result<()> {
    waitid(child, libc::WEXITED | libc::__WALL).map(drop)
}

/// Kills a child that was just forked, and reaps it. Until the reap its number is not reused, and it cannot survive the signal.
pub(crate) fn end_child(child: Pid) {
    let _ = kill(child, Signal::SIGKILL);
    let _ = reap(Child::Number(child));
}

/// Number of checks of a stopping child, and the pause between two checks.
const STOP_LOOKS: u32 = 1000;
const STOP_LOOK: Duration = Duration::from_millis(1);

/// Called in a child: requests a stop when it executes its program. Its parent then calls [`leave_stopped`].
pub(crate) fn ask_for_stop() -> nix::Result<()> {
    // SAFETY: the request takes no further argument.
    Errno::result(unsafe { libc::ptrace(libc::PTRACE_TRACEME) }).map(drop)
}

/// Waits until a child of [`ask_for_stop`] has stopped at its exec, and leaves it stopped as by SIGSTOP, without a tracer. The calling thread
/// must have made the child. If the child has ended meanwhile, the call has no effect.
pub(crate) fn leave_stopped(child: Pid) -> nix::Result<()> {
    let number = child.as_raw() as libc::id_t;
    raw_waitid(libc::P_PID, number, libc::WSTOPPED | libc::WEXITED | libc::WNOWAIT | libc::__WALL)?;
    let (no_address, signal) = (ptr::null_mut::<libc::c_void>(), libc::SIGSTOP as libc::c_long);
    // SAFETY: the request reads its arguments as integers, and touches no memory of this process.
    match Errno::result(unsafe { libc::ptrace(libc::PTRACE_DETACH, child.as_raw(), no_address, signal) }) {
        Err(Errno::ESRCH) => return Ok(()),
        detached => detached?,
    };
    // The child stops when it runs next. The wait ensures that a debugger finds it stopped. A child that was continued meanwhile does not stop.
    let now = libc::WSTOPPED | libc::WEXITED | libc::WNOHANG | libc::WNOWAIT | libc::__WALL;
    for _ in 0..STOP_LOOKS {
        if raw_waitid(libc::P_PID, number, now)?.is_some() {
            break;
        }
        thread::sleep(STOP_LOOK);
    }
    Ok(())
}

/// True if this process has no child, running or ended, other than children of [`fork_quietly`].
pub(crate) fn no_child_left() -> bool {
    let any = raw_waitid(libc::P_ALL, 0, libc::WEXITED | libc::WNOHANG | libc::WNOWAIT);
    matches!(any, Err(Errno::ECHILD))
}

/// Forks a child that sends no signal at its end, and that a wait for any child ignores. Returns 0 in the child.
///
/// # Safety
/// This process must have one thread. Unlike `fork`, this runs no handlers of the C library. The child must not use functions that depend on its
/// thread number, such as `raise` or error-checking mutexes.
pub(crate) unsafe fn fork_quietly() -> nix::Result<libc::pid_t> {
    let none = 0 as c_ulong;
    // SAFETY: without flags and stack, `clone` is a fork; the caller guarantees the rest.
    let pid = unsafe { libc::syscall(libc::SYS_clone, none, none, none, none, none) };
    Errno::result(pid).map(|pid| pid as libc::pid_t)
}

/// Forks a child into a control group, given by its directory. Unlike a move to the group this waits for no other CPU.
///
/// As with `fork`, the C library has the thread number of the child. None of its handlers (`pthread_atfork`) runs.
///
/// # Errors
/// `ENOSYS` before Linux 5.7, and under a system call filter without `clone3`. Also `ENOSYS` if the C library stores its thread number at an
/// address that the kernel does not have.
///
/// # Safety
/// This process must have one thread.
pub(crate) unsafe fn fork_into_group(group: BorrowedFd<'_>) -> nix::Result<ForkResult> {
    const CLONE_INTO_CGROUP: u64 = 1 << 33;
    const PLACE_NUMBER: u64 = (libc::CLONE_CHILD_SETTID | libc::CLONE_CHILD_CLEARTID) as u64;
    /// The kernel's `clone_args`, with the length of its second version.
    #[repr(C)]
    #[derive(Default)]
    struct CloneArgs {
        flags: u64,
        pidfd: u64,
        child_tid: u64,
        parent_tid: u64,
        exit_signal: u64,
        stack: u64,
        stack_size: u64,
        tls: u64,
        set_tid: u64,
        set_tid_size: u64,
        cgroup: u64,
    }
    let arguments = CloneArgs {
        flags: CLONE_INTO_CGROUP | PLACE_NUMBER,
        child_tid: thread_number_place()? as u64,
        exit_signal: libc::SIGCHLD as u64,
        cgroup: group.as_raw_fd() as u64,
        ..CloneArgs::default()
    };
    // SAFETY: without a stack and without CLONE_VM the call is a fork; the caller guarantees one thread. `arguments` outlives the call. The
    // kernel writes only to the place of the number, in the child's memory, as for the C library.
    let pid = unsafe { libc::syscall(libc::SYS_clone3, &raw const arguments, size_of::<CloneArgs>()) };
    Ok(match Errno::result(pid)? {
        0 => ForkResult::Child,
        child => ForkResult::Parent { child: Pid::from_raw(child as libc::pid_t) },
    })
}

/// Address at which the C library stores the number of the calling thread, for its locks.
pub(crate) fn thread_number_place() -> nix::Result<*const libc::pid_t> {
    let mut place = ptr::null::<libc::pid_t>();
    // SAFETY: the kernel writes one pointer to `place`.
    Errno::result(unsafe { libc::prctl(libc::PR_GET_TID_ADDRESS, &raw mut place) }).map_err(|_| Errno::ENOSYS)?;
    // SAFETY: the address is null, or belongs to an aligned integer of the C library, which the kernel clears at the end of this thread.
    let number = unsafe { place.as_ref() };
    number.filter(|&&number| number == gettid().as_raw()).map(ptr::from_ref).ok_or(Errno::ENOSYS)
}

/// An unreaped ended child of this process, if there is one; the same child until it is reaped. Ignores children of [`fork_quietly`].
pub(crate) fn ended_child() -> Option<Pid> {
    let ended = raw_waitid(libc::P_ALL, 0, libc::WEXITED | libc::WNOHANG | libc::WNOWAIT);
    ended.ok().flatten().map(|(child, _)| child)
}

fn waitid(child: Child<'_>, options: c_int) -> nix::Result<Option<RankExit>> {
    let (kind, id) = match child {
        Child::Pidfd(pidfd) => (libc::P_PIDFD, pidfd.as_raw_fd()),
        Child::Number(pid) => (libc::P_PID, pid.as_raw()),
    };
    loop {
        match raw_waitid(kind, id as libc::id_t, options) {
            Err(Errno::EINTR) => {}
            result => return result.map(|ended| ended.map(|(_, exit)| exit)),
        }
    }
}

fn raw_waitid(kind: libc::idtype_t, id: libc::id_t, options: c_int) -> nix::Result<Option<(Pid, RankExit)>> {
    // SAFETY: `siginfo_t` consists of integers and pointers, for which zero is valid.
    let mut info: libc::siginfo_t = unsafe { mem::zeroed() };
    // SAFETY: `info` belongs to this function and is large enough; the call keeps no pointer to it.
    Errno::result(unsafe { libc::waitid(kind, id, &raw mut info, options) })?;
    // SAFETY: after `waitid` the fields of SIGCHLD are set, or all zero if no child had ended.
    let (pid, status) = unsafe { (info.si_pid(), info.si_status()) };
    let exit = match info.si_code {
        libc::CLD_EXITED => RankExit::Code(status),
        code => RankExit::Signal { signal: status, core_dumped: code == libc::CLD_DUMPED },
    };
    Ok((pid != 0).then_some((Pid::from_raw(pid), exit)))
}

/// CPUs that the calling thread may use, as the kernel's bit mask.
pub(crate) fn affinity() -> nix::Result<Vec<c_ulong>> {
    affinity_of(Pid::from_raw(0))
}

/// Empty bit mask with the kernel's maximum length. nix's mask ends at 1,024 CPUs, and the kernel rejects a mask shorter than its own. A kernel
/// can be built for 8,192 CPUs at most.
pub(crate) fn no_cpus() -> Vec<c_ulong> {
    vec![0; 8192 / c_ulong::BITS as usize]
}

/// CPUs that a process may use, as the kernel's bit mask.
pub(crate) fn affinity_of(process: Pid) -> nix::Result<Vec<c_ulong>> {
    let mut mask = no_cpus();
    let len = size_of_val(mask.as_slice());
    // SAFETY: the pointer and the length describe `mask`, which the kernel only writes to.
    Errno::result(unsafe { libc::sched_getaffinity(process.as_raw(), len, mask.as_mut_ptr().cast()) })?;
    Ok(mask)
}

/// Niceness of this process.
pub(crate) fn niceness() -> nix::Result<c_int> {
    Errno::clear();
    // SAFETY: takes numbers only.
    let niceness = unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) };
    // -1 is also a valid niceness.
    match Errno::last_raw() {
        0 => Ok(niceness),
        errno => Err(Errno::from_raw(errno)),
    }
}

/// Changes the niceness of this process.
pub(crate) fn set_niceness(niceness: c_int) -> nix::Result<()> {
    // SAFETY: takes numbers only.
    Errno::result(unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, niceness) }).map(drop)
}

/// Ensures that the kernel keeps ended children until they are reaped.
///
/// This process may inherit an ignored SIGCHLD. The kernel then discards the exit status of its children.
pub(crate) fn keep_ended_children() -> nix::Result<()> {
    // SAFETY: `sigaction` consists of integers, a pointer and an optional function, for which zero is valid.
    let mut action: libc::sigaction = unsafe { mem::zeroed() };
    // SAFETY: a null new action only reads the present one into `action`, which this function owns.
    Errno::result(unsafe { libc::sigaction(libc::SIGCHLD, ptr::null(), &raw mut action) })?;
    let ignored = action.sa_sigaction == libc::SIG_IGN;
    if !ignored && action.sa_flags & libc::SA_NOCLDWAIT == 0 {
        return Ok(());
    }
    if ignored {
        action.sa_sigaction = libc::SIG_DFL;
    }
    action.sa_flags &= !libc::SA_NOCLDWAIT;
    // SAFETY: the action is the previous one, with its handler, or the default one.
    Errno::result(unsafe { libc::sigaction(libc::SIGCHLD, &raw const action, ptr::null_mut()) }).map(drop)
}

#[cfg(test)]
mod tests {
    use std::io::IoSlice;
    use std::process::Command;

    use nix::sys::socket::{AddressFamily, ControlMessage, MsgFlags, SockFlag, SockType, sendmsg, socketpair};
    use nix::unistd::{getpid, pipe, write};

    use super::*;

    fn packets() -> (OwnedFd, OwnedFd) {
        socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC).unwrap()
    }

    fn send(socket: &OwnedFd, bytes: &[u8], descriptors: &[RawFd]) {
        let rights = [ControlMessage::ScmRights(descriptors)];
        let rights = if descriptors.is_empty() { &[][..] } else { &rights };
        sendmsg::<()>(socket.as_raw_fd(), &[IoSlice::new(bytes)], rights, MsgFlags::empty(), None).unwrap();
    }

    #[test]
    fn a_packet_brings_its_bytes_and_working_descriptors() {
        let (ours, theirs) = packets();
        let (reader, writer) = pipe().unwrap();
        send(&theirs, b"abc", &[writer.as_raw_fd()]);
        send(&theirs, b"d", &[]);
        let mut bytes = [0; 8];
        let packet = receive_packet(ours.as_fd(), &mut bytes).unwrap();
        assert_eq!((&bytes[..packet.len], packet.descriptors.len()), (b"abc".as_slice(), 1));
        write(&packet.descriptors[0], b"x").unwrap();
        let mut read = [0; 2];
        assert_eq!(nix::unistd::read(&reader, &mut read), Ok(1));
        let packet = receive_packet(ours.as_fd(), &mut bytes).unwrap();
        assert_eq!((packet.len, packet.descriptors.len()), (1, 0));
        drop(theirs);
        assert_eq!(receive_packet(ours.as_fd(), &mut bytes).unwrap().len, 0, "the other end is closed");
    }

    #[test]
    fn descriptors_beyond_the_room_for_them_are_left_out() {
        let (ours, theirs) = packets();
        send(&theirs, b"abc", &[theirs.as_raw_fd(); 5]);
        let mut bytes = [0; 8];
        let packet = receive_packet(ours.as_fd(), &mut bytes).unwrap();
        assert_eq!((packet.len, packet.descriptors.len()), (3, 4));
    }

    #[test]
    fn a_pidfd_is_of_the_process_that_has_the_number_now() {
        let myself = pidfd_open(getpid()).unwrap();
        assert_eq!(pidfd_send_signal(myself.as_fd(), Signal::SIGURG), Ok(()), "which is ignored by default");
        assert_eq!(pidfd_open(Pid::from_raw(i32::MAX)).unwrap_err(), Errno::ESRCH);
    }

    #[test]
    fn a_child_is_reaped_once_and_its_end_is_told() {
        let check = |script: &str, expected: RankExit| {
            let mut child = Command::new("sh").args(["-c", script]).spawn().unwrap();
            let pidfd = pidfd_open(Pid::from_raw(child.id() as i32)).unwrap();
            loop {
                match try_reap(Child::Pidfd(pidfd.as_fd())).unwrap() {
                    Some(exit) => break assert_eq!(exit, expected, "{script}"),
                    None => thread::yield_now(),
                }
            }
            assert_eq!(try_reap(Child::Pidfd(pidfd.as_fd())), Err(Errno::ECHILD));
            assert_eq!(pidfd_send_signal(pidfd.as_fd(), Signal::SIGKILL), Err(Errno::ESRCH));
            assert!(child.wait().is_err(), "nobody else can reap it");
        };
        check("exit 3", RankExit::Code(3));
        check("kill -9 $$", RankExit::Signal { signal: 9, core_dumped: false });
        // A real-time signal, for which nix has no name.
        check("kill -40 $$", RankExit::Signal { signal: 40, core_dumped: false });
    }

    #[test]
    fn this_thread_may_use_a_cpu() {
        assert!(affinity().unwrap().iter().any(|&word| word != 0));
    }
}
