//! Fences of Lattice over real TCP: between sessions over their links, or between agents over gRPC.

use std::time::Instant;

use bytes::Bytes;
use lattice_benches::sample::median;
use pmi_core::fence::Scope;
use pmi_core::ids::{Epoch, NodeIndex};
use pmi_transport::fence::{FanOut, LaunchFences, Limits};
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinSet;

use crate::agents::sessions::LAUNCH;
use crate::agents::{Over, World};
use crate::{Figures, RECORD};

/// A launch with open links.
pub(crate) struct Ours {
    /// Times of the first barrier, which opens links, and of the second barrier, in microseconds.
    opening: [f64; 2],
    runtime: Runtime,
    launches: Vec<&'static LaunchFences>,
    members: &'static [NodeIndex],
    rounds: std::cell::Cell<u64>,
}

impl Ours {
    pub(crate) fn new(nodes: u32, fan_out: FanOut, over: Over) -> Self {
        let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime can be built");
        let world = runtime.block_on(World::new(nodes, over, Limits::default()));
        let members = world.all().leak();
        let launches = {
            let _inside = runtime.enter();
            world.join_all(LAUNCH, fan_out)
        };
        // The launches live as long as the process, because tasks of several runs refer to them.
        std::mem::forget(world);
        let launches = launches.into_iter().map(|launch| &*Box::leak(Box::new(launch))).collect();
        let mut ours = Self { opening: [0.0; 2], runtime, launches, members, rounds: 0.into() };
        ours.opening = [(); 2].map(|()| ours.measure(1).barrier);
        ours
    }

    /// Time to open one link, in microseconds. A tree has one link less than nodes.
    pub(crate) fn link_cost(&self, nodes: u32) -> f64 {
        (self.opening[0] - self.opening[1]) / f64::from(nodes - 1)
    }

    /// Runs `fences` pairs of fences on all nodes: one fence without data, then one with data.
    pub(crate) fn measure(&self, fences: usize) -> Figures {
        let first = self.rounds.get();
        self.rounds.set(first + 2 * fences as u64);
        let members = self.members;
        let times = self.runtime.block_on(async {
            let mut nodes = JoinSet::new();
            for &launch in &self.launches {
                nodes.spawn(async move { go_through(launch, members, first, fences).await });
            }
            nodes.join_all().await
        });
        let all = |at: usize| median(&times.iter().map(|times| times[at]).collect::<Vec<_>>());
        Figures { barrier: all(0), data: all(1) }
    }
}

/// Median times of a barrier and of a fence with data, of one node, in microseconds.
async fn go_through(launch: &LaunchFences, members: &[NodeIndex], first: u64, fences: usize) -> [f64; 2] {
    let record = Bytes::from_static(&[7; RECORD]);
    let mut taken = [Vec::new(), Vec::new()];
    for epoch in (first..).step_by(2).take(fences) {
        for (kind, segments) in [Vec::new(), vec![record.clone()]].into_iter().enumerate() {
            let bytes = segments.len() * RECORD * members.len();
            let start = Instant::now();
            let epoch = Epoch(epoch + kind as u64);
            let gathered = launch.exchange("job", members, &Scope::World, epoch, segments).await.expect("a fence");
            taken[kind].push(start.elapsed().as_secs_f64() * 1e6);
            assert_eq!(gathered.runs.iter().map(Bytes::len).sum::<usize>(), bytes);
        }
    }
    taken.map(|times| median(&times))
}
