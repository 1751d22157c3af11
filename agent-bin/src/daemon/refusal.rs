//! Refusals of launches.

use super::Node;

/// Refusal of a launch, by this node or by one that it was to be passed on to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    pub(super) reason: RefusalReason,
    pub(super) message: String,
    /// Name of the node that refuses.
    pub(super) node_id: String,
}

/// Class of a refusal, by which the API server decides what to tell the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RefusalReason {
    /// The node takes no launches at present.
    Busy,
    /// The node cannot do what is asked for.
    UnsupportedCapability,
    /// The request makes no sense.
    MalformedRequest,
    /// The launch runs on the node already.
    AlreadyRunning,
    /// The user is unknown on the node, or may not start processes there.
    User,
    /// Nobody whom the node trusts signed the request.
    Signature,
    /// A node that the request should have been passed on to cannot be reached.
    Unreachable,
    /// The agent is being replaced, or was a moment ago: what is signed from now on is taken.
    Restarting,
    /// The node gives no reason that this version knows.
    Unspecified,
}

impl Refusal {
    /// A refusal by `node` itself.
    pub(super) fn of(node: &Node, reason: RefusalReason, message: impl ToString) -> Self {
        Self { reason, message: message.to_string(), node_id: node.config.node_id.clone() }
    }
}
