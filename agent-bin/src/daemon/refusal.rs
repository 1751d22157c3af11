//! Refusals of launches.

use super::Node;

/// Refusal of a launch, by this node or by a node that it forwards the launch to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    pub(super) reason: RefusalReason,
    pub(super) message: String,
    /// Name of the node that refuses.
    pub(super) node_id: String,
}

/// Class of a refusal; it determines the error that the API server sends to the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RefusalReason {
    /// The node accepts no launches at present.
    Busy,
    /// The node does not support a capability of the request.
    UnsupportedCapability,
    /// The request is malformed.
    MalformedRequest,
    /// The launch already runs on the node.
    AlreadyRunning,
    /// The user is unknown on the node, or may not start processes there.
    User,
    /// The request has no signature that the node trusts.
    Signature,
    /// The request cannot be forwarded, because a node cannot be reached.
    Unreachable,
    /// The agent is being replaced, or was a moment ago. It accepts launches that are signed from now on.
    Restarting,
    /// The node gives no reason, or one that this version does not support.
    Unspecified,
}

impl Refusal {
    /// A refusal by `node` itself.
    pub(super) fn of(node: &Node, reason: RefusalReason, message: impl ToString) -> Self {
        Self { reason, message: message.to_string(), node_id: node.config.node_id.clone() }
    }
}
