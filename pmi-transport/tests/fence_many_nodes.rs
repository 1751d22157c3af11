//! Fences of many nodes in one thread. The result does not depend on the shape, the order of delivery and repetitions. Frames and
//! the work of the busiest node are bounded. If a node is lost, all nodes get an error.

mod network;

use std::collections::BTreeMap;

use bytes::Bytes;
use network::{Network, all, key, merged, world};
use pmi_core::fence::Exchange;
use pmi_core::ids::NodeIndex;
use pmi_transport::fence::{Brought, FanOut, Limits};
use pmi_transport::proto::v1::FenceKey;
use pmi_transport::proto::v1::fence_scope::Kind;

/// Number of delivery orders to try.
const SEEDS: u64 = 100;

/// A node's contribution: its number, so that every byte shows its origin.
fn record(node: u32, len: usize) -> Vec<Bytes> {
    vec![format!("{node:0len$}").into()]
}

/// Runs one fence of all nodes; returns the network after it.
fn one_fence(nodes: u32, fan_out: FanOut, limits: Limits, bring: impl Fn(u32) -> Vec<Bytes>) -> Network {
    let mut network = Network::new(nodes, fan_out, limits, u64::from(nodes));
    let brought: BTreeMap<_, _> = (0..nodes).map(|node| (node, bring(node))).collect();
    for node in (0..nodes).rev() {
        let _ = network.begin(node, &world("job", 0), &all(nodes), brought[&node].clone());
    }
    network.deliver_all();
    let expected = merged(&brought);
    for node in 0..nodes {
        let ended = network.ended[&(node, world("job", 0))].as_ref().unwrap();
        assert!(*ended == expected, "{fan_out:?}: node {node} took away {} of {} bytes", ended.len(), expected.len());
    }
    assert_eq!(network.open_fences(), 0);
    network
}

#[test]
fn a_thousand_nodes_get_the_same_as_in_a_star_whatever_the_fan_out() {
    const NODES: u32 = 1024;
    for fan_out in (1..=16).chain([32, 1023]) {
        let shape = FanOut { barrier: fan_out, data: fan_out };
        one_fence(NODES, shape, Limits::default(), |node| record(node, 24));
    }
}

/// Enough pieces per node that an unstable sort would reorder them.
#[test]
fn pieces_of_a_node_keep_the_order_in_which_they_were_brought() {
    let limits = Limits { chunk_bytes: 100, ..Limits::default() };
    let segments = |node: u32| (0..64).map(|number| format!("{node}:{number:080}").into()).collect();
    for fan_out in 1..4 {
        one_fence(8, FanOut { barrier: fan_out, data: 2 }, limits, segments);
    }
}

/// For any shape and order: data that fits a frame is sent, and more data stays on its nodes. Every node gets its total size, and
/// no frame is longer than a barrier's frame with the first node's data.
#[test]
fn data_that_may_be_withheld_stays_when_it_does_not_fit_a_frame() {
    let limits = Limits { chunk_bytes: 1000, ..Limits::default() };
    let check = |nodes: u32, fan_out: u32, seed: u64, exchange: Exchange, len: usize| {
        let fan_out = FanOut { barrier: fan_out, data: 2 };
        let bring = |node| if len == 0 { Vec::new() } else { record(node, len) };
        let mut network = Network::new(nodes, fan_out, limits, seed);
        network.repeats = 5;
        for node in 0..nodes {
            let early = network.below(4);
            for _ in 0..early {
                network.deliver_one();
            }
            network.begin(node, &world("job", 0), &all(nodes), Brought { segments: bring(node), exchange });
        }
        network.deliver_all();
        let total = nodes as usize * len;
        let stays = if exchange == Exchange::Lazy { len > 0 } else { total > limits.chunk_bytes };
        let first = if len <= limits.chunk_bytes { 1 } else { 0 };
        let brought = (0..if stays { first } else { nodes }).map(|node| (node, bring(node)));
        let expected = merged(&brought.collect());
        for node in 0..nodes {
            assert_eq!(network.ended[&(node, world("job", 0))].as_deref().unwrap(), expected);
            assert_eq!(network.withheld[&node], if stays { total as u64 } else { 0 });
        }
        assert_eq!(network.open_fences(), 0);
        if stays {
            let longest = network.sent.iter().map(|sent| sent.longest).max();
            assert!(longest < Some(limits.chunk_bytes + 100), "{longest:?}");
        }
    };
    for seed in 0..SEEDS {
        let (nodes, fan_out) = (2 + seed as u32 % 40, 1 + seed as u32 % 9);
        for len in [0, 10, 400, 3000] {
            check(nodes, fan_out, seed, Exchange::Auto, len);
            check(nodes, fan_out, seed, Exchange::Lazy, len);
        }
    }
}

