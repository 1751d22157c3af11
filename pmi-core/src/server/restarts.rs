//! Restart of all ranks together: their programs were killed and started again, or restored from a checkpoint.
//!
//! ```text
//!          a rank sends `init` again           all ranks have sent it               the begun fences are complete
//! running ──────────────────────────> waiting ────────────────────────> emptying ───────────────────────────────────────> running
//!          its answer is delayed               nodes compare how many               all are answered: the next generation
//!                                              fences each has begun
//! ```
//! So ranks of two generations never interact, whatever their state was when they were killed. If only some nodes had begun a fence, the
//! other nodes begin it too, without ranks. The ranks that waited for its end are gone. Then the space keeps its pairs, or is reset to
//! the initial pairs.

use std::collections::VecDeque;
use std::mem;
use std::sync::Arc;

use super::fences::members_of;
use super::spaces::Indices;
use super::{Action, Restarts, Server, Waiter, first_attributes, first_pairs};
use crate::fence::{FenceId, Merged, Scope};
use crate::gathering::Gathering;
use crate::ids::{Epoch, LocalRank};
use crate::segment::Segment;
use crate::wire::request::Group;

/// Progress of the ranks towards their next generation.
#[derive(Debug)]
pub(super) struct Restart {
    /// Ranks that have sent `init` again, and wait for its answer.
    gathering: Gathering<LocalRank, Waiter>,
    /// Rank of the message in progress, if that is such an `init`.
    arrival: Option<LocalRank>,
    /// True from the agreement of all nodes until all fences that some nodes had begun are complete.
    is_agreed: bool,
    /// Number of restarts.
    generation: u32,
}

/// Name of the fence by which nodes agree on a restart.
const NAME: &str = "PMI restart";

/// Names of fences in its data; names of groups follow `GROUP`.
const WORLD: &[u8] = b"world";
const RING: &[u8] = b"ring";
const GROUP: u8 = b'g';

impl Restart {
    pub(super) fn new(locals: impl Iterator<Item = LocalRank>) -> Self {
        Self { gathering: Gathering::new(locals), arrival: None, is_agreed: false, generation: 0 }
    }

    pub(super) fn gathering(&self) -> &Gathering<LocalRank, Waiter> {
        &self.gathering
    }

    pub(super) fn gathering_mut(&mut self) -> &mut Gathering<LocalRank, Waiter> {
        &mut self.gathering
    }

    /// Returns the rank that must wait for its answer.
    pub(super) fn take_arrival(&mut self) -> Option<LocalRank> {
        self.arrival.take()
    }
}

impl Server {
    /// Number of restarts of all ranks.
    pub fn generation(&self) -> u32 {
        self.restart.generation
    }

    /// Handles a repeated `init` of the rank.
    pub(super) fn begin_again(&mut self, local: LocalRank) {
        // The first generation is the first life.
        self.ranks[local].begin_again(self.restart.generation.saturating_add(2));
        self.restart.arrival = Some(local);
    }

    /// Delays the answer to its `init` until all ranks have restarted.
    pub(super) fn wait_for_restart(&mut self, local: LocalRank, waiter: Waiter) {
        let conversations = &self.conversations;
        let is_its_own = |former: &&mut Waiter| conversations[former.connection].rank == Some(local);
        let gathering = &mut self.restart.gathering;
        // A program that was replaced before its answer no longer waits.
        if let Some(former) = gathering.leaving_mut().iter_mut().find(is_its_own) {
            *former = waiter;
        } else if let Some(former) = gathering.waiter_mut(local) {
            *former = waiter;
        } else {
            gathering.arrive(local, waiter);
            self.begin_restart();
        }
    }

    /// Begins the agreement with the other nodes, if all ranks of this node wait.
    pub(super) fn begin_restart(&mut self) {
        let Some(epoch) = self.begin_next_restart() else { return self.look_for_deserters() };
        let nodes = self.nodes_of(&Group::World).into();
        let begun = self.begun();
        self.exchange(FenceId { scope: Scope::Foreign { name: NAME.into(), nodes }, epoch }, vec![begun].into());
    }

