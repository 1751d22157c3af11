//! The sets of a user on this machine: a directory of his that holds a file for each, and the names that their ranks publish.
//!
//! ```text
//! ~/.lattice/sets/     0700, the user's own; LATTICE_SETS names another one
//!   1723               0600, a set: its address, its key, its launch; named by the twelve random bits of its id
//!   names/4f1c...      0700, a name that ranks have published, with a file for each set that offers it
//!   lock               held while a file is made or removed
//! ```
//! A file appears whole: it is written under another name (`O_CREAT|O_EXCL|O_NOFOLLOW`), gets its own by a link, which never takes the
//! place of another file, and is read back. A set that was killed leaves its file behind; whoever finds that its process is gone
//! removes it, under the lock and only if the file is still the one that was looked at.

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

/// Variable that names another directory.
pub const VARIABLE: &str = "LATTICE_SETS";
/// Version of the files.
const VERSION: u32 = 2;
/// Time that the lock is waited for.
const LOCK_TIMEOUT: Duration = Duration::from_secs(5);

/// The directory.
#[derive(Debug)]
pub struct Directory {
    files: Files,
    mark: Mark,
}

/// Failure with the directory or a file in it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DirectoryError {
    /// Nobody says where it is.
    #[error("there is no place for the sets of this user: HOME is not set\ntry: {VARIABLE}=DIRECTORY")]
    NoHome,
    /// The path is a link, or something else.
    #[error("{} is no directory\ntry: {VARIABLE}=DIRECTORY, with one of your own", .0.display())]
    NoDirectory(PathBuf),
    /// The directory belongs to somebody else.
    #[error("{} belongs to uid {owner}, not to {us}\ntry: {VARIABLE}=DIRECTORY, with one of your own", path.display())]
    Foreign {
        /// The directory.
        path: PathBuf,
        /// Its owner.
        owner: u32,
        /// User of this process.
        us: u32,
    },
    /// Others may use it.
    #[error("{} may be used by others (mode {mode:o})\ntry: chmod 700 {}", path.display(), path.display())]
    Open {
        /// The directory.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// The system refuses.
    #[error("cannot {act} {}: {source}", path.display())]
    Io {
        /// Action that failed.
        act: &'static str,
        /// The file.
        path: PathBuf,
        /// Error of the system.
        source: Errno,
    },
    /// Somebody holds the lock.
    #[error("{} is locked for {} s by another process\ntry: fuser {}", path.display(), LOCK_TIMEOUT.as_secs(), path.display())]
    Locked {
        /// The lock.
        path: PathBuf,
    },
    /// All ids are taken.
    #[error("{} sets of this user live already, which is the most\ntry: lattice sets", SetId::PER_USER)]
    Full,
    /// A file does not hold what was written.
    #[error("{} was changed by somebody else while it was made", .0.display())]
    Changed(PathBuf),
    /// The kernel has no random numbers to give.
    #[error("the kernel gives no random numbers: {0}")]
    Random(#[source] std::io::Error),
}

/// The directory of a user: what `LATTICE_SETS` names, else `.lattice/sets` in `home`.
///
/// # Errors
/// Fails if neither is given.
pub fn place(named: Option<&Path>, home: Option<&Path>) -> Result<PathBuf, DirectoryError> {
    let given = |path: Option<&Path>| path.filter(|path| !path.as_os_str().is_empty()).map(Path::to_owned);
    given(named).or_else(|| Some(given(home)?.join(".lattice/sets"))).ok_or(DirectoryError::NoHome)
}

impl Directory {
    /// Opens the directory at `path`, which is made if it is not there.
    ///
    /// # Errors
    /// Refuses what is no directory, a link among them, one of another user, and one that others may use.
    pub fn open(path: &Path) -> Result<Self, DirectoryError> {
        Ok(Self { files: Files::open(path)?, mark: Mark::of_this_process() })
    }

    /// Opens the directory at `path` if it is there.
    ///
    /// # Errors
    /// Those of [`Directory::open`].
    pub fn open_existing(path: &Path) -> Result<Option<Self>, DirectoryError> {
        match path.symlink_metadata() {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            _ => Self::open(path).map(Some),
        }
    }

    /// Gives a set an id that no other set has, and enters it. Its root takes connections at the socket of `nonce` by then.
    ///
    /// # Errors
    /// Fails if all ids are taken, and if no file can be made.
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
            // A file system that lies is found out here.
            if self.files.read(&name)?.as_deref() != Some(text.as_bytes()) {
                return Err(DirectoryError::Changed(self.files.path(&name)));
            }
            drop(lock);
            return Ok(record);
        }
        Err(DirectoryError::Full)
    }

    /// Removes the file of a set, if it is still that one's, with the names that the set has published.
    ///
    /// # Errors
    /// Fails if the directory cannot be changed.
    pub fn remove(&self, set: &SetRecord) -> Result<(), DirectoryError> {
        let _lock = self.files.lock(LOCK_TIMEOUT)?;
        // Names first: if this is cut off, the next reader of the directory finds the file of the set, and removes the others.
        names::withdraw(&self.files, set)?;
        let name = set.id().number().to_string();
        match self.record(&name)? {
            Some(found) if found.nonce == set.nonce => self.files.remove(&name),
            _ => Ok(()),
        }
    }

    /// Sets that live, in the order of their beginnings. Those whose process is gone are removed.
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

    /// The set with this id, if it lives.
    ///
    /// # Errors
    /// Fails if its file cannot be read.
    pub fn find(&self, id: SetId) -> Result<Option<SetRecord>, DirectoryError> {
        let found = self.record(&id.number().to_string())?;
        Ok(found.filter(|set| set.id() == id && set.mark.life(&self.mark) != Life::Gone))
    }

    /// The set of this launch, if it lives.
    ///
    /// # Errors
    /// Fails if the directory cannot be read.
    pub fn find_launch(&self, launch: &str) -> Result<Option<SetRecord>, DirectoryError> {
        Ok(self.list()?.into_iter().find(|set| set.launch.as_deref() == Some(launch)))
    }

    /// Returns whether the process of a set is there.
    pub fn life(&self, set: &SetRecord) -> Life {
        set.mark.life(&self.mark)
    }

    /// Record in a file; `None` if there is no such file, or none of this version.
    fn record(&self, name: &str) -> Result<Option<SetRecord>, DirectoryError> {
        Ok(self
            .files
            .read(name)?
            .and_then(|text| SetRecord::parse(&text))
            .filter(|set| set.id().number().to_string() == name))
    }

    /// Removes the file of a set whose process is gone, or that holds no set; under the lock. Returns false if the set lives.
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
