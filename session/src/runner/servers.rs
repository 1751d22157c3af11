//! The PMI servers of a session: for each job one for PMI-1 and PMI-2, and one for PMIx that all jobs share. Each rank uses one of them,
//! or none. The rules about ends and fences are not here: servers report, and [`crate::machine`] decides.

mod pmi;
mod pmix;

use pmi_transport::task;
use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::io;
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::task::Poll;

use bytes::Bytes;
use parking_lot::Mutex;
use pmi_core::deaths::{Death, DeathKind};
use pmi_core::driver::TraceSink;
use pmi_core::ids::{LocalRank, Rank};
use pmi_core::server::{EndReason, FenceStatus, Progress};
use pmi_core::services::Services;
use pmi_core::{DialoguePoint, Phase};
use pmix_core::driver::{Driver as PmixDriver, RankText};
use pmix_core::{CleanUp, JobIndex};
use rank_spawner::CpuSet;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;

use super::job_memory::EarlierRanks;
use super::job_servers::JobServers;
use super::node_facts::NodeFacts;
use super::node_need::NodeNeed;
use super::services::{JobServices, SessionCall};
use crate::event::SpokenProtocol;
use crate::machine::desertion::FenceSeen;
use crate::machine::jobs::{JobNumber, JobState};
use crate::plan::Entrances;
use crate::session_io::Nodes;
use crate::set::CommunicatorSource;
use crate::spec::SessionSpec;

/// All PMI servers of a session.
pub(super) struct Servers {
    spec: Arc<SessionSpec>,
    nodes: Arc<dyn Nodes>,
    host: Arc<dyn Services>,
    /// Servers of jobs that are not over.
    pub(super) jobs: BTreeMap<JobNumber, JobServers>,
    earlier: EarlierRanks,
    pub(super) pmix: Option<Arc<PmixDriver>>,
    pmix_end_reason: Option<oneshot::Receiver<(JobIndex, EndReason)>>,
    /// How long other nodes need this node.
    need: NodeNeed,
    calls: RankCalls,
    communicators: CommunicatorSource,
    trace: Option<SharedTrace>,
    /// True once a process without the descriptor of its rank was reported.
    pub(super) is_no_descriptor_reported: Arc<AtomicBool>,
    /// Tasks that answer questions of other nodes.
    answers: JoinSet<()>,
}

/// Channels from ranks through their servers to the session.
#[derive(Clone)]
pub(super) struct RankCalls {
    /// Texts that ranks write; their server limits the number of waiting texts.
    pub(super) texts: mpsc::UnboundedSender<RankText>,
    /// Requests for new jobs, and questions about processes.
    pub(super) session: mpsc::Sender<SessionCall>,
    /// Ranks that have died while the other ranks continue, each once.
    pub(super) deaths: mpsc::UnboundedSender<Died>,
    /// Files for removal at the end of a rank; the rank's server limits their number.
    pub(super) files: mpsc::UnboundedSender<Vec<PathBuf>>,
}

/// A rank of this node that has died, as reported by its server.
pub(super) struct Died {
    pub(super) job: ServedJob,
    pub(super) death: Death,
}

/// A job, as identified by one of its servers.
#[derive(Clone, Copy)]
pub(super) enum ServedJob {
    Pmi(JobNumber),
    Pmix(JobIndex),
}

/// Ranks of a job on this node.
#[derive(Clone, Copy)]
pub(super) struct RanksHere<'a> {
    /// CPUs of each rank, by local rank.
    pub(super) cpus: &'a [Option<CpuSet>],
    pub(super) node: &'a NodeFacts,
}

impl Servers {
    pub(super) fn new(
        spec: Arc<SessionSpec>,
        nodes: Arc<dyn Nodes>,
        host: Arc<dyn Services>,
        calls: RankCalls,
        communicators: CommunicatorSource,
        trace: Option<TraceSink>,
    ) -> Self {
        let need = NodeNeed::new(nodes.opening());
        Self {
            spec,
            nodes,
            host,
            jobs: BTreeMap::new(),
            earlier: EarlierRanks::default(),
            pmix: None,
            pmix_end_reason: None,
            need,
            calls,
            communicators,
            trace: trace.map(|trace| Arc::new(Mutex::new(trace))),
            is_no_descriptor_reported: Arc::default(),
            answers: JoinSet::new(),
        }
    }

    /// Starts the next job. It has no servers yet, and never gets any if its preparation fails.
    pub(super) fn begin(&mut self, number: JobNumber) {
        self.jobs.insert(number, JobServers::default());
    }

    /// Drops the servers of a finished job, with their sockets and memory, and its namespace.
    pub(super) fn release(&mut self, job: JobNumber) {
        if let Some(pmix) = self.jobs.remove(&job).and_then(|servers| servers.pmix) {
            pmix.driver.remove(pmix.job);
        }
    }

