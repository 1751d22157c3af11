//! Switches a process to a user permanently: adopts the user's attributes from the kernel and the user database, and gives up root's
//! privileges.
//!
//! ```text
//! limits -> groups -> bounding set -> session keyring -> gid -> uid -> session keyring -> capabilities -> "can root come back?"
//!        -> no_new_privs
//! ```
//! If a step fails, the process must exit at once.

#![expect(unsafe_code, reason = "keyrings and the bounding set have no safe wrapper here")]

use std::ffi::{CString, c_char, c_long, c_ulong};
use std::fmt;
use std::path::PathBuf;
use std::ptr;

use nix::errno::Errno;
use nix::libc;
use nix::sys::prctl;
use nix::sys::resource::setrlimit;
use nix::unistd::{Gid, Uid, User, getgrouplist, getresuid, setgroups, setresgid, setresuid, setuid};

use crate::capabilities::{self, Capabilities, drop_capabilities};
use crate::limits::Limit;
use crate::process_table::own_threads;

// Of `linux/keyctl.h`.
const JOIN_SESSION_KEYRING: c_ulong = 1;
const LINK: c_ulong = 8;
const SESSION_KEYRING: c_long = -3;
const USER_KEYRING: c_long = -4;

/// Entry of a user in the node's user database.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Account {
    /// The number.
    pub uid: u32,
    /// The primary group.
    pub gid: u32,
    /// The name.
    pub name: String,
    /// The home directory.
    pub home: PathBuf,
    /// The login shell.
    pub shell: PathBuf,
}

/// Error of [`Account::of`].
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AccountError {
    /// The database has no such user.
    #[error("user {uid} is not known on this node")]
    Unknown {
        /// The user.
        uid: u32,
    },
    /// The database has no user of this name.
    #[error("user {name:?} is not known on this node")]
    NoSuchName {
        /// The name.
        name: String,
    },
    /// The query of the database failed.
    #[error("cannot look up user {uid}: {}", errno.desc())]
    System {
        /// The user.
        uid: u32,
        /// Error of the system.
        errno: Errno,
    },
    /// The query of the database by name failed.
    #[error("cannot look up user {name:?}: {}", errno.desc())]
    SystemOfName {
        /// The name.
        name: String,
        /// Error of the system.
        errno: Errno,
    },
}

impl Account {
    /// Looks up a user. The look-up may query a server and block.
    ///
    /// # Errors
    /// Fails if this node has no such user.
    pub fn of(uid: u32) -> Result<Self, AccountError> {
        let user = User::from_uid(Uid::from_raw(uid)).map_err(|errno| AccountError::System { uid, errno })?;
        user.map(Self::from).ok_or(AccountError::Unknown { uid })
    }

    /// Looks up a user by name, as [`Account::of`] does by number.
    ///
    /// # Errors
    /// Fails if this node has no user of this name.
    pub fn named(name: &str) -> Result<Self, AccountError> {
        let owned = || name.to_owned();
        let user = User::from_name(name).map_err(|errno| AccountError::SystemOfName { name: owned(), errno })?;
        user.map(Self::from).ok_or_else(|| AccountError::NoSuchName { name: owned() })
    }

    /// Loads the C library's modules for users and groups in advance, which takes longer than a look-up. Processes that are forked from this
    /// one inherit the modules. The call may query a server about this process's own user, as [`Account::of`] does.
    pub(crate) fn load_databases() {
        if let Ok(account) = Self::of(Uid::effective().as_raw()) {
            // The result is unused. The query of groups loads all sources; the query of a user loads only those up to the first source that
            // has the user.
            let _ = account.groups();
        }
    }

    fn groups(&self) -> nix::Result<Vec<Gid>> {
        let name = CString::new(self.name.as_str()).map_err(|_| Errno::EINVAL)?;
        getgrouplist(&name, Gid::from_raw(self.gid))
    }

