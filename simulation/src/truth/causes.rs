//! The first cause of a launch: there is only one, and it did happen.

use lattice_session::cause::{Cause, CauseKind, RankExit};
use pmi_core::ids::Rank;

use super::Truth;
use crate::scenario::Wrong;

impl Truth {
    /// The API server reports that the launch is ending.
    pub(crate) fn ending(&mut self, cause: &Cause) {
        if let Some(before) = self.causes.first().filter(|before| *before != cause).cloned() {
            self.wrong(format!("I3: the launch ends for {before}, then for {cause}"));
        }
        self.causes.push(cause.clone());
        if !self.has_happened(cause) {
            self.wrong(format!("I8: the cause is {cause}, which has not happened"));
        }
    }

    /// Returns true if an event of the run, or the scenario, explains the cause.
    fn has_happened(&self, cause: &Cause) -> bool {
        let node: Option<u32> = cause.host.strip_prefix('n').and_then(|node| node.parse().ok());
        let was_left_alone = node.is_some_and(|node| self.left_alone.contains(&node));
        match &cause.kind {
            CauseKind::Failed { rank, exit } => self.has_ended(*rank, *exit) && !exit.is_success(),
            CauseKind::FailedRanks { failed } => failed.iter().all(|&(rank, exit)| self.has_ended(rank, exit)),
            CauseKind::LeftWithoutFinalize { rank } => {
                self.has_ended(*rank, RankExit::Code(0)) && self.does(*rank, Wrong::Leave)
            }
            CauseKind::LeftBeforeInit { rank, exit, .. } => self.has_ended(*rank, *exit),
            CauseKind::LeftFence { rank, .. } => self.does(*rank, Wrong::Desert),
            CauseKind::Aborted { rank, code, .. } => self.does(*rank, Wrong::Abort(*code)),
            CauseKind::Offence { rank, .. } => self.does(*rank, Wrong::Babble),
            CauseKind::NotStarted { .. } => node.is_some_and(|node| self.lacks_a_program(node)),
            CauseKind::TimedOut { limit } => self.scenario.time_limit == Some(*limit),
            CauseKind::FirstExit { rank, wait } => {
                self.scenario.after_first_exit == Some(*wait) && self.exits.contains_key(rank)
            }
            CauseKind::NodeLost { .. } => {
                // If a node has left in good order, ranks that wait for its ranks only observe the lost node.
                node.is_some_and(|node| self.struck.contains(&node) || self.has_ended_on(node))
            }
            CauseKind::Interrupted { signal: 1 } if was_left_alone => true,
            CauseKind::Interrupted { .. } => self.is_ended_by_others || self.is_orphaned || self.forgot_causes,
            CauseKind::Ended { .. } => self.is_ended_by_others || self.is_orphaned || self.forgot_causes,
            CauseKind::Fence { .. } => !self.struck.is_empty(),
            // No launch here limits its fences, tolerates lost nodes, or disables protocols.
            _ => false,
        }
    }

    fn has_ended(&self, rank: Rank, exit: RankExit) -> bool {
        self.exits.get(&rank) == Some(&exit)
    }

    /// Returns true if a rank's program contains this error.
    fn does(&self, rank: Rank, wrong: Wrong) -> bool {
        self.scenario.program(rank).fault.is_some_and(|fault| fault.what == wrong)
    }

    /// Returns true if a rank of this node cannot be started.
    fn lacks_a_program(&self, node: u32) -> bool {
        self.ranks_on(node).any(|rank| self.scenario.program(Rank(rank)).is_missing)
    }
}
