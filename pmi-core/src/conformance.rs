//! The suite that every implementation of [`Fence`] must pass; whoever writes one calls [`check`] in a test of their own.
//!
//! The suite needs no runtime: all calls of a trial are polled together by whatever executor awaits [`check`]. A fence that never answers
//! makes it wait for ever, so give it a time limit where fences may.

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
    /// Ends a node without a word, as a crash does. Without it the promise about lost nodes is not checked.
    pub lose: Option<Box<dyn FnOnce(NodeIndex) + Send>>,
}

impl From<Vec<Arc<dyn Fence>>> for Cluster {
    fn from(fences: Vec<Arc<dyn Fence>>) -> Self {
        Self { fences, lose: None }
    }
}

/// The same fence by [`Fence::begin`], for the suite to check that way as well.
pub struct ByBegin(pub Arc<dyn Fence>);

/// Result of a fence, and the task that waits for it.
type Awaited = Arc<Mutex<(Option<Result<Merged, FenceError>>, Option<Waker>)>>;

/// Gives up a fence whose call is dropped.
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

/// Promise of a fence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Promise {
    /// All nodes take away the same: what was brought, in the order of the nodes.
    NodeOrder,
    /// A fence to which some or all bring nothing is a barrier all the same.
    Emptiness,
    /// Fences of one scope follow each other, and those of different scopes may be open at once; none takes part in another.
    Separation,
    /// A fence of some nodes needs no others.
    Membership,
    /// Large contributions arrive whole.
    Size,
    /// Data stays with its nodes only where that is permitted; then all nodes hear how many bytes that are.
    Withholding,
    /// When a node is lost, its fences fail on all other nodes.
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

/// A promise that was not kept.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Broken {
    /// The closure made another number of fences than it was asked for.
    #[error("{fences} fences were made for {nodes} nodes")]
    Incomplete {
        /// Number asked for.
        nodes: u32,
        /// Number found.
        fences: usize,
    },
    /// A node took away something else than was brought.
    #[error("{promise}: among {nodes} nodes, node {node} took from {id:?} as pair {at} {found:?}, not {expected:?}")]
    OtherPairs {
        /// Promise that is broken.
        promise: Promise,
        /// The size of the cluster.
        nodes: u32,
        /// The node that was served wrong.
        node: NodeIndex,
        /// In which fence.
        id: Box<FenceId>,
        /// The position of the first pair that differs.
        at: usize,
        /// The `key=value` that should be there; `None` behind the end.
        expected: Option<Box<str>>,
        /// Pairs found.
        found: Option<Box<str>>,
    },
    /// A fence withheld data that it was to carry, or counted it wrong.
    #[error(
        "{promise}: among {nodes} nodes, {id:?} told node {node} of {found} bytes withheld; possible was {expected}",
        promise = Promise::Withholding
    )]
    Withheld {
        /// The size of the cluster.
        nodes: u32,
        /// The node that was told.
        node: NodeIndex,
        /// The fence.
        id: Box<FenceId>,
        /// Bytes that were brought, or 0 where none may be withheld.
        expected: u64,
        /// Bytes that were told of.
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

/// Checks every promise with clusters of `nodes` nodes, which `make` makes: a new one for each promise, so that each begins with
/// epoch 0.
///
/// # Errors
/// Tells the first promise that is found broken.
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

/// One promise and the cluster that it is checked with.
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

    /// Every node goes through all fences of all scopes, as fast as it can.
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
                // The first node's data fits one frame of most fences, that of all together does not.
                let len = if node.0 == 0 { 1024 } else { 256 * 1024 };
                vec![[(node.to_string(), "x".repeat(len))].into_iter().collect()]
            }
            _ => vec![[pair(0), pair(1)].into_iter().collect(), [pair(2)].into_iter().collect()],
        }
    }

    /// Permission that all nodes give in a fence.
    fn exchange(&self, epoch: Epoch) -> Exchange {
        match (self.promise, epoch.0) {
            (Promise::Withholding, 0 | 1) => Exchange::Auto,
            (Promise::Withholding, 2) => Exchange::Lazy,
            _ => Exchange::Full,
        }
    }

    /// Compares the result of a fence that withheld data: its bytes are counted, and the first node's data is there, or none.
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

    /// Compares pairs with those that `sources` brought.
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

    /// All nodes but the last arrive, then the last is lost.
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

/// Polls all calls until all have kept their promise, or one has not: the others may wait for that one for ever.
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
