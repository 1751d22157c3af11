//! The answering side of a launch on this machine: a socket, and the state of the ranks as derived from the launch's events.

use std::collections::{BTreeMap, HashMap};
use std::convert::Infallible;
use std::ffi::OsString;
use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use lattice_console::formatting;
use lattice_render::PreparedLaunch;
use lattice_render::updates::{Update, UpdateSource};
use lattice_session::call_stacks::RankStack;
use lattice_session::cause::Cause;
use lattice_session::event::{Event, RankProgress, Report};
use lattice_session::placed::PlacedLaunch;
use lattice_session::session_io::Control;
use lattice_session::timeouts::CALL_STACKS;
use lattice_session::unix_time;
use lattice_session::wire::command::decode_ranges;
use lattice_session::wire::{self, cause, event, progress};
use nix::fcntl::renameat;
use nix::sys::signal::Signal;
use nix::unistd::geteuid;
use pmi_core::ids::Rank;
use pmi_transport::proto::v1 as proto;
use prost::Message;
use proto::LaunchState;
use proto::attach_response::What;
use proto::local_answer::What as Answer;
use proto::local_question::What as Question;
use rank_spawner::{NotPrivate, PrivateDirectory};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::directory::{LAUNCHES, of_user, prepared};
use super::viewers::{Viewers, frame};

/// Maximum size of a question in bytes.
const QUESTION_MAX: u64 = 64 << 10;
/// Time limit to receive a question, and time limit to send its answer.
const CONVERSATION: Duration = Duration::from_secs(2);
/// Maximum number of open connections. Further connections wait.
const CONVERSATIONS_MAX: usize = 64;
/// Time limit for the session's answer. Its events wait while no process reads the launch's output.
const PROGRESS: Duration = Duration::from_millis(500);
/// Time limit for call stacks, which the session collects first.
const STACKS: Duration = CALL_STACKS.saturating_add(Duration::from_secs(2));
/// Time limit for viewers to read the end of the launch.
const LAST_WORDS: Duration = Duration::from_millis(500);
/// Pause after a failure to accept a connection.
const PAUSE: Duration = Duration::from_millis(100);

/// The socket of a launch on this machine.
#[derive(Debug)]
pub struct LocalService {
    listener: UnixListener,
    /// Removes the socket's name when the service is dropped.
    _file: SocketFile,
    launch: LaunchHere,
    /// First frame for viewers.
    spec: Bytes,
}

/// A launch that runs in this process, for requests about it. Clones refer to the same launch.
#[derive(Clone, Debug)]
pub struct LaunchHere {
    watched: Watched,
    control: mpsc::Sender<Control>,
}

/// The socket's name in its directory.
#[derive(Debug)]
struct SocketFile {
    directory: PrivateDirectory,
    name: String,
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        self.directory.remove_socket(&self.name);
    }
}

/// State of a launch that runs in this process. Clones share the state.
#[derive(Clone, Debug)]
pub struct Watched(Arc<Mutex<Known>>);

#[derive(Debug)]
struct Known {
    /// Summary of the launch, without its state and duration.
    summary: proto::LaunchSummary,
    started: Instant,
    host: String,
    /// Program files of the launched ranks, by rank.
    programs: Vec<PathBuf>,
    ranks: BTreeMap<Rank, RankProgress>,
    cause: Option<Cause>,
    /// Number of the last question to the session.
    asked: u64,
    /// Receivers of the session's answers, by number of the question.
    waiting: HashMap<u64, Waiting>,
    viewers: Viewers,
    /// True after all updates were recorded.
    over: watch::Sender<bool>,
}

/// Receiver of an answer.
#[derive(Debug)]
enum Waiting {
    /// Notified when the progress of all ranks is recorded.
    Progress(oneshot::Sender<()>),
    Stacks(oneshot::Sender<Vec<RankStack>>),
}

