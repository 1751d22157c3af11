//! Allocations between messages, the store and the server's own types.

use std::num::NonZeroU32;

use hostlist::HostlistError;
use lattice_session::wire::WireError;
use pmi_transport::proto::v1 as proto;

use crate::allocations::allocation::{Allocation, AllocationState, RequeuePolicy};
use crate::allocations::plan::{AllocationRequest, NodeChoice};
use crate::nodes::NODES_MAX;

/// A request for an allocation that means nothing here.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum AllocationRequestError {
    #[error("the list of nodes cannot be read")]
    Hostlist(#[from] HostlistError),
    #[error("name the nodes, or how many there shall be: one of the two")]
    NodesOrNumber,
    #[error("requeue policy {number} is unknown; there are 0 (never), 1 (on node failure) and 2 (on any failure)")]
    Policy { number: i32 },
}

/// An allocation in a message, and as it is kept.
pub(crate) fn encode(allocation: &Allocation) -> proto::Allocation {
    proto::Allocation {
        id: allocation.id.clone(),
        state: encode_state(&allocation.state).into(),
        uid: allocation.uid,
        nodes: hostlist::fold(&allocation.nodes),
        requeue: encode_policy(allocation.requeue).into(),
        created_at: allocation.created_at,
        requeues: allocation.requeues,
        reason: allocation.state.reason().unwrap_or_default().to_owned(),
    }
}

/// The allocation that a message means, as it was kept.
///
/// # Errors
/// Refuses a state or a policy that this version does not know, a state without the reason that it must have, and a list of nodes
/// that cannot be read.
pub(crate) fn decode(message: proto::Allocation) -> Result<Allocation, WireError> {
    let nodes = hostlist::expand(&message.nodes);
    Ok(Allocation {
        state: decode_state(message.state, message.reason)?,
        nodes: nodes.map_err(|source| WireError::Hosts { what: "the nodes of an allocation", source })?,
        requeue: decode_policy(message.requeue).ok_or_else(|| WireError::Value {
            what: "the requeue policy",
            seen: message.requeue.to_string(),
            possible: "0 to 2".to_owned(),
        })?,
        id: message.id,
        uid: message.uid,
        created_at: message.created_at,
        requeues: message.requeues,
    })
}

/// The request for an allocation that a message means.
///
/// # Errors
/// See the variants of [`AllocationRequestError`].
pub(crate) fn decode_request(
    message: proto::CreateAllocationRequest,
) -> Result<AllocationRequest, AllocationRequestError> {
    let proto::CreateAllocationRequest { nodes, num_nodes, requeue, uid, id } = message;
    let nodes = match (nodes.is_empty(), NonZeroU32::new(num_nodes)) {
        (true, Some(number)) => NodeChoice::Any(number),
        (false, None) => NodeChoice::These(hostlist::expand_at_most(&nodes, NODES_MAX)?),
        _ => return Err(AllocationRequestError::NodesOrNumber),
    };
    let requeue = decode_policy(requeue).ok_or(AllocationRequestError::Policy { number: requeue })?;
    Ok(AllocationRequest { nodes, requeue, uid, id: Some(id).filter(|id| !id.is_empty()) })
}

/// The word for a state of a message: the one that messages of the server use, and `unknown` for one that it never sends.
pub fn state_word(state: proto::AllocationState) -> &'static str {
    decode_state(state.into(), "any".to_owned()).map_or("unknown", |state| state.word())
}

fn encode_state(state: &AllocationState) -> proto::AllocationState {
    match state {
        AllocationState::Pending { .. } => proto::AllocationState::Pending,
        AllocationState::Running => proto::AllocationState::Running,
        AllocationState::Releasing { .. } => proto::AllocationState::Releasing,
        AllocationState::Released => proto::AllocationState::Released,
        AllocationState::Failed { .. } => proto::AllocationState::Failed,
    }
}

fn decode_state(number: i32, reason: String) -> Result<AllocationState, WireError> {
    let reason = Some(reason).filter(|reason| !reason.is_empty());
    let required =
        |reason: Option<String>| reason.ok_or(WireError::Missing { what: "reason of the allocation's state" });
    match proto::AllocationState::try_from(number) {
        Ok(proto::AllocationState::Pending) => Ok(AllocationState::Pending { reason: required(reason)? }),
        Ok(proto::AllocationState::Running) => Ok(AllocationState::Running),
        Ok(proto::AllocationState::Releasing) => Ok(AllocationState::Releasing { reason }),
        Ok(proto::AllocationState::Released) => Ok(AllocationState::Released),
        Ok(proto::AllocationState::Failed) => Ok(AllocationState::Failed { reason: required(reason)? }),
        Ok(proto::AllocationState::Unspecified) | Err(_) => Err(WireError::Value {
            what: "the allocation's state",
            seen: number.to_string(),
            possible: "1 to 5".to_owned(),
        }),
    }
}

fn encode_policy(policy: RequeuePolicy) -> proto::RequeuePolicy {
    match policy {
        RequeuePolicy::Never => proto::RequeuePolicy::Never,
        RequeuePolicy::OnNodeFailure => proto::RequeuePolicy::OnNodeFailure,
        RequeuePolicy::OnAnyFailure => proto::RequeuePolicy::OnAnyFailure,
    }
}

fn decode_policy(number: i32) -> Option<RequeuePolicy> {
    Some(match proto::RequeuePolicy::try_from(number).ok()? {
        proto::RequeuePolicy::Never => RequeuePolicy::Never,
        proto::RequeuePolicy::OnNodeFailure => RequeuePolicy::OnNodeFailure,
        proto::RequeuePolicy::OnAnyFailure => RequeuePolicy::OnAnyFailure,
    })
}
