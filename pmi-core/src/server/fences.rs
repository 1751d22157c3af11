//! Arrival of ranks in fences, exchange with other nodes, and release of the ranks.

use std::collections::HashSet;
use std::str;
use std::sync::Arc;

use bytes::Bytes;

use super::requests::address_of;
use super::{Action, Server, Waiter};
use crate::connections::ConnectionId;
use crate::fence::{Contribution, FenceError, FenceId, Merged, Scope};
use crate::gathering::Gathering;
use crate::ids::{Epoch, LocalRank, NodeIndex, Rank};
use crate::job::Block;
use crate::report::EndReason;
use crate::segment::Segment;
use crate::wire::request::{Group, Message, RingValue};
use crate::wire::{ErrorCode, Response};

impl Server {
    /// Adds a rank to the fence of the whole job.
    pub(super) fn arrive(
        &mut self,
        connection: ConnectionId,
        local: LocalRank,
        message: &Message<'_>,
    ) -> Option<Response<'static>> {
        let tag = self.conversations[connection].has_tags().then_some(0);
        let waiter = waiter(connection, tag, message);
        if !self.world.arrive(local, waiter) {
            return Some(too_many());
        }
        match self.begin_world() {
            Some(epoch) => self.exchange_world(epoch),
            None => self.look_for_deserters(),
        }
        None
    }

    pub(super) fn exchange_world(&mut self, epoch: Epoch) {
        let contribution = self.kvs.contribute();
        self.exchange(FenceId { scope: Scope::World, epoch }, contribution);
        self.look_for_missed_node();
    }

    pub(super) fn exchange(&mut self, id: FenceId, contribution: Contribution) {
        self.actions.push_back(Action::Fence { id, contribution });
    }

    /// Adds a rank to a PMI-1.2 fence of some ranks.
    pub(super) fn arrive_in_group(
        &mut self,
        connection: ConnectionId,
        local: LocalRank,
        group: &Group<'_>,
        tag: u32,
        name: &str,
        message: &Message<'_>,
    ) -> Option<Response<'static>> {
        let refused = |code, text| Some(Response::FenceRefused { tag, code, text });
        let members = members_of(group);
        if !members.as_ref().is_none_or(|members| members.contains(&self.ranks[local].rank)) {
            return refused(ErrorCode::InvalidArgument, "not a member of this group");
        }
        let Some(gathering) = self.open_group(name, members.as_ref()) else {
            return refused(ErrorCode::NoMemory, TOO_MANY);
        };
        if !gathering.arrive(local, waiter(connection, Some(tag), message)) {
            return refused(ErrorCode::NoMemory, TOO_MANY);
        }
        match self.begin_group(name) {
            Some(epoch) => self.exchange_group(name, group, epoch),
            None => self.look_for_deserters(),
        }
        None
    }

    /// Returns the fence of a group: of all ranks of this node, or of the local ranks in `members`. Returns `None` when too many are
    /// open.
    pub(super) fn open_group(
        &mut self,
        name: &str,
        members: Option<&HashSet<Rank>>,
    ) -> Option<&mut Gathering<LocalRank, Waiter>> {
        let includes = |rank| members.is_none_or(|members| members.contains(&rank));
        let here = || self.ranks.iter().filter(|(_, state)| includes(state.rank)).map(|(local, _)| local);
        self.groups.open(name, || Gathering::new(here()))
    }

    pub(super) fn exchange_group(&mut self, name: &str, group: &Group<'_>, epoch: Epoch) {
        let nodes = self.nodes_of(group).into();
        let id = FenceId { scope: Scope::Group { name: name.into(), nodes }, epoch };
        self.exchange_scope(id);
    }

    /// Contributes this node's pairs to a group's fence. Pairs are readable at once on their own node, so a group on one node exchanges
    /// nothing.
    fn exchange_scope(&mut self, id: FenceId) {
        match &id.scope {
            Scope::Group { nodes, .. } if nodes.len() == 1 => self.leave_fence(&id, Merged::default()),
            _ => {
                let contribution = self.kvs.share();
                self.exchange(id, contribution);
            }
        }
    }

    /// Returns true if a fence or ring still has to answer on a connection.
    pub(super) fn is_in_fence(&self, connection: ConnectionId) -> bool {
        let all = self.whole_gatherings().into_iter().chain(self.groups.iter());
        all.flat_map(Gathering::waiters).any(|waiter| waiter.connection == connection)
    }

    /// The nodes that hold a member of the group, in order.
    pub(super) fn nodes_of(&self, group: &Group<'_>) -> Vec<NodeIndex> {
        let placement = &self.job.placement;
        let mut nodes: Vec<_> = match group {
            Group::World => placement.blocks().iter().flat_map(nodes_of_block).collect(),
            Group::Node => vec![self.node],
            Group::Ranks(ranks) => ranks.iter().filter_map(|rank| placement.node_of(rank)).collect(),
        };
        nodes.sort_unstable();
        nodes.dedup();
        nodes
    }

    /// Adds a rank to a PMI-2 ring: a fence that carries one value from each rank to its neighbours.
    pub(super) fn arrive_in_ring(
        &mut self,
        connection: ConnectionId,
        local: LocalRank,
        value: &RingValue,
        message: &Message<'_>,
    ) -> Option<Response<'static>> {
        let waiter = Waiter { connection, answer: Bytes::new() };
        if !self.ring.gathering.arrive(local, waiter) {
            return Some(too_many());
        }
        self.ring.brought[local.index()].push_back(value.clone());
        self.ring.addresses[local.index()].push_back(address_of(message));
        self.begin_ring();
        None
    }

    pub(super) fn begin_ring(&mut self) {
        let Some(epoch) = self.begin_next_ring() else { return self.look_for_deserters() };
        let ranks = self.ranks.iter().zip(&mut self.ring.brought);
        let segment: Segment = ranks
            .filter_map(|((_, state), brought)| Some((state.rank, brought.pop_front()?)))
            .map(|(rank, value)| (rank.0.to_be_bytes(), encode_ring_value(&value)))
            .collect();
        self.exchange(FenceId { scope: Scope::Ring, epoch }, vec![segment].into());
    }

    /// All nodes have arrived: their pairs become readable, and this node's ranks continue.
    pub(super) fn leave_fence(&mut self, id: &FenceId, merged: Merged) {
        match &id.scope {
            Scope::World => {
                let brought = self.reports_merged.then(|| merged.segments.clone());
                self.kvs.commit(merged);
                self.fences += 1;
                self.report(brought);
                let waiters = self.world.complete();
                self.release(waiters);
                // The first fence has distributed all data that ranks need from each other.
                self.tell_deaths();
                match self.begin_world() {
                    Some(epoch) => self.exchange_world(epoch),
                    // A rank may have finalized after this fence, while other ranks wait for it in the next one.
                    None => self.look_for_deserters(),
                }
            }
            Scope::Group { name, nodes } => {
                let brought = match self.kvs.absorb(&merged) {
                    Ok(brought) => brought,
                    Err(error) => {
                        let error = FenceError::BadSegment { epoch: id.epoch, reason: error.to_string() };
                        return self.end(EndReason::Fence(Arc::new(error)));
                    }
                };
                self.report(self.reports_merged.then_some(brought));
                let Some(gathering) = self.groups.get_mut(name) else { return };
                let waiters = gathering.complete();
                let next = self.begin_group(name);
                if self.groups.get_mut(name).is_some_and(|gathering| gathering.is_idle()) {
                    if nodes.len() > 1 { self.groups.rest(name) } else { self.groups.forget(name) }
                }
                self.release(waiters);
                match next {
                    Some(epoch) => self.exchange_scope(FenceId { scope: id.scope.clone(), epoch }),
                    None => self.look_for_deserters(),
                }
            }
            Scope::Ring => {
                self.leave_ring(&merged);
                self.begin_ring();
            }
            // The server begins no other fence of this scope.
            Scope::Foreign { .. } => self.agree_on_restart(&merged),
        }
        self.end_restart();
    }

    fn report(&mut self, brought: Option<Vec<Segment>>) {
        if let Some(segments) = brought {
            self.actions.push_back(Action::Merged { fences: self.fences, segments });
        }
    }

    pub(super) fn release(&mut self, waiters: Vec<Waiter>) {
        for Waiter { connection, answer } in waiters {
            self.send(connection, answer);
        }
    }

    fn leave_ring(&mut self, merged: &Merged) {
        let mut values: Vec<(u32, RingValue)> = Vec::with_capacity(self.job.size() as usize);
        for (key, value) in merged.segments.iter().flat_map(Segment::pairs) {
            if let (Ok(rank), Some(value)) = (key.try_into().map(u32::from_be_bytes), decode_ring_value(value)) {
                values.push((rank, value));
            }
        }
        values.sort_unstable_by_key(|(rank, _)| *rank);
        let mut counts = Vec::with_capacity(values.len());
        let mut sum = 0_u32;
        for (_, value) in &values {
            counts.push(sum);
            sum = sum.wrapping_add(value.count);
        }
        for waiter in self.ring.gathering.complete() {
            let Some(local) = self.conversations[waiter.connection].rank else { continue };
            let Some(address) = self.ring.addresses[local.index()].pop_front() else { continue };
            let rank = self.ranks[local].rank.0;
            let Ok(at) = values.binary_search_by_key(&rank, |(rank, _)| *rank) else { continue };
            let before = &values[(at + values.len() - 1) % values.len()].1;
            let after = &values[(at + 1) % values.len()].1;
            let answer = Response::Ring { count: counts[at], left: &before.right, right: &after.left };
            self.send(waiter.connection, answer.encode_to(&address).into());
        }
    }
}

