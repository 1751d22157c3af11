//! Creation of a job's server for PMI-1 and PMI-2, from the job, this node and the user's settings.

use std::io;
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use nix::unistd::geteuid;
use pmi_core::Offer;
use pmi_core::claim::ClaimKeys;
use pmi_core::driver::{Admission, Driver};
use pmi_core::server::{Server, Settings};
use rank_spawner::{NODE_MEMORY_FD, usable_cpus};

use super::super::{job_memory, shared_memory, socket_file};
use super::{Died, RanksHere, ServedJob, Servers, share};
use crate::machine::jobs::{JobNumber, JobState};
use crate::plan::PmiPort;
use crate::random;
use crate::settings::{Entrance, JobMemory, PmiFamily};

/// Time limit for a rank that connected through `PMI_PORT` to identify itself.
const CLAIM_WITHIN: Duration = Duration::from_secs(30);

impl Servers {
    /// Makes the server. Returns its port if ranks connect through one, and the memory for the ranks.
    pub(super) fn serve_pmi(
        &mut self,
        number: JobNumber,
        job: &JobState,
        here: RanksHere<'_>,
    ) -> io::Result<(Option<PmiPort>, Option<Arc<OwnedFd>>)> {
        let mut server = self.pmi_server(job, here);
        let keys = self.claim_keys(job)?;
        if let Some(keys) = &keys {
            server.require_keys(keys.clone());
        }
        let shared = match self.spec.settings.pmi.job_memory {
            JobMemory::Shared => job_memory::create(&job.spec, &server, &self.earlier, here.cpus),
            JobMemory::Off => None,
        };
        let driver = self.drive_pmi(number, job, server);
        let memory = shared.map(|(publisher, for_ranks)| {
            driver.publish_to(publisher);
            Arc::new(for_ranks)
        });
        if job.ranks_here().len() < usable_cpus().get() {
            driver.stay_awake();
        }
        let port = keys.map(|keys| self.listen_for_keys(number, &driver, keys)).transpose()?;
        self.jobs.entry(number).or_default().pmi = Some(driver);
        Ok((port, memory))
    }

    /// Makes the server itself, with the facts about this node.
    fn pmi_server(&self, job: &JobState, here: RanksHere<'_>) -> Server {
        let pmi = self.spec.settings.pmi;
        let offer = Offer {
            pmi1: pmi.family != PmiFamily::Pmi2,
            pmi2: pmi.family != PmiFamily::Pmi1,
            group_barriers: pmi.group_barriers,
        };
        let trace = self.trace.is_some();
        let settings = Settings { offer, trace, resources: true, restarts: pmi.restarts, ..Settings::default() };
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
        server
    }

    /// Generates a key for each rank here, if ranks connect through a port.
    fn claim_keys(&self, job: &JobState) -> io::Result<Option<ClaimKeys>> {
        match self.spec.settings.pmi.entrance {
            Entrance::Socket => Ok(None),
            Entrance::Port => {
                let random = || random::bytes().map(u32::from_ne_bytes);
                ClaimKeys::draw(job.ranks_here().len(), random).map(Some)
            }
        }
    }

    /// Starts the driver of the server, and connects its reports about ranks.
    fn drive_pmi(&mut self, number: JobNumber, job: &JobState, server: Server) -> Driver {
        let (fence, trace) = (self.nodes.fence(&job.spec.job), self.trace.as_ref().map(share));
        let (driver, end_reason) = Driver::new(server, fence, self.services(number, job), trace);
        self.jobs.entry(number).or_default().end_reason = Some(end_reason);
        let deaths = self.calls.deaths.clone();
        let spec = Arc::clone(&job.spec);
        driver.tell_restarts_to(Box::new(move |generation| {
            let launch = &spec.launch_id;
            tracing::info!(launch, generation, "all ranks have begun again");
            shared_memory::remove_mpich(&spec);
        }));
        driver.tell_deaths_to(Box::new(move |death| {
            // The session outlives its servers.
            let _ = deaths.send(Died { job: ServedJob::Pmi(number), death });
        }));
        driver
    }

    /// Lets ranks connect by their keys: at a loopback port, and at a socket in the file system if it can be made.
    fn listen_for_keys(&self, number: JobNumber, driver: &Driver, keys: ClaimKeys) -> io::Result<PmiPort> {
        let admission = Admission { uid: geteuid().as_raw(), claim_within: CLAIM_WITHIN };
        let listener = TcpListener::bind(("127.0.0.1", 0))?;
        let address = listener.local_addr()?.to_string();
        driver.listen(listener, admission)?;
        let directory = self.spec.session_directory();
        let file = socket_file::bind(&directory, number).and_then(|(path, listener)| {
            driver.listen_at_file(listener, admission)?;
            Ok(path)
        });
        let told = |error: &io::Error| tracing::warn!("ranks find no PMI socket in {}: {error}", directory.display());
        Ok(PmiPort { address, file: file.inspect_err(told).ok(), keys })
    }
}
