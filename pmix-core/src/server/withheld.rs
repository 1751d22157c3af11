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

use bytes::Bytes;
use pmi_core::fence::{Contribution, Exchange, FenceError, FenceId, Merged, Scope};
use pmi_core::ids::{Epoch, NodeIndex, Rank};
use pmi_core::report::EndReason;
use pmi_core::segment::Segment;

use super::members::Members;
use super::open_questions::{Get, OpenQuestion};
use super::pending::Pending;
use super::question::Question;
use super::{Action, Address, Server, Ticket};
use crate::namespace::{JobIndex, Seat};
use crate::wire::status;

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

/// Collectives with withheld data, by name, and the gets that wait for the data.
#[derive(Debug, Default)]
pub(super) struct WithheldData {
    rounds: BTreeMap<Arc<str>, Round>,
    /// Spreads that began elsewhere before the end of their fence here.
    early: BTreeMap<Arc<str>, Epoch>,
    /// Wishes of lower nodes that arrived before the end of their fence here.
    early_wishes: BTreeMap<Arc<str>, Epoch>,
    /// Gets that wait for the data of a node.
    gets: Pending<(JobIndex, NodeIndex), WaitingGet>,
}

/// A get that waits for the data of its rank's node.
#[derive(Clone, Debug)]
struct WaitingGet {
    address: Address,
    get: Get,
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

    /// Removes a get; returns the address of its answer.
    pub(super) fn take_get(&mut self, ticket: Ticket) -> Option<Address> {
        self.gets.remove(ticket).map(|waiting| waiting.address)
    }
}

impl Server {
    /// A fence left its data on the nodes. The first node's data may be in its result.
    pub(super) fn withhold(&mut self, id: &FenceId, merged: &Merged) {
        let Scope::Foreign { name, nodes } = &id.scope else { return };
        let members = self.collectives.get_mut(name).and_then(|gathering| gathering.leaving().first());
        let Some(members) = members.map(|waiter| Arc::clone(&waiter.members)) else { return };
        let Some(host) = self.host_of(&members) else { return };
        let mut here = BTreeSet::new();
        if let Some(&first) = nodes.first().filter(|_| !merged.segments.is_empty()) {
            here.extend(members.ours.keys().map(|&job| (job, first)));
        }
        let before = self.withheld.rounds.get(name);
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
        self.withheld.rounds.insert(Arc::clone(name), round);
        self.tell_need();
        if let Some(epoch) = self.withheld.early.remove(name) {
            self.spread(name, epoch);
        }
        if let Some(epoch) = self.withheld.early_wishes.remove(name) {
            self.on_wish(name, epoch);
        }
    }

    /// The node that withholds a rank's commits; `None` if no node does, or the data has arrived here.
    pub(super) fn withholder(&self, job: JobIndex, rank: Rank) -> Option<NodeIndex> {
        let node = self.other_node(job, rank)?;
        let withholds = |round: &Round| {
            let is_apart = round.spread != Spread::Whole && !round.here.contains(&(job, node));
            is_apart && round.members.include(job, rank)
        };
        self.withheld.rounds.values().any(withholds).then_some(node)
    }

    /// Makes a get wait for the data of a node, which is requested once.
    pub(super) fn fetch(&mut self, node: NodeIndex, address: Address, get: Get) {
        let (job, after) = (get.job, self.settings.rank_timeout);
        let questions = self.questions_max(address.identity.seat);
        if !self.rank_mut(address.identity.seat).is_some_and(|state| state.quota.ask(questions)) {
            return self.answer(address, status::OUT_OF_RESOURCE);
        }
        if !self.withheld.gets.has(&(job, node)) {
            let namespace = Bytes::copy_from_slice(self.jobs[job].namespace.name.as_bytes());
            self.ask_peer(node, &Question::AllOf { namespace }, OpenQuestion::Withheld { job, node });
        }
        let ticket = self.new_ticket();
        self.withheld.gets.insert(ticket, (job, node), WaitingGet { address, get });
        self.actions.push_back(Action::SetTimer { ticket, after });
    }

    /// A node has sent all commits of its ranks, or has no data. Gets that waited for the data are served as if the fence had distributed
    /// it.
    pub(super) fn on_fetched(&mut self, job: JobIndex, node: NodeIndex, data: Option<Segment>) {
        let bytes = data.as_ref().map_or(0, |data| data.as_bytes().len() as u64);
        for round in self.withheld.rounds.values_mut() {
            if round.nodes.contains(&node) && round.members.ours.contains_key(&job) && round.here.insert((job, node)) {
                round.spent = round.spent.saturating_add(QUESTION_COST + bytes);
            }
        }
        let (_, changed) = self.absorb(&Vec::from_iter(data).into());
        self.serve_fetched(|at| at == (job, node));
        for (job, rank) in changed {
            self.serve_waits(job, rank);
        }
        self.ask_for_spreads();
    }

    /// Serves the gets that wait for these nodes' data again.
    fn serve_fetched(&mut self, is_here: impl Fn((JobIndex, NodeIndex)) -> bool) {
        for at in self.withheld.gets.keys(..).into_iter().filter(|&at| is_here(at)) {
            for (ticket, WaitingGet { address, get }) in self.withheld.gets.take(&at, |_| true) {
                self.actions.push_back(Action::CancelTimer { ticket });
                if let Some(state) = self.rank_mut(address.identity.seat) {
                    state.quota.answered();
                }
                self.serve_get(address, get);
            }
        }
    }

