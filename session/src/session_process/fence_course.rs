//! Course of one fence on one node when other nodes die: the next exchange, and the result of the fence. Pure.
//!
//! ```text
//!                    no node has the result
//! contributions ──────────────────────────────────────────> over
//!      ^  ^  └──a node has it──> repetition ──complete──────> │
//!      │  └───────a node dies────────┘                        │
//!      └───────────────────────────────a node dies────────────┘
//! ```
//! A node with the result may be the only one, because the other nodes may have abandoned that exchange. It therefore sends a mark instead
//! of its contribution. If at least one node sends a mark, the first of these nodes sends the result in a second exchange. All nodes then
//! use this result, so a value of a dead node is readable on every node. Without a mark, no node has the values of the dead node.

use pmi_core::fence::{Contribution, Exchange, FenceError, FenceId, Merged, Scope};
use pmi_core::ids::NodeIndex;
use pmi_core::kvs::Segment;
use pmi_transport::fence::Gathered;

/// Key of the pair that marks a node with the result. It begins with a NUL, so no PMI client can put it.
const MARK: &[u8] = b"\0lattice.fence.result";

/// State of a fence on this node.
#[derive(Clone, Debug)]
pub(super) struct FenceCourse {
    id: FenceId,
    me: NodeIndex,
    /// Number of nodes of the fence before the first death.
    all: usize,
    /// Living nodes of the fence.
    among: Vec<NodeIndex>,
    contribution: Contribution,
    /// Result on this node, if it has one.
    result: Option<Merged>,
    stage: Stage,
}

/// Purpose of the next exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Each node sends its contribution, or its mark if it has the result.
    Contributions,
    /// The source node sends the result. The other nodes send no data.
    Repetition(Source),
    /// No exchange is necessary until another node dies.
    Over,
}

/// Node that sends the result of a fence in a repetition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Source {
    node: NodeIndex,
    /// Number of bytes that the nodes of the fence did not send.
    withheld: u64,
}

/// An exchange of a fence.
#[derive(Clone, Debug)]
pub(super) struct FenceExchange {
    /// Name of the exchange, equal on all its nodes.
    pub(super) scope: Scope,
    /// Nodes of the exchange.
    pub(super) among: Vec<NodeIndex>,
    /// Contribution of this node.
    pub(super) contribution: Contribution,
}

/// Returns true if a fence among these nodes needs no exchange on node `me`: no other node is among them, or `me` is not.
pub(super) fn is_alone(among: &[NodeIndex], me: NodeIndex) -> bool {
    among.len() < 2 || !among.contains(&me)
}

impl FenceCourse {
    /// A fence of `all` nodes on node `me`. The nodes in `among` are alive.
    pub(super) fn new(
        id: FenceId,
        me: NodeIndex,
        all: usize,
        among: Vec<NodeIndex>,
        contribution: Contribution,
    ) -> Self {
        Self { id, me, all, among, contribution, result: None, stage: Stage::Contributions }
    }

    pub(super) fn id(&self) -> &FenceId {
        &self.id
    }

    /// Living nodes of the fence.
    pub(super) fn among(&self) -> &[NodeIndex] {
        &self.among
    }

    /// Returns true if no other node is necessary: no other node is left, or all ranks of this node have died.
    pub(super) fn is_alone(&self) -> bool {
        is_alone(&self.among, self.me)
    }

    /// Result on this node. Without other nodes, this is the node's own contribution.
    pub(super) fn into_result(self) -> Merged {
        self.result.unwrap_or_else(|| self.contribution.segments.into())
    }

    /// Returns the next exchange; `None` if no exchange is due.
    pub(super) fn exchange(&self) -> Option<FenceExchange> {
        if self.is_alone() {
            return None;
        }
        let (scope, contribution) = match (self.stage, &self.result) {
            (Stage::Over, _) => return None,
            (Stage::Contributions, Some(result)) => (self.scope(), mark(self.me, result.withheld).into()),
            (Stage::Contributions, None) => (self.scope(), self.own_contribution()),
            (Stage::Repetition(source), Some(result)) if source.node == self.me => {
                (self.repetition(), result.segments.clone().into())
            }
            (Stage::Repetition(_), _) => (self.repetition(), Contribution::default()),
        };
        Some(FenceExchange { scope, among: self.among.clone(), contribution })
    }

