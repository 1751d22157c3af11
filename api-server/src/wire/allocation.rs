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

#[cfg(test)]
mod tests {
    use pmi_transport::error_chain::chain;
    use proptest::prelude::*;
    use prost::Message;

    use super::*;

    fn any_state() -> impl Strategy<Value = AllocationState> {
        let words = "[a-z]{1,20}";
        prop_oneof![
            words.prop_map(|reason| AllocationState::Pending { reason }),
            Just(AllocationState::Running),
            proptest::option::of(words).prop_map(|reason| AllocationState::Releasing { reason }),
            Just(AllocationState::Released),
            words.prop_map(|reason| AllocationState::Failed { reason }),
        ]
    }

    fn any_policy() -> impl Strategy<Value = RequeuePolicy> {
        prop_oneof![Just(RequeuePolicy::Never), Just(RequeuePolicy::OnNodeFailure), Just(RequeuePolicy::OnAnyFailure)]
    }

    prop_compose! {
        fn any_allocation()(
            id in "[a-z0-9]{1,10}",
            state in any_state(),
            nodes in proptest::collection::vec("[a-z]{1,3}[0-9]{1,3}", 0..20),
            requeue in any_policy(),
            (uid, created_at, requeues) in any::<(u32, u64, u32)>(),
        ) -> Allocation {
            Allocation { id, state, uid, nodes, requeue, created_at, requeues }
        }
    }

    proptest! {
        #[test]
        fn an_allocation_comes_back_from_its_message_as_it_was(allocation in any_allocation()) {
            let bytes = encode(&allocation).encode_to_vec();
            prop_assert_eq!(decode(proto::Allocation::decode(&bytes[..]).unwrap()).unwrap(), allocation);
        }
    }

    /// An allocation as the version before this one kept it: two nodes, queued again once.
    const KEPT: &[u8] = b"\x0a\x047f3k\x10\x01\x18\xe8\x07\x22\x09node[0-1]\x28\x01\x30\x80\xe2\xcf\xaa\x06\x38\x01\x42\x0fwaits for node1";

    #[test]
    fn an_allocation_that_the_version_before_kept_is_read_and_written_as_it_was() {
        let kept = decode(proto::Allocation::decode(KEPT).unwrap()).unwrap();
        let expected = Allocation {
            id: "7f3k".to_owned(),
            state: AllocationState::Pending { reason: "waits for node1".to_owned() },
            uid: 1000,
            nodes: vec!["node0".to_owned(), "node1".to_owned()],
            requeue: RequeuePolicy::OnNodeFailure,
            created_at: 1_700_000_000,
            requeues: 1,
        };
        assert_eq!(kept, expected);
        assert_eq!(encode(&kept).encode_to_vec(), KEPT);
    }

    fn running() -> proto::Allocation {
        proto::Allocation {
            state: proto::AllocationState::Running.into(),
            nodes: "a0".to_owned(),
            ..Default::default()
        }
    }

    #[test]
    fn an_allocation_that_means_nothing_is_refused_by_the_field_that_is_wrong() {
        let state = |state: proto::AllocationState| proto::Allocation { state: state.into(), ..running() };
        let cases = [
            (proto::Allocation { state: 6, ..running() }, "the allocation's state is 6; possible is 1 to 5"),
            (state(proto::AllocationState::Unspecified), "the allocation's state is 0; possible is 1 to 5"),
            (state(proto::AllocationState::Pending), "the message has no reason of the allocation's state"),
            (state(proto::AllocationState::Failed), "the message has no reason of the allocation's state"),
            (proto::Allocation { requeue: 3, ..running() }, "the requeue policy is 3; possible is 0 to 2"),
        ];
        for (message, expected) in cases {
            assert_eq!(decode(message).unwrap_err().to_string(), expected);
        }
        let error = decode(proto::Allocation { nodes: "a[0".to_owned(), ..running() }).unwrap_err().to_string();
        assert!(error.starts_with("the nodes of an allocation: "), "{error}");
    }

    #[test]
    fn a_request_names_nodes_or_their_number() {
        let request = |nodes: &str, num_nodes| proto::CreateAllocationRequest {
            nodes: nodes.to_owned(),
            num_nodes,
            ..Default::default()
        };
        let choice = |message| decode_request(message).map(|request| request.nodes);
        let named = NodeChoice::These(vec!["a1".to_owned(), "a2".to_owned()]);
        assert_eq!(choice(request("a[1-2]", 0)), Ok(named));
        assert_eq!(choice(request("", 3)), Ok(NodeChoice::Any(NonZeroU32::new(3).unwrap())));
        assert_eq!(choice(request("", 0)), Err(AllocationRequestError::NodesOrNumber));
        assert_eq!(choice(request("a1", 1)), Err(AllocationRequestError::NodesOrNumber));
        let policy = proto::CreateAllocationRequest { requeue: 3, ..request("a1", 0) };
        assert_eq!(decode_request(policy).unwrap_err(), AllocationRequestError::Policy { number: 3 });
        let many = decode_request(request("x[0-1048575]", 0)).unwrap_err();
        let expected = "the list of nodes cannot be read: the list \"x[0-1048575]\" stands for more than 131072 names";
        assert_eq!(chain(&many), expected);
    }

    #[test]
    fn an_id_that_is_not_asked_for_is_none() {
        let asked = |id: &str| {
            let request = proto::CreateAllocationRequest { num_nodes: 1, id: id.to_owned(), ..Default::default() };
            decode_request(request).unwrap().id
        };
        assert_eq!((asked(""), asked("mine")), (None, Some("mine".to_owned())));
    }

    #[test]
    fn every_state_of_a_message_has_a_word() {
        let words = (0..=5).map(|number| state_word(proto::AllocationState::try_from(number).unwrap()));
        assert!(words.eq(["unknown", "pending", "running", "releasing", "released", "failed"]));
    }
}