#[test]
fn two_thousand_nodes_meet() {
    one_fence(2048, FanOut::default(), Limits::default(), |node| record(node, 16));
}

#[test]
fn a_small_fence_takes_one_frame_up_and_one_down_for_each_edge() {
    for nodes in [2, 8, 64, 1024] {
        for len in [0, 24] {
            let network = one_fence(nodes, FanOut::default(), Limits::default(), |node| match len {
                0 => Vec::new(),
                len => record(node, len),
            });
            let frames: usize = network.sent.iter().map(|sent| sent.frames).sum();
            assert_eq!(frames, 2 * (nodes as usize - 1), "{nodes} nodes, {len} bytes each");
        }
    }
}

#[test]
fn the_busiest_node_sends_little_more_than_the_others() {
    for nodes in [8_u32, 64, 1024] {
        let network = one_fence(nodes, FanOut::default(), Limits::default(), |node| record(node, 4096));
        let mean = network.sent.iter().map(|sent| sent.bytes).sum::<usize>() as f64 / f64::from(nodes);
        let busiest = network.sent.iter().map(|sent| sent.bytes).max().unwrap() as f64;
        assert!(busiest <= 2.5 * mean, "{nodes} nodes: the busiest sent {busiest}, the mean is {mean}");
    }
}

#[test]
fn the_frames_of_a_node_grow_with_the_logarithm_of_the_nodes() {
    for nodes in [8_u32, 64, 1024] {
        for len in [0, 24] {
            let bring = |node| if len == 0 { Vec::new() } else { record(node, len) };
            let network = one_fence(nodes, FanOut::default(), Limits::default(), bring);
            let most = network.sent.iter().map(|sent| sent.frames).max().unwrap();
            let bound = 2 * nodes.next_power_of_two().ilog2() as usize + 4;
            assert!(most <= bound, "{nodes} nodes: {most} frames of one, {bound} are fine");
        }
    }
}

#[test]
fn large_contributions_travel_in_chunks() {
    let limits = Limits::default();
    let fan_out = FanOut { barrier: 3, data: 2 };
    let network = one_fence(16, fan_out, limits, |node| vec![vec![node as u8; 256 * 1024].into()]);
    let longest = network.sent.iter().map(|sent| sent.longest).max().unwrap();
    assert!(longest <= limits.chunk_bytes + 1024, "a frame of {longest} bytes");
}

#[test]
fn uneven_nodes_and_segments_of_all_lengths() {
    let limits = Limits { chunk_bytes: 100, ..Limits::default() };
    for (barrier, data) in [(1, 1), (2, 3), (8, 2), (40, 40)] {
        one_fence(40, FanOut { barrier, data }, limits, |node| {
            let lengths = (0..node % 5).map(|segment| (node * 37 + segment * 91) as usize % 330);
            lengths.map(|len| vec![node as u8; len].into()).collect()
        });
    }
}

/// Several fences in flight, of two jobs, of all nodes and of some; frames arrive in any order and repeatedly. Each node gets all
/// contributions to its fence, and none of another fence.
#[test]
fn whatever_the_order_all_fences_end_alike_and_none_mixes() {
    for seed in 0..SEEDS {
        let mut network = random_network(seed);
        let plan = plan(&mut network);
        run(&mut network, &plan, |_, _| false);
        for fence in &plan {
            let expected = merged(&fence.brought);
            for member in &fence.members {
                let ended = network.ended[&(member.0, fence.key.clone())].as_ref();
                assert_eq!(ended, Ok(&expected), "seed {seed}: {:?} on node {member}", fence.key);
            }
        }
        assert_eq!(network.open_fences(), 0, "seed {seed}");
        assert_eq!(
            [network.counters.failed, network.counters.foreign, network.counters.dropped],
            [0, 0, 0],
            "seed {seed}"
        );
    }
}

#[test]
fn a_lost_node_leaves_nobody_waiting() {
    for seed in 0..SEEDS {
        let mut network = random_network(seed);
        let nodes = network.launches.len() as u64;
        let plan = plan(&mut network);
        let (lost, after) = (network.below(nodes) as u32, network.below(60));
        run(&mut network, &plan, |network, delivered| {
            let is_time = delivered == after;
            if is_time {
                network.lose(lost);
            }
            is_time
        });
        network.lose(lost);
        network.deliver_all();
        for fence in &plan {
            let expected = merged(&fence.brought);
            for member in fence.members.iter().filter(|member| member.0 != lost) {
                match &network.ended[&(member.0, fence.key.clone())] {
                    Ok(got) => assert_eq!(*got, expected, "seed {seed}: {:?} on node {member}", fence.key),
                    Err(error) => assert_eq!(error.node(), Some(NodeIndex(lost)), "seed {seed}: {error}"),
                }
            }
        }
    }
}

