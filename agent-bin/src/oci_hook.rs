//! `lattice-agent oci-hook`: a hook of OCI runtimes (stage `createContainer`, runtime-spec 1.0.2). It mounts the directory with a rank's PMI
//! socket, and the program that connects to the socket, in the rank's container.
//!
//! ```text
//! state, on standard input ──> bundle ──> config.json ──> LATTICE_PMI_SOCKET=/tmp/lattice-ID.NODE/pmi-0.sock, user, root file system
//!      /tmp/lattice-ID.NODE            ──bind──> ROOT/tmp/lattice-ID.NODE
//!      lattice, next to this program   ──bind──> ROOT/tmp/lattice-ID.NODE/lattice
//! ```
//!
//! The runtime may run as root, and the configuration may belong to a user. This process keeps the user id, the path of the root file system and
//! one variable. So the size of the file bounds its memory, and an error names a position in the file, not its content. The process follows no
//! path in the file. The directory must be directly in /tmp, belong to the container's user and be closed to other users. There must be no link
//! on either side, and the mount uses the files that were checked. Both mounts are read-only, without devices and set-user-ID programs, because
//! root in a container may be root on the host. Sockets on them accept connections.

use std::borrow::Cow;
use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use lattice_session::plan::PMI_SOCKET;
use nix::fcntl::{AT_FDCWD, OFlag, openat};
use nix::mount::{MsFlags, mount};
use nix::sys::stat::{Mode, fstat, mkdirat};
use nix::sys::statvfs::{FsFlags, fstatvfs};
use serde::de::{SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

/// Parent of the directory, on the host and in the container, and the prefix of its name.
const PARENT: &str = "tmp";
const NAME: &str = "lattice-";
/// Name of the program that connects, next to this program and in the directory.
const PROGRAM: &str = "lattice";
/// Maximum size of the state, and of a configuration, in bytes. The arguments and environment of a program have at most 6 MiB.
const STATE_MAX: u64 = 1 << 20;
const CONFIG_MAX: u64 = 16 << 20;

/// State of a container, as the runtime sends it to its hooks.
#[derive(Debug, Deserialize)]
struct State {
    bundle: PathBuf,
}

/// The fields that the hook uses of a container's configuration.
#[derive(Debug, Deserialize)]
struct Configuration {
    process: Process,
    root: Root,
}

#[derive(Debug, Deserialize)]
struct Process {
    /// Value of [`PMI_SOCKET`].
    #[serde(default, rename = "env", deserialize_with = "socket_of_environment")]
    socket: Option<String>,
    user: User,
}

/// Reads an environment and keeps only the value of [`PMI_SOCKET`].
fn socket_of_environment<'de, D: Deserializer<'de>>(environment: D) -> Result<Option<String>, D::Error> {
    struct Settings;

    impl<'de> Visitor<'de> for Settings {
        type Value = Option<String>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a list of variables")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut settings: A) -> Result<Self::Value, A::Error> {
            let mut socket = None;
            while let Some(setting) = settings.next_element::<Cow<'de, str>>()? {
                let value = setting.strip_prefix(PMI_SOCKET).and_then(|rest| rest.strip_prefix('='));
                socket = socket.or(value.map(str::to_owned));
            }
            Ok(socket)
        }
    }

    environment.deserialize_seq(Settings)
}

#[derive(Debug, Deserialize)]
struct User {
    uid: u32,
}

#[derive(Debug, Deserialize)]
struct Root {
    path: PathBuf,
}

/// Error of the hook.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HookError {
    #[error("the state of the container, on standard input, cannot be read: {0}")]
    State(io::Error),
    #[error("{}: {error}", path.display())]
    Configuration { path: PathBuf, error: io::Error },
    #[error("{PMI_SOCKET} is {value:?}; it must be a file in a directory /tmp/{NAME}...")]
    Socket { value: String },
    #[error("{} is not a directory of user {uid} alone", path.display())]
    Strange { path: PathBuf, uid: u32 },
    #[error("cannot use {}: {error}", path.display())]
    Open { path: PathBuf, error: io::Error },
    #[error("cannot mount {} in the container: {error}", path.display())]
    Mount { path: PathBuf, error: io::Error },
}

