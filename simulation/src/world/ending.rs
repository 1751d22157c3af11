//! The end of a run: conditions that must hold after every fault is over and all timeouts have passed.

use super::World;

impl World {
    /// Returns true if no more events are expected: all conditions of [`Self::check_end`] hold.
    pub(crate) fn is_at_rest(&self) -> bool {
        let is_clean = |node: usize| self.nodes[node].is_clean() && !self.api.is_unclean(node as u32);
        self.api.is_launch_over()
            && self.api.is_running()
            && !self.api.runs_launch()
            && (0..self.nodes.len()).all(is_clean)
            && self.around.network.left().is_empty()
            && !self.client.waits()
    }

    /// Checks that the launch is over on all nodes.
    pub(crate) fn check_end(&mut self) {
        let truth = &mut self.around.truth;
        if !self.api.is_launch_over() {
            truth.wrong("I3: the launch is not over on the disk of the API server".to_owned());
        }
        if self.api.runs_launch() {
            truth.wrong("I6: the API server waits for nodes".to_owned());
        }
        for (number, node) in self.nodes.iter().enumerate() {
            if let Some(ranks) = node.session_ranks() {
                truth.wrong(format!("I4: node {number} has a session, with ranks {ranks:?}"));
            } else if !node.is_clean() {
                truth.wrong(format!("I4: the agent of node {number} keeps the launch"));
            }
            if self.api.is_unclean(number as u32) {
                truth.wrong(format!("I4: node {number} is unclean for ever"));
            }
        }
        let left = self.around.network.left();
        if !left.is_empty() {
            truth.wrong(format!("I7: connections are left: {left:?}"));
        }
        if self.client.waits() {
            truth.wrong("I6: the client waits".to_owned());
        }
        self.check_success();
    }

    /// Checks that a launch with only harmless faults has succeeded.
    fn check_success(&mut self) {
        let truth = &mut self.around.truth;
        let is_harmless = self.faults.iter().all(|fault| fault.kind.is_harmless());
        let has_begun = !truth.may_not_begin && !truth.is_orphaned;
        if !self.around.scenario.is_good() || !is_harmless || !has_begun || self.faults.len() > 1 {
            return;
        }
        match truth.completion() {
            Some(completed) if completed.cause.is_none() => {}
            Some(completed) => {
                let cause = completed.cause.as_ref().map(ToString::to_string).unwrap_or_default();
                truth.wrong(format!("I3: the launch should have succeeded, and has failed: {cause}"));
            }
            None if self.api.is_launch_over() => {}
            None => truth.wrong("I3: nobody was told of the end".to_owned()),
        }
    }
}
