//! Launches on this machine that no API server manages. Each answers on its own socket, which its user finds by the launch's id.
//!
//! ```text
//! lattice launch    service ──binds──> DIRECTORY/ID <──connects── lattice status ID, signal, abort, proctable, launches
//!   (one session)      <──LocalQuestion───────────────────────────
//!                      ────LocalAnswer───────────────────────────>
//! ```
//!
//! The directory is `$XDG_RUNTIME_DIR/lattice/launches`, or `/tmp/lattice-UID/launches` without that variable. Only its user can enter it,
//! and both ends get the user of the peer process from the kernel. All access uses the descriptor of the directory. If a launch ended by
//! SIGKILL, the command that finds its socket removes it.

mod directory;
pub mod own_set;
mod service;
mod viewers;

use std::fs;
use std::io::{self, ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use lattice_console::environment::Environment;
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
use rank_spawner::PrivateDirectory;

use self::directory::opened;
pub use self::directory::try_directory;
pub use self::service::{LaunchHere, LocalService, Watched};

/// Time limit for an answer. A launch answers at once unless it is stopped.
const ANSWER: Duration = Duration::from_secs(5);
/// Time limit for each answer in a list of all launches.
const SUMMARY_ANSWER: Duration = Duration::from_secs(1);
/// Time limit for call stacks, which the launch collects first.
const STACKS_ANSWER: Duration = CALL_STACKS.saturating_add(ANSWER);
/// Maximum size of an answer in bytes. One rank takes some hundred.
const ANSWER_MAX: u64 = 256 << 20;

/// Failure of a request to a launch on this machine.
#[derive(Debug, thiserror::Error)]
pub enum LocalError {
    /// The launch does not answer.
    #[error("launch {id} on this machine does not answer: {source}; is its lattice stopped?")]
    Silent {
        /// Id of the launch.
        id: String,
        /// System error.
        source: io::Error,
    },
    /// The launch ended before it answered.
    #[error("launch {id} on this machine is over")]
    Over {
        /// Id of the launch.
        id: String,
    },
    /// The launch refuses the request.
    #[error("launch {id} on this machine: {reason}")]
    Refused {
        /// Id of the launch.
        id: String,
        /// Reason.
        reason: String,
    },
}

/// A launch on this machine, identified by its socket.
#[derive(Clone, Debug)]
pub struct LocalLaunch {
    id: String,
    directory: Arc<PrivateDirectory>,
}

/// Finds the launch with this id; `None` if this user has none on this machine.
pub fn find(id: &str, environment: &Environment) -> Option<LocalLaunch> {
    let launch = LocalLaunch::in_directory(&opened(environment)?, id)?;
    launch.connect().ok().flatten().map(|_| launch)
}

/// Returns the summaries of all launches of this user on this machine. A stopped launch does not answer: its summary has the facts that are
/// visible from outside.
pub fn summaries(environment: &Environment) -> Vec<proto::LaunchSummary> {
    let Some(directory) = opened(environment) else { return Vec::new() };
    let names = directory.names().unwrap_or_default();
    let launches = names.iter().filter_map(|name| LocalLaunch::in_directory(&directory, name));
    // All queries run in parallel, so that stopped launches cause no delay.
    std::thread::scope(|scope| {
        let asked: Vec<_> = launches.map(|launch| scope.spawn(move || launch.summary())).collect();
        asked.into_iter().filter_map(|asked| asked.join().ok().flatten()).collect()
    })
}

impl LocalLaunch {
    /// The launch with this id; `None` for an invalid id. While a socket does not accept connections yet, its name is not a valid id.
    fn in_directory(directory: &Arc<PrivateDirectory>, id: &str) -> Option<Self> {
        let is_id = !id.is_empty() && id.bytes().all(|byte| byte.is_ascii_alphanumeric());
        is_id.then(|| Self { id: id.to_owned(), directory: Arc::clone(directory) })
    }

    /// Returns the summary of the launch; `None` if it is over.
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

    /// Facts about a launch with a stopped launcher.
    fn seen_from_outside(&self) -> Option<proto::LaunchSummary> {
        let socket = self.connect().ok()??;
        let launcher = getsockopt(&socket, PeerCredentials).ok()?.pid();
        let command = fs::read(format!("/proc/{launcher}/cmdline")).unwrap_or_default();
        let words: Vec<_> = command.split(|&byte| byte == 0).map(String::from_utf8_lossy).collect();
        let (started, nanos) =
            self.directory.status(&self.id).map_or((0, 0), |socket| (socket.mtime(), socket.mtime_nsec()));
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

    /// CPUs on which its launcher, and so its ranks, may run; `None` if the kernel does not report them.
    pub fn usable_cpus(&self) -> Option<CpuSet> {
        let socket = self.connect().ok()??;
        let launcher = getsockopt(&socket, PeerCredentials).ok()?.pid();
        let status = fs::read_to_string(format!("/proc/{launcher}/status")).ok()?;
        status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?.trim().parse().ok()
    }

    /// Returns the state of every rank.
    pub fn status(&self) -> Result<proto::LaunchStatus, LocalError> {
        self.status_by(Question::Status(proto::Nothing {}), ANSWER)
    }

    /// Returns the state of every rank, with the call stacks of running ranks.
    pub fn stacks(&self) -> Result<proto::LaunchStatus, LocalError> {
        self.status_by(Question::Stacks(proto::Nothing {}), STACKS_ANSWER)
    }

    fn status_by(&self, question: Question, limit: Duration) -> Result<proto::LaunchStatus, LocalError> {
        match self.ask(question, limit)? {
            Answer::Status(status) => Ok(status),
            other => Err(self.invalid_answer(&other)),
        }
    }

    /// Sends a signal to ranks; `None` for all ranks.
    pub fn signal(&self, signal: Signal, ranks: Option<&RankRanges>) -> Result<(), LocalError> {
        let ranks = ranks.map(encode_ranges).unwrap_or_default();
        self.order(Question::Signal(proto::SignalRanks { signal: signal as i32, ranks }))
    }

    /// Ends the launch.
    pub fn abort(&self, reason: &str) -> Result<(), LocalError> {
        self.order(Question::Abort(reason.to_owned()))
    }

    /// Id of the launch.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Attaches to the launch. Returns the non-blocking socket on which the launch sends its events.
    pub fn attach(&self) -> Result<UnixStream, LocalError> {
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
            other => Err(self.invalid_answer(&other)),
        }
    }

    fn invalid_answer(&self, answer: &Answer) -> LocalError {
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

    /// Returns the answer; `None` if the launch ends meanwhile.
    fn exchange(&self, question: Question, limit: Duration) -> io::Result<Option<Answer>> {
        let Some(mut socket) = self.connect()? else { return Ok(None) };
        socket.write_all(&proto::LocalQuestion { what: Some(question) }.encode_to_vec())?;
        socket.shutdown(Shutdown::Write)?;
        socket.set_read_timeout(Some(limit))?;
        let mut answer = Vec::new();
        socket.take(ANSWER_MAX).read_to_end(&mut answer)?;
        Ok(proto::LocalAnswer::decode(&*answer)?.what)
    }

    /// Connects to the launch; `None` if the launch is gone.
    fn connect(&self) -> io::Result<Option<UnixStream>> {
        let socket = match UnixStream::connect(self.directory.by_descriptor(&self.id)) {
            Ok(socket) => socket,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
                // The launch was killed. The kernel also refuses connections to files that are not sockets. Such files stay.
                self.directory.remove_socket(&self.id);
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

#[cfg(test)]
mod tests {
    use std::ffi::OsString;
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::os::unix::net::UnixListener;
    use std::path::Path;

    use super::directory::{of_user, prepared};
    use super::*;

    fn environment(runtime: &Path) -> Vec<(OsString, OsString)> {
        vec![("XDG_RUNTIME_DIR".into(), runtime.into())]
    }

    #[test]
    fn the_directory_is_the_users_alone() {
        let runtime = tempfile::tempdir().unwrap();
        let variables = environment(runtime.path());
        assert!(opened(&variables).is_none());
        let path = prepared(&variables).unwrap().path().to_owned();
        assert_eq!(path, runtime.path().join("lattice/launches"));
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o700);
        prepared(&variables).unwrap();
        for open in [path.parent().unwrap(), &path] {
            fs::set_permissions(open, PermissionsExt::from_mode(0o755)).unwrap();
            let error = prepared(&variables).unwrap_err().to_string();
            assert!(error.contains("with mode 755; it must be a directory of user"), "{error}");
            assert!(opened(&variables).is_none());
            fs::set_permissions(open, PermissionsExt::from_mode(0o700)).unwrap();
        }
        let own = format!("/tmp/lattice-{}", geteuid());
        assert_eq!(of_user(&[]), Path::new(&own));
        assert_eq!(of_user(&environment(Path::new("relative"))), Path::new(&own));
    }

    /// Another user has created the directory, or a link in its place. Its contents stay, whatever their names.
    #[test]
    fn nothing_is_removed_from_a_directory_that_another_one_leads_to() {
        let runtime = tempfile::tempdir().unwrap();
        let variables = environment(runtime.path());
        let precious = runtime.path().join("precious");
        fs::create_dir(&precious).unwrap();
        fs::set_permissions(&precious, PermissionsExt::from_mode(0o700)).unwrap();
        fs::write(precious.join("passwd"), "x").unwrap();
        fs::create_dir(runtime.path().join("lattice")).unwrap();
        fs::set_permissions(runtime.path().join("lattice"), PermissionsExt::from_mode(0o700)).unwrap();
        symlink(&precious, runtime.path().join("lattice/launches")).unwrap();
        assert!(summaries(&variables).is_empty() && find("passwd", &variables).is_none());
        assert!(prepared(&variables).is_err() && precious.join("passwd").exists());
    }

    /// Makes the socket of a launch that is gone. Another test's process can have a copy of the descriptor until it executes a program.
    fn make_left_over(path: &Path) {
        let listener = UnixListener::bind(path).unwrap();
        nix::sys::socket::shutdown(listener.as_raw_fd(), nix::sys::socket::Shutdown::Both).unwrap();
    }

    #[test]
    fn a_socket_whose_launch_is_gone_is_removed_and_no_other_file() {
        let runtime = tempfile::tempdir().unwrap();
        let variables = environment(runtime.path());
        let path = prepared(&variables).unwrap().path().to_owned();
        make_left_over(&path.join("abcdefghij"));
        fs::write(path.join("results"), "x").unwrap();
        assert!(find("abcdefghij", &variables).is_none() && find("results", &variables).is_none());
        assert!(!path.join("abcdefghij").exists());
        make_left_over(&path.join("bbbbbbbbbb"));
        assert!(summaries(&variables).is_empty() && !path.join("bbbbbbbbbb").exists());
        assert!(path.join("results").exists());
    }

    /// The socket is bound, and does not listen yet.
    #[test]
    fn a_socket_that_is_being_made_is_left_alone() {
        let runtime = tempfile::tempdir().unwrap();
        let variables = environment(runtime.path());
        let path = prepared(&variables).unwrap().path().to_owned();
        drop(UnixListener::bind(path.join(".abcdefghij")).unwrap());
        assert!(summaries(&variables).is_empty() && find(".abcdefghij", &variables).is_none());
        assert!(path.join(".abcdefghij").exists());
    }

    #[test]
    fn what_is_no_id_names_no_file() {
        let runtime = tempfile::tempdir().unwrap();
        let variables = environment(runtime.path());
        prepared(&variables).unwrap();
        for id in ["", "..", "../x", "a/b", "a b"] {
            assert!(find(id, &variables).is_none(), "{id}");
        }
    }
}