/// Runs the hook for the container with the state on standard input.
///
/// # Errors
/// Fails if the container is one of a rank and cannot be prepared. All other containers are left unchanged.
pub(crate) fn run() -> Result<(), HookError> {
    let state: State = json(io::stdin().lock(), STATE_MAX).map_err(HookError::State)?;
    let path = state.bundle.join("config.json");
    let configuration = open_regular(&path).and_then(|file| json::<Configuration>(file, CONFIG_MAX));
    let Configuration { process, root } = configuration.map_err(|error| HookError::Configuration { path, error })?;
    let Some(value) = process.socket else { return Ok(()) };
    let name = directory_name(&value).ok_or_else(|| HookError::Socket { value: value.clone() })?;
    let program = std::env::current_exe().map(|hook| hook.with_file_name(PROGRAM));
    let program = program.map_err(|error| HookError::Open { path: PROGRAM.into(), error })?;
    bring(&state.bundle.join(root.path), name, process.user.uid, &program)
}

/// Opens a regular file. Does not wait, as opening a FIFO would.
fn open_regular(path: &Path) -> io::Result<File> {
    let file = File::options().read(true).custom_flags(OFlag::O_NONBLOCK.bits()).open(path)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no regular file")),
    }
}

fn json<T: for<'de> Deserialize<'de>>(input: impl Read, max: u64) -> io::Result<T> {
    let mut text = Vec::new();
    input.take(max).read_to_end(&mut text)?;
    serde_json::from_slice(&text).map_err(|error| {
        let place = format!("line {}, column {} is not what a runtime writes there", error.line(), error.column());
        io::Error::new(io::ErrorKind::InvalidData, place)
    })
}

/// The name of the directory that the socket is in.
fn directory_name(socket: &str) -> Option<&str> {
    let (name, file) = socket.strip_prefix('/')?.strip_prefix(PARENT)?.strip_prefix('/')?.split_once('/')?;
    let is_plain = |text: &str| text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte));
    (name.starts_with(NAME) && is_plain(name) && is_plain(file) && !file.starts_with('.')).then_some(name)
}

/// Mounts the directory with this name, and the program in it, below the root file system.
fn bring(root: &Path, name: &str, uid: u32, program: &Path) -> Result<(), HookError> {
    let here = Path::new("/").join(PARENT);
    let parent = directory(AT_FDCWD, &here)?;
    let source = directory(&parent, Path::new(name))?;
    let found = fstat(&source).map_err(|errno| HookError::Open { path: here.join(name), error: errno.into() })?;
    if found.st_uid != uid || found.st_mode & 0o077 != 0 {
        return Err(HookError::Strange { path: here.join(name), uid });
    }
    // The runtime controls the root file system; the image controls its content.
    let root = openat(AT_FDCWD, root, OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC, Mode::empty())
        .map_err(|errno| HookError::Open { path: root.to_owned(), error: errno.into() })?;
    let parent_there = directory(&root, Path::new(PARENT))?;
    match mkdirat(&parent_there, name, Mode::S_IRWXU) {
        Ok(()) | Err(nix::Error::EEXIST) => {}
        Err(errno) => return Err(HookError::Open { path: here.join(name), error: errno.into() }),
    }
    // Mount point of the program, created here because the mount is read-only.
    let path = here.join(name).join(PROGRAM);
    open_file(&source, OFlag::O_CREAT, &path)?;
    let inside = bind(&source, directory(&parent_there, Path::new(name))?, (&parent_there, name), &here.join(name))?;
    let opened = File::open(program).map_err(|error| HookError::Open { path: program.to_owned(), error })?;
    bind(opened, open_file(&inside, OFlag::empty(), &path)?, (&inside, PROGRAM), &path).map(drop)
}

/// Opens the mount point of the program in a directory. Does not wait.
fn open_file(directory: impl AsFd, how: OFlag, path: &Path) -> Result<OwnedFd, HookError> {
    let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK;
    openat(directory, PROGRAM, flags | how, Mode::S_IRUSR)
        .map_err(|errno| HookError::Open { path: path.to_owned(), error: errno.into() })
}

