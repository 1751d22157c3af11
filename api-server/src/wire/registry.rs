//! Conversions of registrations, drains and lists of nodes between messages, the store and the types of the registry.

use std::num::{NonZeroU32, NonZeroU64};

use pmi_transport::proto::v1 as proto;

use crate::nodes::{Drain, Listed, NodeFacts, NodeState, Presence, Registration};

/// Decodes a registration; the registry checks it.
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

/// Encodes a node in a list.
pub(crate) fn encode_listed(listed: Listed) -> proto::Node {
    let Listed { node, presence, drain } = listed;
    let drain = drain.as_ref().map(encode_drain);
    let Some(Presence { state, facts, heard_ago, launches, rival }) = presence else {
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
        rival_address: rival.unwrap_or_default(),
    }
}

fn encode_state(state: NodeState) -> proto::NodeState {
    match state {
        NodeState::Up => proto::NodeState::Up,
        NodeState::Away => proto::NodeState::Away,
        NodeState::Lost => proto::NodeState::Lost,
    }
}

/// Encodes a drain, for messages and for the store.
pub(crate) fn encode_drain(drain: &Drain) -> proto::Drain {
    proto::Drain { node: drain.node.clone(), reason: drain.reason.clone(), by: drain.by.clone(), since: drain.since }
}

/// Decodes a stored drain.
pub(crate) fn decode_drain(message: proto::Drain) -> Drain {
    let proto::Drain { node, reason, by, since } = message;
    Drain { node, reason, by, since }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;
    use prost::Message;

    use super::*;
    use crate::nodes::tests::drain;

    /// A registration with every field.
    fn full() -> proto::RegisterNodeRequest {
        proto::RegisterNodeRequest {
            node_id: "node0".to_owned(),
            grpc_address: "node0:50052".to_owned(),
            network_addresses: vec!["10.0.0.1".to_owned()],
            cores: 64,
            memory_bytes: 1 << 38,
            capabilities: vec!["pmi2".to_owned(), "pmix".to_owned()],
            version: "0.1.0".to_owned(),
            incarnation: 7,
            launches: vec!["l".to_owned()],
            challenge: vec![7; 32].into(),
        }
    }

    /// A node that is up, as listed to clients.
    fn listed(facts: NodeFacts) -> proto::Node {
        let (heard_ago, rival) = (Duration::from_millis(250), Some("10.0.0.9:50052".to_owned()));
        let presence = Presence { state: NodeState::Up, facts, heard_ago, launches: 3, rival };
        encode_listed(Listed { node: "node0".to_owned(), presence: Some(presence), drain: None })
    }

    #[test]
    fn a_node_is_listed_with_all_that_its_agent_told() {
        let (told, node) = (full(), listed(decode_registration(full()).facts));
        assert_eq!((node.id.as_str(), node.state()), ("node0", proto::NodeState::Up));
        assert_eq!((node.grpc_address, node.network_addresses), (told.grpc_address, told.network_addresses));
        assert_eq!((node.cores, node.memory_bytes), (told.cores, told.memory_bytes));
        assert_eq!((node.capabilities, node.version), (told.capabilities, told.version));
        assert_eq!((node.heard_ms_ago, node.launches, node.drain), (250, 3, None));
        assert_eq!(node.rival_address, "10.0.0.9:50052");
    }

    #[test]
    fn an_agent_that_does_not_know_its_node_tells_nothing_of_it() {
        let silent = proto::RegisterNodeRequest { cores: 0, memory_bytes: 0, version: String::new(), ..full() };
        let facts = decode_registration(silent).facts;
        assert_eq!((facts.cores, facts.memory_bytes, &facts.version), (None, None, &None));
        let node = listed(facts);
        assert_eq!((node.cores, node.memory_bytes, node.version.as_str()), (0, 0, ""));
    }

    #[test]
    fn a_node_that_has_not_registered_is_listed_with_its_drain_alone() {
        let drained = drain("node9", "new memory");
        let node = encode_listed(Listed { node: "node9".to_owned(), presence: None, drain: Some(drained.clone()) });
        let expected =
            proto::Node { id: "node9".to_owned(), drain: Some(encode_drain(&drained)), ..proto::Node::default() };
        assert_eq!(node, expected);
        assert_eq!(node.state(), proto::NodeState::Unspecified);
    }

    proptest! {
        #[test]
        fn a_drain_comes_back_from_its_message_as_it_was(
            (node, reason, by) in ("[a-z]{1,8}[0-9]{0,3}", ".{0,40}", "[a-z]{1,8}"),
            since in any::<u64>(),
        ) {
            let drain = Drain { node, reason, by, since };
            let bytes = encode_drain(&drain).encode_to_vec();
            prop_assert_eq!(decode_drain(proto::Drain::decode(&bytes[..]).unwrap()), drain);
        }
    }

    #[test]
    fn a_drain_that_the_version_before_kept_is_read_and_written_as_it_was() {
        let kept: &[u8] = b"\x0a\x05node1\x12\x0anew memory\x1a\x05admin\x20\x80\xe2\xcf\xaa\x06";
        let read = decode_drain(proto::Drain::decode(kept).unwrap());
        assert_eq!(read, drain("node1", "new memory"));
        assert_eq!(encode_drain(&read).encode_to_vec(), kept);
    }
}
