//! Conversions of allocations between messages, the store and the server's own types.

use std::num::{NonZeroU32, NonZeroU64};

use bytes::Bytes;
use hostlist::HostlistError;
use lattice_session::request::LaunchRequest;
use lattice_session::wire::{self, WireError};
use pmi_transport::proto::v1 as proto;
use prost::Message;

use crate::allocations::allocation::{Allocation, AllocationState, RequeuePolicy};
use crate::allocations::batch::{BatchEnd, BatchJob, BatchRequest};
use crate::allocations::plan::{AllocationRequest, WhenBusy};
use crate::allocations::queue::NodeChoice;
use crate::launch_id::LaunchId;
use crate::nodes::NODES_MAX;

/// The longest list of requested nodes that a list of allocations contains, in bytes.
const LISTED_NODES_MAX: usize = 1 << 10;

/// Reason why a request for an allocation is invalid.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AllocationRequestError {
    #[error("the list of nodes cannot be read")]
    Hostlist(#[from] HostlistError),
    #[error("name the nodes or give their number: one of the two")]
    NodesOrNumber,
    #[error("requeue policy {number} is unknown; there are 0 (never), 1 (on node failure) and 2 (on any failure)")]
    Policy { number: i32 },
    #[error("the script of the batch job cannot be understood: {0}")]
    Batch(#[from] WireError),
}

/// Encodes an allocation for the store.
pub(crate) fn keep(allocation: &Allocation) -> proto::Allocation {
    proto::Allocation { certificate: allocation.certificate.clone(), ..encode(allocation) }
}

/// Encodes an allocation for a list. A long list of requested nodes is replaced by their number.
pub(crate) fn encode_in_list(allocation: &Allocation) -> proto::Allocation {
    let encoded = encode(allocation);
    match &allocation.wanted {
        NodeChoice::These(nodes) if encoded.wanted_nodes.len() > LISTED_NODES_MAX => {
            proto::Allocation { num_nodes: nodes.len() as u32, wanted_nodes: String::new(), ..encoded }
        }
        _ => encoded,
    }
}

/// Encodes an allocation for an answer.
pub(crate) fn encode(allocation: &Allocation) -> proto::Allocation {
    let (num_nodes, wanted_nodes) = match &allocation.wanted {
        NodeChoice::Any(number) => (number.get(), String::new()),
        NodeChoice::These(nodes) if *nodes == allocation.nodes => (0, String::new()),
        NodeChoice::These(nodes) => (0, hostlist::fold(nodes)),
    };
    proto::Allocation {
        id: allocation.id.clone(),
        state: encode_state(&allocation.state).into(),
        uid: allocation.uid,
        nodes: hostlist::fold(&allocation.nodes),
        requeue: encode_policy(allocation.requeue).into(),
        created_at: allocation.created_at,
        requeues: allocation.requeues,
        reason: allocation.state.reason().unwrap_or_default().to_owned(),
        num_nodes,
        wanted_nodes,
        time_limit_s: allocation.time_limit.map_or(0, NonZeroU64::get),
        began_at: allocation.began_at.unwrap_or_default(),
        turn: allocation.turn,
        batch: allocation.batch.as_ref().map(encode_batch),
        certificate: Bytes::new(),
    }
}

fn encode_batch(job: &BatchJob) -> proto::BatchJob {
    let end = |end: &BatchEnd| proto::BatchEnd { exit_code: end.exit_code, cause: end.cause.clone() };
    proto::BatchJob {
        name: job.name.clone(),
        launch_id: job.launch.as_deref().unwrap_or_default().to_owned(),
        end: job.end.as_ref().map(end),
        request_bytes: job.bytes,
    }
}

fn decode_batch(job: proto::BatchJob) -> BatchJob {
    let end = |end: proto::BatchEnd| BatchEnd { exit_code: end.exit_code, cause: end.cause };
    BatchJob {
        name: job.name,
        bytes: job.request_bytes,
        launch: Some(job.launch_id).filter(|id| !id.is_empty()).map(LaunchId::from),
        end: job.end.map(end),
    }
}

/// Decodes a stored allocation.
///
/// # Errors
/// Refuses a state or a policy that this version does not support, and a state without its required reason. Refuses a list of nodes that
/// cannot be read.
pub(crate) fn decode(message: proto::Allocation) -> Result<Allocation, WireError> {
    let expand = |list: &str| {
        hostlist::expand(list).map_err(|source| WireError::Hosts { what: "the nodes of an allocation", source })
    };
    let nodes = expand(&message.nodes)?;
    let wanted = match (NonZeroU32::new(message.num_nodes), message.wanted_nodes.as_str()) {
        (Some(number), _) => NodeChoice::Any(number),
        (None, "") => NodeChoice::These(nodes.clone()),
        (None, list) => NodeChoice::These(expand(list)?),
    };
    Ok(Allocation {
        state: decode_state(message.state, message.reason)?,
        nodes,
        wanted,
        requeue: decode_policy(message.requeue).ok_or_else(|| WireError::Value {
            what: "the requeue policy",
            seen: message.requeue.to_string(),
            possible: "0 to 2".to_owned(),
        })?,
        id: message.id,
        uid: message.uid,
        created_at: message.created_at,
        requeues: message.requeues,
        time_limit: NonZeroU64::new(message.time_limit_s),
        began_at: Some(message.began_at).filter(|&time| time != 0),
        turn: message.turn,
        batch: message.batch.map(decode_batch),
        certificate: message.certificate,
    })
}

/// Decodes the request for an allocation, without the certificate of the caller.
///
/// # Errors
/// See the variants of [`AllocationRequestError`].
pub(crate) fn decode_request(
    message: proto::CreateAllocationRequest,
) -> Result<AllocationRequest, AllocationRequestError> {
    let proto::CreateAllocationRequest { nodes, num_nodes, requeue, uid, id, queue, time_limit_s, batch } = message;
    let nodes = match (hostlist::expand_at_most(&nodes, NODES_MAX)?, NonZeroU32::new(num_nodes)) {
        (named, Some(number)) if named.is_empty() => NodeChoice::Any(number),
        (named, None) if !named.is_empty() => NodeChoice::These(named),
        _ => return Err(AllocationRequestError::NodesOrNumber),
    };
    let requeue = decode_policy(requeue).ok_or(AllocationRequestError::Policy { number: requeue })?;
    Ok(AllocationRequest {
        nodes,
        requeue,
        uid,
        id: Some(id).filter(|id| !id.is_empty()),
        when_busy: if queue || batch.is_some() { WhenBusy::Queue } else { WhenBusy::Refuse },
        time_limit: NonZeroU64::new(time_limit_s),
        batch: batch.map(decode_batch_request).transpose()?,
        certificate: Bytes::new(),
    })
}

fn decode_batch_request(message: proto::BatchRequest) -> Result<BatchRequest, WireError> {
    let proto::BatchRequest { name, launch } = message;
    let launch = launch.ok_or(WireError::Missing { what: "script of the batch job" })?;
    let bytes = launch.encoded_len() as u64;
    Ok(BatchRequest { name, bytes, launch: Box::new(wire::request::decode(launch)?) })
}

/// Encodes the launch request of a batch job for the store.
pub(crate) fn encode_script(request: &BatchRequest) -> Vec<u8> {
    wire::request::encode(&request.launch, String::new()).encode_to_vec()
}

/// Decodes the stored launch request of a batch job.
///
/// # Errors
/// Refuses a request that this version does not support.
pub(crate) fn decode_script(kept: &[u8]) -> Result<LaunchRequest, WireError> {
    let message = proto::LaunchTasksRequest::decode(kept);
    wire::request::decode(message.map_err(|_| WireError::Missing { what: "readable script of the batch job" })?)
}

/// The word for a state of a message, as in messages of the server; `unknown` for a state that the server never sends.
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
            (uid, created_at, requeues, turn) in any::<(u32, u64, u32, u64)>(),
            wanted in any_choice(),
            time_limit in any::<u64>().prop_map(NonZeroU64::new),
            began_at in proptest::option::of(1_u64..),
            batch in proptest::option::of(any_batch()),
            certificate in any::<Vec<u8>>().prop_map(Bytes::from),
        ) -> Allocation {
            let wanted = wanted.unwrap_or_else(|| NodeChoice::These(nodes.clone()));
            Allocation { id, state, uid, nodes, requeue, created_at, requeues, wanted, time_limit, began_at, turn, batch, certificate }
        }
    }

    /// Requested nodes; `None` for the nodes that the allocation has.
    fn any_choice() -> impl Strategy<Value = Option<NodeChoice>> {
        prop_oneof![
            Just(None),
            (1_u32..).prop_map(|number| NonZeroU32::new(number).map(NodeChoice::Any)),
            proptest::collection::vec("[a-z]{4}[0-9]", 1..5).prop_map(|nodes| Some(NodeChoice::These(nodes))),
        ]
    }

    prop_compose! {
        fn any_batch()(
            name in "[a-z ]{0,10}",
            bytes in any::<u64>(),
            launch in proptest::option::of("[a-z0-9]{1,10}"),
            end in proptest::option::of((any::<Option<u32>>(), "[a-z ]{0,10}")),
        ) -> BatchJob {
            let end = end.map(|(exit_code, cause)| BatchEnd { exit_code, cause });
            BatchJob { name, bytes, launch: launch.map(Into::into), end }
        }
    }

    proptest! {
        #[test]
        fn an_allocation_comes_back_from_what_was_kept_as_it_was(allocation in any_allocation()) {
            let bytes = keep(&allocation).encode_to_vec();
            prop_assert_eq!(decode(proto::Allocation::decode(&bytes[..]).unwrap()).unwrap(), allocation);
        }
    }

    /// An allocation as the previous version stored it: two nodes, queued again once.
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
            wanted: NodeChoice::These(vec!["node0".to_owned(), "node1".to_owned()]),
            time_limit: None,
            began_at: None,
            turn: 0,
            batch: None,
            certificate: Bytes::new(),
        };
        assert_eq!(kept, expected);
        assert_eq!(keep(&kept).encode_to_vec(), KEPT);
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
        let choice = |message| decode_request(message).map(|request| request.nodes).map_err(|error| error.to_string());
        let neither = AllocationRequestError::NodesOrNumber.to_string();
        let named = NodeChoice::These(vec!["a1".to_owned(), "a2".to_owned()]);
        assert_eq!(choice(request("a[1-2]", 0)), Ok(named));
        assert_eq!(choice(request("", 3)), Ok(NodeChoice::Any(NonZeroU32::new(3).unwrap())));
        assert_eq!(choice(request("", 0)), Err(neither.clone()));
        for empty in [" ", ",", " , "] {
            assert!(choice(request(empty, 0)).is_err(), "{empty:?} names no node");
        }
        assert_eq!(choice(request("a1", 1)), Err(neither));
        let policy = proto::CreateAllocationRequest { requeue: 3, ..request("a1", 0) };
        assert!(matches!(decode_request(policy), Err(AllocationRequestError::Policy { number: 3 })));
        let many = decode_request(request("x[0-1048575]", 0)).unwrap_err();
        let expected = "the list of nodes cannot be read: the list \"x[0-1048575]\" stands for more than 131072 names";
        assert_eq!(chain(&many), expected);
    }

    #[test]
    fn a_list_of_allocations_does_not_grow_with_what_they_wait_for() {
        let waiting = |nodes: &str| Allocation {
            state: AllocationState::Pending { reason: "waits".to_owned() },
            nodes: Vec::new(),
            ..Allocation::running("7f3k", 1000, hostlist::expand(nodes).unwrap())
        };
        let listed = encode_in_list(&waiting("a[0-9]"));
        assert_eq!((listed.num_nodes, listed.wanted_nodes.as_str()), (0, "a[0-9]"));
        let many: Vec<String> = (0..1000_u32).map(|number| format!("n{}", number * number)).collect();
        let listed = encode_in_list(&waiting(&many.join(",")));
        assert_eq!((listed.num_nodes, listed.wanted_nodes.as_str()), (1000, ""));
        assert!(listed.encoded_len() < 2 * LISTED_NODES_MAX);
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
