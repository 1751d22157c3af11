//! Ranks that have died while the other ranks continue. Servers report them, and the session announces them to servers and
//! ranks.

use nix::sys::signal::Signal;
use pmi_core::deaths::Death;

use super::Runner;
use super::servers::Died;
use crate::machine::jobs::JobNumber;
use crate::machine::ranks::SlotId;

impl Runner {
    /// Handles the deaths that servers have reported, before the exits that follow from them.
    pub(super) fn take_deaths(&mut self) {
        while let Ok(died) = self.inputs.deaths.try_recv() {
            self.on_died(died);
        }
    }

    pub(super) fn on_died(&mut self, Died { job, death }: Died) {
        if let Some(job) = self.servers.job_served(job).filter(|&job| self.machine.jobs().knows(job)) {
            self.machine.on_died(job, death);
        }
    }

    /// Announces deaths to servers and ranks of a job. Among the libraries of PMI-1 and PMI-2, MPICH expects a signal, and then
    /// reads `PMI_dead_processes`. Ranks that do not expect the signal do not get it.
    pub(super) fn announce_deaths(&self, job: JobNumber, deaths: &[Death]) {
        // A server may end the job because of a dead node's missing contribution to a fence, before the fence completes without
        // that node.
        self.servers.announce_deaths(job, deaths);
        self.io.nodes.ranks_died(&self.machine.jobs().get(job).spec.job, deaths);
        let Some(processes) = &self.processes else { return };
        let alive = self.machine.ranks().alive().filter(|(_, slot)| slot.job == job);
        let speak_pmi = alive.filter(|(_, slot)| self.servers.speaks_pmi(slot.job, slot.local));
        let slots: Vec<SlotId> = speak_pmi.map(|(slot, _)| slot).collect();
        if !slots.is_empty() {
            processes.signal_handlers(Signal::SIGUSR1, &slots);
        }
    }
}
