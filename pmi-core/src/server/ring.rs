//! The ring of PMI-2: a fence that carries one value from each rank to its neighbours.

use std::collections::VecDeque;

use bytes::Bytes;

use super::node::{JobNode, Origin, Waiter};
use crate::fence::{FenceId, Merged, Scope};
use crate::gathering::Gathering;
use crate::ids::{Epoch, LocalRank};
use crate::roster::Roster;
use crate::segment::Segment;
use crate::wire::Response;
use crate::wire::request::RingValue;
use crate::wire::response::Address;

/// The ring in progress: its waiters, and the values of each local rank.
#[derive(Debug)]
pub(super) struct Ring {
    pub(super) gathering: Gathering<LocalRank, Waiter>,
    brought: Vec<VecDeque<RingValue>>,
    /// Addresses of the answers of the current round.
    addresses: Vec<VecDeque<Address>>,
}

impl Ring {
    pub(super) fn new(ranks: &Roster) -> Self {
        Self {
            gathering: Gathering::new(ranks.locals()),
            brought: ranks.locals().map(|_| VecDeque::new()).collect(),
            addresses: ranks.locals().map(|_| VecDeque::new()).collect(),
        }
    }

    /// Adds a rank. Returns false when it has begun too many rings.
    pub(super) fn arrive(&mut self, origin: Origin<'_>, value: &RingValue) -> bool {
        let Origin { connection, local, .. } = origin;
        let fits = self.gathering.arrive(local, Waiter { connection, answer: Bytes::new() });
        if fits {
            self.brought[local.index()].push_back(value.clone());
            self.addresses[local.index()].push_back(origin.address());
        }
        fits
    }

    /// Begins the exchange of the next round. Returns false if a needed rank is missing.
    pub(super) fn begin(&mut self, node: &mut JobNode) -> bool {
        let Some(epoch) = self.gathering.begin(|local| node.is_dispensable(local)) else { return false };
        let ranks = node.ranks.iter().zip(&mut self.brought);
        let segment: Segment = ranks
            .filter_map(|((_, state), brought)| Some((state.rank, brought.pop_front()?)))
            .map(|(rank, value)| (rank.0.to_be_bytes(), encode(&value)))
            .collect();
        node.exchange(FenceId { scope: Scope::Ring, epoch }, vec![segment].into());
        true
    }

    /// Begins the round that another node has begun before its restart, without ranks.
    pub(super) fn catch_up(&mut self, node: &mut JobNode, begun: Epoch) {
        if self.gathering.epoch() < begun
            && let Some(epoch) = self.gathering.begin_as_it_is()
        {
            node.exchange(FenceId { scope: Scope::Ring, epoch }, Vec::new().into());
        }
    }

    /// All nodes have arrived: sends its neighbours' values to each rank.
    pub(super) fn leave(&mut self, node: &mut JobNode, merged: &Merged) {
        let mut values: Vec<(u32, RingValue)> = Vec::with_capacity(node.job.size() as usize);
        for (key, value) in merged.segments.iter().flat_map(Segment::pairs) {
            if let (Ok(rank), Some(value)) = (key.try_into().map(u32::from_be_bytes), decode(value)) {
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
        for waiter in self.gathering.complete() {
            let Some(local) = node.conversations[waiter.connection].rank else { continue };
            let Some(address) = self.addresses[local.index()].pop_front() else { continue };
            let rank = node.ranks[local].rank.0;
            let Ok(at) = values.binary_search_by_key(&rank, |(rank, _)| *rank) else { continue };
            let before = &values[(at + values.len() - 1) % values.len()].1;
            let after = &values[(at + 1) % values.len()].1;
            let answer = Response::Ring { count: counts[at], left: &before.right, right: &after.left };
            node.send(waiter.connection, answer.encode_to(&address).into());
        }
    }

    /// Removes the waiters of all rounds that have not begun.
    pub(super) fn dismiss(&mut self) {
        self.gathering.dismiss();
        self.brought.iter_mut().for_each(VecDeque::clear);
    }

    /// Removes the addresses of waiters that were dismissed.
    pub(super) fn forget_addresses(&mut self) {
        self.addresses.iter_mut().for_each(VecDeque::clear);
    }
}

/// `count` and the length of `left` in four bytes each, then both values.
fn encode(value: &RingValue) -> Vec<u8> {
    let mut bytes = value.count.to_be_bytes().to_vec();
    bytes.extend_from_slice(&(value.left.len() as u32).to_be_bytes());
    bytes.extend_from_slice(&value.left);
    bytes.extend_from_slice(&value.right);
    bytes
}

fn decode(bytes: &[u8]) -> Option<RingValue> {
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
        assert_eq!(decode(&encode(&value)), Some(value));
        assert_eq!(decode(b"\0\0\0\x01\0\0\0\x09short"), None);
    }
}
