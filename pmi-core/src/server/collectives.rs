//! Collectives of this node's ranks, with the data that the ranks exchange: fences, rings and restarts. Ranks may wait there for ranks that
//! have left.

use std::sync::Arc;

use bytes::Bytes;

use super::attributes::NodeAttributes;
use super::fences::Fences;
use super::node::{JobNode, Origin, Waiter};
use super::restarts::Restart;
use super::settings::Restarts;
use super::spaces::Spaces;
use crate::connections::ConnectionId;
use crate::fence::{FenceId, Merged, Scope};
use crate::gathering::Gathering;
use crate::ids::LocalRank;
use crate::report::{FenceStatus, Phase};
use crate::roster::left_fence;
use crate::wire::Response;
use crate::wire::request::Request;

/// Collectives of this node's ranks.
pub(super) struct Collectives {
    pub(super) spaces: Spaces,
    pub(super) attributes: NodeAttributes,
    pub(super) fences: Fences,
    pub(super) restart: Restart,
}

impl Collectives {
    pub(super) fn new(node: &JobNode) -> Self {
        Self {
            spaces: Spaces::new(&node.job),
            attributes: NodeAttributes::new(&node.ranks),
            fences: Fences::new(&node.ranks),
            restart: Restart::new(&node.ranks),
        }
    }

    /// The fences in which ranks wait.
    pub(super) fn pending(&self, node: &JobNode) -> Vec<FenceStatus> {
        let is_first = node.fences == 0;
        let whole = [
            ("fence", is_first, &self.fences.world),
            ("ring", is_first, &self.fences.ring.gathering),
            ("restart", true, &self.restart.gathering),
        ];
        let whole = whole.into_iter().map(|(name, at_start, gathering)| (name.into(), (true, at_start), gathering));
        let groups = self.fences.groups.named().map(|(name, group)| (Arc::clone(name), (false, is_first), group));
        let is_dispensable = |local| node.is_dispensable(local);
        let status = |(name, kind, gathering)| FenceStatus::of(&name, kind, gathering, is_dispensable);
        whole.chain(groups).filter_map(status).collect()
    }

    fn gatherings(&self) -> impl Iterator<Item = &Gathering<LocalRank, Waiter>> {
        let whole = [&self.fences.world, &self.fences.ring.gathering, &self.restart.gathering];
        whole.into_iter().chain(self.fences.groups.iter())
    }

    /// Returns true if a fence, ring or restart still has to answer on a connection.
    pub(super) fn include(&self, connection: ConnectionId) -> bool {
        self.gatherings().flat_map(Gathering::waiters).any(|waiter| waiter.connection == connection)
    }

    /// Ends the job when ranks wait for a rank that will never arrive.
    pub(super) fn end_if_rank_has_left(&mut self, node: &mut JobNode) {
        if !node.ranks.iter().any(|(_, state)| state.is_gone()) {
            return;
        }
        let left = |fence| left_fence(fence, |local| &node.ranks[local], |local| node.is_dispensable(local));
        let reason = node.ranks.left_before_init();
        match reason.or_else(|| self.gatherings().find_map(left).map(|(_, reason)| reason)) {
            Some(reason) => node.end(reason),
            None => self.attributes.end_hopeless_waits(node, self.fences.world.present()),
        }
    }

    /// Handles an `init` of the rank.
    pub(super) fn speak(&mut self, node: &mut JobNode, local: LocalRank) {
        let state = &mut node.ranks[local];
        if node.settings.restarts != Restarts::Unexpected && state.phase != Phase::Silent {
            self.restart.begin_again(node, local);
        } else if state.speak() {
            self.end_if_rank_has_left(node);
        }
    }

    /// Sends an answer. The answer to a repeated `init` waits until all ranks have restarted.
    pub(super) fn answer(&mut self, node: &mut JobNode, connection: ConnectionId, answer: Bytes) {
        match self.restart.take_arrival() {
            Some(local) => {
                if self.restart.arrive(node, local, Waiter { connection, answer }) {
                    self.begin_restart(node);
                }
            }
            None => node.send(connection, answer),
        }
    }

    fn begin_restart(&mut self, node: &mut JobNode) {
        if !self.restart.begin(node, &self.fences) {
            self.end_if_rank_has_left(node);
        }
    }

    /// Adds a rank to the fence or ring of its request. Returns a refusal, or `None` if the answer follows later.
    pub(super) fn arrive(
        &mut self,
        node: &mut JobNode,
        origin: Origin<'_>,
        request: &Request<'_>,
    ) -> Option<Response<'static>> {
        let kvs = &mut self.spaces.kvs;
        let arrival = match request {
            Request::Fence => self.fences.arrive(node, kvs, origin),
            Request::GroupFence { group, tag, name } => {
                self.fences.arrive_in_group(node, kvs, origin, group, *tag, name)
            }
            Request::Ring(value) => self.fences.arrive_in_ring(node, origin, value),
            _ => return None,
        };
        if let Ok(false) = arrival {
            self.end_if_rank_has_left(node);
        }
        arrival.err()
    }

    /// Reads a node attribute, as [`NodeAttributes::get`] does.
    pub(super) fn get_attribute(
        &mut self,
        node: &mut JobNode,
        origin: Origin<'_>,
        key: &[u8],
        wait: bool,
    ) -> Option<Response<'_>> {
        self.attributes.get(node, self.fences.world.present(), origin, key, wait)
    }

    /// All nodes have arrived in a fence.
    pub(super) fn leave(&mut self, node: &mut JobNode, id: &FenceId, merged: Merged) {
        let kvs = &mut self.spaces.kvs;
        if let Scope::Foreign { .. } = id.scope {
            // The server begins no other fence of this scope.
            self.attributes.dismiss(node);
            self.restart.agree(node, &mut self.fences, kvs, &merged);
        } else if !self.fences.leave(node, kvs, id, merged) {
            self.end_if_rank_has_left(node);
        }
        self.end_restart(node);
    }

    /// Begins the next generation of ranks, if all nodes are ready for it.
    fn end_restart(&mut self, node: &mut JobNode) {
        if node.has_ended() || !self.restart.end(&mut self.fences) {
            return;
        }
        // No rank waits in a fence for new puts of these, so the old values must not stay.
        self.attributes.reset();
        if node.settings.restarts == Restarts::Fresh {
            self.spaces = Spaces::new(&node.job);
            node.ranks.locals().for_each(|local| node.ranks[local].quota.forget_pairs());
        }
        self.restart.release(node);
        self.end_if_rank_has_left(node);
    }

    /// Begins the fences that no longer wait for a rank of this node, after the death of a rank.
    pub(super) fn begin(&mut self, node: &mut JobNode) {
        self.fences.begin_world(node, &mut self.spaces.kvs);
        if !self.fences.begin_ring(node) {
            self.end_if_rank_has_left(node);
        }
        self.begin_restart(node);
        let names: Vec<Arc<str>> = self.fences.groups.names().cloned().collect();
        for name in names {
            if !self.fences.begin_waiting_group(node, &mut self.spaces.kvs, &name) {
                self.end_if_rank_has_left(node);
            }
        }
        self.end_if_rank_has_left(node);
    }
}