impl Watched {
    /// A launch that starts now.
    pub fn new(launch: &PreparedLaunch) -> Self {
        let placed = &launch.placed;
        let now = unix_time::since_epoch();
        let summary = proto::LaunchSummary {
            id: placed.launch_id.clone(),
            allocation_id: "local".to_owned(),
            uid: geteuid().as_raw(),
            nodes: hostlist::fold(&placed.hosts),
            ranks: placed.job.size(),
            command: placed.command(),
            started_at: now.as_secs(),
            started_nanos: now.subsec_nanos(),
            ..proto::LaunchSummary::default()
        };
        Self(Arc::new(Mutex::new(Known {
            summary,
            started: Instant::now(),
            host: placed.hosts.first().cloned().unwrap_or_default(),
            programs: launch.ranks.iter().map(|row| row.program.clone()).collect(),
            ranks: BTreeMap::new(),
            cause: None,
            asked: 0,
            waiting: HashMap::new(),
            viewers: Viewers::default(),
            over: watch::Sender::new(false),
        })))
    }

    /// The updates of `source`, which are recorded as they pass.
    pub fn updates<S: UpdateSource>(&self, source: S) -> impl UpdateSource {
        WatchedUpdates { source, watched: self.clone() }
    }

    /// Sends the end of the launch to viewers, after all its updates were recorded. Returns when the viewers have read it, or after
    /// half a second.
    pub async fn complete(&self, report: &Report) {
        if self.known().viewers.is_empty() {
            return;
        }
        let mut over = self.known().over.subscribe();
        // This cannot fail: `self` has the sender.
        let _ = over.wait_for(|over| *over).await;
        let told = {
            let known = &mut *self.known();
            known.viewers.complete(&known.summary.id, report)
        };
        let read = async {
            for viewer in &told {
                viewer.closed().await;
            }
        };
        drop(timeout(LAST_WORDS, read).await);
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn see(&self, event: &Event) {
        self.known().viewers.tell(event);
        // Output is the most frequent event, and has no information about ranks.
        match event {
            Event::Started { rank, pid, .. } => self.known().rank(*rank).pid = Some(*pid),
            Event::Exited { rank, exit, reached, .. } => {
                let mut known = self.known();
                if known.is_spawned(*rank) {
                    known.ranks.remove(rank);
                    return;
                }
                let progress = known.rank(*rank);
                (progress.exit, progress.waiting) = (Some(*exit), false);
                (progress.phase, progress.fences) =
                    (reached.map(|reached| reached.phase), reached.map(|reached| reached.fences));
            }
            Event::Progress { question, ranks, stacks } => self.known().answered(*question, ranks, stacks.as_deref()),
            Event::Ending(cause) => self.known().cause = Some(cause.clone()),
            _ => {}
        }
    }

    fn summary(&self) -> proto::LaunchSummary {
        self.known().summary()
    }

    /// Number of launched ranks.
    fn ranks(&self) -> u32 {
        self.known().summary.ranks
    }

    /// Status of the launch with these stacks. `silent` means that the state of its ranks may be outdated.
    fn status(&self, silent: bool, stacks: &[RankStack]) -> proto::LaunchStatus {
        let known = self.known();
        let ranks: Vec<proto::RankProgress> = known.ranks.values().map(progress::encode).collect();
        let programs = known.ranks.values().map(|progress| known.program_of(progress)).collect();
        let (node_id, stacks) = (known.host.clone(), event::encode_stacks(stacks));
        let node = proto::NodeStatus { node_id, silent, ranks, programs, stacks, ..Default::default() };
        proto::LaunchStatus {
            summary: Some(known.summary()),
            nodes: vec![node],
            cause: known.cause.as_ref().map(cause::encode),
            usage: None,
        }
    }
}

impl Known {
    /// True for a rank of a spawned job. Its state is kept until it ends.
    fn is_spawned(&self, rank: Rank) -> bool {
        rank.0 >= self.summary.ranks
    }

    fn rank(&mut self, rank: Rank) -> &mut RankProgress {
        self.ranks.entry(rank).or_insert_with(|| RankProgress::unknown(rank))
    }

    /// Records the session's answer to the question of this number. It also serves earlier questions for which it has the data.
    fn answered(&mut self, question: u64, ranks: &[RankProgress], stacks: Option<&[RankStack]>) {
        let launched = self.summary.ranks;
        let is_known = |progress: &&RankProgress| progress.rank.0 < launched || progress.exit.is_none();
        self.ranks.extend(ranks.iter().filter(is_known).map(|progress| (progress.rank, progress.clone())));
        let is_served = |number: &u64, waiting: &mut Waiting| {
            *number <= question && (stacks.is_some() || matches!(waiting, Waiting::Progress(_)))
        };
        for (_, waiting) in self.waiting.extract_if(is_served) {
            // The requester may have given up.
            let _ = match waiting {
                Waiting::Progress(told) => told.send(()).is_ok(),
                Waiting::Stacks(told) => told.send(stacks.unwrap_or_default().to_vec()).is_ok(),
            };
        }
    }

