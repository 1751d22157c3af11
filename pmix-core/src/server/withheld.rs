//! Data of fences that stayed on the nodes of its ranks. A node fetches it when its ranks request it. After many requests it is spread to
//! all nodes, because that is then cheaper.
//!
//! ```text
//! fence ──Merged::withheld──> Apart ──a get of another node's rank──> that node's data arrives once, the get is served
//!                               │ a node has fetched about as much as a spread costs: its wish goes up a tree to the first node,
//!                               v which notifies all nodes down the tree
//!                           Spreading: one more fence of the same nodes, with the data ──> Whole
//!
//! all members of this node have exited ──> a last barrier of the nodes ──> no further requests: the server may end
//! ```
//! The rule is ski rental: renting until the rent equals the price costs at most twice the optimum, however much of the data is requested
//! in the end. The rent is the fetched bytes, and [`QUESTION_COST`] for each question. The price is [`SPREAD_COST`] times all the data,
//! because a node receives one share and sends two. For each level of the tree, the price adds half a question, one way.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use pmi_core::fence::{Contribution, Exchange, FenceError, FenceId, Merged, Scope};
use pmi_core::ids::{Epoch, NodeIndex, Rank};
use pmi_core::report::EndReason;

use super::action::Action;
use super::jobs::Jobs;
use super::launch::Launch;
use super::members::Members;
use super::open_questions::OpenQuestion;
use super::question::Question;
use super::segments::{absorb, data_of};
use crate::namespace::JobIndex;

/// Bytes through a node for each spread byte: one in, two out, in the binary tree of fences with data.
const SPREAD_COST: u64 = 3;

/// Bytes that could be sent in the time of one question to another node: about 0.1 ms at 10 Gbit/s.
const QUESTION_COST: u64 = 128 * 1024;

/// Fan-out of the tree that carries wishes up and spreads down.
const FAN_OUT: usize = 8;

/// Maximum number of stored spreads for fences that have not ended here.
const EARLY_MAX: usize = 1024;

/// Suffixes of the names of the fences for a collective with withheld data. A collective's own name ends with a namespace or a rank.
const SPREAD: &str = " spread";
const LAST: &str = " last";

/// Collectives with withheld data, by name.
#[derive(Debug, Default)]
pub(super) struct WithheldData {
    rounds: BTreeMap<Arc<str>, Round>,
    /// Spreads that began elsewhere before the end of their fence here.
    early: BTreeMap<Arc<str>, Epoch>,
    /// Wishes of lower nodes that arrived before the end of their fence here.
    early_wishes: BTreeMap<Arc<str>, Epoch>,
}

/// Data that a spread has brought.
#[derive(Debug, Default)]
pub(super) struct SpreadData {
    /// Jobs and nodes with all their data here.
    pub(super) covered: BTreeSet<(JobIndex, NodeIndex)>,
    /// Ranks with new data.
    pub(super) changed: BTreeSet<(JobIndex, Rank)>,
}

/// State of this node in one collective's last round with withheld data.
#[derive(Debug)]
struct Round {
    epoch: Epoch,
    nodes: Arc<[NodeIndex]>,
    members: Arc<Members>,
    host: JobIndex,
    /// Bytes that the nodes have withheld, in this round and in earlier ones: each round adds only new data.
    withheld: u64,
    /// Fetched bytes, and [`QUESTION_COST`] for each question.
    spent: u64,
    /// Nodes and jobs with their data here.
    here: BTreeSet<(JobIndex, NodeIndex)>,
    spread: Spread,
    /// Epoch of the last spread that this node took part in.
    spread_epoch: Option<Epoch>,
    last: Last,
}

/// Progress of a round's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Spread {
    Apart,
    /// The first node has received the wish of this node, or of a lower one.
    Wished,
    /// This node takes part in the spread.
    Begun,
    Whole,
}

/// Progress of the last barrier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Last {
    /// Ranks of this node may still send requests.
    Ahead,
    Waiting,
    Over,
}

/// Cost of a spread of `bytes` bytes over `nodes` nodes, in bytes that could be sent in its time.
fn price(bytes: u64, nodes: usize) -> u64 {
    let levels = u64::from(usize::BITS - nodes.leading_zeros());
    bytes.saturating_mul(SPREAD_COST).saturating_add(levels * QUESTION_COST / 2)
}

