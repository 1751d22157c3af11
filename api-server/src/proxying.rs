//! Users who call from a node of an allocation of theirs, and need no certificate there: the node's agent has their uid from the kernel, and
//! passes their connections on.
//!
//! ```text
//! lattice ── Unix socket ──> agent ── ProxyUser(uid), by the node's certificate ──> a connection of `UserIn { uid, allocation }`
//! ```
//! The agent's word counts for the allocation that its node belongs to, and for nothing else: what is not of that allocation is refused, and a
//! user to whom the node does not belong is nobody.

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
    /// The user `uid` on a node, as the node's agent names him.
    ///
    /// # Errors
    /// Refuses, in words, one to whom the node does not belong now; and everybody where nodes start nothing.
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

/// Passes on what the two ends of a connection say, until the server's end has closed it.
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
        // It may have closed it already.
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
