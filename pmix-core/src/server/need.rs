//! The need of other nodes for this node's server, which can outlast its ranks.
//!
//! ```text
//! a fence left its data with the nodes ──> UntilTold ──last barrier: see `withheld`──> Over
//! a rank with commits that no fence distributes to all nodes finalizes or ends ────> WhileRanksRun
//! ```

use pmi_core::ids::Rank;

use super::{Action, Need, Server};
use crate::namespace::JobIndex;

impl Server {
    /// A rank of this node commits nothing more. Commits that no fence has distributed to all nodes are then available only here.
    pub(super) fn keep_for_others(&mut self, job: JobIndex, rank: Rank) {
        let state = &self.jobs[job];
        let has_other_nodes = state.namespace.hosts.len() > 1;
        if has_other_nodes && state.data.get(&rank).is_some_and(|data| !data.unspread.is_empty()) {
            self.holds_unspread = true;
            self.tell_need();
        }
    }

    /// Reports to the host how long this server is needed, if that has changed.
    pub(super) fn tell_need(&mut self) {
        let need = match () {
            () if self.holds_unspread => Need::WhileRanksRun,
            () if self.withheld.is_needed() => Need::UntilTold,
            () => Need::Over,
        };
        if self.need != need {
            self.need = need;
            self.actions.push_back(Action::Needed(need));
        }
    }
}
