//! The agent's part in links between sessions: it hands each connection at its port to the session that the link is for, and keeps no state.

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;

use pmi_transport::session_link::{HandOver, Handed, Visitable};
use rank_spawner::ForkedProcess;

use super::Node;
use super::wire::launch_request::Assignment;

/// Hands connections to a session process, through its door.
struct ToProcess(Arc<ForkedProcess>);

impl HandOver for ToProcess {
    fn hand_over(&self, handed: &Handed) -> io::Result<()> {
        self.0.door.send(handed.greeting.as_bytes(), handed.socket.as_fd())
    }
}

/// Admits links to a session process that the agent is connected to, until the result is dropped. `None` for a launch without links.
pub(super) fn let_through(node: &Node, assignment: &Assignment, process: &Arc<ForkedProcess>) -> Option<Visitable> {
    let key = assignment.link_key.as_ref()?;
    let (id, nodes) = (&assignment.launch_id, assignment.members.clone());
    let session = Arc::new(ToProcess(Arc::clone(process)));
    Some(node.arrivals.expect(id, key.gate_key(), assignment.index, nodes, session))
}