    pub(super) fn of(&self, job: JobNumber) -> Option<&JobServers> {
        self.jobs.get(&job)
    }

    /// Makes the requested servers of both families for a job. Returns the addresses for its ranks.
    pub(super) fn add(
        &mut self,
        number: JobNumber,
        job: &JobState,
        parent: Option<(JobNumber, Rank)>,
        here: RanksHere<'_>,
    ) -> io::Result<Entrances> {
        let family = self.spec.settings.pmi.family;
        // PMI serves no job other than a rank's own. With PMIx, a rank here may meet a rank of another job.
        let has_ranks = !job.ranks_here().is_empty();
        let mut entrances = Entrances::default();
        if family.has_pmi() && has_ranks {
            (entrances.port, entrances.job_memory) = self.serve_pmi(number, job, here)?;
        }
        if family.has_pmix() {
            entrances.pmix = Some(self.serve_pmix(number, job, parent, here)?);
        }
        self.earlier.count(&job.spec.job.placement);
        Ok(entrances)
    }

    fn services(&self, number: JobNumber, job: &JobState) -> Arc<dyn Services> {
        let (host, id) = (Arc::clone(&self.host), job.spec.job.id.clone());
        let (spec, launched) = (Arc::clone(&job.spec), self.spec.apps.clone());
        Arc::new(JobServices { host, job: number, id, spec, launched, session: self.calls.session.clone() })
    }

    /// Starts the dialogue with a rank over its inherited socket.
    ///
    /// # Errors
    /// Fails when the runtime cannot watch the socket.
    pub(super) fn connect(&self, job: JobNumber, local: LocalRank, socket: UnixStream) -> io::Result<()> {
        self.of(job).map_or(Ok(()), |servers| servers.connect(local, socket))
    }

    /// Handles the last messages of a rank after the end of its process. It also handles the rank's end, if a server must evaluate it.
    /// Returns the resulting reasons to end.
    pub(super) fn end_dialogue(
        &mut self,
        job: JobNumber,
        local: LocalRank,
        end: JudgedEnd,
    ) -> Vec<(JobNumber, EndReason)> {
        let Some(servers) = self.jobs.get_mut(&job) else { return Vec::new() };
        servers.drain(local);
        match end {
            JudgedEnd::ByServer => servers.rank_exited(local),
            JudgedEnd::Borne(kind) => servers.rank_failed(local, kind),
            JudgedEnd::ByItself => servers.rank_died(local),
        }
        let own = take_ready(&mut servers.end_reason).map(|reason| (job, reason));
        let pmix = take_ready(&mut self.pmix_end_reason).and_then(|(job, reason)| Some((self.job_of(job)?, reason)));
        own.into_iter().chain(pmix).collect()
    }

    /// Waits for a server's reason to end; indefinitely if no server has one. Cancel-safe.
    pub(super) async fn end_reason(&mut self) -> (JobNumber, EndReason) {
        poll_fn(|context| {
            for (&number, job) in &mut self.jobs {
                if let Some(Poll::Ready(reason)) = job.end_reason.as_mut().map(|reason| Pin::new(reason).poll(context))
                {
                    job.end_reason = None;
                    if let Ok(reason) = reason {
                        return Poll::Ready((number, reason));
                    }
                }
            }
            let pmix = self.pmix_end_reason.as_mut().map(|reason| Pin::new(reason).poll(context));
            if let Some(Poll::Ready(reason)) = pmix {
                self.pmix_end_reason = None;
                if let Ok((job, reason)) = reason
                    && let Some(job) = self.job_of(job)
                {
                    return Poll::Ready((job, reason));
                }
            }
            Poll::Pending
        })
        .await
    }

    /// Returns how long other nodes need this node.
    pub(super) fn need(&self) -> &NodeNeed {
        &self.need
    }

    /// Returns true if ranks of the job are served PMI-1 or PMI-2.
    pub(super) fn serves_pmi(&self, job: JobNumber) -> bool {
        self.jobs.get(&job).is_some_and(|job| job.pmi.is_some())
    }

    /// Returns the channel for calls to the session.
    pub(super) fn session_calls(&self) -> mpsc::Sender<SessionCall> {
        self.calls.session.clone()
    }

    /// Returns the address of the PMIx server, if there is one.
    pub(super) fn pmix_address(&self) -> Option<SocketAddr> {
        self.pmix.as_ref().map(|pmix| pmix.address())
    }

    /// Returns the job with this index in the PMIx server.
    pub(super) fn job_of(&self, index: JobIndex) -> Option<JobNumber> {
        self.jobs.iter().find(|(_, job)| job.is_pmix_job(index)).map(|(&number, _)| number)
    }

    /// Returns the job of a server.
    pub(super) fn job_served(&self, job: ServedJob) -> Option<JobNumber> {
        match job {
            ServedJob::Pmi(job) => Some(job),
            ServedJob::Pmix(index) => self.job_of(index),
        }
    }

