//! Membership of one node in a launch: the launch's nodes, and the session behind this one.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use pmi_core::ids::NodeIndex;

use super::FanOut;

/// Launch, as one of its nodes must know it.
#[derive(Clone, Debug)]
pub struct Membership {
    /// Id of the launch; not empty.
    pub launch_id: String,
    /// This node.
    pub me: NodeIndex,
    /// All nodes of the launch, in order. Their names are different.
    pub nodes: Arc<[Member]>,
    /// Shape of the trees; the same on all nodes.
    pub fan_out: FanOut,
}

/// Node of a launch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Name, by which the node's agent proves who it is.
    pub name: String,
    /// Address at which its agent listens.
    pub address: String,
}

/// Source of the answers to other nodes' questions.
#[async_trait]
pub trait Questions: Send + Sync + 'static {
    /// Answers a question of another node of the launch. The call is dropped when this node leaves the launch.
    ///
    /// # Errors
    /// Fails with the reason why there is no answer, which goes to the asking node.
    async fn answer(&self, from: NodeIndex, question: Bytes) -> Result<Bytes, String>;

    /// Takes a message of another node's session to this one's. Returns the answer; empty if it wants none. The call is dropped when this
    /// node leaves the launch.
    ///
    /// # Errors
    /// Fails with the reason why nobody takes it, which goes to its sender.
    async fn hear(&self, from: NodeIndex, message: Bytes) -> Result<Bytes, String> {
        let _ = (from, message);
        Err("it takes no messages of other nodes' sessions".to_owned())
    }
}

/// Number of one membership of this node in a launch. A launch that is joined a second time has another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct MembershipId(pub(super) u64);
