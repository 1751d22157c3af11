//! Namespaces of a daemon, which give it a machine of its own. Links and addresses are in `network`.
//!
//! Namespaces belong to threads, and a process inherits the namespaces of the thread that starts it. So a separate thread enters the
//! namespaces, starts the process, and ends.

use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::thread;

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, setns, unshare};
use nix::unistd::sethostname;

/// File of host names, which each node replaces by a file of its own.
pub(super) const HOSTS: &str = "/etc/hosts";

/// Namespaces in which a process of a cluster is started.
#[derive(Debug)]
pub(super) enum Confinement<'a> {
    /// The namespaces of this process.
    Here,
    /// Another network namespace, and the other namespaces of this process.
    Network(BorrowedFd<'a>),
    /// A node.
    Node(Isolation<'a>),
    /// The head: as a node, but with the shared memory of this machine.
    Head(Isolation<'a>),
}

/// A node: its own network, host name, System V memory and message queues, and its own view of some files.
#[derive(Debug)]
pub(super) struct Isolation<'a> {
    pub(super) network: BorrowedFd<'a>,
    pub(super) host_name: &'a str,
    /// File that is mounted as `/etc/hosts`.
    pub(super) hosts: PathBuf,
    /// Empty directory that serves as a temporary mount point. The mount is visible nowhere else.
    pub(super) stop_over: PathBuf,
}

impl Confinement<'_> {
    /// Starts a process in these namespaces.
    ///
    /// # Errors
    /// Fails if the process cannot be started, or privileges for the namespaces are missing.
    pub(super) fn start(&self, command: &mut Command) -> io::Result<Child> {
        self.within(|| command.spawn())
    }

    /// Calls `start` in these namespaces, on a separate thread.
    ///
    /// # Errors
    /// Fails if `start` does, or privileges for the namespaces are missing.
    pub(super) fn within<T: Send>(&self, start: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
        let start = || {
            match self {
                Self::Here => {}
                Self::Network(network) => setns(network, CloneFlags::CLONE_NEWNET)?,
                Self::Node(isolation) => isolation.enter_node()?,
                Self::Head(isolation) => isolation.enter(CloneFlags::empty())?,
            }
            start()
        };
        let started = thread::scope(|scope| scope.spawn(start).join());
        started.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

impl Isolation<'_> {
    /// Moves this thread to a node. Shared memory between ranks of two nodes would hide that a real cluster has none.
    fn enter_node(&self) -> nix::Result<()> {
        self.enter(CloneFlags::CLONE_NEWIPC)?;
        mount(Some("tmpfs"), "/dev/shm", Some("tmpfs"), MsFlags::MS_NOSUID | MsFlags::MS_NODEV, Some("mode=1777"))
    }

    /// Moves this thread to its own network, host name and view of some files, and to the new namespaces in `more`.
    fn enter(&self, more: CloneFlags) -> nix::Result<()> {
        setns(self.network.as_fd(), CloneFlags::CLONE_NEWNET)?;
        unshare(CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWUTS | more)?;
        sethostname(self.host_name)?;
        // Later mounts must not be visible to other processes.
        remount_private()?;
        bind(&self.hosts, Path::new(HOSTS))?;
        self.mount_sys()
    }

    /// Mounts a /sys that shows the interfaces of this network, where UCX and libfabric look for them. Keeps the control groups of the old
    /// /sys.
    fn mount_sys(&self) -> nix::Result<()> {
        let groups = PathBuf::from("/sys/fs/cgroup");
        let has_groups = fs::read_dir(&groups).is_ok_and(|mut entries| entries.next().is_some());
        if has_groups {
            bind(&groups, &self.stop_over)?;
        }
        mount(Some("sysfs"), "/sys", Some("sysfs"), MsFlags::empty(), None::<&str>)?;
        if has_groups {
            mount(Some(&self.stop_over), &groups, None::<&str>, MsFlags::MS_MOVE, None::<&str>)?;
        }
        Ok(())
    }
}

fn remount_private() -> nix::Result<()> {
    mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None::<&str>)
}

fn bind(what: &Path, place: &Path) -> nix::Result<()> {
    mount(Some(what), place, None::<&str>, MsFlags::MS_BIND | MsFlags::MS_REC, None::<&str>)
}
