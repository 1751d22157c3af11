//! The PMIx server that all jobs of a launch on this node share, and the namespace of each job.

use std::io;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use nix::unistd::geteuid;
use pmi_core::ids::{NodeIndex, Rank};
use pmix_core::Namespace;
use pmix_core::driver::{self as pmix, Sinks};
use pmix_core::server::{Server as PmixServer, Settings as PmixSettings};
use pmix_core::services::Peers;

use super::super::job_servers::Pmix;
use super::{Died, RanksHere, ServedJob, Servers, share};
use crate::machine::jobs::{JobNumber, JobState};
use crate::plan::PmixEntrance;
use crate::process_set;
use crate::session_io::Nodes;
use crate::spec::SessionSpec;

impl Servers {
    /// Adds a job to the PMIx server, and makes the server if there is none yet.
    pub(super) fn serve_pmix(
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
        let parent = parent.and_then(|(parent, rank)| Some((self.of(parent)?.pmix.as_ref()?.name.clone(), rank)));
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
        self.jobs.entry(number).or_default().pmix = Some(Pmix { driver, job, name: name.clone() });
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
            // The session outlives its servers.
            let _ = texts.send(text);
        });
        let deaths = self.calls.deaths.clone();
        let died = Box::new(move |job, death| {
            // The session outlives its servers.
            let _ = deaths.send(Died { job: ServedJob::Pmix(job), death });
        });
        let files = self.calls.files.clone();
        let registered = Box::new(move |paths| {
            // The session outlives its servers.
            let _ = files.send(paths);
        });
        let sinks = Sinks { say, died, registered, trace: self.trace.as_ref().map(share) };
        let peers = Arc::new(OtherServers(Arc::clone(&self.nodes)));
        let (driver, end_reason) = pmix::Driver::new(PmixServer::new(settings), geteuid().as_raw(), peers, sinks)?;
        let driver = Arc::new(driver);
        self.need.follow(driver.needed());
        self.communicators.follow(&driver);
        self.pmix = Some(Arc::clone(&driver));
        self.pmix_end_reason = Some(end_reason);
        Ok(driver)
    }
}

/// Returns the command line of a job's first program, in the length for PMIx clients.
fn command_line(spec: &SessionSpec) -> Bytes {
    const LONGEST: usize = 4096;
    let Some(app) = spec.apps.first() else { return Bytes::new() };
    let words: Vec<&[u8]> = [&app.program].into_iter().chain(&app.args).map(|word| word.as_bytes()).collect();
    let line = words.join(&b' ');
    Bytes::copy_from_slice(&line[..line.len().min(LONGEST)])
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