    /// The variables that a login would set: `HOME`, `USER`, `LOGNAME`, `SHELL`.
    pub fn variables(&self) -> [(&'static str, std::ffi::OsString); 4] {
        let (name, home, shell) = (&self.name, &self.home, &self.shell);
        [("HOME", home.into()), ("USER", name.into()), ("LOGNAME", name.into()), ("SHELL", shell.into())]
    }
}

impl From<User> for Account {
    fn from(User { uid, gid, name, dir, shell, .. }: User) -> Self {
        Self { uid: uid.as_raw(), gid: gid.as_raw(), name, home: dir, shell }
    }
}

/// Privileges and limits of a user's processes, in addition to the identity.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Privileges {
    /// If true, programs with the setuid bit or file capabilities work as after a login. If false, no executed program can gain privileges.
    pub setuid_programs: bool,
    /// Resource limits, set before the process gives up root's privileges.
    pub limits: Vec<Limit>,
}

/// Error of [`become_user`]. The process may have changed partly, and must exit.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BecomeError {
    /// The process is not root: only root can become another user.
    #[error("a process of user {ours} cannot become user {uid}; only root can")]
    NotRoot {
        /// The requested user.
        uid: u32,
        /// The user of this process.
        ours: u32,
    },
    /// The process has several threads. Capabilities belong to threads, so the other threads would keep theirs.
    #[error("a process can become a user only while it has one thread; it has {threads}")]
    Threads {
        /// Number of threads that the process has.
        threads: usize,
    },
    /// A system call of this step failed.
    #[error("cannot become user {uid}: cannot {step}: {}", errno.desc())]
    Step {
        /// The user.
        uid: u32,
        /// The step.
        step: BecomeStep,
        /// Error of the system.
        errno: Errno,
    },
    /// The process could still become root.
    #[error("user {uid} could become root again")]
    RootComesBack {
        /// The user.
        uid: u32,
    },
}

/// Step of [`become_user`]; as text it follows the word "cannot".
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum BecomeStep {
    /// Setting a resource limit.
    Limit,
    /// Setting the user's groups.
    Groups,
    /// Dropping the capability bounding set.
    BoundingSet,
    /// Setting the group and the user.
    Ids,
    /// Joining a new session keyring.
    Keyring,
    /// Dropping capabilities.
    Capabilities,
    /// Setting `no_new_privs`.
    NoNewPrivileges,
}

impl fmt::Display for BecomeStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Limit => "set a limit",
            Self::Groups => "take on their groups",
            Self::BoundingSet => "drop the capability bounding set",
            Self::Ids => "change user and group",
            Self::Keyring => "get a session keyring",
            Self::Capabilities => "drop capabilities",
            Self::NoNewPrivileges => "refuse new privileges",
        })
    }
}

/// Makes this process a process of `account` permanently. Root can become any user; another user can only become itself.
///
/// For a user other than root it drops all capabilities, and verifies by a try that the process cannot become root again.
///
/// # Errors
/// Fails at the first step that fails. The process may have changed partly then, and must exit.
pub fn become_user(account: &Account, privileges: &Privileges) -> Result<(), BecomeError> {
    let uid = account.uid;
    let ours = Uid::effective();
    if !ours.is_root() && ours.as_raw() != uid {
        return Err(BecomeError::NotRoot { uid, ours: ours.as_raw() });
    }
    let threads = own_threads().unwrap_or(0);
    if threads != 1 {
        return Err(BecomeError::Threads { threads });
    }
    let at = |step| move |errno| BecomeError::Step { uid, step, errno };
    for limit in &privileges.limits {
        setrlimit(limit.resource.to_nix(), limit.soft, limit.hard).map_err(at(BecomeStep::Limit))?;
    }
    if ours.is_root() {
        account.groups().and_then(|groups| setgroups(&groups)).map_err(at(BecomeStep::Groups))?;
        // The process can drop the set only while it is root.
        if uid != 0 && !privileges.setuid_programs {
            drop_bounding_set().map_err(at(BecomeStep::BoundingSet))?;
        }
        // Created as root, which has a large key quota: this keyring stays in use if the user has no key to spare.
        join_new_keyring().map_err(at(BecomeStep::Keyring))?;
        let (group, user) = (Gid::from_raw(account.gid), Uid::from_raw(uid));
        setresgid(group, group, group).map_err(at(BecomeStep::Ids))?;
        setresuid(user, user, user).map_err(at(BecomeStep::Ids))?;
    }
    take_keyring().map_err(at(BecomeStep::Keyring))?;
    if uid == 0 {
        // Sessions of root keep root's privileges.
        capabilities::raise_capabilities(Capabilities::ALL).map_err(at(BecomeStep::Capabilities))?;
    } else {
        drop_capabilities().map_err(at(BecomeStep::Capabilities))?;
        let ids = getresuid().map_err(at(BecomeStep::Ids))?;
        let is_user = [ids.real, ids.effective, ids.saved].iter().all(|id| id.as_raw() == uid);
        if !is_user || setuid(Uid::from_raw(0)).is_ok() {
            return Err(BecomeError::RootComesBack { uid });
        }
        if !privileges.setuid_programs {
            prctl::set_no_new_privs().map_err(at(BecomeStep::NoNewPrivileges))?;
        }
    }
    Ok(())
}

