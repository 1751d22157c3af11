//! Services of a job's servers. Requests of ranks go to the host. Spawns that the host does not carry out, and questions about processes
//! here, go to the session.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use pmi_core::ids::{JobId, Rank};
use pmi_core::resources::{Resource, ResourceChange, ResourceError};
use pmi_core::services::{
    InputError, JobProcesses, MeetError, Meeting, Met, NameCall, NameError, NameRequest, NameUser, Services,
    SignalError, SpawnError, SpawnRequest,
};
use tokio::sync::{mpsc, oneshot};

use super::resources::ResourceReply;
use crate::blocking;
use crate::machine::jobs::JobNumber;
use crate::names;
use crate::spawn::{hosts_of_files, names_files};
use crate::spec::{AppSpec, SessionSpec};

/// A call of a server to its session.
pub(super) enum SessionCall {
    /// A request for a new job.
    Spawn(SpawnCall),
    /// A notice for the user that a rank got no new job.
    NotSpawned { job: JobNumber, rank: Rank, reason: String },
    /// A notice for the user that a name of a rank was refused.
    NameRefused { job: JobNumber, rank: Rank, reason: String },
    /// A step of a resource that a rank registers.
    Resource { job: JobNumber, rank: Rank, change: ResourceChange, reply: ResourceReply },
    /// A rank has not released a resource in time.
    Overdue { job: JobNumber, rank: Rank, resource: Resource, within: Duration },
    /// A second process acts as a rank.
    SecondProcess { job: JobNumber, rank: Rank, pid: Option<u32> },
    /// A process that a rank has started has no connection to the rank's server.
    NoDescriptor { job: JobNumber, rank: Rank },
    /// A question about the processes of a job here.
    Look { job: JobNumber, reply: oneshot::Sender<JobProcesses> },
    /// Input for the ranks here that read the launch's input.
    PushInput { ranks: Option<Vec<Rank>>, pushed: Pushed },
    /// A signal to ranks of a job here.
    Signal { job: JobNumber, ranks: Vec<Rank>, signal: i32, reply: oneshot::Sender<Result<(), SignalError>> },
}

impl SessionCall {
    /// Returns the job of the calling rank, if it matters.
    pub(super) fn job(&self) -> Option<JobNumber> {
        match self {
            Self::Spawn(SpawnCall { job, .. })
            | Self::NotSpawned { job, .. }
            | Self::NameRefused { job, .. }
            | Self::Resource { job, .. }
            | Self::Overdue { job, .. }
            | Self::SecondProcess { job, .. }
            | Self::NoDescriptor { job, .. }
            | Self::Look { job, .. }
            | Self::Signal { job, .. } => Some(*job),
            Self::PushInput { .. } => None,
        }
    }
}

/// A piece of input that does not come from the launch.
pub(super) struct Pushed {
    pub(super) bytes: Bytes,
    /// Gets the result when the piece is stored for its readers; dropped if the readers get no more input.
    pub(super) reply: oneshot::Sender<Result<(), InputError>>,
}

/// A rank's request for a new job, in transit to the session.
pub(super) struct SpawnCall {
    /// Job of the rank.
    pub(super) job: JobNumber,
    pub(super) rank: Rank,
    pub(super) request: SpawnRequest,
    pub(super) reply: SpawnReply,
}

/// Receiver of the answer to a spawn.
pub(super) type SpawnReply = oneshot::Sender<Result<JobId, SpawnError>>;

/// Services of one job. The host handles names and meetings, and also new jobs if it starts jobs.
pub(super) struct JobServices {
    pub(super) host: Arc<dyn Services>,
    pub(super) job: JobNumber,
    pub(super) id: JobId,
    /// The job on this node.
    pub(super) spec: Arc<SessionSpec>,
    /// Programs of the launch.
    pub(super) launched: Vec<AppSpec>,
    pub(super) session: mpsc::Sender<SessionCall>,
}

#[async_trait]
impl Services for JobServices {
    async fn name(&self, NameRequest { user, call }: NameRequest) -> Result<Bytes, NameError> {
        let rank = Rank(user.rank);
        let subject = subject(&call);
        let answer = self.host.name(NameRequest { user: self.name_user(rank), call }).await;
        if let Some(error) = answer.as_ref().err().filter(|error| is_refusal(error)) {
            let reason = format!("{subject}: {error}");
            // A session in its end reports nothing else.
            let _ = self.session.send(SessionCall::NameRefused { job: self.job, rank, reason }).await;
        }
        answer
    }

    async fn meet(&self, meeting: Meeting) -> Result<Met, MeetError> {
        self.host.meet(meeting).await
    }

