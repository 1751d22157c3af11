//! Notifications of ranks that have died while the other ranks of their job continue. They go from servers of this node to other nodes,
//! and from other nodes to the ranks here.

use pmi_core::deaths::Death;
use pmi_core::ids::Rank;

use super::SessionMachine;
use super::effect::Effect;
use super::jobs::JobNumber;
use crate::event::Event;

impl SessionMachine {
    /// Handles a server's report: a rank of this node has died, and the other ranks continue.
    pub(crate) fn on_died(&mut self, job: JobNumber, death: Death) {
        if self.spec.hosts.len() > 1 {
            let rank = self.jobs.get(job).shown(death.rank);
            self.report_event(Event::Died(Death { rank, ..death }));
        }
        self.effects.push_back(Effect::AnnounceDeaths { job, deaths: vec![death] });
    }

    /// Announces dead ranks of other nodes. Servers of this node have already reported its own ranks.
    pub(super) fn on_deaths(&mut self, deaths: &[Death]) {
        for (job, state) in self.jobs.iter() {
            let elsewhere = |death: &Death| {
                let rank = Rank(death.rank.0.checked_sub(state.first_shown.0)?);
                let node = state.spec.job.placement.node_of(rank)?;
                (node != self.spec.node).then_some(Death { rank, ..*death })
            };
            let deaths: Vec<Death> = deaths.iter().filter_map(elsewhere).collect();
            if !deaths.is_empty() && !state.is_disowned() {
                self.effects.push_back(Effect::AnnounceDeaths { job, deaths });
            }
        }
    }
}
