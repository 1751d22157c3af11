//! Reports of nodes, from the bytes of messages to the effects of a launch.

use pmi_core::ids::JobId;
use pmi_core::job::Placement;
use pmi_transport::proto::v1 as proto;
use prost::Message;
use tokio::time::Instant;

use crate::launch::facts::{Facts, Origin, Ownership, Settler};
use crate::launch::{Machine, effect::Effect};
use crate::wire::node::{decode_event, encode_event};

/// Number of nodes of the launch.
const NODES: u32 = 3;

/// Whatever nodes report, in whatever order: the launch goes on or ends, and its events are numbered without a gap.
///
/// The bytes are pieces of a length (two bytes, little-endian), a node (one byte), and a `NodeEvent` of that length.
pub fn node_reports(mut data: &[u8]) {
    let now = Instant::now();
    let mut machine = Machine::new(facts(), 1, now);
    machine.on_fan_out(Ok(()), now);
    (0..NODES).for_each(|node| machine.on_stream_opened(node, 1, now));
    let mut last = 0;
    while let [low, high, node, rest @ ..] = data {
        let length = usize::from(u16::from_le_bytes([*low, *high])).min(rest.len());
        let (message, next) = rest.split_at(length);
        data = next;
        let Ok(message) = proto::NodeEvent::decode(message) else { continue };
        if let Some(event) = decode_event(message) {
            // What is passed on can be read by whoever gets it.
            let passed_on = encode_event(&event);
            assert_eq!(decode_event(passed_on.clone()).map(|event| encode_event(&event)), Some(passed_on));
            machine.on_node_event(u32::from(*node) % NODES, event, now);
        }
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
        id: "l".to_owned(),
        allocation_id: "a".to_owned(),
        job: JobId::new("kvs_l_0").expect("it is as the API server names jobs"),
        nodes: (0..NODES).map(|node| format!("node{node}")).collect(),
        placement: Placement::block(&[2; NODES as usize]),
        output_window: 64 << 10,
        input_window: 64 << 10,
        input_readers: vec![0],
        grace: std::time::Duration::from_secs(5),
        directory: "/".into(),
        universe_size: None,
        ownership: Ownership::Owned,
        settler: Settler::Owner,
        origin: Origin::Here,
    }
}

/// Reports as nodes send them, for a fuzzer to begin with.
pub fn node_reports_seeds() -> Vec<Vec<u8>> {
    use proto::node_event::What;
    let exit = proto::RankExitStatus { rank: 2, phase: proto::RankPhase::Silent.into(), ..Default::default() };
    let failed = proto::Cause { host: "node2".to_owned(), kind: Some(proto::cause::Kind::Failed(exit)) };
    let silent = proto::SilentRanks { ranks: vec![0], size: 6, ..Default::default() };
    let notice = proto::Notice { what: Some(proto::notice::What::Silent(silent)) };
    let events = [
        (0, What::Started(proto::RankStarted { rank: 0, pid: 7, program: "/app".into() })),
        (0, What::Output(proto::RankOutput { rank: 0, on_stderr: false, data: "hello\n".into() })),
        (0, What::Notice(notice)),
        (0, What::Waiting(proto::Waiting { ranks: vec![0, 1] })),
        (1, What::Exited(exit)),
        (2, What::Ending(failed)),
        (2, What::Report(proto::SessionReport::default())),
    ];
    let mut seed = Vec::new();
    for (node, what) in events {
        let message = proto::NodeEvent { what: Some(what) }.encode_to_vec();
        seed.extend((message.len() as u16).to_le_bytes());
        seed.push(node);
        seed.extend(message);
    }
    vec![seed]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A seed with some of its bytes changed, and cut off somewhere.
    fn changed(seeds: Vec<Vec<u8>>) -> impl Strategy<Value = Vec<u8>> {
        let changes = prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..8);
        (prop::sample::select(seeds), changes, any::<prop::sample::Index>(), any::<bool>()).prop_map(
            |(mut seed, changes, cut, is_cut)| {
                changes.into_iter().for_each(|(index, byte)| {
                    let index = index.index(seed.len());
                    seed[index] = byte;
                });
                if is_cut {
                    seed.truncate(cut.index(seed.len()));
                }
                seed
            },
        )
    }

    #[test]
    fn seeds_go_the_whole_way() {
        node_reports_seeds().iter().for_each(|seed| node_reports(seed));
    }

    proptest! {
        #[test]
        fn no_report_breaks_a_promise(data in changed(node_reports_seeds())) {
            node_reports(&data);
        }
    }
}