    /// Sets the living nodes. A change restarts the fence with the exchange of contributions.
    pub(super) fn on_members(&mut self, among: Vec<NodeIndex>) {
        if among != self.among {
            (self.among, self.stage) = (among, Stage::Contributions);
        }
    }

    /// Handles the end of an exchange. Returns the result if the fence is over.
    ///
    /// # Errors
    /// Fails if a node sent an unreadable segment.
    pub(super) fn on_gathered(&mut self, gathered: Gathered) -> Result<Option<Merged>, FenceError> {
        let mut merged = gathered.merged(self.id.epoch)?;
        match self.stage {
            Stage::Repetition(source) => merged.withheld = source.withheld,
            Stage::Contributions if self.has_dead_nodes() => {
                let marks = marks(&merged);
                if let Some(&source) = marks.first() {
                    // No repetition is necessary if all nodes have the result.
                    let are_all = marks.len() == self.among.len();
                    self.stage = if are_all { Stage::Over } else { Stage::Repetition(source) };
                    return Ok(None);
                }
            }
            Stage::Contributions | Stage::Over => {}
        }
        self.stage = Stage::Over;
        Ok(Some(self.result.get_or_insert(merged).clone()))
    }

    fn has_dead_nodes(&self) -> bool {
        self.among.len() < self.all
    }

    /// Contribution of this node. After a death, the exchange is always full: in a partial exchange, a mark would stay on its node.
    fn own_contribution(&self) -> Contribution {
        let Contribution { segments, exchange } = self.contribution.clone();
        let exchange = if self.has_dead_nodes() { Exchange::Full } else { exchange };
        Contribution { segments, exchange }
    }

    /// Name of the exchange of contributions.
    fn scope(&self) -> Scope {
        let nodes = || self.among.as_slice().into();
        match &self.id.scope {
            Scope::Group { name, .. } => Scope::Group { name: name.clone(), nodes: nodes() },
            Scope::Foreign { name, .. } => Scope::Foreign { name: name.clone(), nodes: nodes() },
            whole => whole.clone(),
        }
    }

    /// Name of the exchange of a known result. It begins with a NUL, so no client can use it.
    fn repetition(&self) -> Scope {
        let (kind, name) = match &self.id.scope {
            Scope::Group { name, .. } => ("group", &**name),
            Scope::Foreign { name, .. } => ("foreign", &**name),
            Scope::Ring => ("ring", ""),
            _ => ("world", ""),
        };
        Scope::Foreign { name: format!("\0result {kind} {name}").into(), nodes: self.among.as_slice().into() }
    }
}

/// Mark of a node with the result. It contains the number of bytes that the nodes did not send.
fn mark(node: NodeIndex, withheld: u64) -> Vec<Segment> {
    Segment::several([(MARK, format!("{} {withheld}", node.0))])
}

