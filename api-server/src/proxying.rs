//! Users that call from a node of their allocation, without a certificate. The agent of the node reads their uid from the kernel, and
//! forwards their connections.
//!
//! ```text
//! lattice ── Unix socket ──> agent ── ProxyUser(uid), by the node's certificate ──> a connection of `UserIn { uid, allocation }`
//! ```
//! The statement of the agent is valid for the allocation to which its node belongs, and for nothing else. Requests outside that allocation
//! are refused. A user that does not own the allocation has no rights.

use bytes::{BufMut, BytesMut};
use pmi_transport::identity::Caller;
use pmi_transport::proto::v1::{ProxiedBytes, proxied_bytes::What};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, split};
use tokio::sync::mpsc;
use tonic::{Status, Streaming};

use super::allocations::{Allocation, AllocationState};
use super::server::Server;
use super::start_policy::Spawning;

/// Most bytes of a message.
const PIECE: usize = 16 << 10;

impl Server {
    /// The user `uid` on a node, as the agent of the node reports it.
    ///
    /// # Errors
    /// Returns the refusal of a user to which the node does not belong now. If nodes must not start anything, all users are refused.
    pub(crate) async fn user_on(&self, node: &str, uid: u32) -> Result<Caller, String> {
        if self.config.policy.spawning == Spawning::Forbidden {
            return Err("users of this cluster do not call from nodes (spawning = false)".to_owned());
        }
        let allocations = self.allocations.lock().await;
        let own = |owner: &&Allocation| owner.uid == uid && owner.state == AllocationState::Running;
        match allocations.owner(node).filter(own) {
            Some(owner) => Ok(Caller::UserIn { uid, allocation: owner.id.clone() }),
            None => Err(format!("{node} belongs to no running allocation of user {uid}")),
        }
    }
}

/// Forwards bytes between the two ends of a connection, until the server's end has closed it.
pub(crate) async fn pass_on(
    mut told: Streaming<ProxiedBytes>,
    connection: DuplexStream,
    answers: mpsc::Sender<Result<ProxiedBytes, Status>>,
) {
    let (mut from_server, mut to_server) = split(connection);
    let inward = async {
        while let Ok(Some(ProxiedBytes { what: Some(What::Data(bytes)) })) = told.message().await {
            if to_server.write_all(&bytes).await.is_err() {
                return;
            }
        }
        // The server may have closed the connection already.
        let _ = to_server.shutdown().await;
    };
    let outward = async {
        let mut piece = BytesMut::new();
        loop {
            piece.reserve(PIECE);
            let read = from_server.read_buf(&mut (&mut piece).limit(PIECE)).await;
            let message = ProxiedBytes { what: Some(What::Data(piece.split().freeze())) };
            if !matches!(read, Ok(1..)) || answers.send(Ok(message)).await.is_err() {
                return;
            }
        }
    };
    tokio::select! {
        () = outward => {}
        () = async { inward.await; std::future::pending().await } => {}
    }
}