/// Only that node detects it; its neighbours forward the failure.
#[test]
fn a_node_that_waits_no_longer_leaves_nobody_waiting() {
    for seed in 0..SEEDS {
        let mut network = random_network(seed);
        let nodes = network.launches.len() as u32;
        let (impatient, late) = (network.below(nodes.into()) as u32, network.below(nodes.into()) as u32);
        let others = (0..nodes).filter(|node| ![impatient, late].contains(node));
        others.for_each(|node| drop(network.begin(node, &world("job", 0), &all(nodes), record(node, 24))));
        let name = network.begin(impatient, &world("job", 0), &all(nodes), record(impatient, 24));
        for _ in 0..network.below(60) {
            network.deliver_one();
        }
        network.act(impatient, |launch, effects| launch.give_up(&name, effects));
        network.deliver_all();
        if late != impatient {
            drop(network.begin(late, &world("job", 0), &all(nodes), record(late, 24)));
        }
        network.deliver_all();
        for node in 0..nodes {
            match network.ended.get(&(node, world("job", 0))) {
                Some(Err(error)) => assert_eq!(error.node(), Some(NodeIndex(impatient)), "seed {seed}: {error}"),
                // It had sent its contribution before.
                Some(Ok(_)) => {}
                None => panic!("seed {seed}: node {node} of {nodes} waits though {impatient} does not any more"),
            }
        }
    }
}

/// One fence of a plan.
struct Planned {
    key: FenceKey,
    members: Vec<NodeIndex>,
    brought: BTreeMap<u32, Vec<Bytes>>,
}

fn random_network(seed: u64) -> Network {
    let mut dice = Network::new(1, FanOut::default(), Limits::default(), seed + 1);
    let nodes = 1 + dice.below(24) as u32;
    let fan_out = FanOut { barrier: 1 + dice.below(10) as u32, data: 1 + dice.below(5) as u32 };
    let limits = Limits { chunk_bytes: 1 + dice.below(200) as usize, ..Limits::default() };
    let mut network = Network::new(nodes, fan_out, limits, seed + 1);
    network.repeats = 4;
    network
}

/// Three epochs of two jobs, of a ring and of a group.
fn plan(network: &mut Network) -> Vec<Planned> {
    let nodes = network.launches.len() as u32;
    let mut some: Vec<_> = all(nodes).into_iter().filter(|_| network.below(2) == 0).collect();
    if some.is_empty() {
        some.push(NodeIndex(0));
    }
    let mut plan = Vec::new();
    for epoch in 0..3 {
        let scopes = [
            (world("a", epoch), all(nodes)),
            (world("b", epoch), all(nodes)),
            (key("a", Kind::Ring, "", epoch), all(nodes)),
            (key("a", Kind::Group, "some", epoch), some.clone()),
        ];
        for (key, members) in scopes {
            let is_empty = network.below(4) == 0;
            let brought = members.iter().map(|node| {
                let count = if is_empty { 0 } else { network.below(3) };
                let segment = |at| format!("{node} brings {at} to {key:?};").repeat(1 + network.below(4) as usize);
                (node.0, (0..count).map(segment).map(Bytes::from).collect())
            });
            plan.push(Planned { brought: brought.collect(), key, members });
        }
    }
    plan
}

/// Lets every member begin its fences, each scope's in order, at random times between deliveries. If `disturb` returns true, the
/// run ends early.
fn run(network: &mut Network, plan: &[Planned], mut disturb: impl FnMut(&mut Network, u64) -> bool) {
    let mut delivered = 0;
    let mut waiting: Vec<(u32, &Planned)> = Vec::new();
    for fence in plan {
        waiting.extend(fence.members.iter().map(|member| (member.0, fence)));
    }
    while !waiting.is_empty() || network.deliver_one() {
        if !waiting.is_empty() && network.below(3) == 0 {
            let at = network.below(waiting.len() as u64) as usize;
            let (node, fence) = waiting[at];
            let is_first =
                waiting.iter().all(|(other, earlier)| *other != node || earlier.key.epoch >= fence.key.epoch);
            if is_first {
                waiting.swap_remove(at);
                begin(network, node, fence);
            }
        }
        network.deliver_one();
        delivered += 1;
        if disturb(network, delivered) {
            waiting.drain(..).for_each(|(node, fence)| begin(network, node, fence));
        }
    }
}

fn begin(network: &mut Network, node: u32, fence: &Planned) {
    let _ = network.begin(node, &fence.key, &fence.members, fence.brought[&node].clone());
}
