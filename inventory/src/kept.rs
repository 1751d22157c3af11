//! Inventory stored in files: one process of a boot reads the node, and later processes read the files.
//!
//! ```text
//! inventory-VIEW         one line of JSON: the boot, the view, and the sums of both contents; then the inventory
//! topology-SUM.xml       the node in hwloc's format; ranks use this file, so a file of this name never changes
//! ```
//!
//! The directory also has signs that show if these files are still valid (see `unchanged`).
//!
//! A view is the set of online CPUs and of visible network interfaces. A network namespace with its own `/sys` shows only its own interfaces.
//! Processes of one boot can therefore have several views of the node, and each view has a file.
//!
//! Files of another boot or view are ignored. Damaged files are ignored with a warning.

mod room;

use std::fs::{self, DirBuilder, File, Metadata, OpenOptions, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use nix::fcntl::OFlag;
use nix::unistd::{Uid, getpid};
use ring::digest;
use serde::{Deserialize, Serialize};

use self::room::TOPOLOGY;
use crate::cpus::CpuSet;
use crate::node::{BOOT_ID, Inventory};
use crate::plain_file::{self, PlainFileError, check_kind};
use crate::root::{ReadError, Root};
use crate::seen_file::SeenFile;

/// Version of the files; files of another version are replaced.
pub(crate) const VERSION: u32 = 3;

/// Device classes for which a network namespace shows only its own devices.
const IN_NAMESPACES: [&str; 2] = ["net", "infiniband"];

/// Limit on the bytes read from a file.
const FILE_MAX: u64 = 16 * 1024 * 1024;

/// Limit on the length of the first line, in bytes.
const HEADER_MAX: usize = 4096;

/// Directory that stores an inventory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Keeping(PathBuf);

/// Error for stored files that are not usable.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum KeptError {
    /// A file could not be read or written.
    #[error("{}: {source}", path.display())]
    System {
        /// The file.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
    /// Another user could have written the file.
    #[error("{} belongs to user {owner} with mode {mode:o}; only files of root and of this user that no other user can write are read", path.display())]
    Foreign {
        /// The file or directory.
        path: PathBuf,
        /// Its owner.
        owner: u32,
        /// Its permissions.
        mode: u32,
    },
    /// The content differs from the written content.
    #[error("{} is damaged: {reason}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Reason, as text.
        reason: String,
    },
    /// The file is not a regular file, or is too large.
    #[error(transparent)]
    NotPlain(#[from] PlainFileError),
}

/// Identity of the node state of an inventory, as far as it can change without intervention.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Validity {
    /// Boot of the kernel.
    boot_id: String,
    /// Hash of the view.
    view: String,
}

impl Validity {
    /// The present state, as this process sees it; reads some small files.
    ///
    /// # Errors
    /// Fails if the kernel does not list the online CPUs or the devices.
    pub(crate) fn now(root: &Root) -> Result<Self, ReadError> {
        // Skips virtual interfaces, such as bridges and tunnels.
        let mut interfaces = Vec::new();
        for class in IN_NAMESPACES {
            let directory = format!("sys/class/{class}");
            let is_virtual = |name: &str| {
                root.link(&format!("{directory}/{name}")).is_some_and(|path| path.contains("/devices/virtual/"))
            };
            interfaces.extend(root.names(&directory)?.into_iter().filter(|name| !is_virtual(name)));
        }
        let view = format!("{} {}", online(root)?, interfaces.join("/"));
        Ok(Self { boot_id: root.word(BOOT_ID).unwrap_or_default(), view: Sum::of(view.as_bytes()).short().to_owned() })
    }

    /// True if the boot has an identity.
    fn can_be_kept(&self) -> bool {
        !self.boot_id.is_empty()
    }

    /// Name of the file of the inventory.
    fn file_name(&self) -> String {
        format!("inventory-{}", self.view)
    }
}

/// Online CPUs.
///
/// # Errors
/// Fails if the kernel does not list them.
pub(crate) fn online(root: &Root) -> Result<CpuSet, ReadError> {
    root.required_list("sys/devices/system/cpu/online")
}

