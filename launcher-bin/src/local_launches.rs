//! Launches on this machine that no API server knows: each answers at a socket of its own, which its user finds by the launch's id.
//!
//! ```text
//! lattice launch    service ──binds──> DIRECTORY/ID <──connects── lattice status ID, signal, abort, proctable, launches
//!   (one session)      <──LocalQuestion───────────────────────────
//!                      ────LocalAnswer───────────────────────────>
//! ```
//!
//! The directory is `$XDG_RUNTIME_DIR/lattice/launches`, or without that variable `/tmp/lattice-UID/launches`; nobody else can enter it, and
//! both ends ask the kernel whose process the other one is. A socket whose launch is gone (SIGKILL) is removed by whoever finds it.

mod service;
mod viewers;

use std::fs::{self, DirBuilder};
use std::io::{self, ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use lattice_inventory::CpuSet;
use lattice_session::rank_ranges::RankRanges;
use lattice_session::timeouts::CALL_STACKS;
use lattice_session::unix_time;
use lattice_session::wire::command::encode_ranges;
use nix::sys::signal::Signal;
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use nix::unistd::geteuid;
use pmi_transport::proto::v1 as proto;
use prost::Message;
use proto::local_answer::What as Answer;
use proto::local_question::What as Question;

pub(crate) use self::service::{LaunchHere, LocalService, Watched};
use crate::environment::{self, Environment};

/// Time for an answer, which a launch gives at once unless it is stopped.
const ANSWER: Duration = Duration::from_secs(5);
/// The same for a list of all launches.
const SUMMARY_ANSWER: Duration = Duration::from_secs(1);
/// The same for call stacks, which it looks at first.
const STACKS_ANSWER: Duration = CALL_STACKS.saturating_add(ANSWER);
/// Most bytes of an answer; one rank takes some hundred.
const ANSWER_MAX: u64 = 256 << 20;

/// Failure to ask a launch on this machine.
#[derive(Debug, thiserror::Error)]
pub enum LocalError {
    /// It does not answer.
    #[error("launch {id} on this machine does not answer: {source}; is its lattice stopped?")]
    Silent {
        /// Id of the launch.
        id: String,
        /// Error of the system.
        source: io::Error,
    },
    /// It ended before it could answer.
    #[error("launch {id} on this machine is over")]
    Over {
        /// Id of the launch.
        id: String,
    },
    /// It refuses, in its words.
    #[error("launch {id} on this machine: {reason}")]
    Refused {
        /// Id of the launch.
        id: String,
        /// Reason.
        reason: String,
    },
}

/// A launch on this machine, by its socket.
#[derive(Clone, Debug)]
pub(crate) struct LocalLaunch {
    id: String,
    path: PathBuf,
}

/// Finds the launch of this id; `None` if there is none of ours on this machine.
pub(crate) fn find(id: &str, environment: &Environment) -> Option<LocalLaunch> {
    let launch = LocalLaunch::in_directory(&directory(environment), id)?;
    launch.connect().ok().flatten().map(|_| launch)
}

/// Returns what every launch of ours on this machine tells of itself; of one that does not answer, for it is stopped, what others see.
pub(crate) fn summaries(environment: &Environment) -> Vec<proto::LaunchSummary> {
    let directory = directory(environment);
    let entries = fs::read_dir(&directory).into_iter().flatten().flatten();
    let launches = entries.filter_map(|entry| LocalLaunch::in_directory(&directory, entry.file_name().to_str()?));
    // All at once: those that are stopped hold up nobody.
    std::thread::scope(|scope| {
        let asked: Vec<_> = launches.map(|launch| scope.spawn(move || launch.summary())).collect();
        asked.into_iter().filter_map(|asked| asked.join().ok().flatten()).collect()
    })
}

impl LocalLaunch {
    /// The launch of this id; `None` if it is no id. The socket of one that does not take connections yet has no id as its name.
    fn in_directory(directory: &Path, id: &str) -> Option<Self> {
        let is_id = !id.is_empty() && id.bytes().all(|byte| byte.is_ascii_alphanumeric());
        is_id.then(|| Self { id: id.to_owned(), path: directory.join(id) })
    }

    /// Returns what it tells of itself; `None` if it is over.
    fn summary(&self) -> Option<proto::LaunchSummary> {
        match self.ask(Question::Summary(proto::Nothing {}), SUMMARY_ANSWER) {
            Ok(Answer::Summary(summary)) => Some(summary),
            Err(LocalError::Silent { source, .. })
                if matches!(source.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) =>
            {
                self.seen_from_outside()
            }
            _ => None,
        }
    }

    /// What is known of a launch whose launcher is stopped.
    fn seen_from_outside(&self) -> Option<proto::LaunchSummary> {
        let socket = self.connect().ok()??;
        let launcher = getsockopt(&socket, PeerCredentials).ok()?.pid();
        let command = fs::read(format!("/proc/{launcher}/cmdline")).unwrap_or_default();
        let words: Vec<_> = command.split(|&byte| byte == 0).map(String::from_utf8_lossy).collect();
        let (started, nanos) = fs::metadata(&self.path).map_or((0, 0), |socket| (socket.mtime(), socket.mtime_nsec()));
        Some(proto::LaunchSummary {
            id: self.id.clone(),
            allocation_id: "local".to_owned(),
            uid: geteuid().as_raw(),
            state: proto::LaunchState::Active.into(),
            command: words.join(" ").trim_end().to_owned(),
            started_at: u64::try_from(started).unwrap_or(0),
            started_nanos: u32::try_from(nanos).unwrap_or(0),
            client_stopped_at: unix_time::seconds(),
            ..proto::LaunchSummary::default()
        })
    }

    /// CPUs on which its launcher may run, and so its ranks; `None` if the kernel does not tell them.
    pub(crate) fn usable_cpus(&self) -> Option<CpuSet> {
        let socket = self.connect().ok()??;
        let launcher = getsockopt(&socket, PeerCredentials).ok()?.pid();
        let status = fs::read_to_string(format!("/proc/{launcher}/status")).ok()?;
        status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?.trim().parse().ok()
    }

    /// Returns what every rank does.
    pub(crate) fn status(&self) -> Result<proto::LaunchStatus, LocalError> {
        self.status_by(Question::Status(proto::Nothing {}), ANSWER)
    }

    /// Returns what every rank does, with the call stacks of those that run.
    pub(crate) fn stacks(&self) -> Result<proto::LaunchStatus, LocalError> {
        self.status_by(Question::Stacks(proto::Nothing {}), STACKS_ANSWER)
    }

    fn status_by(&self, question: Question, limit: Duration) -> Result<proto::LaunchStatus, LocalError> {
        match self.ask(question, limit)? {
            Answer::Status(status) => Ok(status),
            other => Err(self.nonsense(&other)),
        }
    }

    /// Sends a signal to ranks; to all for `None`.
    pub(crate) fn signal(&self, signal: Signal, ranks: Option<&RankRanges>) -> Result<(), LocalError> {
        let ranks = ranks.map(encode_ranges).unwrap_or_default();
        self.order(Question::Signal(proto::SignalRanks { signal: signal as i32, ranks }))
    }

    /// Ends the launch.
    pub(crate) fn abort(&self, reason: &str) -> Result<(), LocalError> {
        self.order(Question::Abort(reason.to_owned()))
    }

    /// Id of the launch.
    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    /// Attaches to the launch; returns the socket, which does not block, by which it tells what happens.
    pub(crate) fn attach(&self) -> Result<UnixStream, LocalError> {
        let socket = self.connect().and_then(|socket| {
            let Some(mut socket) = socket else { return Ok(None) };
            socket
                .write_all(&proto::LocalQuestion { what: Some(Question::Attach(proto::Nothing {})) }.encode_to_vec())?;
            socket.shutdown(Shutdown::Write)?;
            socket.set_nonblocking(true)?;
            Ok(Some(socket))
        });
        let id = || self.id.clone();
        socket.map_err(|source| LocalError::Silent { id: id(), source })?.ok_or_else(|| LocalError::Over { id: id() })
    }

    fn order(&self, order: Question) -> Result<(), LocalError> {
        match self.ask(order, ANSWER)? {
            Answer::Done(proto::Nothing {}) => Ok(()),
            other => Err(self.nonsense(&other)),
        }
    }

    fn nonsense(&self, answer: &Answer) -> LocalError {
        let reason = match answer {
            Answer::Refused(reason) => reason.clone(),
            _ => "it gives an answer to another question; it may be of another version".to_owned(),
        };
        LocalError::Refused { id: self.id.clone(), reason }
    }

    fn ask(&self, question: Question, limit: Duration) -> Result<Answer, LocalError> {
        let id = || self.id.clone();
        match self.exchange(question, limit) {
            Ok(Some(answer)) => Ok(answer),
            Ok(None) => Err(LocalError::Over { id: id() }),
            Err(error) if matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset) => {
                Err(LocalError::Over { id: id() })
            }
            Err(source) => Err(LocalError::Silent { id: id(), source }),
        }
    }

    /// The answer; `None` if the launch ends meanwhile.
    fn exchange(&self, question: Question, limit: Duration) -> io::Result<Option<Answer>> {
        let Some(mut socket) = self.connect()? else { return Ok(None) };
        socket.write_all(&proto::LocalQuestion { what: Some(question) }.encode_to_vec())?;
        socket.shutdown(Shutdown::Write)?;
        socket.set_read_timeout(Some(limit))?;
        let mut answer = Vec::new();
        socket.take(ANSWER_MAX).read_to_end(&mut answer)?;
        Ok(proto::LocalAnswer::decode(&*answer)?.what)
    }

    /// A connection; `None` if the launch is gone.
    fn connect(&self) -> io::Result<Option<UnixStream>> {
        let socket = match UnixStream::connect(&self.path) {
            Ok(socket) => socket,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
                // Its launch was killed. Somebody else may have removed it by now.
                let _ = fs::remove_file(&self.path);
                return Ok(None);
            }
            Err(error) => return Err(error),
        };
        if getsockopt(&socket, PeerCredentials)?.uid() != geteuid().as_raw() {
            return Err(io::Error::new(ErrorKind::PermissionDenied, "it is another user's"));
        }
        socket.set_write_timeout(Some(ANSWER))?;
        Ok(Some(socket))
    }
}