/// Opens a directory; refuses a link.
fn directory(parent: impl AsFd, name: &Path) -> Result<OwnedFd, HookError> {
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    openat(parent, name, flags, Mode::empty())
        .map_err(|errno| HookError::Open { path: name.to_owned(), error: errno.into() })
}

/// Mounts one open file or directory on another one, which has this name in this directory. The mount is read-only. Returns the mounted file or
/// directory.
fn bind(
    source: impl AsFd,
    target: impl AsFd,
    (parent, name): (impl AsFd, &str),
    path: &Path,
) -> Result<OwnedFd, HookError> {
    let by_number = |file: &dyn AsFd| format!("/proc/self/fd/{}", file.as_fd().as_raw_fd());
    let nothing = None::<&str>;
    let mounted = || {
        mount(Some(by_number(&source).as_str()), by_number(&target).as_str(), nothing, MsFlags::MS_BIND, nothing)?;
        // Opened again, through the mount.
        let mounted = openat(parent, name, OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC, Mode::empty())?;
        // In a user namespace a mount must keep its restrictions.
        let kept = fstatvfs(&mounted)?.flags().contains(FsFlags::ST_NOEXEC);
        let kept = if kept { MsFlags::MS_NOEXEC } else { MsFlags::empty() };
        let forbidden = MsFlags::MS_RDONLY | MsFlags::MS_NOSUID | MsFlags::MS_NODEV | kept;
        let how = MsFlags::MS_REMOUNT | MsFlags::MS_BIND | forbidden;
        mount(nothing, by_number(&mounted).as_str(), nothing, how, nothing)?;
        Ok(mounted)
    };
    mounted().map_err(|errno: nix::Error| HookError::Mount { path: path.to_owned(), error: errno.into() })
}

#[cfg(test)]
mod tests {
    use nix::sched::{CloneFlags, unshare};

    use super::*;

    #[test]
    fn a_socket_is_directly_in_a_directory_of_a_launch() {
        assert_eq!(directory_name("/tmp/lattice-k3jq.0/pmi-0.sock"), Some("lattice-k3jq.0"));
        for wrong in [
            "",
            "/tmp/lattice-k3jq.0",
            "/tmp/other/pmi-0.sock",
            "/tmp/../etc/x",
            "/tmp/lattice-/../../etc/x",
            "/tmp/lattice-a/..",
            "/tmp/lattice-a/b/c",
            "/var/tmp/lattice-a/b",
            "tmp/lattice-a/b",
        ] {
            assert_eq!(directory_name(wrong), None, "{wrong}");
        }
    }

