//! PMI servers of one job: one for PMI-1 and PMI-2, and the PMIx server that all jobs of the launch share. Each rank uses one of
//! them, or none.

use std::io;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use pmi_core::Phase;
use pmi_core::deaths::{Death, DeathKind};
use pmi_core::driver::Driver;
use pmi_core::ids::LocalRank;
use pmi_core::server::{EndReason, FenceStatus, Progress};
use pmix_core::driver as pmix;
use pmix_core::{CleanUp, JobIndex, Seat};
use tokio::sync::oneshot;

use crate::event::SpokenProtocol;

/// Servers of one job's ranks.
#[derive(Default)]
pub(super) struct JobServers {
    /// PMI-1 and PMI-2.
    pub(super) pmi: Option<Driver>,
    /// Source of that server's reason to end; `None` after the reason.
    pub(super) end_reason: Option<oneshot::Receiver<EndReason>>,
    /// PMIx; it also serves other jobs of the launch.
    pub(super) pmix: Option<Pmix>,
}

/// A job at the launch's PMIx server.
pub(super) struct Pmix {
    pub(super) driver: Arc<pmix::Driver>,
    pub(super) job: JobIndex,
    /// The job's namespace.
    pub(super) name: String,
}

impl JobServers {
    /// Begins the dialogue with a rank over its inherited socket.
    pub(super) fn connect(&self, local: LocalRank, socket: UnixStream) -> io::Result<()> {
        self.pmi.as_ref().map_or(Ok(()), |pmi| pmi.connect(local, socket))
    }

    /// Handles the last messages of a rank, of either protocol.
    pub(super) fn drain(&self, local: LocalRank) {
        if let Some(pmi) = &self.pmi {
            pmi.drain(local);
        }
        if let Some(pmix) = &self.pmix {
            pmix.driver.drain(pmix.seat(local));
        }
    }

    /// Reports the end of a rank's process, if its meaning needs no evaluation by the server.
    pub(super) fn rank_died(&self, local: LocalRank) {
        if let Some(pmix) = &self.pmix {
            pmix.driver.rank_died(pmix.seat(local));
        }
    }

    /// Reports that a rank's process returned status 0.
    pub(super) fn rank_exited(&self, local: LocalRank) {
        let (pmi, pmix) = self.concerned(local);
        if let Some(pmi) = pmi {
            pmi.rank_exited(local);
        }
        if let Some(pmix) = pmix {
            pmix.driver.rank_exited(pmix.seat(local));
        }
    }

    /// Reports that a rank's process failed, and that the other ranks continue if they can.
    pub(super) fn rank_failed(&self, local: LocalRank, kind: DeathKind) {
        let (pmi, pmix) = self.concerned(local);
        if let Some(pmi) = pmi {
            pmi.rank_failed(local, kind);
        }
        if let Some(pmix) = pmix {
            pmix.driver.rank_failed(pmix.seat(local), kind);
        }
    }

    /// Reports that ranks of the job have died, and that the other ranks continue.
    pub(super) fn announce_deaths(&self, deaths: &[Death]) {
        if let Some(pmi) = &self.pmi {
            pmi.ranks_died(deaths);
        }
        if let Some(pmix) = &self.pmix {
            pmix.driver.ranks_died(pmix.job, deaths);
        }
    }

    /// Returns the servers that the end of a rank concerns. If the rank called only one server, its end must not count as silence at
    /// the other one.
    fn concerned(&self, local: LocalRank) -> (Option<&Driver>, Option<&Pmix>) {
        let (spoke_pmi, spoke_pmix) = (self.spoke_pmi(local), self.spoke_pmix(local));
        (self.pmi.as_ref().filter(|_| !spoke_pmix), self.pmix.as_ref().filter(|_| !spoke_pmi))
    }

    /// Returns the progress of a rank's dialogue with the server that it calls.
    pub(super) fn progress(&self, local: LocalRank) -> Option<Progress> {
        let pmix = || self.pmix.as_ref().and_then(|pmix| pmix.driver.progress(pmix.seat(local)));
        let pmi = self.pmi.as_ref().and_then(|pmi| pmi.progress(local));
        if pmi.is_none() || self.spoke_pmix(local) { pmix() } else { pmi }
    }

    pub(super) fn phase(&self, local: LocalRank) -> Option<Phase> {
        self.progress(local).map(|progress| progress.phase)
    }

    /// Returns the fences in which ranks wait, at either server.
    pub(super) fn pending_fences(&self) -> impl Iterator<Item = (SpokenProtocol, FenceStatus)> {
        let pmi = self.pmi.iter().flat_map(Driver::pending_fences);
        let pmix = self.pmix.iter().flat_map(|pmix| pmix.driver.pending_fences(pmix.job));
        pmi.map(|fence| (SpokenProtocol::Pmi, fence)).chain(pmix.map(|fence| (SpokenProtocol::Pmix, fence)))
    }

    /// Returns true if the PMIx server has this job under that index.
    pub(super) fn is_pmix_job(&self, job: JobIndex) -> bool {
        self.pmix.as_ref().is_some_and(|pmix| pmix.job == job)
    }

    /// Returns files and directories for removal at a rank's end, as requested by the rank.
    pub(super) fn take_clean_up(&self, local: LocalRank) -> Vec<CleanUp> {
        self.pmix.as_ref().map(|pmix| pmix.driver.take_clean_up(pmix.seat(local))).unwrap_or_default()
    }

    /// Returns true for a rank that is a tool, or has started one.
    pub(super) fn has_tool(&self, local: LocalRank) -> bool {
        self.pmix.as_ref().is_some_and(|pmix| pmix.driver.has_tool(pmix.seat(local)))
    }

    /// Returns the protocol that a rank has spoken; `None` for none or both.
    pub(super) fn protocol(&self, local: LocalRank) -> Option<SpokenProtocol> {
        match (self.spoke_pmi(local), self.spoke_pmix(local)) {
            (true, false) => Some(SpokenProtocol::Pmi),
            (false, true) => Some(SpokenProtocol::Pmix),
            _ => None,
        }
    }

    fn spoke_pmi(&self, local: LocalRank) -> bool {
        self.pmi.as_ref().is_some_and(|pmi| spoke(pmi.progress(local)))
    }

    pub(super) fn spoke_pmix(&self, local: LocalRank) -> bool {
        self.pmix.as_ref().is_some_and(|pmix| spoke(pmix.driver.progress(pmix.seat(local))))
    }
}

impl Pmix {
    pub(super) fn seat(&self, local: LocalRank) -> Seat {
        Seat { job: self.job, local }
    }
}

fn spoke(progress: Option<Progress>) -> bool {
    progress.is_some_and(|progress| progress.phase != Phase::Silent)
}
