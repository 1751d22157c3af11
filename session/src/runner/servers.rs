//! The PMI servers of a session: for each job one for PMI-1 and PMI-2, and one for PMIx that all jobs share. Each rank speaks to
//! one of them, or to none. Rules about ends and fences are not here: servers report, and [`crate::machine`] judges.

use pmi_transport::task;
use std::future::{Future, poll_fn};
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use nix::unistd::geteuid;
use parking_lot::Mutex;
use pmi_core::claim::ClaimKeys;
use pmi_core::deaths::{Death, DeathKind};
use pmi_core::driver::{Admission, Driver, TraceSink};
use pmi_core::ids::{LocalRank, NodeIndex, Rank};
use pmi_core::server::{EndReason, FenceStatus, Progress, Server, Settings};
use pmi_core::services::Services;
use pmi_core::{DialoguePoint, Offer, Phase};
use pmix_core::driver::{self as pmix, Said, Sinks};
use pmix_core::server::{Server as PmixServer, Settings as PmixSettings};
use pmix_core::services::Peers;
use pmix_core::{CleanUp, JobIndex, Namespace};
use rank_spawner::{CpuSet, NODE_MEMORY_FD, usable_cpus};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;

use super::job_memory::{self, EarlierRanks};
use super::job_servers::{JobServers, Pmix};
use super::node_facts::NodeFacts;
use super::node_need::NodeNeed;
use super::services::{JobServices, SessionCall};
use super::socket_file;
use crate::machine::desertion::FenceSeen;
use crate::machine::jobs::{JobNumber, JobState};
use crate::plan::{Entrances, PmiPort, PmixEntrance};
use crate::process_set;
use crate::random;
use crate::session_io::Nodes;
use crate::set::CommunicatorSource;
use crate::settings::{Entrance, JobMemory, PmiFamily};
use crate::spec::SessionSpec;

/// Time within which a rank that came through `PMI_PORT` must say which one it is.
const CLAIM_WITHIN: Duration = Duration::from_secs(30);

/// All PMI servers of a session.
pub(super) struct Servers {
    spec: Arc<SessionSpec>,
    nodes: Arc<dyn Nodes>,
    host: Arc<dyn Services>,
    /// By job number.
    pub(super) jobs: Vec<JobServers>,
    earlier: EarlierRanks,
    pub(super) pmix: Option<Arc<pmix::Driver>>,
    pmix_end_reason: Option<oneshot::Receiver<(JobIndex, EndReason)>>,
    /// How long other nodes need this one.
    need: NodeNeed,
    calls: RankCalls,
    communicators: CommunicatorSource,
    trace: Option<SharedTrace>,
    /// Tasks that answer questions of other nodes.
    answers: JoinSet<()>,
}

/// Ways by which ranks reach the session through their servers.
#[derive(Clone)]
pub(super) struct RankCalls {
    /// Texts that they write; more than fit are lost.
    pub(super) texts: mpsc::Sender<Said>,
    /// Requests for new jobs, and what is asked about processes.
    pub(super) session: mpsc::Sender<SessionCall>,
    /// Ranks that have died and that the others go on without, each once.
    pub(super) deaths: mpsc::UnboundedSender<Died>,
}

/// The command line of a job's first program, as far as it is told to those who ask.
fn command_line(spec: &SessionSpec) -> Bytes {
    const LONGEST: usize = 4096;
    let Some(app) = spec.apps.first() else { return Bytes::new() };
    let words: Vec<&[u8]> = [&app.program].into_iter().chain(&app.args).map(|word| word.as_bytes()).collect();
    let line = words.join(&b' ');
    Bytes::copy_from_slice(&line[..line.len().min(LONGEST)])
}

/// A rank of this node that has died, as its server tells.
pub(super) struct Died {
    pub(super) job: ServedJob,
    pub(super) death: Death,
}