    /// A link may lead to a file that the author of the configuration cannot read.
    #[test]
    fn of_a_configuration_one_variable_is_kept_and_an_error_shows_nothing() {
        let read = |process: &str| {
            let text = format!("{{\"process\": {process}, \"root\": {{\"path\": \"rootfs\"}}}}");
            json::<Configuration>(text.as_bytes(), CONFIG_MAX).map(|read| read.process.socket)
        };
        let environment =
            r#"{"user": {"uid": 1}, "env": ["A=1", "LATTICE_PMI_SOCKET=/tmp/\u0061", "LATTICE_PMI_SOCKET=b"]}"#;
        assert_eq!(read(environment).unwrap().as_deref(), Some("/tmp/a"));
        for none in [r#"{"user": {"uid": 1}}"#, r#"{"user": {"uid": 1}, "env": []}"#] {
            assert_eq!(read(none).unwrap(), None);
        }
        for wrong in [r#""canary""#, r#"{"user": {"uid": "canary"}}"#, r#"{"user": {"uid": 1}, "env": ["a", "canary}"#]
        {
            let error = read(wrong).unwrap_err().to_string();
            assert!(error.starts_with("line 1, column ") && !error.contains("canary"), "{error}");
        }
        let deep = format!("{{\"a\": {}", "[".repeat(CONFIG_MAX as usize));
        assert!(json::<Configuration>(deep.as_bytes(), CONFIG_MAX).is_err());
    }

    /// No process writes to the FIFO, and the device has no end.
    #[test]
    fn a_configuration_that_is_no_regular_file_is_refused_at_once() {
        let bundle = tempfile::tempdir().unwrap();
        let fifo = bundle.path().join("config.json");
        nix::unistd::mkfifo(&fifo, Mode::S_IRWXU).unwrap();
        for path in [&fifo, bundle.path(), Path::new("/dev/zero")] {
            assert_eq!(open_regular(path).unwrap_err().to_string(), "it is no regular file", "{}", path.display());
        }
    }

    /// A directory with the name and the mode of a session's directory.
    fn of_a_launch() -> tempfile::TempDir {
        let private = std::os::unix::fs::PermissionsExt::from_mode(0o700);
        tempfile::Builder::new().prefix(NAME).permissions(private).tempdir_in("/tmp").unwrap()
    }

    #[test]
    fn a_directory_that_others_can_enter_and_one_of_another_user_are_refused() {
        let directory = of_a_launch();
        let name = directory.path().file_name().unwrap().to_str().unwrap();
        let (root, me) = (tempfile::tempdir().unwrap(), nix::unistd::geteuid().as_raw());
        let refused = |uid| bring(root.path(), name, uid, Path::new("/bin/true")).unwrap_err().to_string();
        assert!(refused(me + 1).contains(&format!("is not a directory of user {} alone", me + 1)));
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(directory.path(), open).unwrap();
        assert!(refused(me).contains("is not a directory of user"));
    }

    /// A link in an image could redirect a hook of root.
    #[test]
    fn no_link_of_an_image_is_followed() {
        let directory = of_a_launch();
        let name = directory.path().file_name().unwrap().to_str().unwrap();
        let (root, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        std::os::unix::fs::symlink(elsewhere.path(), root.path().join(PARENT)).unwrap();
        let me = nix::unistd::geteuid().as_raw();
        let refused = bring(root.path(), name, me, Path::new("/bin/true")).unwrap_err().to_string();
        assert!(refused.starts_with("cannot use tmp: "), "{refused}");
        assert_eq!(std::fs::read_dir(elsewhere.path()).unwrap().count(), 0);
    }
    /// Root of a container without a user namespace is root of the host.
    #[test]
    fn nothing_can_be_written_by_way_of_the_mounts_and_sockets_are_reached() {
        if !nix::unistd::Uid::effective().is_root() {
            return println!("not tried: only root mounts");
        }
        let (directory, root) = (of_a_launch(), tempfile::tempdir().unwrap());
        let name = directory.path().file_name().unwrap().to_str().unwrap().to_owned();
        let there = root.path().join(PARENT).join(&name);
        std::fs::create_dir(root.path().join(PARENT)).unwrap();
        let program = root.path().join("program");
        std::fs::write(&program, "#!/bin/sh\n").unwrap();
        let _server = std::os::unix::net::UnixListener::bind(directory.path().join("pmi-0.sock")).unwrap();
        // The mounts exist only in this thread's namespace.
        let in_container = move || {
            unshare(CloneFlags::CLONE_NEWNS).unwrap();
            mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None::<&str>).unwrap();
            bring(root.path(), &name, 0, &program).unwrap();
            let error = |result: io::Result<File>| result.unwrap_err().raw_os_error();
            let read_only = Some(nix::errno::Errno::EROFS as i32);
            assert_eq!(error(File::create(there.join("new"))), read_only);
            assert_eq!(error(File::options().write(true).open(there.join(PROGRAM))), read_only);
            assert_eq!(std::fs::read_to_string(there.join(PROGRAM)).unwrap(), "#!/bin/sh\n");
            std::os::unix::net::UnixStream::connect(there.join("pmi-0.sock")).unwrap();
            let mounts = std::fs::read_to_string("/proc/thread-self/mountinfo").unwrap();
            let ours: Vec<&str> = mounts.lines().filter(|line| line.contains(there.to_str().unwrap())).collect();
            assert_eq!(ours.len(), 2, "{mounts}");
            assert!(ours.iter().all(|line| line.contains(" ro,nosuid,nodev")), "{ours:?}");
        };
        std::thread::spawn(in_container).join().unwrap();
        drop(directory);
    }
}