impl WithheldData {
    /// Returns true while ranks of other nodes may request data that stayed here.
    pub(super) fn is_needed(&self) -> bool {
        self.rounds.values().any(|round| round.last != Last::Over)
    }

    /// A fence of these members left its data on the nodes. The first node's data may be in its result.
    pub(super) fn add(&mut self, jobs: &Jobs, id: &FenceId, merged: &Merged, members: Arc<Members>) {
        let Scope::Foreign { name, nodes } = &id.scope else { return };
        let Some(host) = members.host(jobs) else { return };
        let mut here = BTreeSet::new();
        if let Some(&first) = nodes.first().filter(|_| !merged.segments.is_empty()) {
            here.extend(members.ours.keys().map(|&job| (job, first)));
        }
        let before = self.rounds.get(name);
        let spread_epoch = before.and_then(|before| before.spread_epoch);
        let withheld_before =
            before.filter(|before| before.spread != Spread::Whole).map_or(0, |before| before.withheld);
        let round = Round {
            epoch: id.epoch,
            nodes: Arc::clone(nodes),
            members,
            host,
            withheld: merged.withheld.saturating_add(withheld_before),
            spent: 0,
            here,
            spread: Spread::Apart,
            spread_epoch,
            last: Last::Ahead,
        };
        self.rounds.insert(Arc::clone(name), round);
    }

    /// Takes part in spreads that other nodes requested before the end of the fence here.
    pub(super) fn begin_early(&mut self, launch: &mut Launch, id: &FenceId) {
        let Scope::Foreign { name, .. } = &id.scope else { return };
        if let Some(epoch) = self.early.remove(name) {
            self.spread(launch, name, epoch);
        }
        if let Some(epoch) = self.early_wishes.remove(name) {
            self.on_wish(launch, name, epoch);
        }
    }

    /// The node that withholds a rank's commits; `None` if no node does, or the data has arrived here.
    pub(super) fn withholder(&self, jobs: &Jobs, job: JobIndex, rank: Rank) -> Option<NodeIndex> {
        let node = jobs[job].other_node(rank)?;
        let withholds = |round: &Round| {
            let is_apart = round.spread != Spread::Whole && !round.here.contains(&(job, node));
            is_apart && round.members.include(job, rank)
        };
        self.rounds.values().any(withholds).then_some(node)
    }

    /// A node has sent all commits of its ranks: `bytes` bytes.
    pub(super) fn count_fetched(&mut self, job: JobIndex, node: NodeIndex, bytes: u64) {
        for round in self.rounds.values_mut() {
            if round.nodes.contains(&node) && round.members.ours.contains_key(&job) && round.here.insert((job, node)) {
                round.spent = round.spent.saturating_add(QUESTION_COST + bytes);
            }
        }
    }

    /// Requests the spread of data of which this node has fetched too much.
    pub(super) fn request_spreads(&mut self, launch: &mut Launch) {
        if launch.settings.exchange != Exchange::Auto {
            return;
        }
        let is_due =
            |round: &Round| round.spread == Spread::Apart && round.spent >= price(round.withheld, round.nodes.len());
        let due = self.rounds.iter().filter(|(_, round)| is_due(round));
        let due: Vec<_> = due.map(|(name, round)| (Arc::clone(name), round.epoch)).collect();
        for (name, epoch) in due {
            self.on_wish(launch, &name, epoch);
        }
    }

    /// This node or a lower one requests a spread: the first node begins it, any other node forwards the wish, once.
    pub(super) fn on_wish(&mut self, launch: &mut Launch, name: &Arc<str>, epoch: Epoch) {
        let own = launch.jobs.own_node();
        let Some(round) = self.rounds.get_mut(name).filter(|round| round.epoch >= epoch) else {
            if self.early_wishes.len() < EARLY_MAX {
                self.early_wishes.insert(Arc::clone(name), epoch);
            }
            return;
        };
        let Some(own) = own.and_then(|own| round.nodes.binary_search(&own).ok()) else { return };
        if own == 0 {
            return self.spread(launch, name, epoch);
        }
        if round.epoch == epoch && round.spread == Spread::Apart {
            round.spread = Spread::Wished;
            let above = round.nodes[(own - 1) / FAN_OUT];
            launch.ask_peer(above, &Question::Wish { name: Arc::clone(name), epoch }, OpenQuestion::Spread);
        }
    }