    async fn spawn(&self, rank: Rank, request: SpawnRequest) -> Result<JobId, SpawnError> {
        let spawned = self.new_job(rank, request).await;
        if let Err(error) = &spawned {
            let reason = error.reason().to_owned();
            // A session in its end reports nothing else.
            let _ = self.session.send(SessionCall::NotSpawned { job: self.job, rank, reason }).await;
        }
        spawned
    }

    async fn resource(&self, rank: Rank, change: ResourceChange) -> Result<(), ResourceError> {
        let ending = || ResourceError::Refused { reason: "the launch is ending".to_owned() };
        let (reply, taken) = oneshot::channel();
        let call = SessionCall::Resource { job: self.job, rank, change, reply };
        self.session.send(call).await.map_err(|_| ending())?;
        taken.await.map_err(|_| ending())?
    }

    async fn release_overdue(&self, rank: Rank, resource: Resource, within: Duration) {
        // A session in its end reports nothing else.
        let _ = self.session.send(SessionCall::Overdue { job: self.job, rank, resource, within }).await;
    }

    async fn second_process(&self, rank: Rank, pid: Option<u32>) {
        // A session in its end reports nothing else.
        let _ = self.session.send(SessionCall::SecondProcess { job: self.job, rank, pid }).await;
    }

    async fn processes(&self) -> JobProcesses {
        let (reply, seen) = oneshot::channel();
        // A session in its end has no processes to show.
        let _ = self.session.send(SessionCall::Look { job: self.job, reply }).await;
        seen.await.unwrap_or_default()
    }

    async fn signal(&self, ranks: Vec<Rank>, signal: i32) -> Result<(), SignalError> {
        let (reply, sent) = oneshot::channel();
        let call = SessionCall::Signal { job: self.job, ranks, signal, reply };
        self.session.send(call).await.map_err(|_| SignalError::Ending)?;
        sent.await.map_err(|_| SignalError::Ending)?
    }

    async fn push_input(&self, ranks: Option<Vec<Rank>>, bytes: Bytes) -> Result<(), InputError> {
        let (reply, taken) = oneshot::channel();
        let call = SessionCall::PushInput { ranks, pushed: Pushed { bytes, reply } };
        self.session.send(call).await.map_err(|_| InputError::Ended)?;
        taken.await.map_err(|_| InputError::Ended)?
    }
}

/// Returns the beginning of a message about a call, with its name as text.
fn subject(call: &NameCall) -> String {
    /// Maximum number of characters of a name in a message.
    const SHOWN: usize = 64;
    let (act, service) = match call {
        NameCall::Publish { service, .. } => ("published", service),
        NameCall::Lookup { service, .. } => ("found", service),
        NameCall::Unpublish { service, .. } => ("withdrawn", service),
        NameCall::Leave => return String::new(),
    };
    let name = String::from_utf8_lossy(service.rsplit(|&byte| byte == 0).next().unwrap_or_default());
    let name: String = name.chars().take(SHOWN).collect();
    format!("the name {name:?} is not {act}")
}

/// Returns true for errors that are reported to the user. Programs expect the other errors as answers.
fn is_refusal(error: &NameError) -> bool {
    !matches!(error, NameError::NotFound | NameError::TimedOut)
}

impl JobServices {
    /// Returns the identity of a rank for names.
    fn name_user(&self, rank: Rank) -> NameUser {
        let spec = &self.spec;
        NameUser {
            launch: spec.launch_id.clone(),
            job: self.id.as_str().to_owned(),
            rank: rank.0,
            host: spec.host(spec.node).to_owned(),
            program: names::program_of(&spec.job, self.job == JobNumber::LAUNCHED, &self.launched, rank),
        }
    }

    /// Requests a new job from the host, or from the session itself.
    async fn new_job(&self, rank: Rank, mut request: SpawnRequest) -> Result<JobId, SpawnError> {
        if names_files(&request) {
            let directory = self.spec.apps.first().map_or_else(|| PathBuf::from("/"), |app| app.directory.clone());
            let named = blocking::begin(move || hosts_of_files(&mut request, &directory).map(|()| request)).await;
            request = named.map_err(|error| SpawnError::Refused { reason: error.to_string() })??;
        }
        if self.host.starts_jobs() {
            return self.host.spawn(rank, SpawnRequest { parent: Some(self.id.clone()), ..request }).await;
        }
        let ending = || SpawnError::Refused { reason: "the launch is ending".to_owned() };
        let (reply, answer) = oneshot::channel();
        let call = SpawnCall { job: self.job, rank, request, reply };
        self.session.send(SessionCall::Spawn(call)).await.map_err(|_| ending())?;
        answer.await.map_err(|_| ending())?
    }
}
