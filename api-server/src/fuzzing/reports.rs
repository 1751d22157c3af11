//! Reports of nodes, from the bytes of messages to the effects of a launch.

use pmi_core::ids::{JobId, NodeIndex};
use pmi_core::job::Placement;
use pmi_transport::proto::v1 as proto;
use prost::Message;
use tokio::time::Instant;

use crate::launch::event::NodeEvent;
use crate::launch::facts::{Facts, Origin, Ownership, Settler};
use crate::launch::outbox::Attempt;
use crate::launch::{Machine, effect::Effect};
use crate::wire::node::{decode_event, encode_event};

/// Number of nodes of the launch.
const NODES: u32 = 3;

/// For all reports of nodes in any order, the launch continues or ends, and its events are numbered without a gap.
///
/// The bytes are pieces. Each consists of a length (two bytes, little-endian), a node (one byte), and a `NodeEvent` of that length.
pub fn node_reports(mut data: &[u8]) {
    let now = Instant::now();
    let mut machine = Machine::new(facts(), 1, now);
    machine.on_fan_out(Ok(()), now);
    (0..NODES).for_each(|node| machine.on_stream_opened(NodeIndex(node), 1, Attempt::First, now));
    let mut last = 0;
    while let [low, high, node, rest @ ..] = data {
        let length = usize::from(u16::from_le_bytes([*low, *high])).min(rest.len());
        let (message, next) = rest.split_at(length);
        data = next;
        let Ok(message) = proto::NodeEvent::decode(message) else { continue };
        let sequence = message.sequence;
        let event = decode_event(message);
        if let Some(event) = &event {
            // A forwarded event must be readable for its receiver. An ending of an unknown kind is not forwarded.
            if !matches!(event, NodeEvent::UnknownEnding) {
                let passed_on = encode_event(event);
                assert_eq!(decode_event(passed_on.clone()).map(|event| encode_event(&event)), Some(passed_on));
            }
        }
        machine.on_numbered(NodeIndex(u32::from(*node) % NODES), sequence, event, now);
        machine.on_tick(now);
        for effect in machine.take_effects() {
            if let Effect::Append { sequence, .. } = effect {
                assert_eq!(sequence, last + 1, "a gap");
                last = sequence;
            }
        }
    }
}

fn facts() -> Facts {
    Facts {
        id: "l".into(),
        allocation_id: "a".to_owned(),
        job: JobId::new("kvs_l_0").expect("it is as the API server names jobs"),
        nodes: (0..NODES).map(|node| format!("node{node}")).collect(),
        placement: Placement::block(&[2; NODES as usize]),
        output_window: 64 << 10,
        input_window: 64 << 10,
        input_readers: vec![NodeIndex(0)],
        failed_ranks: lattice_session::settings::FailedRanks::AreBorne,
        lost_nodes: lattice_session::settings::LostNodes::AreBorne,
        after_first_exit: Some(std::time::Duration::from_secs(1)),
        time_limit: Some(std::time::Duration::from_secs(1)),
        grace: std::time::Duration::from_secs(5),
        directory: "/".into(),
        universe_size: None,
        ownership: Ownership::Owned,
        settler: Settler::Owner,
        origin: Origin::Here,
        gather_above: 1,
    }
}