/// First line of an inventory file.
#[derive(Debug, Serialize, Deserialize)]
struct Header {
    version: u32,
    of: Validity,
    inventory: Sum,
    /// Sum of the topology file; `None` if the node has no topology for hwloc.
    xml: Option<Sum>,
}

/// Length and SHA-256 of a file's content.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct Sum {
    bytes: u64,
    sha256: String,
}

impl Sum {
    fn of(content: &[u8]) -> Self {
        let hash = digest::digest(&digest::SHA256, content);
        let sha256 = hash.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
        Self { bytes: content.len() as u64, sha256 }
    }

    fn check(&self, content: &[u8], path: &Path) -> Result<(), KeptError> {
        if *self == Self::of(content) {
            return Ok(());
        }
        let reason = format!("{} bytes that are not the {} written", content.len(), self.bytes);
        Err(KeptError::Damaged { path: path.to_owned(), reason })
    }

    fn short(&self) -> &str {
        self.sha256.get(..16).unwrap_or_default()
    }

    fn xml_name(&self) -> String {
        format!("{TOPOLOGY}-{}.xml", self.short())
    }
}

/// Stored files of an inventory of the present boot and view.
#[derive(Debug)]
pub(crate) struct StoredFiles {
    directory: PathBuf,
    path: PathBuf,
    header: Header,
    /// The file after its header.
    body: File,
}

impl Keeping {
    /// Directory of the machine. Root writes it, and all users read it. (`/run/lattice` belongs to the API server's user.)
    pub fn of_machine() -> Self {
        Self("/run/lattice-inventory".into())
    }

