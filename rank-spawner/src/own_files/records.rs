//! Records of the directories that a process has made, for a process without a keeper. The process holds a lock on its file of records. The
//! user's next process that checks removes the directories in unlocked files: their processes were killed.
//!
//! ```text
//! /tmp/lattice-UID/left/NAME     identity (16 bytes), path; a NUL after each
//! ```

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use nix::fcntl::{OFlag, openat};
use nix::sys::stat::Mode;
use nix::unistd::geteuid;

use super::identity::{FileIdentity, remove_empty, remove_recorded};
use super::{NotPrivate, OwnDirectory, PrivateDirectory};

/// Directory of the records, in the user's directory.
const DIRECTORY: &str = "left";

/// Limit on the bytes that are read from a file of records.
const BYTES_MAX: u64 = 64 << 10;

/// Records of this process. Dropping the value removes them; a killed process leaves them.
#[derive(Debug)]
pub struct Records {
    directory: PrivateDirectory,
    name: String,
    file: File,
}

impl Records {
    /// Creates new records in `/tmp/lattice-UID`. No other process may use the name.
    ///
    /// # Errors
    /// Fails if another user has access to that directory, or if a system call fails.
    pub fn create(name: &str) -> Result<Self, NotPrivate> {
        let user = PrivateDirectory::make(format!("/tmp/lattice-{}", geteuid()))?;
        Self::create_in(user.make_below(DIRECTORY)?, name)
    }

    fn create_in(directory: PrivateDirectory, name: &str) -> Result<Self, NotPrivate> {
        let made = || -> io::Result<File> {
            // Readers skip names with a dot: the file is not locked yet.
            let draft = format!(".{name}");
            let flags = OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_WRONLY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
            let file = File::from(openat(&directory, draft.as_str(), flags, Mode::S_IRUSR | Mode::S_IWUSR)?);
            file.try_lock()?;
            nix::fcntl::renameat(&directory, draft.as_str(), &directory, name)?;
            Ok(file)
        };
        let file = made().map_err(|source| NotPrivate::System { path: directory.path().join(name), source })?;
        Ok(Self { directory, name: name.to_owned(), file })
    }

    /// Records a directory before it is made: it is removed if it is empty.
    ///
    /// # Errors
    /// Returns the error of the system call.
    pub fn announce(&mut self, path: &Path) -> io::Result<()> {
        self.write(&[0; FileIdentity::LEN], path)
    }

    /// Records a directory: it is removed with its content.
    ///
    /// # Errors
    /// Returns the error of the system call.
    pub fn add(&mut self, directory: &OwnDirectory) -> io::Result<()> {
        self.write(&directory.identity().encode(), directory.path())
    }

    fn write(&mut self, identity: &[u8; FileIdentity::LEN], path: &Path) -> io::Result<()> {
        self.file.write_all(&[identity, path.as_os_str().as_bytes(), &[0]].concat())
    }

    /// Removes the directories that killed processes of this user have recorded. May block.
    pub fn remove_those_of_killed_processes() {
        let user = PrivateDirectory::open(format!("/tmp/lattice-{}", geteuid()));
        if let Ok(directory) = user.and_then(|user| user.open_below(DIRECTORY)) {
            remove_dead(&directory);
        }
    }
}

impl Drop for Records {
    fn drop(&mut self) {
        self.directory.remove_file(&self.name);
    }
}

fn remove_dead(directory: &PrivateDirectory) {
    for name in directory.names().unwrap_or_default() {
        let Some(file) = open_unlocked(directory, &name) else { continue };
        let mut records = Vec::new();
        // After a read error the complete records before it are used.
        let _ = (&file).take(BYTES_MAX).read_to_end(&mut records);
        for (identity, path) in parse(&records) {
            match identity {
                Some(identity) => remove_recorded(path, identity),
                None => remove_empty(path),
            }
        }
        directory.remove_file(&name);
    }
}

/// Opens and locks a file of records of a process that has ended.
fn open_unlocked(directory: &PrivateDirectory, name: &str) -> Option<File> {
    let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
    let file = File::from(openat(directory, name, flags, Mode::empty()).ok()?);
    let is_records = file.metadata().is_ok_and(|status| status.is_file() && status.uid() == geteuid().as_raw());
    (is_records && file.try_lock().is_ok()).then_some(file)
}

/// Complete records, the last written first.
fn parse(records: &[u8]) -> Vec<(Option<FileIdentity>, &Path)> {
    let mut rest = records;
    let mut parsed = Vec::new();
    while let Some((identity, behind)) = rest.split_first_chunk() {
        let Some(end) = behind.iter().position(|&byte| byte == 0) else { break };
        parsed.push((FileIdentity::decode(*identity), Path::new(OsStr::from_bytes(&behind[..end]))));
        rest = &behind[end + 1..];
    }
    parsed.reverse();
    parsed
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn what_a_killed_process_has_recorded_is_removed_and_nothing_else() {
        let root = tempfile::tempdir().unwrap();
        let at = |name: &str| root.path().join(name);
        let records = |name: &str| {
            let private = PrivateDirectory::make(at("records")).unwrap();
            Records::create_in(private, name).unwrap()
        };
        let own = |name: &str| {
            let directory = OwnDirectory::make(at(name), 0o700).unwrap();
            drop(directory.create_file("file").unwrap());
            directory
        };
        let (mut killed, mut running) = (records("killed"), records("running"));
        killed.announce(&at("killed.own")).unwrap();
        killed.add(&own("killed.own")).unwrap();
        killed.announce(&at("announced")).unwrap();
        killed.announce(&at("lattice-qcd.tmp")).unwrap();
        killed.add(&own("replaced")).unwrap();
        running.add(&own("running.own")).unwrap();
        fs::create_dir(at("announced")).unwrap();
        fs::create_dir_all(at("lattice-qcd.tmp/results")).unwrap();
        fs::rename(at("replaced"), at("moved")).unwrap();
        fs::create_dir(at("replaced")).unwrap();
        fs::write(at("replaced/results"), "x").unwrap();
        // Simulates a killed process: its lock goes, its file stays.
        let Records { file, .. } = &killed;
        file.unlock().unwrap();
        remove_dead(&PrivateDirectory::open(at("records")).unwrap());
        let there = ["killed.own", "announced", "lattice-qcd.tmp/results", "replaced/results", "running.own/file"];
        assert_eq!(there.map(|name| at(name).exists()), [false, false, true, true, true]);
        assert_eq!([at("records/killed"), at("records/running")].map(|path| path.exists()), [false, true]);
        drop(running);
        assert!(!at("records/running").exists());
    }

    #[test]
    fn a_record_that_was_cut_off_says_nothing() {
        let whole = [&[7; FileIdentity::LEN][..], b"/a\0"].concat();
        assert_eq!(parse(&whole).len(), 1);
        for cut in 0..whole.len() {
            assert_eq!(parse(&whole[..cut]), []);
        }
    }
}
