//! The servers of one job's ranks on this node: one for each family of protocols. Each rank speaks to one of them, or to none.

use std::io;
use std::net::TcpListener;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use nix::unistd::geteuid;
use parking_lot::Mutex;
use pmi_core::claim::ClaimKeys;
use pmi_core::driver::{Admission, Driver, TraceSink};
use pmi_core::ids::{LocalRank, NodeIndex, Rank};
use pmi_core::server::{FenceStatus, Progress, Server, Settings};
use pmi_core::services::Services;
use pmi_core::{Offer, Phase};
use pmix_core::driver::{self as pmix, Sinks};
use pmix_core::server::{Server as PmixServer, Settings as PmixSettings};
use pmix_core::services::Peers;
use pmix_core::{CleanUp, JobIndex, Namespace, Seat};
use rank_spawner::usable_cpus;
use tokio::sync::oneshot;

use super::spawning::JobServices;
use super::{Nodes, Session};
use crate::plan::{Entrances, PmiPort, PmixEntrance};
use crate::random;
use crate::spec::{Entrance, PmiFamily, SessionSpec};

/// A rank that came through `PMI_PORT` must say within this time which one it is.
const CLAIM_WITHIN: Duration = Duration::from_secs(30);

/// The servers of one job's ranks.
#[derive(Default)]
pub(super) struct Serving {
    /// PMI-1 and PMI-2.
    pmi: Option<Driver>,
    /// PMIx; it serves other jobs of the launch as well.
    pmix: Option<Pmix>,
}

/// A job at the launch's PMIx server.
struct Pmix {
    driver: Arc<pmix::Driver>,
    job: JobIndex,
    /// The job's namespace.
    name: String,
}

impl Serving {
    /// Begins the conversation with a rank over its inherited socket.
    pub(super) fn connect(&self, local: LocalRank, socket: UnixStream) -> io::Result<()> {
        self.pmi.as_ref().map_or(Ok(()), |pmi| pmi.connect(local, socket))
    }

    /// Handles what a rank said last, whatever it speaks.
    pub(super) fn drain(&self, local: LocalRank) {
        if let Some(pmi) = &self.pmi {
            pmi.drain(local);
        }
        if let Some(pmix) = &self.pmix {
            pmix.driver.drain(pmix.seat(local));
        }
    }

    /// A rank's process returned status 0. A server to which it never spoke must not take that for silence, if it spoke to the other.
    pub(super) fn rank_exited(&self, local: LocalRank) {
        let spoke_pmix = self.spoke_pmix(local);
        if let Some(pmi) = self.pmi.as_ref().filter(|_| !spoke_pmix) {
            pmi.rank_exited(local);
        }
        let spoke_pmi = self.pmi.as_ref().is_some_and(|pmi| spoke(pmi.progress(local)));
        if let Some(pmix) = self.pmix.as_ref().filter(|_| !spoke_pmi) {
            pmix.driver.rank_exited(pmix.seat(local));
        }
    }

    /// How far a rank's dialogue has come, with the server that it speaks to.
    pub(super) fn progress(&self, local: LocalRank) -> Option<Progress> {
        let pmix = || self.pmix.as_ref().and_then(|pmix| pmix.driver.progress(pmix.seat(local)));
        let pmi = self.pmi.as_ref().and_then(|pmi| pmi.progress(local));
        if pmi.is_none() || self.spoke_pmix(local) { pmix() } else { pmi }
    }

    pub(super) fn phase(&self, local: LocalRank) -> Option<Phase> {
        self.progress(local).map(|progress| progress.phase)
    }

    /// The fences in which ranks wait, with whichever server.
    pub(super) fn standings(&self) -> Vec<FenceStatus> {
        let mut standings = self.pmi.as_ref().map(Driver::pending_fences).unwrap_or_default();
        standings.extend(self.pmix.iter().flat_map(|pmix| pmix.driver.pending_fences(pmix.job)));
        standings
    }

    /// Whether this is the job that the PMIx server knows by that index.
    pub(super) fn is_pmix_job(&self, job: JobIndex) -> bool {
        self.pmix.as_ref().is_some_and(|pmix| pmix.job == job)
    }

    /// What a rank wants removed now that it has ended.
    pub(super) fn take_clean_up(&self, local: LocalRank) -> Vec<CleanUp> {
        self.pmix.as_ref().map(|pmix| pmix.driver.take_clean_up(pmix.seat(local))).unwrap_or_default()
    }

    fn spoke_pmix(&self, local: LocalRank) -> bool {
        self.pmix.as_ref().is_some_and(|pmix| spoke(pmix.driver.progress(pmix.seat(local))))
    }
}

impl Pmix {
    fn seat(&self, local: LocalRank) -> Seat {
        Seat { job: self.job, local }
    }
}

fn spoke(progress: Option<Progress>) -> bool {
    progress.is_some_and(|progress| progress.phase != Phase::Silent)
}

impl Session {
    /// Makes the servers of both families, as far as they are wanted, and returns how ranks find them.
    pub(super) fn serve(&mut self, job: usize, parent: Option<(usize, Rank)>) -> io::Result<Entrances> {
        let family = self.spec.pmi.family;
        // PMI knows nothing of jobs but a rank's own; PMIx does, and a rank here may meet one of theirs.
        let has_ranks = !self.jobs[job].ranks_here().is_empty();
        let port = if family.has_pmi() && has_ranks { self.serve_pmi(job)? } else { None };
        let pmix = if family.has_pmix() { Some(self.serve_pmix(job, parent)?) } else { None };
        Ok(Entrances { port, pmix })
    }