    fn summary(&self) -> proto::LaunchSummary {
        let launched = self.summary.ranks as usize;
        let state = match &self.cause {
            Some(_) => LaunchState::Ending,
            None if self.ranks.len() < launched => LaunchState::Starting,
            None => LaunchState::Active,
        };
        proto::LaunchSummary {
            state: state.into(),
            duration_us: self.started.elapsed().as_micros() as u64,
            cause: self.cause.as_ref().map(Cause::to_string).unwrap_or_default(),
            ..self.summary.clone()
        }
    }

    /// File that the rank's process executes now. For a rank that has ended, the file with which it started.
    fn program_of(&self, progress: &RankProgress) -> Bytes {
        let now = progress.pid.filter(|_| progress.exit.is_none());
        let now = now.and_then(|pid| fs::read_link(format!("/proc/{pid}/exe")).ok());
        let program = now.or_else(|| self.programs.get(progress.rank.0 as usize).cloned()).unwrap_or_default();
        Bytes::copy_from_slice(program.as_os_str().as_bytes())
    }
}

struct WatchedUpdates<S> {
    source: S,
    watched: Watched,
}

impl<S: UpdateSource> UpdateSource for WatchedUpdates<S> {
    async fn next(&mut self) -> Option<Update> {
        let update = self.source.next().await;
        match &update {
            Some(Update::Event(_, event)) => self.watched.see(event),
            Some(_) => {}
            None => drop(self.watched.known().over.send_replace(true)),
        }
        update
    }
}

impl LocalService {
    /// Path of the socket of a launch.
    pub fn path(placed: &PlacedLaunch, environment: &[(OsString, OsString)]) -> PathBuf {
        of_user(environment).join(LAUNCHES).join(&placed.launch_id)
    }

    /// Binds the socket of the launch. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// Fails if there is no directory for it that is private to this user.
    pub fn bind(
        placed: &PlacedLaunch,
        environment: &[(OsString, OsString)],
        launch: LaunchHere,
    ) -> Result<Self, NotPrivate> {
        let directory = prepared(environment)?;
        let path = directory.path().to_owned();
        let (listener, file) =
            listen(directory, &placed.launch_id).map_err(|source| NotPrivate::System { path, source })?;
        let spec = frame(What::Spec(wire::placed::encode_shown(placed)));
        Ok(Self { listener, _file: file, launch, spec })
    }

    /// Serves connections while it is polled.
    pub async fn run(self) -> Infallible {
        let mut conversations = JoinSet::new();
        loop {
            if conversations.len() >= CONVERSATIONS_MAX {
                // A connection with an invalid question ends without an answer.
                drop(conversations.join_next().await);
            }
            while conversations.try_join_next().is_some() {}
            match self.listener.accept().await {
                Ok((socket, _)) => drop(conversations.spawn(self.launch.clone().converse(socket, self.spec.clone()))),
                // No descriptor is free at present.
                Err(_) => sleep(PAUSE).await,
            }
        }
    }
}

/// Creates the socket of a launch. It gets its name after it accepts connections. Before, a command would remove it as the socket of a
/// killed launch.
fn listen(directory: PrivateDirectory, id: &str) -> io::Result<(UnixListener, SocketFile)> {
    let mut file = SocketFile { directory, name: format!(".{id}") };
    let listener = UnixListener::bind(file.directory.by_descriptor(&file.name))?;
    renameat(&file.directory, file.name.as_str(), &file.directory, id)?;
    id.clone_into(&mut file.name);
    Ok((listener, file))
}

impl LaunchHere {
    /// A launch with its state in `watched`, which receives commands over `control`.
    pub fn new(watched: Watched, control: mpsc::Sender<Control>) -> Self {
        Self { watched, control }
    }

    /// Queries the progress of every rank; `None` if the session does not answer in time.
    pub async fn progress(&self) -> Option<proto::LaunchStatus> {
        self.ask(Control::AskProgress, Waiting::Progress, PROGRESS).await?;
        Some(self.watched.status(false, &[]))
    }

