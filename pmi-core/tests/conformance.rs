//! The conformance suite on the fences of this crate, and on a fence in memory: one correct fence, and faulty ones that the suite must
//! detect.

use std::collections::{BTreeMap, HashMap};
use std::future::{poll_fn, ready};
use std::sync::{Arc, Mutex};
use std::task::{Poll, Waker};

use async_trait::async_trait;
use pmi_core::conformance::{Broken, Cluster, Promise, check};
use pmi_core::fence::{Contribution, Fence, FenceError, FenceId, LocalFence, Merged, Scope};
use pmi_core::ids::NodeIndex;

/// Fault of a star, if any.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fault {
    None,
    /// Contributions are merged in the order of their arrival.
    OrderOfArrival,
    /// A fence without pairs fails.
    RefusesNothing,
    /// Only epochs distinguish fences.
    MixesScopes,
    /// A group requires all nodes.
    NeedsEveryNode,
    /// Only the first segment of a node arrives.
    Truncates,
    /// A lost node counts as an empty contribution.
    IgnoresLoss,
}

/// The hub of a star: every node sends its contribution here.
#[derive(Default)]
struct Hub {
    rounds: HashMap<(Option<Scope>, u64), Round>,
    lost: Option<NodeIndex>,
    waiting: Vec<Waker>,
}

#[derive(Default)]
struct Round {
    arrived: Vec<NodeIndex>,
    brought: BTreeMap<usize, Contribution>,
}

struct Ray {
    hub: Arc<Mutex<Hub>>,
    node: NodeIndex,
    nodes: u32,
    fault: Fault,
}

#[async_trait]
impl Fence for Ray {
    async fn exchange(&self, id: &FenceId, contribution: Contribution) -> Result<Merged, FenceError> {
        let key = ((self.fault != Fault::MixesScopes).then(|| id.scope.clone()), id.epoch.0);
        self.arrive(key.clone(), contribution);
        poll_fn(|context| {
            let mut hub = self.hub.lock().unwrap();
            let result = self.result(&hub, &key, id);
            if result.is_none() {
                hub.waiting.push(context.waker().clone());
            }
            result.map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }
}

impl Ray {
    fn arrive(&self, key: (Option<Scope>, u64), mut contribution: Contribution) {
        let mut hub = self.hub.lock().unwrap();
        let round = hub.rounds.entry(key).or_default();
        let place = if self.fault == Fault::OrderOfArrival { round.arrived.len() } else { self.node.index() };
        if self.fault == Fault::Truncates {
            contribution.segments.truncate(1);
        }
        round.arrived.push(self.node);
        round.brought.insert(place, contribution);
        hub.waiting.drain(..).for_each(Waker::wake);
    }

    fn result(&self, hub: &Hub, key: &(Option<Scope>, u64), id: &FenceId) -> Option<Result<Merged, FenceError>> {
        let members = match &id.scope {
            Scope::Group { nodes, .. } => nodes.to_vec(),
            _ => (0..self.nodes).map(NodeIndex).collect(),
        };
        let refused = |reason: &str| Some(Err(FenceError::BadSegment { epoch: id.epoch, reason: reason.into() }));
        if self.fault == Fault::NeedsEveryNode && members.len() < self.nodes as usize {
            return refused("not every node is in the group");
        }
        let round = &hub.rounds[key];
        let missing = members.iter().find(|member| !round.arrived.contains(member));
        match missing {
            Some(lost) if hub.lost != Some(*lost) => return None,
            Some(lost) if self.fault != Fault::IgnoresLoss => {
                return Some(Err(FenceError::NodeLost { node: *lost, epoch: id.epoch, reason: "lost".into() }));
            }
            _ => {}
        }
        let segments: Vec<_> = round.brought.values().flat_map(|brought| brought.segments.clone()).collect();
        if segments.is_empty() && self.fault == Fault::RefusesNothing {
            return refused("nobody brought anything");
        }
        Some(Ok(segments.into()))
    }
}

fn star(nodes: u32, fault: Fault) -> Cluster {
    let hub = Arc::new(Mutex::new(Hub::default()));
    let ray = |node| Arc::new(Ray { hub: Arc::clone(&hub), node: NodeIndex(node), nodes, fault }) as Arc<dyn Fence>;
    let fences = (0..nodes).map(ray).collect();
    let lose = move |node| {
        let mut hub = hub.lock().unwrap();
        hub.lost = Some(node);
        hub.waiting.drain(..).for_each(Waker::wake);
    };
    Cluster { fences, lose: Some(Box::new(lose)) }
}

fn verdict(nodes: u32, fault: Fault) -> Result<(), Broken> {
    pollster::block_on(check(nodes, |nodes| ready(star(nodes, fault))))
}

#[test]
fn the_local_fence_serves_one_node() {
    let local = |_| ready(Cluster::from(vec![Arc::new(LocalFence) as Arc<dyn Fence>]));
    pollster::block_on(check(1, local)).unwrap();
}

#[test]
fn a_star_serves_any_number_of_nodes() {
    for nodes in [1, 2, 3, 16] {
        verdict(nodes, Fault::None).unwrap();
    }
}

#[test]
fn local_fences_do_not_serve_several_nodes() {
    let local =
        |nodes| ready(Cluster::from((0..nodes).map(|_| Arc::new(LocalFence) as Arc<dyn Fence>).collect::<Vec<_>>()));
    let broken = pollster::block_on(check(2, local)).unwrap_err();
    assert!(matches!(broken, Broken::OtherPairs { promise: Promise::NodeOrder, .. }), "{broken}");
}

#[test]
fn every_fault_is_found_under_its_promise() {
    let promise_of = |fault| match verdict(3, fault).expect_err("it is broken") {
        Broken::OtherPairs { promise, .. } | Broken::Failed { promise, .. } => promise,
        Broken::Survived { lost: NodeIndex(2), .. } => Promise::Loss,
        other => panic!("{fault:?}: {other}"),
    };
    for (fault, promise) in [
        (Fault::OrderOfArrival, Promise::NodeOrder),
        (Fault::RefusesNothing, Promise::Emptiness),
        (Fault::MixesScopes, Promise::Separation),
        (Fault::NeedsEveryNode, Promise::Membership),
        (Fault::Truncates, Promise::NodeOrder),
        (Fault::IgnoresLoss, Promise::Loss),
    ] {
        assert_eq!(promise_of(fault), promise, "{fault:?}");
    }
}

#[test]
fn the_number_of_fences_is_checked() {
    let broken = pollster::block_on(check(2, |_| ready(star(3, Fault::None)))).unwrap_err();
    assert!(matches!(broken, Broken::Incomplete { nodes: 2, fences: 3 }), "{broken}");
}