    /// Directory of this process's user. Only this user writes it.
    pub fn of_user() -> Self {
        let me = Uid::effective();
        match std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from) {
            _ if me.is_root() => Self::of_machine(),
            Some(directory) if directory.is_absolute() => Self(directory.join("lattice-inventory")),
            _ => Self(format!("/tmp/lattice-inventory-{me}").into()),
        }
    }

    /// Store in another directory.
    pub fn at(directory: impl Into<PathBuf>) -> Self {
        Self(directory.into())
    }

    /// Opens the stored inventory of this view; `None` if there is none, or it belongs to another boot.
    pub(crate) fn open(&self, now: &Validity) -> Result<Option<StoredFiles>, KeptError> {
        let path = self.0.join(now.file_name());
        match self.check_directory() {
            Err(KeptError::System { source, .. }) if source.kind() == io::ErrorKind::NotFound => return Ok(None),
            result => result?,
        }
        let mut file = match open(&path) {
            Err(KeptError::System { source, .. }) if source.kind() == io::ErrorKind::NotFound => return Ok(None),
            result => result?,
        };
        let damaged = |reason: String| KeptError::Damaged { path: path.clone(), reason };
        let line = first_line(&mut file).map_err(|source| KeptError::System { path: path.clone(), source })?;
        let header: Header = serde_json::from_slice(&line).map_err(|error| damaged(error.to_string()))?;
        let fits = header.version == VERSION && header.of == *now && now.can_be_kept();
        Ok(fits.then_some(StoredFiles { directory: self.0.clone(), path, header, body: file }))
    }

    /// Path of a file in the directory.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Makes the directory for a writer, if it does not exist.
    pub(crate) fn create(&self) -> Result<(), KeptError> {
        self.create_with(if *self == Self::of_machine() { 0o755 } else { 0o700 })
    }

    /// Makes the directory with this mode, independent of the umask now and at its creation.
    fn create_with(&self, mode: u32) -> Result<(), KeptError> {
        let failed = |source| KeptError::System { path: self.0.clone(), source };
        DirBuilder::new().recursive(true).mode(mode).create(&self.0).map_err(failed)?;
        self.check_directory()?;
        let metadata = fs::symlink_metadata(&self.0).map_err(failed)?;
        if metadata.mode() & mode != mode && metadata.uid() == Uid::effective().as_raw() {
            fs::set_permissions(&self.0, Permissions::from_mode(mode)).map_err(failed)?;
        }
        Ok(())
    }

    /// Stores an inventory, and returns the topology file for ranks.
    pub(crate) fn store(
        &self,
        now: &Validity,
        inventory: &Inventory,
        xml: Option<&str>,
    ) -> Result<Option<SeenFile>, KeptError> {
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |source| KeptError::System { path, source }
        };
        self.create()?;
        let body = serde_json::to_vec(inventory).map_err(|error| failed(&self.0)(error.into()))?;
        let sum = xml.map(|xml| Sum::of(xml.as_bytes()));
        let file = sum.as_ref().map(|sum| self.0.join(sum.xml_name()));
        if let Some((file, xml)) = file.as_ref().zip(xml) {
            self.replace(file, &[xml.as_bytes()])?;
        }
        let header = Header { version: VERSION, of: now.clone(), inventory: Sum::of(&body), xml: sum };
        let mut line = serde_json::to_vec(&header).map_err(|error| failed(&self.0)(error.into()))?;
        line.push(b'\n');
        self.replace(&self.0.join(now.file_name()), &[&line, &body])?;
        self.make_room();
        let seen = |file: PathBuf| {
            let metadata = fs::symlink_metadata(&file).map_err(failed(&file))?;
            Ok(SeenFile::of(&file, &metadata))
        };
        file.map(seen).transpose()
    }

    /// Removes the least recently used files if there are too many.
    pub(crate) fn make_room(&self) {
        room::make_room(&self.0);
    }

    /// Writes a new file and moves it over `path`.
    pub(crate) fn replace(&self, path: &Path, parts: &[&[u8]]) -> Result<(), KeptError> {
        let beside = self.0.join(format!(".{}.{}", path.file_name().unwrap_or_default().to_string_lossy(), getpid()));
        let written = (|| {
            // Possibly left by a process with the same number.
            let _ = fs::remove_file(&beside);
            let mut file = OpenOptions::new().write(true).create_new(true).mode(0o644).open(&beside)?;
            // Independent of the umask.
            file.set_permissions(Permissions::from_mode(0o644))?;
            parts.iter().try_for_each(|part| file.write_all(part))?;
            fs::rename(&beside, path)
        })();
        written.map_err(|source| {
            let _ = fs::remove_file(&beside);
            KeptError::System { path: path.to_owned(), source }
        })
    }

    pub(crate) fn check_directory(&self) -> Result<(), KeptError> {
        let metadata =
            fs::symlink_metadata(&self.0).map_err(|source| KeptError::System { path: self.0.clone(), source })?;
        if !metadata.is_dir() {
            let reason = format!("it is {} where a directory is to be", plain_file::words(metadata.file_type()));
            return Err(KeptError::Damaged { path: self.0.clone(), reason });
        }
        check_owner(&self.0, &metadata)
    }
}

impl StoredFiles {
    /// Reads the inventory.
    pub(crate) fn inventory(&mut self) -> Result<Inventory, KeptError> {
        let path = &self.path;
        let mut body = Vec::new();
        let read = (&mut self.body).take(FILE_MAX).read_to_end(&mut body);
        read.map_err(|source| KeptError::System { path: path.clone(), source })?;
        self.header.inventory.check(&body, path)?;
        serde_json::from_slice(&body)
            .map_err(|error| KeptError::Damaged { path: path.clone(), reason: error.to_string() })
    }

    /// Topology file for ranks, and its content; `None` if this node has none.
    pub(crate) fn xml(&self) -> Result<Option<(SeenFile, String)>, KeptError> {
        let Some(sum) = &self.header.xml else { return Ok(None) };
        let path = self.directory.join(sum.xml_name());
        let (seen, text) = read_text(&path)?;
        sum.check(text.as_bytes(), &path)?;
        Ok(Some((seen, text)))
    }
}

