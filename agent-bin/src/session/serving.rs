//! The servers of one job's ranks on this node: one for each family of protocols. Each rank speaks to one of them, or to none.

use std::io;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use pmi_core::Phase;
use pmi_core::driver::Driver;
use pmi_core::ids::LocalRank;
use pmi_core::server::Progress;
use pmix_core::{CleanUp, JobIndex, Seat, driver};

/// The servers of one job's ranks.
#[derive(Default)]
pub(super) struct Serving {
    /// PMI-1 and PMI-2.
    pub(super) pmi: Option<Driver>,
    /// PMIx; it serves other jobs of the launch as well.
    pub(super) pmix: Option<Pmix>,
}

/// A job at the launch's PMIx server.
pub(super) struct Pmix {
    pub(super) driver: Arc<driver::Driver>,
    pub(super) job: JobIndex,
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

    /// While some ranks wait in a fence: how many do, and which do not.
    pub(super) fn missing(&self) -> Option<(usize, Vec<LocalRank>)> {
        let pmi = self.pmi.as_ref().and_then(Driver::missing);
        pmi.or_else(|| self.pmix.as_ref().and_then(|pmix| pmix.driver.missing(pmix.job)))
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
