//! The sets of a user on this machine: a private directory with a file for each set, and the names that their ranks publish.
//!
//! ```text
//! ~/.lattice/sets/     0700, the user's own; LATTICE_SETS names another one
//!   1723               0600, a set: its address, its key, its launch; named by the twelve random bits of its id
//!   names/4f1c...      0700, a name that ranks have published, with a file for each set that offers it
//!   lock               held while a file is made or removed
//! ```
//! A file appears complete: it is written under another name (`O_CREAT|O_EXCL|O_NOFOLLOW`), gets its own name by a link, which never
//! replaces another file, and is read back. A killed set leaves its file. A process that detects the end of the set's process removes
//! the file, under the lock and only if it is still the inspected one.

pub mod activation;
mod files;
mod mark;
pub mod names;
mod record;
mod shared;

use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::errno::Errno;

use self::files::Files;
pub use self::mark::{Life, Mark, ancestors};
pub use self::record::{Contact, Kin, Nonce, SetFacts, SetKey, SetRecord, UnixSeconds};
pub use self::shared::is_shared;
use crate::address::SetId;

/// Environment variable with another directory.
pub const VARIABLE: &str = "LATTICE_SETS";
/// Version of the files.
const VERSION: u32 = 2;
/// Time limit for the lock.
const LOCK_TIMEOUT: Duration = Duration::from_secs(5);

/// The directory.
#[derive(Debug)]
pub struct Directory {
    files: Files,
    mark: Mark,
}

