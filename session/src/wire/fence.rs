//! Fences between a session and its agent.

use std::sync::Arc;

use pmi_core::fence::{FenceError, Scope};
use pmi_core::ids::{Epoch, NodeIndex};
use pmi_transport::proto::v1 as proto;
use proto::fence_scope::Kind;

use super::{WireError, wrong};

/// Largest number of nodes of a launch.
const NODES_MAX: u32 = 1 << 20;

/// Encodes the members of a fence.
///
/// # Errors
/// Fails for a kind of fence that the protocol does not support.
pub fn encode_scope(scope: &Scope) -> Result<proto::FenceScope, WireError> {
    let plain = |kind: Kind| proto::FenceScope { kind: kind.into(), ..Default::default() };
    let of_nodes = |kind: Kind, name: &Arc<str>, nodes: &[NodeIndex]| proto::FenceScope {
        kind: kind.into(),
        name: name.to_string(),
        node_gaps: encode_nodes(nodes),
    };
    Ok(match scope {
        Scope::World => plain(Kind::World),
        Scope::Ring => plain(Kind::Ring),
        Scope::Group { name, nodes } => of_nodes(Kind::Group, name, nodes),
        Scope::Foreign { name, nodes } => of_nodes(Kind::Foreign, name, nodes),
        other => return Err(wrong("a fence", format!("{other:?}"), "of all ranks, of a group, a ring, or foreign")),
    })
}

/// Decodes the members of a fence.
///
/// # Errors
/// Fails for nodes out of order, and for unknown kinds.
pub fn decode_scope(scope: proto::FenceScope) -> Result<Scope, WireError> {
    let kind = Kind::try_from(scope.kind).map_err(|_| wrong("the kind of a fence", scope.kind, "0 to 3"))?;
    Ok(match kind {
        Kind::World => Scope::World,
        Kind::Ring => Scope::Ring,
        Kind::Group => Scope::Group { name: scope.name.into(), nodes: decode_nodes(&scope.node_gaps)?.into() },
        Kind::Foreign => Scope::Foreign { name: scope.name.into(), nodes: decode_nodes(&scope.node_gaps)?.into() },
    })
}

/// Encodes nodes in ascending order as gaps. The first gap is relative to 0, each later gap is relative to the previous node.
pub fn encode_nodes(nodes: &[NodeIndex]) -> Vec<u32> {
    let mut last = 0;
    nodes.iter().map(|node| node.0.wrapping_sub(std::mem::replace(&mut last, node.0))).collect()
}

/// Decodes nodes from gaps.
///
/// # Errors
/// Fails for repeated nodes, and for indexes over the largest number of nodes.
pub fn decode_nodes(gaps: &[u32]) -> Result<Vec<NodeIndex>, WireError> {
    let mut last: u32 = 0;
    let node = |(position, &gap): (usize, &u32)| {
        last = last.saturating_add(gap);
        if (gap == 0 && position > 0) || last >= NODES_MAX {
            return Err(wrong("a node of a fence", last, format!("a new one, below {NODES_MAX}")));
        }
        Ok(NodeIndex(last))
    };
    gaps.iter().enumerate().map(node).collect()
}

/// Encodes the failure of a fence.
pub fn encode_fault(error: &FenceError) -> proto::FenceFault {
    match error {
        FenceError::NodeLost { node, reason, .. } => proto::FenceFault { node: Some(node.0), reason: reason.clone() },
        other => proto::FenceFault { node: None, reason: other.to_string() },
    }
}

/// Decodes the failure of the fence with epoch `epoch`.
pub fn decode_fault(fault: proto::FenceFault, epoch: Epoch) -> FenceError {
    match fault.node {
        Some(node) => FenceError::NodeLost { node: NodeIndex(node), epoch, reason: fault.reason },
        None => FenceError::BadSegment { epoch, reason: fault.reason },
    }
}
