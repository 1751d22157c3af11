//! Registrations of agents, drains and lists of nodes, between messages, the store and the registry's types.

use std::num::{NonZeroU32, NonZeroU64};

use pmi_transport::proto::v1 as proto;

use crate::nodes::{Drain, Listed, NodeFacts, NodeState, Presence, Registration};

/// The registration that a message means; the registry checks it.
pub(crate) fn decode_registration(message: proto::RegisterNodeRequest) -> Registration {
    Registration {
        node: message.node_id,
        incarnation: message.incarnation,
        launches: message.launches,
        facts: NodeFacts {
            grpc_address: message.grpc_address,
            network_addresses: message.network_addresses,
            cores: NonZeroU32::new(message.cores),
            memory_bytes: NonZeroU64::new(message.memory_bytes),
            capabilities: message.capabilities,
            version: Some(message.version).filter(|version| !version.is_empty()),
        },
    }
}

/// A node in a list.
pub(crate) fn encode_listed(listed: Listed) -> proto::Node {
    let Listed { node, presence, drain } = listed;
    let drain = drain.as_ref().map(encode_drain);
    let Some(Presence { state, facts, heard_ago, launches }) = presence else {
        return proto::Node { id: node, drain, ..proto::Node::default() };
    };
    proto::Node {
        id: node,
        state: encode_state(state).into(),
        grpc_address: facts.grpc_address,
        network_addresses: facts.network_addresses,
        cores: facts.cores.map_or(0, NonZeroU32::get),
        memory_bytes: facts.memory_bytes.map_or(0, NonZeroU64::get),
        capabilities: facts.capabilities,
        version: facts.version.unwrap_or_default(),
        heard_ms_ago: u64::try_from(heard_ago.as_millis()).unwrap_or(u64::MAX),
        launches,
        drain,
    }
}

fn encode_state(state: NodeState) -> proto::NodeState {
    match state {
        NodeState::Up => proto::NodeState::Up,
        NodeState::Lost => proto::NodeState::Lost,
    }
}

/// A drain in a message, and as it is kept.
pub(crate) fn encode_drain(drain: &Drain) -> proto::Drain {
    proto::Drain { node: drain.node.clone(), reason: drain.reason.clone(), by: drain.by.clone(), since: drain.since }
}

/// The drain that a message means, as it was kept.
pub(crate) fn decode_drain(message: proto::Drain) -> Drain {
    let proto::Drain { node, reason, by, since } = message;
    Drain { node, reason, by, since }
}