    /// Makes the server for PMI-1 and PMI-2, and returns its port if ranks come that way.
    fn serve_pmi(&mut self, job: usize) -> io::Result<Option<PmiPort>> {
        let trace = self.trace.as_ref();
        let pmi = self.spec.pmi;
        let offer = Offer {
            pmi1: pmi.family != PmiFamily::Pmi2,
            pmi2: pmi.family != PmiFamily::Pmi1,
            group_barriers: pmi.group_barriers,
        };
        let settings = Settings { offer, trace: trace.is_some(), ..Settings::default() };
        let mut server = Server::new(self.jobs[job].spec.job.clone(), self.spec.node, settings);
        let keys = match pmi.entrance {
            Entrance::Socket => None,
            Entrance::Port => {
                let random = || random::bytes().map(u32::from_ne_bytes);
                Some(ClaimKeys::draw(self.jobs[job].ranks_here().len(), random)?)
            }
        };
        if let Some(keys) = &keys {
            server.require_keys(keys.clone());
        }
        let fence = self.surroundings.nodes.fence(&self.jobs[job].spec.job);
        let (driver, end_reason) = Driver::new(server, fence, self.services(job), trace.map(share));
        if self.jobs[job].ranks_here().len() < usable_cpus().get() {
            driver.stay_awake();
        }
        let port = match keys {
            None => None,
            Some(keys) => {
                let listener = TcpListener::bind(("127.0.0.1", 0))?;
                let address = listener.local_addr()?.to_string();
                driver.listen(listener, Admission { uid: geteuid().as_raw(), claim_within: CLAIM_WITHIN })?;
                Some(PmiPort { address, keys })
            }
        };
        self.jobs[job].serving.pmi = Some(driver);
        self.jobs[job].end_reason = Some(end_reason);
        Ok(port)
    }

    /// Adds a job to the PMIx server, and makes that if there is none yet.
    fn serve_pmix(&mut self, index: usize, parent: Option<(usize, Rank)>) -> io::Result<PmixEntrance> {
        let driver = match &self.pmix {
            Some(driver) => Arc::clone(driver),
            None => self.listen_for_pmix()?,
        };
        let SessionSpec { job, node, hosts, .. } = &*self.jobs[index].spec;
        let directory = self.spec.rank_files();
        let name = format!("{}.{}", job.id, self.spec.secret);
        let parent =
            parent.and_then(|(parent, rank)| Some((self.jobs[parent].serving.pmix.as_ref()?.name.clone(), rank)));
        let namespace = Namespace {
            name: name.clone(),
            job: job.clone(),
            node: *node,
            hosts: hosts.clone(),
            directory: Some(directory.to_string_lossy().into_owned()),
            parent,
        };
        let fence = self.surroundings.nodes.fence(job);
        let job = driver.add(namespace, fence, self.services(index));
        let server = driver.address();
        self.jobs[index].serving.pmix = Some(Pmix { driver, job, name: name.clone() });
        Ok(PmixEntrance { namespace: name, server })
    }

    fn listen_for_pmix(&mut self) -> io::Result<Arc<pmix::Driver>> {
        let settings = PmixSettings { trace: self.trace.is_some(), ..PmixSettings::default() };
        let said = self.said.0.clone();
        let say = Box::new(move |text| {
            // A rank that says more than can be passed on is not waited for.
            let _ = said.try_send(text);
        });
        let sinks = Sinks { say, trace: self.trace.as_ref().map(share) };
        let peers = Arc::new(OtherServers(Arc::clone(&self.surroundings.nodes)));
        let (driver, end_reason) = pmix::Driver::new(PmixServer::new(settings), geteuid().as_raw(), peers, sinks)?;
        let driver = Arc::new(driver);
        self.pmix = Some(Arc::clone(&driver));
        self.pmix_end_reason = Some(end_reason);
        Ok(driver)
    }

    fn services(&self, job: usize) -> Arc<dyn Services> {
        let host = Arc::clone(&self.surroundings.services);
        let id = self.jobs[job].spec.job.id.clone();
        Arc::new(JobServices { host, job, id, orders: self.orders.0.clone() })
    }

    /// A server of another node asks this node's. Its answer may take a while, and nothing waits for it.
    pub(super) fn on_question(&mut self, question: &Bytes, reply: oneshot::Sender<Result<Bytes, String>>) {
        let answer = self.pmix.as_ref().map(|pmix| pmix.question(question));
        while self.helpers.try_join_next().is_some() {}
        self.helpers.spawn(async move {
            let answer = match answer {
                Some(answer) => answer.await.map_err(|_| "its part of the launch is over"),
                None => Err("it serves no PMIx"),
            };
            // The one who asked may be gone.
            let _ = reply.send(answer.map_err(str::to_owned));
        });
    }
}

/// The PMIx servers of this launch on other nodes.
struct OtherServers(Arc<dyn Nodes>);

#[async_trait]
impl Peers for OtherServers {
    async fn ask(&self, node: NodeIndex, question: Bytes) -> Option<Bytes> {
        let answer = self.0.ask(node, question).await;
        answer.inspect_err(|error| tracing::debug!("{error}")).ok()
    }
}

/// A trace that the servers of both families write to.
pub(super) type SharedTrace = Arc<Mutex<TraceSink>>;

fn share(trace: &SharedTrace) -> TraceSink {
    let trace = Arc::clone(trace);
    Box::new(move |message| (trace.lock())(message))
}