fn waiter(connection: ConnectionId, tag: Option<u32>, message: &Message<'_>) -> Waiter {
    let answer = Response::Fence { tag }.encode(message.dialect, message.command, message.thread);
    Waiter { connection, answer: answer.into() }
}

fn nodes_of_block(block: &Block) -> impl Iterator<Item = NodeIndex> + use<> {
    (block.first_node.0..block.first_node.0 + block.nodes).map(NodeIndex)
}

/// Ranks of a group that lists single ranks; `None` if it includes all ranks of each of its nodes.
pub(super) fn members_of(group: &Group<'_>) -> Option<HashSet<Rank>> {
    match group {
        Group::World | Group::Node => None,
        Group::Ranks(ranks) => Some(ranks.iter().collect()),
    }
}

const TOO_MANY: &str = "too many fences begun at once";

fn too_many() -> Response<'static> {
    Response::Error { code: ErrorCode::NoMemory, text: TOO_MANY.into() }
}

/// `count` and the length of `left` in four bytes each, then both values.
fn encode_ring_value(value: &RingValue) -> Vec<u8> {
    let mut bytes = value.count.to_be_bytes().to_vec();
    bytes.extend_from_slice(&(value.left.len() as u32).to_be_bytes());
    bytes.extend_from_slice(&value.left);
    bytes.extend_from_slice(&value.right);
    bytes
}

fn decode_ring_value(bytes: &[u8]) -> Option<RingValue> {
    let (count, rest) = bytes.split_first_chunk()?;
    let (left_len, rest) = rest.split_first_chunk()?;
    let (left, right) = rest.split_at_checked(u32::from_be_bytes(*left_len) as usize)?;
    Some(RingValue { count: u32::from_be_bytes(*count), left: left.to_vec(), right: right.to_vec() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ring_values_survive_the_way_between_nodes() {
        let value = RingValue { count: 3, left: b"l;=".to_vec(), right: Vec::new() };
        assert_eq!(decode_ring_value(&encode_ring_value(&value)), Some(value));
        assert_eq!(decode_ring_value(b"\0\0\0\x01\0\0\0\x09short"), None);
    }
}