/// Gives this process a new session keyring that links the user's keyring, as `pam_keyinit(8)` does at a login. A user can have 200 keys
/// (`/proc/sys/kernel/keys/maxkeys`), and a session keyring that replaces another counts as one. If the user has no key to spare, the process
/// keeps its present session keyring.
fn take_keyring() -> nix::Result<()> {
    match join_new_keyring() {
        Ok(true) | Err(Errno::EDQUOT) => {}
        Ok(false) => return Ok(()),
        Err(errno) => return Err(errno),
    }
    // SAFETY: takes integers only.
    let linked = unsafe { libc::syscall(libc::SYS_keyctl, LINK, USER_KEYRING, SESSION_KEYRING) };
    match Errno::result(linked) {
        Ok(_) | Err(Errno::EDQUOT) => Ok(()),
        Err(errno) => Err(errno),
    }
}

/// Replaces the inherited session keyring, which its possessors may read and change, by a new one of this process's user. Returns false if
/// there are no keyrings: the kernel has none, or a container blocks access to them, the inherited keyring included.
fn join_new_keyring() -> nix::Result<bool> {
    // SAFETY: no name makes an anonymous keyring, and nothing is read or written.
    let joined = unsafe { libc::syscall(libc::SYS_keyctl, JOIN_SESSION_KEYRING, ptr::null::<c_char>()) };
    match Errno::result(joined) {
        Ok(_) => Ok(true),
        Err(Errno::ENOSYS | Errno::EPERM) => Ok(false),
        Err(errno) => Err(errno),
    }
}

/// Drops all capabilities from the bounding set, which limits the capabilities that an executed program can gain.
fn drop_bounding_set() -> nix::Result<()> {
    let none: c_ulong = 0;
    for capability in 0..c_ulong::BITS {
        // SAFETY: takes integers only.
        let result = unsafe { libc::prctl(libc::PR_CAPBSET_DROP, c_ulong::from(capability), none, none, none) };
        match Errno::result(result) {
            Ok(_) => {}
            // The kernel has no capability of this number, nor of a higher one.
            Err(Errno::EINVAL) if capability > 0 => break,
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_is_looked_up_by_number() {
        let root = Account::of(0).unwrap();
        assert_eq!((root.uid, root.gid, root.name.as_str()), (0, 0, "root"));
        let variables = root.variables();
        assert_eq!(variables[1], ("USER", "root".into()));
        let error = Account::of(4_000_000_001).unwrap_err();
        assert_eq!(error.to_string(), "user 4000000001 is not known on this node");
        assert_eq!(Account::named("root").unwrap(), root);
        let error = Account::named("no such name").unwrap_err().to_string();
        assert_eq!(error, "user \"no such name\" is not known on this node");
    }

    #[test]
    fn a_process_with_threads_becomes_nobody() {
        // The test harness has a second thread, which waits for the test.
        std::thread::scope(|scope| {
            let become_myself = || {
                let uid = Uid::effective().as_raw();
                let myself = Account { uid, gid: 0, name: String::new(), home: PathBuf::new(), shell: PathBuf::new() };
                become_user(&myself, &Privileges::default())
            };
            let error = scope.spawn(become_myself).join().unwrap().unwrap_err();
            assert!(matches!(error, BecomeError::Threads { threads } if threads > 1), "{error}");
        });
    }
}