/// Directory of the sockets of this user's launches.
fn directory(environment: &Environment) -> PathBuf {
    let set = environment::value(environment, "XDG_RUNTIME_DIR").map(Path::new).filter(|path| path.is_absolute());
    let user =
        set.map_or_else(|| PathBuf::from(format!("/tmp/lattice-{}", geteuid())), |runtime| runtime.join("lattice"));
    user.join("launches")
}

/// Makes the directory, where it is missing, for us alone.
///
/// # Errors
/// Fails if it cannot be made, or is one that others can enter or change.
fn prepare(directory: &Path) -> io::Result<()> {
    for path in directory.parent().into_iter().chain([directory]) {
        match DirBuilder::new().mode(0o700).create(path) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error),
            _ => check_ours(path)?,
        }
    }
    Ok(())
}

fn check_ours(path: &Path) -> io::Result<()> {
    let found = fs::symlink_metadata(path)?;
    if found.is_dir() && found.uid() == geteuid().as_raw() && found.mode() & 0o077 == 0 {
        return Ok(());
    }
    let text = format!("{} is not a directory of this user alone", path.display());
    Err(io::Error::new(ErrorKind::PermissionDenied, text))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::net::UnixListener;

    use std::ffi::OsString;

    use super::*;

    fn environment(runtime: &Path) -> Vec<(OsString, OsString)> {
        vec![("XDG_RUNTIME_DIR".into(), runtime.into())]
    }

    #[test]
    fn the_directory_is_the_users_alone() {
        let runtime = tempfile::tempdir().unwrap();
        let path = directory(&environment(runtime.path()));
        assert_eq!(path, runtime.path().join("lattice/launches"));
        prepare(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o700);
        prepare(&path).unwrap();
        for open in [path.parent().unwrap(), &path] {
            fs::set_permissions(open, PermissionsExt::from_mode(0o755)).unwrap();
            let error = prepare(&path).unwrap_err().to_string();
            assert!(error.ends_with("is not a directory of this user alone"), "{error}");
            fs::set_permissions(open, PermissionsExt::from_mode(0o700)).unwrap();
        }
        let own = format!("/tmp/lattice-{}/launches", geteuid());
        assert_eq!(directory(&[]), Path::new(&own));
        assert_eq!(directory(&environment(Path::new("relative"))), Path::new(&own));
    }

    #[test]
    fn a_directory_that_is_a_link_is_not_used() {
        let runtime = tempfile::tempdir().unwrap();
        fs::create_dir(runtime.path().join("elsewhere")).unwrap();
        std::os::unix::fs::symlink("elsewhere", runtime.path().join("lattice")).unwrap();
        assert!(prepare(&directory(&environment(runtime.path()))).is_err());
    }

    #[test]
    fn a_socket_whose_launch_is_gone_is_removed() {
        let runtime = tempfile::tempdir().unwrap();
        let environment = environment(runtime.path());
        let path = directory(&environment);
        prepare(&path).unwrap();
        drop(UnixListener::bind(path.join("abcdefghij")).unwrap());
        assert!(path.join("abcdefghij").exists() && find("abcdefghij", &environment).is_none());
        assert!(!path.join("abcdefghij").exists());
        drop(UnixListener::bind(path.join("bbbbbbbbbb")).unwrap());
        assert!(summaries(&environment).is_empty() && !path.join("bbbbbbbbbb").exists());
    }

    /// It is bound, and does not listen yet.
    #[test]
    fn a_socket_that_is_being_made_is_left_alone() {
        let runtime = tempfile::tempdir().unwrap();
        let environment = environment(runtime.path());
        let path = directory(&environment);
        prepare(&path).unwrap();
        drop(UnixListener::bind(path.join(".abcdefghij")).unwrap());
        assert!(summaries(&environment).is_empty() && find(".abcdefghij", &environment).is_none());
        assert!(path.join(".abcdefghij").exists());
    }

    #[test]
    fn what_is_no_id_names_no_file() {
        let runtime = tempfile::tempdir().unwrap();
        let environment = environment(runtime.path());
        for id in ["", "..", "../x", "a/b", "a b"] {
            assert!(find(id, &environment).is_none(), "{id}");
        }
    }
}
