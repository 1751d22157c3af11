//! Links between sessions, as far as an agent has to do with them: a connection that comes to its port is handed to the session that
//! it is for, and the agent keeps nothing of it.

use std::io;
use std::os::fd::AsFd;

use pmi_transport::session_link::{HandOver, Handed, Visitable};
use rank_spawner::{DescriptorSocket, ForkedProcess};

use super::Node;
use super::wire::launch_request::Assignment;

/// Hands connections to a session process.
struct ToProcess(DescriptorSocket);

impl HandOver for ToProcess {
    fn hand_over(&self, handed: &Handed) -> io::Result<()> {
        self.0.send(handed.greeting.as_bytes(), handed.socket.as_fd())
    }
}

/// Lets links through to a session process that was just made, until the result is dropped; `None` for a launch without links. To
/// be called before anything is written to the process.
///
/// # Errors
/// Fails if the process is gone, or there is no descriptor left.
pub(super) fn let_through(
    node: &Node,
    assignment: &Assignment,
    process: &ForkedProcess,
) -> io::Result<Option<Visitable>> {
    let Some(key) = &assignment.link_key else { return Ok(None) };
    let (ours, theirs) = DescriptorSocket::pair()?;
    theirs.give(process.socket.as_fd())?;
    let (id, nodes) = (&assignment.launch_id, assignment.members.clone());
    let session = std::sync::Arc::new(ToProcess(ours));
    Ok(Some(node.arrivals.expect(id, key.gate_key(), assignment.index, nodes, session)))
}