    /// Requests the spread of data of which this node has fetched too much.
    fn ask_for_spreads(&mut self) {
        if self.settings.exchange != Exchange::Auto {
            return;
        }
        let is_due =
            |round: &Round| round.spread == Spread::Apart && round.spent >= price(round.withheld, round.nodes.len());
        let due = self.withheld.rounds.iter().filter(|(_, round)| is_due(round));
        let due: Vec<_> = due.map(|(name, round)| (Arc::clone(name), round.epoch)).collect();
        for (name, epoch) in due {
            self.on_wish(&name, epoch);
        }
    }

    /// This node or a lower one requests a spread: the first node begins it, any other node forwards the wish, once.
    pub(super) fn on_wish(&mut self, name: &Arc<str>, epoch: Epoch) {
        let own = self.own_node();
        let Some(round) = self.withheld.rounds.get_mut(name).filter(|round| round.epoch >= epoch) else {
            if self.withheld.early_wishes.len() < EARLY_MAX {
                self.withheld.early_wishes.insert(Arc::clone(name), epoch);
            }
            return;
        };
        let Some(own) = own.and_then(|own| round.nodes.binary_search(&own).ok()) else { return };
        if own == 0 {
            return self.spread(name, epoch);
        }
        if round.epoch == epoch && round.spread == Spread::Apart {
            round.spread = Spread::Wished;
            let above = round.nodes[(own - 1) / FAN_OUT];
            self.ask_peer(above, &Question::Wish { name: Arc::clone(name), epoch }, OpenQuestion::Spread);
        }
    }

    /// Takes part in the spread of a collective's data, once, and notifies the lower nodes.
    pub(super) fn spread(&mut self, name: &Arc<str>, epoch: Epoch) {
        let Some(round) = self.withheld.rounds.get_mut(name).filter(|round| round.epoch >= epoch) else {
            if self.withheld.early.len() < EARLY_MAX {
                self.withheld.early.insert(Arc::clone(name), epoch);
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
        let own = self.own_node().and_then(|own| nodes.binary_search(&own).ok()).unwrap_or(nodes.len());
        for &below in nodes.iter().skip(own.saturating_mul(FAN_OUT) + 1).take(FAN_OUT) {
            self.ask_peer(below, &Question::Spread { name: Arc::clone(name), epoch }, OpenQuestion::Spread);
        }
        let seats = self.seats(&members);
        let contribution = self.data_of(&seats).into();
        self.begin_fence(job, &format!("{name}{SPREAD}"), nodes, epoch, contribution);
    }

    /// Handles the result of a fence for a collective's withheld data; returns false for any other fence.
    pub(super) fn on_withheld_fence(
        &mut self,
        job: JobIndex,
        id: &FenceId,
        result: &Result<Merged, Arc<FenceError>>,
    ) -> bool {
        let Scope::Foreign { name, .. } = &id.scope else { return false };
        if let Some(round) = name.strip_suffix(LAST).and_then(|name| self.withheld.rounds.get_mut(name)) {
            // A node that left without this barrier sends no further requests either.
            round.last = Last::Over;
            self.tell_need();
            return true;
        }
        let Some(name) = name.strip_suffix(SPREAD).filter(|name| self.withheld.rounds.contains_key(*name)) else {
            return false;
        };
        match result {
            Ok(merged) => self.on_spread(name, id.epoch, merged),
            Err(error) if self.withheld.rounds[name].last == Last::Ahead => {
                self.end(job, EndReason::Fence(Arc::clone(error)));
            }
            // The other nodes have no rank left that could send requests.
            Err(_) => {}
        }
        true
    }

    fn on_spread(&mut self, name: &str, epoch: Epoch, merged: &Merged) {
        let (_, changed) = self.absorb(merged);
        let mut covered = BTreeSet::new();
        if let Some(round) = self.withheld.rounds.get_mut(name).filter(|round| round.epoch == epoch) {
            round.spread = Spread::Whole;
            for &job in round.members.ours.keys() {
                covered.extend(round.nodes.iter().map(|&node| (job, node)));
            }
        }
        self.serve_fetched(|at| covered.contains(&at));
        for (job, rank) in changed {
            self.serve_waits(job, rank);
        }
    }

    /// Joins the last barrier of each collective after all its members on this node have exited.
    pub(super) fn look_for_last_exits(&mut self) {
        let exited = |server: &Self, seat: &Seat| server.rank(*seat).exited;
        let ahead = self.withheld.rounds.iter().filter(|(_, round)| round.last == Last::Ahead);
        let through: Vec<Arc<str>> = ahead
            .filter(|(_, round)| self.seats(&round.members).iter().all(|seat| exited(self, seat)))
            .map(|(name, _)| Arc::clone(name))
            .collect();
        for name in through {
            let Some(round) = self.withheld.rounds.get_mut(&name) else { continue };
            round.last = Last::Waiting;
            let (nodes, job, epoch) = (Arc::clone(&round.nodes), round.host, round.epoch);
            self.begin_fence(job, &format!("{name}{LAST}"), nodes, epoch, Contribution::default());
        }
    }

    /// Drops the rounds with members of a removed job, and gets of its ranks' data.
    pub(super) fn forget_withheld(&mut self, job: JobIndex) {
        self.withheld.rounds.retain(|_, round| !round.members.ours.contains_key(&job));
        self.serve_fetched(|(of, _)| of == job);
        self.tell_need();
    }

    fn begin_fence(
        &mut self,
        job: JobIndex,
        name: &str,
        nodes: Arc<[NodeIndex]>,
        epoch: Epoch,
        contribution: Contribution,
    ) {
        let scope = Scope::Foreign { name: name.into(), nodes };
        self.actions.push_back(Action::Fence { job, id: FenceId { scope, epoch }, contribution });
    }

    /// Index of this node in the launch.
    fn own_node(&self) -> Option<NodeIndex> {
        self.jobs.iter().find(|job| job.is_own()).map(|job| job.namespace.node)
    }
}
