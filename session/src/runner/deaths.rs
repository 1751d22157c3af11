//! Ranks that have died while the others go on: heard of servers, told to servers and ranks.

use nix::sys::signal::Signal;
use pmi_core::deaths::Death;

use super::Runner;
use super::servers::Died;
use crate::machine::jobs::JobNumber;
use crate::machine::ranks::SlotId;

impl Runner {
    /// Takes what servers have said of deaths, which comes before the exits that they follow from.
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

    /// Tells servers and ranks of a job of deaths. Of the libraries of PMI-1 and PMI-2 MPICH wants a signal, upon which it reads
    /// `PMI_dead_processes`; ranks that do not expect it are not sent any.
    pub(super) fn announce_deaths(&self, job: JobNumber, deaths: &[Death]) {
        // A server may end the job over what a dead node was to bring to a fence, before that fence is over without the node.
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
