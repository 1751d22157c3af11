//! The suite that every implementation of [`Fence`] must pass. Call [`check`] in a test of the implementation.
//!
//! The suite needs no runtime: the executor that awaits [`check`] polls all calls of a trial together. A fence that never completes
//! blocks the suite indefinitely, so set a time limit for such fences.

use std::fmt;
use std::future::{self, Future};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Poll, Waker};

use async_trait::async_trait;
use parking_lot::Mutex;

use crate::fence::{Begun, Contribution, Exchange, Fence, FenceError, FenceId, Merged, Scope};
use crate::ids::{Epoch, NodeIndex};
use crate::segment::Segment;

/// The fences of some nodes that can reach each other.
pub struct Cluster {
    /// One fence for each node, in the order of the nodes.
    pub fences: Vec<Arc<dyn Fence>>,
    /// Ends a node without notice, as a crash does. Without it the suite does not check [`Promise::Loss`].
    pub lose: Option<Box<dyn FnOnce(NodeIndex) + Send>>,
}

impl From<Vec<Arc<dyn Fence>>> for Cluster {
    fn from(fences: Vec<Arc<dyn Fence>>) -> Self {
        Self { fences, lose: None }
    }
}

/// Calls a fence through [`Fence::begin`], so that the suite can check that path too.
pub struct ByBegin(pub Arc<dyn Fence>);

/// Result of a fence, and the task that waits for it.
type Awaited = Arc<Mutex<(Option<Result<Merged, FenceError>>, Option<Waker>)>>;

/// Gives up a fence when its call is dropped.
struct GiveUp<'fence>(&'fence dyn Fence, &'fence FenceId);

impl Drop for GiveUp<'_> {
    fn drop(&mut self) {
        self.0.give_up(self.1);
    }
}

#[async_trait]
impl Fence for ByBegin {
    async fn exchange(&self, id: &FenceId, contribution: Contribution) -> Result<Merged, FenceError> {
        let awaited = Awaited::default();
        let ended = Arc::clone(&awaited);
        let end = move |result| {
            let mut ended = ended.lock();
            ended.0 = Some(result);
            if let Some(waker) = ended.1.take() {
                waker.wake();
            }
        };
        match self.0.begin(id, contribution, Box::new(end)) {
            Begun::Over(result) => return result,
            Begun::Unavailable(contribution) => return self.0.exchange(id, contribution).await,
            Begun::Pending => {}
        }
        let _give_up = GiveUp(&*self.0, id);
        future::poll_fn(|context| {
            let mut awaited = awaited.lock();
            match awaited.0.take() {
                Some(result) => Poll::Ready(result),
                None => {
                    awaited.1 = Some(context.waker().clone());
                    Poll::Pending
                }
            }
        })
        .await
    }
}

/// Promise of a fence, checked by the suite.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Promise {
    /// All nodes receive the same result: the contributions in the order of the nodes.
    NodeOrder,
    /// A fence with some or only empty contributions is still a barrier.
    Emptiness,
    /// Fences of one scope follow each other. Fences of different scopes may be open at once, and never mix.
    Separation,
    /// A fence of some nodes does not need the other nodes.
    Membership,
    /// Large contributions arrive complete.
    Size,
    /// A fence withholds data only with permission. All nodes then receive the number of withheld bytes.
    Withholding,
    /// The loss of a node fails its fences on all other nodes.
    Loss,
}

impl fmt::Display for Promise {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NodeOrder => "all nodes take away the same, in the order of the nodes",
            Self::Emptiness => "nodes may bring nothing",
            Self::Separation => "different fences never mix",
            Self::Membership => "a fence of some nodes needs no others",
            Self::Size => "large contributions arrive whole",
            Self::Withholding => "data is withheld only where that is permitted, and counted",
            Self::Loss => "a lost node fails its fences everywhere",
        })
    }
}