    /// Announces dead ranks of a job to its servers. The other ranks continue.
    pub(super) fn announce_deaths(&self, job: JobNumber, deaths: &[Death]) {
        if let Some(servers) = self.of(job) {
            servers.announce_deaths(deaths);
        }
    }

    /// Returns true for a rank with an open dialogue in PMI-1 or PMI-2.
    pub(super) fn speaks_pmi(&self, job: JobNumber, local: LocalRank) -> bool {
        self.phase(job, local) == Some(Phase::Open) && !self.spoke_pmix(job, local)
    }

    pub(super) fn progress(&self, job: JobNumber, local: LocalRank) -> Option<Progress> {
        self.of(job)?.progress(local)
    }

    /// Returns the protocol that a rank has spoken; `None` for none or both.
    pub(super) fn protocol(&self, job: JobNumber, local: LocalRank) -> Option<SpokenProtocol> {
        self.of(job)?.protocol(local)
    }

    pub(super) fn phase(&self, job: JobNumber, local: LocalRank) -> Option<Phase> {
        self.of(job)?.phase(local)
    }

    pub(super) fn reached(&self, job: JobNumber, local: LocalRank) -> Option<DialoguePoint> {
        self.progress(job, local).map(|progress| progress.reached())
    }

    pub(super) fn spoke_pmix(&self, job: JobNumber, local: LocalRank) -> bool {
        self.of(job).is_some_and(|servers| servers.spoke_pmix(local))
    }

    pub(super) fn has_tool(&self, job: JobNumber, local: LocalRank) -> bool {
        self.of(job).is_some_and(|servers| servers.has_tool(local))
    }

    pub(super) fn take_clean_up(&self, job: JobNumber, local: LocalRank) -> Vec<CleanUp> {
        self.of(job).map(|servers| servers.take_clean_up(local)).unwrap_or_default()
    }

    /// Returns the fences of a job in which ranks of this node wait.
    pub(super) fn pending_fences(&self, number: JobNumber, job: &JobState) -> Vec<FenceSeen> {
        let Some(servers) = self.of(number) else { return Vec::new() };
        let speaks = |protocol: SpokenProtocol, local: &LocalRank| servers.protocol(*local) == Some(protocol);
        let seen = |(protocol, fence): (SpokenProtocol, FenceStatus)| {
            let all_speak_it = fence.waiting.iter().all(|local| speaks(protocol, local));
            let stranger = |local: &&LocalRank| all_speak_it && speaks(protocol.other(), local);
            let strangers = fence.missing.iter().filter(stranger).filter_map(|&local| servers.progress(local));
            let strangers = strangers.filter(Progress::is_in_init).map(|progress| job.shown(progress.rank)).collect();
            let missing = fence.missing.iter().filter_map(|&local| servers.progress(local));
            let missing = missing.map(|progress| (job.shown(progress.rank), progress.last_command)).collect();
            let FenceStatus { name, epoch, whole_job, at_start, waiting, .. } = fence;
            FenceSeen { job: number, protocol, name, epoch, whole_job, at_start, waiting, missing, strangers }
        };
        servers.pending_fences().map(seen).collect()
    }

    /// Answers a question of another node's server. The answer may take a while, and the session does not wait for it.
    pub(super) fn answer(&mut self, question: &Bytes, reply: oneshot::Sender<Result<Bytes, String>>) {
        let answer = self.pmix.as_ref().map(|pmix| pmix.question(question));
        while self.answers.try_join_next().is_some() {}
        self.answers.spawn(task::boxed(pass_on(answer, reply)));
    }
}

/// Sends the answer of the PMIx server, if there is one, to another node.
pub(super) async fn pass_on(answer: Option<oneshot::Receiver<Bytes>>, reply: oneshot::Sender<Result<Bytes, String>>) {
    let answer = match answer {
        Some(answer) => answer.await.map_err(|_| "its part of the launch is over"),
        None => Err("it serves no PMIx"),
    };
    // The asking node may be gone.
    let _ = reply.send(answer.map_err(str::to_owned));
}

/// Evaluation of a rank's exit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum JudgedEnd {
    /// The rank exited with status 0. Its server decides whether the rank had completed PMI.
    ByServer,
    /// The rank failed, and the other ranks continue. Its server decides whether they can.
    Borne(DeathKind),
    /// The exit needs no evaluation, or has no effect.
    ByItself,
}

/// Returns the value of a receiver that has one, and drops the receiver.
fn take_ready<T>(receiver: &mut Option<oneshot::Receiver<T>>) -> Option<T> {
    let value = receiver.as_mut()?.try_recv().ok()?;
    *receiver = None;
    Some(value)
}

/// Trace that the servers of both families write to.
type SharedTrace = Arc<Mutex<TraceSink>>;

fn share(trace: &SharedTrace) -> TraceSink {
    let trace = Arc::clone(trace);
    Box::new(move |message| (trace.lock())(message))
}