/// Failure of an operation on the directory or a file in it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DirectoryError {
    /// The directory is not known.
    #[error("there is no place for the sets of this user: HOME is not set\ntry: {VARIABLE}=DIRECTORY")]
    NoHome,
    /// The path is not a directory, or is a link.
    #[error("{} is no directory\ntry: {VARIABLE}=DIRECTORY, with one of your own", .0.display())]
    NoDirectory(PathBuf),
    /// The directory belongs to another user.
    #[error("{} belongs to uid {owner}, not to {us}\ntry: {VARIABLE}=DIRECTORY, with one of your own", path.display())]
    Foreign {
        /// The directory.
        path: PathBuf,
        /// Its owner.
        owner: u32,
        /// User of this process.
        us: u32,
    },
    /// Other users may access it.
    #[error("{} may be used by others (mode {mode:o})\ntry: chmod 700 {}", path.display(), path.display())]
    Open {
        /// The directory.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// A system call failed.
    #[error("cannot {act} {}: {source}", path.display())]
    Io {
        /// Action that failed.
        act: &'static str,
        /// The file.
        path: PathBuf,
        /// Error of the system.
        source: Errno,
    },
    /// Another process holds the lock.
    #[error("{} is locked for {} s by another process\ntry: fuser {}", path.display(), LOCK_TIMEOUT.as_secs(), path.display())]
    Locked {
        /// The lock.
        path: PathBuf,
    },
    /// All ids are in use.
    #[error("{} sets of this user live already, which is the most\ntry: lattice set list", SetId::PER_USER)]
    Full,
    /// A file does not have the written content.
    #[error("{} was changed by another process while it was made", .0.display())]
    Changed(PathBuf),
    /// The kernel returns no random numbers.
    #[error("the kernel gives no random numbers: {0}")]
    Random(#[source] std::io::Error),
}

/// The directory of a user: `named` (the value of `LATTICE_SETS`), otherwise `.lattice/sets` in `home`.
///
/// # Errors
/// Fails if neither is given.
pub fn place(named: Option<&Path>, home: Option<&Path>) -> Result<PathBuf, DirectoryError> {
    let given = |path: Option<&Path>| path.filter(|path| !path.as_os_str().is_empty()).map(Path::to_owned);
    given(named).or_else(|| Some(given(home)?.join(".lattice/sets"))).ok_or(DirectoryError::NoHome)
}

impl Directory {
    /// Opens the directory at `path`; creates it if it does not exist.
    ///
    /// # Errors
    /// Refuses a path that is not a directory, a link, a directory of another user, and a directory that other users may access.
    pub fn open(path: &Path) -> Result<Self, DirectoryError> {
        Ok(Self { files: Files::open(path)?, mark: Mark::of_this_process() })
    }

    /// Opens the directory at `path` if it exists.
    ///
    /// # Errors
    /// As [`Directory::open`].
    pub fn open_existing(path: &Path) -> Result<Option<Self>, DirectoryError> {
        match path.symlink_metadata() {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            _ => Self::open(path).map(Some),
        }
    }

    /// Assigns an unused id to a set, and creates its file. The set's root must already listen at the socket of `nonce`.
    ///
    /// # Errors
    /// Fails if all ids are in use, or if the file cannot be created.
    pub fn register(&self, nonce: &Nonce, facts: SetFacts) -> Result<SetRecord, DirectoryError> {
        let lock = self.files.lock(LOCK_TIMEOUT)?;
        let [first, second] = random()?;
        let start = u16::from_be_bytes([first, second]);
        for step in 0..SetId::PER_USER {
            let number = start.wrapping_add(step) % SetId::PER_USER;
            let name = number.to_string();
            if self.files.exists(&name)? && !self.remove_stale(&name)? {
                continue;
            }
            let record = SetRecord::new(number, nonce, facts, self.mark.clone())?;
            let text = record.to_text();
            self.files.create(&name, text.as_bytes())?;
            // Detects file systems that do not store the written content.
            if self.files.read(&name)?.as_deref() != Some(text.as_bytes()) {
                return Err(DirectoryError::Changed(self.files.path(&name)));
            }
            drop(lock);
            return Ok(record);
        }
        Err(DirectoryError::Full)
    }

    /// Removes the file of a set if it still belongs to that set, and the names that the set has published.
    ///
    /// # Errors
    /// Fails if the directory cannot be changed.
    pub fn remove(&self, set: &SetRecord) -> Result<(), DirectoryError> {
        let _lock = self.files.lock(LOCK_TIMEOUT)?;
        // Names first: after an interruption, the next reader of the directory finds the file of the set, and removes the remaining
        // names.
        names::withdraw(&self.files, set)?;
        let name = set.id().number().to_string();
        match self.record(&name)? {
            Some(found) if found.nonce == set.nonce => self.files.remove(&name),
            _ => Ok(()),
        }
    }

    /// Live sets, in order of their start. Sets without a process are removed.
    ///
    /// # Errors
    /// Fails if the directory cannot be read.
    pub fn list(&self) -> Result<Vec<SetRecord>, DirectoryError> {
        let mut sets = Vec::new();
        for name in self.files.names()?.into_iter().filter(|name| is_number(name)) {
            match self.record(&name)? {
                Some(set) if set.mark.life(&self.mark) == Life::Gone => {
                    let _lock = self.files.lock(LOCK_TIMEOUT)?;
                    self.remove_stale(&name)?;
                }
                found => sets.extend(found),
            }
        }
        sets.sort_unstable_by_key(|set| (set.begun, set.set));
        Ok(sets)
    }

    /// The set with this id, if it is alive.
    ///
    /// # Errors
    /// Fails if its file cannot be read.
    pub fn find(&self, id: SetId) -> Result<Option<SetRecord>, DirectoryError> {
        let found = self.record(&id.number().to_string())?;
        Ok(found.filter(|set| set.id() == id && set.mark.life(&self.mark) != Life::Gone))
    }

    /// The set of this launch, if it is alive.
    ///
    /// # Errors
    /// Fails if the directory cannot be read.
    pub fn find_launch(&self, launch: &str) -> Result<Option<SetRecord>, DirectoryError> {
        Ok(self.list()?.into_iter().find(|set| set.launch.as_deref() == Some(launch)))
    }

    /// Returns the state of a set's process.
    pub fn life(&self, set: &SetRecord) -> Life {
        set.mark.life(&self.mark)
    }

    /// Record in a file; `None` if there is no such file, or it has another version.
    fn record(&self, name: &str) -> Result<Option<SetRecord>, DirectoryError> {
        Ok(self
            .files
            .read(name)?
            .and_then(|text| SetRecord::parse(&text))
            .filter(|set| set.id().number().to_string() == name))
    }

    /// Removes the file of a set without a process, or a file without a set; requires the lock. Returns false if the set is alive.
    fn remove_stale(&self, name: &str) -> Result<bool, DirectoryError> {
        match self.record(name)? {
            Some(set) if set.mark.life(&self.mark) != Life::Gone => return Ok(false),
            Some(set) => names::withdraw(&self.files, &set)?,
            None => {}
        }
        self.files.remove(name)?;
        Ok(true)
    }
}

fn is_number(name: &str) -> bool {
    name.parse::<u16>().is_ok_and(|number| number < SetId::PER_USER && number.to_string() == name)
}

pub(crate) fn random<const N: usize>() -> Result<[u8; N], DirectoryError> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(|error| DirectoryError::Random(error.into()))?;
    Ok(bytes)
}