/// A broken promise.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Broken {
    /// The closure created another number of fences than requested.
    #[error("{fences} fences were made for {nodes} nodes")]
    Incomplete {
        /// Requested number.
        nodes: u32,
        /// Number found.
        fences: usize,
    },
    /// A node received other pairs than the contributed ones.
    #[error("{promise}: among {nodes} nodes, node {node} took from {id:?} as pair {at} {found:?}, not {expected:?}")]
    OtherPairs {
        /// Promise that is broken.
        promise: Promise,
        /// The size of the cluster.
        nodes: u32,
        /// The node with the wrong result.
        node: NodeIndex,
        /// The fence.
        id: Box<FenceId>,
        /// The position of the first pair that differs.
        at: usize,
        /// The expected `key=value`; `None` after the end.
        expected: Option<Box<str>>,
        /// The `key=value` found; `None` after the end.
        found: Option<Box<str>>,
    },
    /// A fence withheld data without permission, or reported a wrong number of bytes.
    #[error(
        "{promise}: among {nodes} nodes, {id:?} reported to node {node} that {found} bytes are withheld; possible was {expected}",
        promise = Promise::Withholding
    )]
    Withheld {
        /// The size of the cluster.
        nodes: u32,
        /// The node that received the wrong number.
        node: NodeIndex,
        /// The fence.
        id: Box<FenceId>,
        /// Contributed bytes, or 0 where the fence may not withhold data.
        expected: u64,
        /// Reported bytes.
        found: u64,
    },
    /// A fence failed although every node took part in it.
    #[error("{promise}: among {nodes} nodes, {id:?} failed on node {node}")]
    Failed {
        /// Promise that is broken.
        promise: Promise,
        /// The size of the cluster.
        nodes: u32,
        /// The node on which it failed.
        node: NodeIndex,
        /// The fence.
        id: Box<FenceId>,
        /// Error of the fence.
        source: FenceError,
    },
    /// A fence succeeded on a node although another node of it was lost.
    #[error("{promise}: among {nodes} nodes, {id:?} succeeded on node {node} without node {lost}", promise = Promise::Loss)]
    Survived {
        /// The size of the cluster.
        nodes: u32,
        /// The node on which it succeeded.
        node: NodeIndex,
        /// The fence.
        id: Box<FenceId>,
        /// The node that was lost.
        lost: NodeIndex,
    },
}

/// Number of fences of one scope that follow each other.
const EPOCHS: u64 = 4;

/// Checks every promise with clusters of `nodes` nodes. `make` creates a new cluster for each promise, so that each starts with epoch 0.
///
/// # Errors
/// Returns the first broken promise.
pub async fn check<M>(nodes: u32, mut make: impl FnMut(u32) -> M) -> Result<(), Broken>
where
    M: Future<Output = Cluster>,
{
    let promises = [
        Promise::NodeOrder,
        Promise::Emptiness,
        Promise::Separation,
        Promise::Membership,
        Promise::Size,
        Promise::Withholding,
        Promise::Loss,
    ];
    for promise in promises {
        let cluster = make(nodes).await;
        if cluster.fences.len() != nodes as usize {
            return Err(Broken::Incomplete { nodes, fences: cluster.fences.len() });
        }
        let trial = Trial { promise, nodes, fences: cluster.fences };
        match (promise, cluster.lose) {
            (Promise::Loss, Some(lose)) if nodes > 1 => trial.lose_one(lose).await?,
            (Promise::Loss, _) => {}
            _ => trial.run().await?,
        }
    }
    Ok(())
}

/// One promise and the cluster for its check.
struct Trial {
    promise: Promise,
    nodes: u32,
    fences: Vec<Arc<dyn Fence>>,
}

/// Part of one node in a trial.
type Call<'a> = Pin<Box<dyn Future<Output = Result<(), Broken>> + Send + 'a>>;

impl Trial {
    /// The fences that are open at once.
    fn scopes(&self) -> Vec<Scope> {
        let group = |name: &str, nodes: Vec<NodeIndex>| Scope::Group { name: name.into(), nodes: nodes.into() };
        let all = || (0..self.nodes).map(NodeIndex);
        match self.promise {
            Promise::NodeOrder | Promise::Emptiness | Promise::Size | Promise::Withholding | Promise::Loss => {
                vec![Scope::World]
            }
            Promise::Separation => {
                let foreign = Scope::Foreign { name: "WORLD:0".into(), nodes: all().collect() };
                let groups = ["WORLD:0", "WORLD:1"].map(|name| group(name, all().collect()));
                [Scope::World, Scope::Ring, foreign].into_iter().chain(groups).collect()
            }
            Promise::Membership => {
                let every_other = all().step_by(2).collect();
                let mut groups = vec![group("0,2:0", every_other)];
                groups.extend(all().map(|node| group("NODE:0", vec![node])));
                groups
            }
        }
    }

    fn members(&self, scope: &Scope) -> Vec<NodeIndex> {
        scope.members(&(0..self.nodes).map(NodeIndex).collect::<Vec<_>>()).to_vec()
    }

    /// Runs all fences of all scopes on every node, without a pause.
    async fn run(&self) -> Result<(), Broken> {
        let scopes = self.scopes();
        let mut calls: Vec<Call<'_>> = Vec::new();
        for scope in &scopes {
            for node in self.members(scope) {
                calls.push(Box::pin(self.go_through(node, scope)));
            }
        }
        // The last node is the first to arrive.
        calls.reverse();
        join(calls).await
    }

    async fn go_through(&self, node: NodeIndex, scope: &Scope) -> Result<(), Broken> {
        for epoch in (0..EPOCHS).map(Epoch) {
            let id = FenceId { scope: scope.clone(), epoch };
            let exchange = self.exchange(epoch);
            let contribution = Contribution { segments: self.brings(node, &id), exchange };
            match self.fences[node.index()].exchange(&id, contribution).await {
                Ok(merged) if merged.withheld > 0 => self.compare_withheld(node, &id, &merged)?,
                Ok(merged) => self.compare(node, &id, &self.members(&id.scope), &merged.segments)?,
                Err(source) => {
                    let (promise, nodes, id) = (self.promise, self.nodes, Box::new(id));
                    return Err(Broken::Failed { promise, nodes, node, id, source });
                }
            }
        }
        Ok(())
    }