    /// Takes part in the spread of a collective's data, once, and notifies the lower nodes.
    pub(super) fn spread(&mut self, launch: &mut Launch, name: &Arc<str>, epoch: Epoch) {
        let Some(round) = self.rounds.get_mut(name).filter(|round| round.epoch >= epoch) else {
            if self.early.len() < EARLY_MAX {
                self.early.insert(Arc::clone(name), epoch);
            }
            return;
        };
        if round.spread_epoch.is_some_and(|last| last >= epoch) {
            return;
        }
        round.spread_epoch = Some(epoch);
        if round.epoch == epoch && round.spread != Spread::Whole {
            round.spread = Spread::Begun;
        }
        let (nodes, members, job) = (Arc::clone(&round.nodes), Arc::clone(&round.members), round.host);
        let own = launch.jobs.own_node().and_then(|own| nodes.binary_search(&own).ok()).unwrap_or(nodes.len());
        for &below in nodes.iter().skip(own.saturating_mul(FAN_OUT) + 1).take(FAN_OUT) {
            launch.ask_peer(below, &Question::Spread { name: Arc::clone(name), epoch }, OpenQuestion::Spread);
        }
        let contribution = data_of(&launch.jobs, &members.seats(&launch.jobs)).into();
        begin_fence(launch, job, &format!("{name}{SPREAD}"), nodes, epoch, contribution);
    }

    /// Handles the result of a fence for a collective's withheld data; returns `None` for any other fence.
    pub(super) fn on_fence(
        &mut self,
        launch: &mut Launch,
        job: JobIndex,
        id: &FenceId,
        result: &Result<Merged, Arc<FenceError>>,
    ) -> Option<SpreadData> {
        let Scope::Foreign { name, .. } = &id.scope else { return None };
        if let Some(round) = name.strip_suffix(LAST).and_then(|name| self.rounds.get_mut(name)) {
            // A node that left without this barrier sends no further requests either.
            round.last = Last::Over;
            return Some(SpreadData::default());
        }
        let round = self.rounds.get_mut(name.strip_suffix(SPREAD)?)?;
        match result {
            Ok(merged) => {
                let (_, changed) = absorb(&mut launch.jobs, merged);
                return Some(SpreadData { covered: round.end_spread(id.epoch), changed });
            }
            Err(error) if round.last == Last::Ahead => launch.end(job, EndReason::Fence(Arc::clone(error))),
            // The other nodes have no rank left that could send requests.
            Err(_) => {}
        }
        Some(SpreadData::default())
    }

    /// Joins the last barrier of each collective after all its members on this node have exited.
    pub(super) fn look_for_last_exits(&mut self, launch: &mut Launch) {
        for (name, round) in self.rounds.iter_mut().filter(|(_, round)| round.last == Last::Ahead) {
            let mut seats = round.members.seats(&launch.jobs).into_iter();
            if seats.all(|seat| launch.jobs.rank(seat).exited) {
                round.last = Last::Waiting;
                let nodes = Arc::clone(&round.nodes);
                begin_fence(launch, round.host, &format!("{name}{LAST}"), nodes, round.epoch, Contribution::default());
            }
        }
    }

    /// Drops the rounds with members of a removed job.
    pub(super) fn remove(&mut self, job: JobIndex) {
        self.rounds.retain(|_, round| !round.members.ours.contains_key(&job));
    }
}

impl Round {
    /// The spread of an epoch has brought its data. Returns the jobs and nodes with all their data here.
    fn end_spread(&mut self, epoch: Epoch) -> BTreeSet<(JobIndex, NodeIndex)> {
        if self.epoch != epoch {
            return BTreeSet::new();
        }
        self.spread = Spread::Whole;
        let jobs = self.members.ours.keys();
        jobs.flat_map(|&job| self.nodes.iter().map(move |&node| (job, node))).collect()
    }
}

fn begin_fence(
    launch: &mut Launch,
    job: JobIndex,
    name: &str,
    nodes: Arc<[NodeIndex]>,
    epoch: Epoch,
    contribution: Contribution,
) {
    let scope = Scope::Foreign { name: name.into(), nodes };
    launch.actions.push_back(Action::Fence { job, id: FenceId { scope, epoch }, contribution });
}
