//! Namespaces of a daemon, in which it is on a machine of its own. Links and addresses are `network`'s.
//!
//! Namespaces belong to threads, and a process is born into those of the thread that starts it. So a thread goes there first,
//! starts the process, and ends.

use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::thread;

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, setns, unshare};
use nix::unistd::sethostname;

/// Namespaces that a process of a cluster is started in.
#[derive(Debug)]
pub(super) enum Confinement<'a> {
    /// The namespaces of this process.
    Here,
    /// In another network, and here in everything else.
    Network(BorrowedFd<'a>),
    /// On a node.
    Node(Isolation<'a>),
    /// On the head: as on a node, but with this machine's shared memory.
    Head(Isolation<'a>),
}

/// A node: own network, host name, System V memory and message queues, and an own view of some files.
#[derive(Debug)]
pub(super) struct Isolation<'a> {
    pub(super) network: BorrowedFd<'a>,
    pub(super) host_name: &'a str,
    /// The file to be seen as `/etc/hosts`.
    pub(super) hosts: PathBuf,
    /// An empty directory to put a mount into for a moment; that cannot be seen from anywhere else.
    pub(super) stop_over: PathBuf,
}

impl Confinement<'_> {
    /// Starts a process there.
    ///
    /// # Errors
    /// Fails if the process cannot be started, or we lack the privileges for the place.
    pub(super) fn start(&self, command: &mut Command) -> io::Result<Child> {
        self.within(|| command.spawn())
    }

    /// Calls `start` there, in a thread of its own.
    ///
    /// # Errors
    /// Fails if `start` does, or we lack the privileges for the place.
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
    /// Takes this thread to a node. Shared memory that ranks of two nodes could find each other by would hide that they cannot on a real
    /// cluster.
    fn enter_node(&self) -> nix::Result<()> {
        self.enter(CloneFlags::CLONE_NEWIPC)?;
        mount(Some("tmpfs"), "/dev/shm", Some("tmpfs"), MsFlags::MS_NOSUID | MsFlags::MS_NODEV, Some("mode=1777"))
    }

    /// Takes this thread to a place with an own network, host name and view of some files, and with what `more` names.
    fn enter(&self, more: CloneFlags) -> nix::Result<()> {
        setns(self.network.as_fd(), CloneFlags::CLONE_NEWNET)?;
        unshare(CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWUTS | more)?;
        sethostname(self.host_name)?;
        // What is mounted from here on shall be seen by nobody else.
        remount_private()?;
        bind(&self.hosts, Path::new("/etc/hosts"))?;
        self.mount_sys()
    }

    /// Mounts a /sys that shows this network's interfaces, which is where UCX and libfabric look for them; with the control
    /// groups that the old one has in it.
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