    /// Contribution of a node: pairs that name their origin.
    fn brings(&self, node: NodeIndex, id: &FenceId) -> Vec<Segment> {
        let pair = |number: u32| (format!("{node}.{}.{number}", id.epoch), format!("{:?}", id.scope));
        match self.promise {
            Promise::Emptiness if id.epoch.0.is_multiple_of(2) || node.0.is_multiple_of(2) => Vec::new(),
            Promise::Size => vec![[(node.to_string(), "x".repeat(256 * 1024))].into_iter().collect()],
            Promise::Withholding if id.epoch.0 == 1 => {
                // The first node's data fits one frame of most fences; the data of all nodes together does not.
                let len = if node.0 == 0 { 1024 } else { 256 * 1024 };
                vec![[(node.to_string(), "x".repeat(len))].into_iter().collect()]
            }
            _ => vec![[pair(0), pair(1)].into_iter().collect(), [pair(2)].into_iter().collect()],
        }
    }

    /// Permission of all nodes in a fence.
    fn exchange(&self, epoch: Epoch) -> Exchange {
        match (self.promise, epoch.0) {
            (Promise::Withholding, 0 | 1) => Exchange::Auto,
            (Promise::Withholding, 2) => Exchange::Lazy,
            _ => Exchange::Full,
        }
    }

    /// Checks the result of a fence that withholds data: the number of bytes, and the pairs of the first node or none.
    fn compare_withheld(&self, node: NodeIndex, id: &FenceId, merged: &Merged) -> Result<(), Broken> {
        let members = self.members(&id.scope);
        let is_permitted = self.exchange(id.epoch) != Exchange::Full;
        let brought = members.iter().filter(|_| is_permitted).flat_map(|member| self.brings(*member, id));
        let expected = brought.map(|segment| segment.as_bytes().len() as u64).sum();
        if merged.withheld != expected {
            let (nodes, id, found) = (self.nodes, Box::new(id.clone()), merged.withheld);
            return Err(Broken::Withheld { nodes, node, id, expected, found });
        }
        let sources = if merged.segments.is_empty() { &[] } else { &members[..1] };
        self.compare(node, id, sources, &merged.segments)
    }

    /// Compares pairs with the contributions of `sources`.
    fn compare(&self, node: NodeIndex, id: &FenceId, sources: &[NodeIndex], found: &[Segment]) -> Result<(), Broken> {
        let brought: Vec<_> = sources.iter().flat_map(|member| self.brings(*member, id)).collect();
        let mut expected = brought.iter().flat_map(Segment::pairs);
        let mut found = found.iter().flat_map(Segment::pairs);
        let mut at = 0;
        loop {
            match (expected.next(), found.next()) {
                (None, None) => return Ok(()),
                (expected, found) if expected == found => at += 1,
                (expected, found) => {
                    let (promise, nodes, id) = (self.promise, self.nodes, Box::new(id.clone()));
                    let (expected, found) = (expected.map(shown), found.map(shown));
                    return Err(Broken::OtherPairs { promise, nodes, node, id, at, expected, found });
                }
            }
        }
    }

    /// Waits until all nodes except the last have arrived, then loses the last node.
    async fn lose_one(&self, lose: Box<dyn FnOnce(NodeIndex) + Send>) -> Result<(), Broken> {
        let lost = NodeIndex(self.nodes - 1);
        let id = FenceId { scope: Scope::World, epoch: Epoch(0) };
        let mut calls: Vec<Call<'_>> = Vec::new();
        for node in (0..lost.0).map(NodeIndex) {
            let id = &id;
            calls.push(Box::pin(async move {
                let contribution = Contribution::from(self.brings(node, id));
                match self.fences[node.index()].exchange(id, contribution).await {
                    Err(_) => Ok(()),
                    Ok(_) => Err(Broken::Survived { nodes: self.nodes, node, id: Box::new(id.clone()), lost }),
                }
            }));
        }
        calls.push(Box::pin(async move {
            lose(lost);
            Ok(())
        }));
        join(calls).await
    }
}

fn shown((key, value): (&[u8], &[u8])) -> Box<str> {
    let text = |bytes: &[u8]| bytes[..bytes.len().min(64)].escape_ascii().to_string();
    format!("{}={}", text(key), text(value)).into()
}

/// Polls all calls until all succeed or one fails. After a failure the other calls may wait indefinitely.
async fn join(calls: Vec<Call<'_>>) -> Result<(), Broken> {
    let mut calls: Vec<_> = calls.into_iter().map(Some).collect();
    future::poll_fn(|context| {
        for call in &mut calls {
            if let Some(running) = call
                && let Poll::Ready(result) = running.as_mut().poll(context)
            {
                result?;
                *call = None;
            }
        }
        if calls.iter().all(Option::is_none) { Poll::Ready(Ok(())) } else { Poll::Pending }
    })
    .await
}