    /// Number of fences begun here, for each kind that other nodes may also have to begin.
    fn begun(&self) -> Segment {
        let of_groups = self.groups.named().filter(|(_, group)| group.is_exchanging());
        let of_groups = of_groups.map(|(name, group)| ([&[GROUP], name.as_bytes()].concat(), group.epoch()));
        let of_all = [(WORLD, &self.world), (RING, &self.ring.gathering)];
        let of_all = of_all.map(|(name, gathering)| (name.to_vec(), gathering.epoch()));
        of_all.into_iter().chain(of_groups).map(|(name, Epoch(begun))| (name, begun.to_be_bytes())).collect()
    }

    /// All ranks of all nodes wait: no rank of the earlier generation begins a fence any more. So this node also begins the fences that
    /// some nodes have begun.
    pub(super) fn agree_on_restart(&mut self, merged: &Merged) {
        self.restart.is_agreed = true;
        self.world.dismiss();
        self.ring.gathering.dismiss();
        self.ring.brought.iter_mut().for_each(VecDeque::clear);
        self.groups.iter_mut().for_each(Gathering::dismiss);
        for wait in mem::take(&mut self.attribute_waits) {
            self.ranks[wait.local].quota.answered();
        }
        for (name, begun) in merged.segments.iter().flat_map(Segment::pairs) {
            if let Ok(begun) = begun.try_into()
                && !self.ended
            {
                self.catch_up(name, Epoch(u64::from_be_bytes(begun)));
            }
        }
    }

    /// Begins the fence of this name, if another node has begun it and this node has not. No node is ahead by two fences, because the
    /// first one waits for this node.
    fn catch_up(&mut self, name: &[u8], begun: Epoch) {
        match name {
            WORLD if self.world.epoch() < begun => {
                if let Some(epoch) = self.world.begin_as_it_is() {
                    self.exchange_world(epoch);
                }
            }
            RING if self.ring.gathering.epoch() < begun => {
                if let Some(epoch) = self.ring.gathering.begin_as_it_is() {
                    self.exchange(FenceId { scope: Scope::Ring, epoch }, Vec::new().into());
                }
            }
            [GROUP, name @ ..] => self.catch_up_with_group(name, begun),
            _ => {}
        }
    }

    fn catch_up_with_group(&mut self, name: &[u8], begun: Epoch) {
        let Some((name, (group, _))) = str::from_utf8(name).ok().and_then(|name| Some((name, Group::parse(name)?)))
        else {
            return;
        };
        if !self.nodes_of(&group).contains(&self.node) {
            return;
        }
        let members = members_of(&group);
        let Some(gathering) = self.open_group(name, members.as_ref()) else { return };
        if gathering.epoch() < begun
            && let Some(epoch) = gathering.begin_as_it_is()
        {
            self.exchange_group(name, &group, epoch);
        }
    }

    /// Begins the next generation, if the nodes have agreed on it and no fence of the earlier generation is in exchange here.
    pub(super) fn end_restart(&mut self) {
        let fences = || [&self.world, &self.ring.gathering].into_iter().chain(self.groups.iter());
        if self.ended || !self.restart.is_agreed || fences().any(Gathering::is_exchanging) {
            return;
        }
        self.restart.is_agreed = false;
        self.restart.generation = self.restart.generation.saturating_add(1);
        self.ring.addresses.iter_mut().for_each(VecDeque::clear);
        let idle: Vec<Arc<str>> = self.groups.names().cloned().collect();
        for name in idle {
            self.groups.rest(&name);
        }
        // No rank waits in a fence for new puts of these, so the old values must not stay.
        self.node_attributes = first_attributes(&self.ranks, self.node_memory.as_deref());
        if self.settings.restarts == Restarts::Fresh {
            self.kvs = first_pairs(&self.job);
            self.indices = Indices::default();
            let locals = self.ranks.locals();
            locals.for_each(|local| self.ranks[local].quota.forget_pairs());
        }
        self.actions.push_back(Action::Restarted { generation: self.restart.generation });
        let waiters = self.restart.gathering.complete();
        self.release(waiters);
        self.look_for_deserters();
    }
}