/// A job as one of its servers knows it.
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
            jobs: Vec::new(),
            earlier: EarlierRanks::default(),
            pmix: None,
            pmix_end_reason: None,
            need,
            calls,
            communicators,
            trace: trace.map(|trace| Arc::new(Mutex::new(trace))),
            answers: JoinSet::new(),
        }
    }

    /// Makes the servers of both families for the next job, as far as they are wanted, and returns how ranks find them.
    pub(super) fn add(
        &mut self,
        number: JobNumber,
        job: &JobState,
        parent: Option<(JobNumber, Rank)>,
        here: RanksHere<'_>,
    ) -> io::Result<Entrances> {
        debug_assert_eq!(number.0, self.jobs.len(), "jobs are added in their order");
        self.jobs.push(JobServers::default());
        let family = self.spec.settings.pmi.family;
        // PMI knows nothing of jobs but a rank's own; PMIx does, and a rank here may meet one of theirs.
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

    /// Makes the server for PMI-1 and PMI-2, and returns its port if ranks come that way, and the memory beside it.
    fn serve_pmi(
        &mut self,
        number: JobNumber,
        job: &JobState,
        here: RanksHere<'_>,
    ) -> io::Result<(Option<PmiPort>, Option<Arc<OwnedFd>>)> {
        let trace = self.trace.as_ref();
        let pmi = self.spec.settings.pmi;
        let offer = Offer {
            pmi1: pmi.family != PmiFamily::Pmi2,
            pmi2: pmi.family != PmiFamily::Pmi1,
            group_barriers: pmi.group_barriers,
        };
        let settings = Settings { offer, trace: trace.is_some(), resources: true, ..Settings::default() };
        let mut server = Server::new(job.spec.job.clone(), self.spec.node, settings);
        if let Some(file) = here.node.topology_file(&self.spec) {
            server.offer_topology(file);
        }
        let domains = here.node.domains(here.cpus);
        if !domains.is_empty() {
            server.tell_domains(&domains);
        }
        if self.spec.settings.node_memory.is_some() {
            server.tell_node_memory(NODE_MEMORY_FD);
        }
        let keys = match pmi.entrance {
            Entrance::Socket => None,
            Entrance::Port => {
                let random = || random::bytes().map(u32::from_ne_bytes);
                Some(ClaimKeys::draw(job.ranks_here().len(), random)?)
            }
        };
        if let Some(keys) = &keys {
            server.require_keys(keys.clone());
        }
        let fence = self.nodes.fence(&job.spec.job);
        let shared = match pmi.job_memory {
            JobMemory::Shared => job_memory::create(&job.spec, &server, &self.earlier, here.cpus),
            JobMemory::Off => None,
        };
        let (driver, end_reason) = Driver::new(server, fence, self.services(number, job), trace.map(share));
        let deaths = self.calls.deaths.clone();
        driver.tell_deaths_to(Box::new(move |death| {
            // The session outlives its servers.
            let _ = deaths.send(Died { job: ServedJob::Pmi(number), death });
        }));
        let memory = shared.map(|(publisher, for_ranks)| {
            driver.publish_to(publisher);
            Arc::new(for_ranks)
        });
        if job.ranks_here().len() < usable_cpus().get() {
            driver.stay_awake();
        }
        let port = match keys {
            None => None,
            Some(keys) => Some(self.listen_for_keys(number, &driver, keys)?),
        };
        let servers = &mut self.jobs[number.0];
        servers.pmi = Some(driver);
        servers.end_reason = Some(end_reason);
        Ok((port, memory))
    }

    /// Lets ranks come by their keys: at a loopback port, and at a socket in the file system, if that can be made.
    fn listen_for_keys(&self, number: JobNumber, driver: &Driver, keys: ClaimKeys) -> io::Result<PmiPort> {
        let admission = Admission { uid: geteuid().as_raw(), claim_within: CLAIM_WITHIN };
        let listener = TcpListener::bind(("127.0.0.1", 0))?;
        let address = listener.local_addr()?.to_string();
        driver.listen(listener, admission)?;
        let directory = self.spec.rank_files();
        let file = socket_file::bind(&directory, number).and_then(|(path, listener)| {
            driver.listen_at_file(listener, admission)?;
            Ok(path)
        });
        let told = |error: &io::Error| tracing::warn!("ranks find no PMI socket in {}: {error}", directory.display());
        Ok(PmiPort { address, file: file.inspect_err(told).ok(), keys })
    }

    /// Adds a job to the PMIx server, and makes that if there is none yet.
    fn serve_pmix(
        &mut self,
        number: JobNumber,
        state: &JobState,
        parent: Option<(JobNumber, Rank)>,
        here: RanksHere<'_>,
    ) -> io::Result<PmixEntrance> {
        let driver = match &self.pmix {
            Some(driver) => Arc::clone(driver),
            None => self.listen_for_pmix()?,
        };
        let SessionSpec { job, node, hosts, .. } = &*state.spec;
        let directory = self.spec.rank_files();
        let name = format!("{}.{}", job.id, self.spec.secret);
        let parent = parent.and_then(|(parent, rank)| Some((self.jobs[parent.0].pmix.as_ref()?.name.clone(), rank)));
        let namespace = Namespace {
            name: name.clone(),
            job: job.clone(),
            node: *node,
            hosts: hosts.clone(),
            allocation: state.spec.allocation_id.clone(),
            directory: Some(directory.to_string_lossy().into_owned()),
            parent,
            here: pmix_core::NodeFacts {
                topology: here.node.topology(&self.spec),
                places: here.node.places(here.cpus),
            },
            command: command_line(&state.spec),
            sets: process_set::of_programs(
                job.apps.iter().map(|app| app.ranks).zip(state.spec.apps.iter().map(|app| app.process_set.as_ref())),
            ),
        };
        let fence = self.nodes.fence(job);
        let job = driver.add(namespace, fence, self.services(number, state));
        let server = driver.address();
        self.jobs[number.0].pmix = Some(Pmix { driver, job, name: name.clone() });
        Ok(PmixEntrance { namespace: name, server })
    }

    fn listen_for_pmix(&mut self) -> io::Result<Arc<pmix::Driver>> {
        let settings = PmixSettings {
            exchange: self.spec.settings.pmi.exchange.into(),
            trace: self.trace.is_some(),
            ..PmixSettings::default()
        };
        let texts = self.calls.texts.clone();
        let say = Box::new(move |text| {
            // A rank that writes more than can be passed on is not waited for.
            let _ = texts.try_send(text);
        });
        let deaths = self.calls.deaths.clone();
        let died = Box::new(move |job, death| {
            // The session outlives its servers.
            let _ = deaths.send(Died { job: ServedJob::Pmix(job), death });
        });
        let sinks = Sinks { say, died, trace: self.trace.as_ref().map(share) };
        let peers = Arc::new(OtherServers(Arc::clone(&self.nodes)));
        let (driver, end_reason) = pmix::Driver::new(PmixServer::new(settings), geteuid().as_raw(), peers, sinks)?;
        let driver = Arc::new(driver);
        self.need.follow(driver.needed());
        self.communicators.follow(&driver);
        self.pmix = Some(Arc::clone(&driver));
        self.pmix_end_reason = Some(end_reason);
        Ok(driver)
    }

    fn services(&self, number: JobNumber, job: &JobState) -> Arc<dyn Services> {
        let (host, id) = (Arc::clone(&self.host), job.spec.job.id.clone());
        let directory = job.spec.apps.first().map_or_else(|| PathBuf::from("/"), |app| app.directory.clone());
        Arc::new(JobServices { host, job: number, id, directory, session: self.calls.session.clone() })
    }

    /// Begins the dialogue with a rank over its inherited socket.
    ///
    /// # Errors
    /// Fails when the runtime cannot watch the socket.
    pub(super) fn connect(&self, job: JobNumber, local: LocalRank, socket: UnixStream) -> io::Result<()> {
        self.jobs[job.0].connect(local, socket)
    }

    /// Handles the last messages of a rank whose process has ended, and its end if a server is to judge that; returns the reasons to end
    /// that followed.
    pub(super) fn end_dialogue(
        &mut self,
        job: JobNumber,
        local: LocalRank,
        end: JudgedEnd,
    ) -> Vec<(JobNumber, EndReason)> {
        let servers = &mut self.jobs[job.0];
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

    /// Waits for a server's reason to end; for ever if none has one. Cancel-safe.
    pub(super) async fn end_reason(&mut self) -> (JobNumber, EndReason) {
        poll_fn(|context| {
            for (number, job) in self.jobs.iter_mut().enumerate() {
                if let Some(Poll::Ready(reason)) = job.end_reason.as_mut().map(|reason| Pin::new(reason).poll(context))
                {
                    job.end_reason = None;
                    if let Ok(reason) = reason {
                        return Poll::Ready((JobNumber(number), reason));
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

    /// How long other nodes need this one.
    pub(super) fn need(&self) -> &NodeNeed {
        &self.need
    }

    /// Address of the PMIx server, if there is one.
    pub(super) fn pmix_address(&self) -> Option<SocketAddr> {
        self.pmix.as_ref().map(|pmix| pmix.address())
    }

    /// Job that the PMIx server knows by this index.
    pub(super) fn job_of(&self, index: JobIndex) -> Option<JobNumber> {
        self.jobs.iter().position(|job| job.is_pmix_job(index)).map(JobNumber)
    }

    /// Job of a server.
    pub(super) fn job_served(&self, job: ServedJob) -> Option<JobNumber> {
        match job {
            ServedJob::Pmi(job) => Some(job),
            ServedJob::Pmix(index) => self.job_of(index),
        }
    }

    /// Ranks of a job have died, and the others go on.
    pub(super) fn announce_deaths(&self, job: JobNumber, deaths: &[Death]) {
        self.jobs[job.0].announce_deaths(deaths);
    }

    /// True for a rank in the middle of its dialogue in PMI-1 or PMI-2.
    pub(super) fn speaks_pmi(&self, job: JobNumber, local: LocalRank) -> bool {
        self.phase(job, local) == Some(Phase::Open) && !self.spoke_pmix(job, local)
    }

    pub(super) fn progress(&self, job: JobNumber, local: LocalRank) -> Option<Progress> {
        self.jobs[job.0].progress(local)
    }

    pub(super) fn phase(&self, job: JobNumber, local: LocalRank) -> Option<Phase> {
        self.jobs[job.0].phase(local)
    }

    pub(super) fn reached(&self, job: JobNumber, local: LocalRank) -> Option<DialoguePoint> {
        self.progress(job, local).map(|progress| progress.reached())
    }

    pub(super) fn spoke_pmix(&self, job: JobNumber, local: LocalRank) -> bool {
        self.jobs[job.0].spoke_pmix(local)
    }

    pub(super) fn has_tool(&self, job: JobNumber, local: LocalRank) -> bool {
        self.jobs[job.0].has_tool(local)
    }

    pub(super) fn take_clean_up(&self, job: JobNumber, local: LocalRank) -> Vec<CleanUp> {
        self.jobs[job.0].take_clean_up(local)
    }

    /// Fences of a job in which ranks of this node wait.
    pub(super) fn pending_fences(&self, number: JobNumber, job: &JobState) -> Vec<FenceSeen> {
        let Some(servers) = self.jobs.get(number.0) else { return Vec::new() };
        let seen = |fence: FenceStatus| {
            let missing = fence.missing.iter().filter_map(|&local| servers.progress(local));
            let missing = missing.map(|progress| (job.shown(progress.rank), progress.last_command)).collect();
            let FenceStatus { name, epoch, whole_job, waiting, .. } = fence;
            FenceSeen { job: number, name, epoch, whole_job, waiting, missing }
        };
        servers.pending_fences().into_iter().map(seen).collect()
    }

    /// Answers a question of another node's server. The answer may take a while, and nothing waits for it.
    pub(super) fn answer(&mut self, question: &Bytes, reply: oneshot::Sender<Result<Bytes, String>>) {
        let answer = self.pmix.as_ref().map(|pmix| pmix.question(question));
        while self.answers.try_join_next().is_some() {}
        self.answers.spawn(task::boxed(pass_on(answer, reply)));
    }
}

/// Passes the answer of the PMIx server on to another node, if there is a server.
pub(super) async fn pass_on(answer: Option<oneshot::Receiver<Bytes>>, reply: oneshot::Sender<Result<Bytes, String>>) {
    let answer = match answer {
        Some(answer) => answer.await.map_err(|_| "its part of the launch is over"),
        None => Err("it serves no PMIx"),
    };
    // The one who asked may be gone.
    let _ = reply.send(answer.map_err(str::to_owned));
}

/// Judge of a rank's exit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum JudgedEnd {
    /// The rank left with status 0: its server knows whether it was through with PMI.
    ByServer,
    /// The rank failed, and the others go on: its server knows whether they can.
    Borne(DeathKind),
    /// The exit speaks for itself, or means nothing.
    ByItself,
}

/// Value of a receiver that has one; the receiver is used up then.
fn take_ready<T>(receiver: &mut Option<oneshot::Receiver<T>>) -> Option<T> {
    let value = receiver.as_mut()?.try_recv().ok()?;
    *receiver = None;
    Some(value)
}

/// PMIx servers of this launch on other nodes.
struct OtherServers(Arc<dyn Nodes>);

#[async_trait]
impl Peers for OtherServers {
    async fn ask(&self, node: NodeIndex, question: Bytes) -> Option<Bytes> {
        let answer = self.0.ask(node, question).await;
        answer.inspect_err(|error| tracing::debug!("{error}")).ok()
    }
}

/// Trace that the servers of both families write to.
type SharedTrace = Arc<Mutex<TraceSink>>;

fn share(trace: &SharedTrace) -> TraceSink {
    let trace = Arc::clone(trace);
    Box::new(move |message| (trace.lock())(message))
}