/// Returns the nodes with a mark, in order.
fn marks(gathered: &Merged) -> Vec<Source> {
    let marks = gathered.segments.iter().flat_map(Segment::pairs).filter(|(key, _)| *key == MARK);
    let source = |value: &[u8]| {
        let (node, withheld) = std::str::from_utf8(value).ok()?.split_once(' ')?;
        Some(Source { node: NodeIndex(node.parse().ok()?), withheld: withheld.parse().ok()? })
    };
    marks.filter_map(|(_, value)| source(value)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use pmi_core::ids::Epoch;

    fn course(node: u32, value: &str) -> FenceCourse {
        let id = FenceId { scope: Scope::World, epoch: Epoch(3) };
        let contribution = Contribution { segments: Segment::several([("key", value)]), exchange: Exchange::Auto };
        FenceCourse::new(id, NodeIndex(node), 3, nodes(&[0, 1, 2]), contribution)
    }

    fn nodes(nodes: &[u32]) -> Vec<NodeIndex> {
        nodes.iter().copied().map(NodeIndex).collect()
    }

    /// Runs one exchange among courses, which are in node order. Returns the values if the fence is over.
    fn exchange(courses: &mut [&mut FenceCourse]) -> Option<Vec<String>> {
        let parts: Vec<FenceExchange> = courses.iter().map(|course| course.exchange().expect("an exchange")).collect();
        assert!(parts.iter().all(|part| (&part.scope, &part.among) == (&parts[0].scope, &parts[0].among)));
        let segments = parts.into_iter().flat_map(|part| part.contribution.segments);
        let gathered = Gathered { runs: segments.map(Segment::into_bytes).collect(), withheld: 0 };
        let results: Vec<_> = courses.iter_mut().map(|course| course.on_gathered(gathered.clone()).unwrap()).collect();
        let values = |result: &Merged| {
            let pairs = result.segments.iter().flat_map(Segment::pairs);
            pairs.map(|(_, value)| String::from_utf8_lossy(value).into_owned()).collect::<Vec<_>>()
        };
        let results: Vec<Option<Vec<String>>> = results.iter().map(|result| result.as_ref().map(values)).collect();
        assert!(results.windows(2).all(|pair| pair[0] == pair[1]), "{results:?}");
        results[0].clone()
    }

    fn check(having: &[u32], expected: &[&str]) {
        let (mut zero, mut one, mut two) = (course(0, "a"), course(1, "b"), course(2, "c"));
        if !having.is_empty() {
            let mut others = [zero.clone(), one.clone()];
            let [first, second] = &mut others;
            exchange(&mut [first, second, &mut two.clone()]).unwrap();
            for &node in having {
                *[&mut zero, &mut one][node as usize] = others[node as usize].clone();
            }
        }
        [&mut zero, &mut one].into_iter().for_each(|course| course.on_members(nodes(&[0, 1])));
        if !having.is_empty() {
            assert_eq!(exchange(&mut [&mut zero, &mut one]), None, "the result is brought next, if a node needs it");
        }
        if having.len() < 2 {
            assert_eq!(exchange(&mut [&mut zero, &mut one]).unwrap(), expected);
        }
        one.on_members(nodes(&[0, 1]));
        assert!(zero.exchange().is_none() && one.exchange().is_none(), "nothing has changed");
        // After another death, the remaining node needs no exchange and keeps its result.
        one.on_members(nodes(&[1]));
        assert!(one.is_alone() && one.exchange().is_none());
        assert_eq!(one.into_result().segments.len(), expected.len());
        two.on_members(nodes(&[0, 1]));
        assert!(two.is_alone(), "a node whose ranks are dead waits for no other");
    }

    #[test]
    fn a_result_that_one_living_node_has_becomes_that_of_all() {
        check(&[0], &["a", "b", "c"]);
        check(&[1], &["a", "b", "c"]);
        check(&[0, 1], &["a", "b", "c"]);
    }

    #[test]
    fn a_fence_without_a_result_begins_anew_among_the_living() {
        check(&[], &["a", "b"]);
    }

    #[test]
    fn data_left_with_its_nodes_stays_there_in_a_repetition() {
        let (mut zero, mut one) = (course(0, "a"), course(1, "b"));
        zero.on_gathered(Gathered { runs: Vec::new(), withheld: 9 }).unwrap();
        [&mut zero, &mut one].into_iter().for_each(|course| course.on_members(nodes(&[0, 1])));
        assert_eq!(exchange(&mut [&mut zero, &mut one]), None);
        assert_eq!(exchange(&mut [&mut zero, &mut one]).unwrap(), Vec::<String>::new());
        assert_eq!(one.into_result().withheld, 9);
    }

    #[test]
    fn a_fence_of_all_nodes_may_leave_data_where_it_is_and_one_of_survivors_may_not() {
        let mut course = course(0, "a");
        assert_eq!(course.exchange().unwrap().contribution.exchange, Exchange::Auto);
        course.on_members(nodes(&[0, 1]));
        assert_eq!(course.exchange().unwrap().contribution.exchange, Exchange::Full);
    }
}