    async fn converse(self, mut socket: UnixStream, spec: Bytes) -> io::Result<()> {
        let uid = socket.peer_cred()?.uid();
        if uid != geteuid().as_raw() && uid != 0 {
            return Err(ErrorKind::PermissionDenied.into());
        }
        let mut question = Vec::new();
        timeout(CONVERSATION, (&mut socket).take(QUESTION_MAX).read_to_end(&mut question)).await??;
        let question = proto::LocalQuestion::decode(&*question)?;
        let answer = match question.what {
            Some(Question::Attach(proto::Nothing {})) => return self.show(socket, &spec).await,
            Some(question) => self.answer(question, uid).await,
            None => Answer::Refused("the question is of a later version of lattice".to_owned()),
        };
        let answer = proto::LocalAnswer { what: Some(answer) }.encode_to_vec();
        timeout(CONVERSATION, socket.write_all(&answer)).await??;
        socket.shutdown().await
    }

    /// Sends the events to a viewer, as fast as it reads, until the launch is over or the viewer is gone.
    async fn show(self, mut socket: UnixStream, spec: &[u8]) -> io::Result<()> {
        let Some(mut frames) = self.watched.known().viewers.add() else { return Err(ErrorKind::QuotaExceeded.into()) };
        socket.write_all(spec).await?;
        while let Some(frame) = frames.next().await {
            socket.write_all(&frame).await?;
        }
        socket.shutdown().await
    }

    async fn answer(&self, question: Question, uid: u32) -> Answer {
        match question {
            // `converse` has handled this question.
            Question::Attach(proto::Nothing {}) => Answer::Refused("this is no question".to_owned()),
            Question::Summary(proto::Nothing {}) => Answer::Summary(self.watched.summary()),
            Question::Status(proto::Nothing {}) => {
                let is_told = self.ask(Control::AskUsage, Waiting::Progress, PROGRESS).await.is_some();
                Answer::Status(self.watched.status(!is_told, &[]))
            }
            Question::Stacks(proto::Nothing {}) => {
                let stacks = self.ask(Control::AskStacks, Waiting::Stacks, STACKS).await;
                Answer::Status(self.watched.status(stacks.is_none(), &stacks.unwrap_or_default()))
            }
            Question::Signal(proto::SignalRanks { signal, ranks }) => {
                let Ok(signal) = Signal::try_from(signal) else {
                    return Answer::Refused(format!("{signal} is no signal"));
                };
                let control = match decode_ranges(&ranks) {
                    _ if ranks.is_empty() => Control::Signal(signal as i32),
                    Ok(named) if named.greatest().0 >= self.watched.ranks() => {
                        let (greatest, last) = (named.greatest(), self.watched.ranks().saturating_sub(1));
                        return Answer::Refused(format!(
                            "the launch has no rank {greatest}; it has ranks 0 to {last}\ntry: --ranks with some of them"
                        ));
                    }
                    Ok(named) => Control::SignalRanks(signal as i32, named),
                    Err(error) => return Answer::Refused(error.to_string()),
                };
                self.order(control).await
            }
            Question::Abort(reason) => {
                self.order(Control::Abort { who: format!("user {}", formatting::user(uid)), reason }).await
            }
        }
    }

    async fn order(&self, control: Control) -> Answer {
        match self.control.send(control).await {
            Ok(()) => Answer::Done(proto::Nothing {}),
            Err(_) => Answer::Refused("it is over".to_owned()),
        }
    }

    /// Queries the session; returns its answer, or `None` after the time limit.
    async fn ask<T>(
        &self,
        question: fn(u64) -> Control,
        waiting: fn(oneshot::Sender<T>) -> Waiting,
        limit: Duration,
    ) -> Option<T> {
        let (told, answer) = oneshot::channel();
        let number = {
            let known = &mut *self.watched.known();
            known.asked += 1;
            known.waiting.insert(known.asked, waiting(told));
            known.asked
        };
        let asked = async {
            // A session that accepts no more commands has ended. The recorded state is then final.
            let _ = self.control.send(question(number)).await;
            answer.await.ok()
        };
        let told = timeout(limit, asked).await.ok().flatten();
        self.watched.known().waiting.remove(&number);
        told
    }
}
