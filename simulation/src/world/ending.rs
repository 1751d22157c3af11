//! The end of a run: what must be so once every fault is over and everything had its time.

use lattice_api_server::simulation::Record;

use super::World;

impl World {
    /// Returns true if nothing more is to happen: all that [`Self::check_end`] checks is so.
    pub(crate) fn is_at_rest(&self) -> bool {
        let nodes = || 0..self.scenario.nodes();
        let server = self.api.server.as_ref();
        let is_known = |node| server.is_some_and(|server| server.machines.is_unclean(node));
        self.is_launch_over()
            && server.is_some_and(|server| !server.machines.runs_launch())
            && nodes().all(|node| self.is_node_clean(node) && !is_known(node))
            && !self.network.has_links()
            && (self.client.process == 0 || self.client.is_done)
    }

    /// Checks that the launch is over, everywhere and for good.
    pub(crate) fn check_end(&mut self) {
        if !self.is_launch_over() {
            self.truth.wrong("I3: the launch is not over on the disk of the API server".to_owned());
        }
        if self.api.server.as_ref().is_some_and(|server| server.machines.runs_launch()) {
            self.truth.wrong("I6: the API server waits for nodes".to_owned());
        }
        for node in 0..self.scenario.nodes() {
            let known = &self.nodes[node as usize];
            if let Some(session) = &known.session {
                let ranks: Vec<_> = session.ranks.keys().collect();
                self.truth.wrong(format!("I4: node {node} has a session, with ranks {ranks:?}"));
            } else if !self.is_node_clean(node) {
                self.truth.wrong(format!("I4: the agent of node {node} keeps the launch"));
            }
            let is_unclean = self.api.server.as_ref().is_some_and(|server| server.machines.is_unclean(node));
            if is_unclean {
                self.truth.wrong(format!("I4: node {node} is unclean for ever"));
            }
        }
        if self.network.has_links() {
            self.truth.wrong("I7: links are left".to_owned());
        }
        if self.client.process != 0 && !self.client.is_done {
            self.truth.wrong("I6: the client waits".to_owned());
        }
        self.check_success();
    }

    /// A launch to which nothing happened that it need not survive must succeed.
    fn check_success(&mut self) {
        let is_harmless = self.faults.iter().all(|fault| fault.kind.is_harmless());
        if !self.scenario.is_good() || !is_harmless || self.faults.len() > 1 {
            return;
        }
        match self.truth.completion() {
            Some(completed) if completed.cause.is_none() => {}
            Some(completed) => {
                let cause = completed.cause.as_ref().map(ToString::to_string).unwrap_or_default();
                self.truth.wrong(format!("I3: the launch should have succeeded, and has failed: {cause}"));
            }
            None if self.api.disk.0 == Record::Over => {}
            None => self.truth.wrong("I3: nobody was told of the end".to_owned()),
        }
    }
}
