//! The fences of this crate pass the conformance suite of pmi-core, over TCP and in memory, for any fan-out.

mod agents;

use std::sync::Arc;

use agents::{DEADLINE, Over, World};
use pmi_core::conformance::{ByBegin, Cluster, check};
use pmi_core::fence::Fence;
use pmi_core::ids::{JobId, NodeIndex};
use pmi_transport::fence::{FanOut, JobFence, Limits};

/// Method of the fences to check.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    Exchange,
    Begin,
}

/// One launch of all agents. The world lives as long as the function that loses a node.
fn cluster(mut world: World, fan_out: FanOut, way: Way) -> Cluster {
    let launches = world.join_all("launch", fan_out);
    let members: Arc<[NodeIndex]> = world.all().into();
    let job = JobId::new("job").unwrap();
    let fence = |launch| Arc::new(JobFence::new(Arc::new(launch), job.clone(), Arc::clone(&members))) as Arc<dyn Fence>;
    let by_begin = |fence| Arc::new(ByBegin(fence)) as Arc<dyn Fence>;
    let fences: Vec<_> = launches.into_iter().map(fence).collect();
    let fences: Vec<_> = match way {
        Way::Exchange => fences,
        Way::Begin => fences.into_iter().map(by_begin).collect(),
    };
    let kept = fences.clone();
    let lose = move |node: NodeIndex| {
        world.kill(node.0);
        // The other agents live until the runtime ends.
        std::mem::forget((world, kept));
    };
    Cluster { fences, lose: Some(Box::new(lose)) }
}

fn keeps_all_promises(nodes: u32, over: Over, fan_out: FanOut, is_paused: bool) {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().start_paused(is_paused).build().unwrap();
    for way in [Way::Exchange, Way::Begin] {
        let make = |nodes| async move { cluster(World::new(nodes, over, Limits::default()).await, fan_out, way) };
        let checked = runtime.block_on(async { tokio::time::timeout(DEADLINE, check(nodes, make)).await });
        checked
            .expect("an end within the deadline")
            .unwrap_or_else(|broken| panic!("{nodes} nodes, {fan_out:?}, {way:?}: {broken}"));
    }
}

#[test]
fn over_tcp_for_every_shape() {
    for fan_out in [FanOut { barrier: 1, data: 1 }, FanOut { barrier: 3, data: 2 }, FanOut::default(), FanOut::STAR] {
        keeps_all_promises(7, Over::Tcp, fan_out, false);
    }
}

#[test]
fn over_tcp_for_few_and_for_many_nodes() {
    for nodes in [1, 2, 33] {
        keeps_all_promises(nodes, Over::Tcp, FanOut::default(), false);
    }
}

#[test]
fn over_links_between_sessions_for_every_shape() {
    for fan_out in [FanOut { barrier: 1, data: 1 }, FanOut { barrier: 3, data: 2 }, FanOut::default(), FanOut::STAR] {
        keeps_all_promises(7, Over::Sessions, fan_out, false);
    }
}

#[test]
fn over_links_between_sessions_for_few_and_for_many_nodes() {
    for nodes in [1, 2, 33] {
        keeps_all_promises(nodes, Over::Sessions, FanOut::default(), false);
    }
}

/// The clock is paused here, so waiting for a lost node takes no time.
#[test]
fn over_memory_for_every_number_of_nodes_and_shape() {
    for nodes in [1, 2, 3, 4, 9, 18] {
        for (barrier, data) in [(1, 1), (2, 2), (2, 1), (1, 2), (3, 5), (8, 2), (16, 16), (u32::MAX, u32::MAX)] {
            keeps_all_promises(nodes, Over::Memory, FanOut { barrier, data }, true);
        }
    }
}
