//! Membership of one node in a launch: the launch's nodes, and the interface to the session.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use pmi_core::ids::NodeIndex;

use super::FanOut;

/// A launch, as its nodes need it.
#[derive(Clone, Debug)]
pub struct Membership {
    /// Id of the launch; not empty.
    pub launch_id: String,
    /// This node.
    pub me: NodeIndex,
    /// All nodes of the launch, in order, with different names.
    pub nodes: Arc<[Member]>,
    /// Shape of the trees; the same on all nodes.
    pub fan_out: FanOut,
}

/// Node of a launch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Name that the node's agent proves.
    pub name: String,
    /// Address at which its agent listens.
    pub address: String,
}

/// Answers the questions of other nodes.
#[async_trait]
pub trait Questions: Send + Sync + 'static {
    /// Answers a question of another node of the launch. The call is dropped when this node leaves the launch.
    ///
    /// # Errors
    /// Fails with the reason why there is no answer. The asking node receives it.
    async fn answer(&self, from: NodeIndex, question: Bytes) -> Result<Bytes, String>;

    /// Handles a message of another node's session to this node's session. Returns the answer, which may be empty. The call is dropped
    /// when this node leaves the launch.
    ///
    /// # Errors
    /// Fails with the reason why the message is refused. Its sender receives it.
    async fn hear(&self, from: NodeIndex, message: Bytes) -> Result<Bytes, String> {
        let _ = (from, message);
        Err("it takes no messages of other nodes' sessions".to_owned())
    }
}

/// Number of one membership of this node in a launch. A rejoined launch has another number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct MembershipId(pub(super) u64);