/// Reads a file that only root and this user can have written.
pub(crate) fn read_text(path: &Path) -> Result<(SeenFile, String), KeptError> {
    let file = open(path)?;
    let metadata = file.metadata().map_err(|source| KeptError::System { path: path.to_owned(), source })?;
    let text = String::from_utf8(plain_file::read(path, file, &metadata, FILE_MAX)?);
    let text = text.map_err(|error| KeptError::Damaged { path: path.to_owned(), reason: error.to_string() })?;
    Ok((SeenFile::of(path, &metadata), text))
}

/// Opens a file that only root and this user can have written.
pub(crate) fn open(path: &Path) -> Result<File, KeptError> {
    let failed = |source| KeptError::System { path: path.to_owned(), source };
    let file = OpenOptions::new().read(true).custom_flags((OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK).bits()).open(path);
    let file = file.map_err(|source| {
        let link = fs::symlink_metadata(path).ok().filter(Metadata::is_symlink);
        link.and_then(|link| check_kind(path, &link).err()).map_or_else(|| failed(source), KeptError::from)
    })?;
    let metadata = file.metadata().map_err(failed)?;
    check_kind(path, &metadata)?;
    check_owner(path, &metadata)?;
    Ok(file)
}

/// Fails if a user other than root and this one may have written the file.
fn check_owner(path: &Path, metadata: &Metadata) -> Result<(), KeptError> {
    let (owner, mode) = (metadata.uid(), metadata.mode() & 0o7777);
    let is_ours = owner == 0 || owner == Uid::effective().as_raw();
    if is_ours && mode & 0o022 == 0 {
        return Ok(());
    }
    Err(KeptError::Foreign { path: path.to_owned(), owner, mode })
}

/// Reads the first line, and positions the file after it.
fn first_line(file: &mut File) -> io::Result<Vec<u8>> {
    use std::io::{Seek, SeekFrom};
    let mut head = vec![0; HEADER_MAX];
    let mut filled = 0;
    while filled < head.len() {
        match file.read(&mut head[filled..])? {
            0 => break,
            read => filled += read,
        }
    }
    head.truncate(filled);
    let end = head.iter().position(|&byte| byte == b'\n');
    head.truncate(end.unwrap_or(filled));
    file.seek(SeekFrom::Start(head.len() as u64 + 1))?;
    Ok(head)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use nix::sys::stat::{Mode, umask};
    use nix::unistd::mkfifo;

    use super::*;

    /// The error names the kind of the file, independent of its owner.
    #[test]
    fn what_is_not_read_is_told_with_the_reason() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        let says = |name: &str, expected: &str| {
            let error = read_text(&at(name)).unwrap_err().to_string();
            assert_eq!(error, format!("{} {expected}", at(name).display()));
        };
        mkfifo(&at("fifo"), Mode::S_IRWXU).unwrap();
        says("fifo", "is a FIFO; only regular files are read");
        fs::write(at("plain"), "text").unwrap();
        symlink("plain", at("link")).unwrap();
        says("link", "is a symbolic link; only regular files are read");
        File::create(at("large")).unwrap().set_len(1 << 31).unwrap();
        says("large", "has 2147483648 bytes; at most 16777216 are read");
        symlink(".", at("kept")).unwrap();
        let error = Keeping::at(at("kept")).create().unwrap_err().to_string();
        assert!(error.ends_with("/kept is damaged: it is a symbolic link where a directory is to be"), "{error}");
    }

    #[test]
    fn everybody_reads_what_root_keeps_whatever_its_umask_is() {
        let directory = tempfile::tempdir().unwrap();
        let keeping = Keeping::at(directory.path().join("kept"));
        let before = umask(Mode::from_bits_truncate(0o077));
        let made = keeping.create_with(0o755).and_then(|()| keeping.replace(&keeping.path("file"), &[b"text"]));
        umask(before);
        made.unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o777;
        assert_eq!((mode(&keeping.0), mode(&keeping.path("file"))), (0o755, 0o644));
        // A directory that an earlier version made.
        fs::set_permissions(&keeping.0, Permissions::from_mode(0o700)).unwrap();
        keeping.create_with(0o755).unwrap();
        assert_eq!(mode(&keeping.0), 0o755);
    }
}
