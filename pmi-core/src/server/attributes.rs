//! Attributes of the node: data that its ranks exchange without a fence (PMI-2).
//!
//! A get may wait for a put. It ends without a value when no rank of the node can put the attribute any more. Each rank has then
//! finalized or ended, or waits for an attribute, or waits in the fence of all ranks, which the rank of the get cannot reach.

use std::collections::{BTreeSet, HashMap};
use std::mem;

use bytes::Bytes;

use super::node::{JobNode, Origin};
use super::places;
use crate::connections::ConnectionId;
use crate::ids::{LocalRank, Rank};
use crate::roster::Roster;
use crate::wire::Response;
use crate::wire::response::Address;

/// The attributes of the node.
pub(super) struct NodeAttributes {
    /// Attributes at the start of the job, and after each restart.
    initial: HashMap<Vec<u8>, Bytes>,
    values: HashMap<Vec<u8>, Bytes>,
    waits: Vec<AttributeWait>,
}

/// A rank that waits for the put of a node attribute.
#[derive(Debug)]
struct AttributeWait {
    key: Vec<u8>,
    local: LocalRank,
    connection: ConnectionId,
    address: Address,
}

impl NodeAttributes {
    pub(super) fn new(ranks: &Roster) -> Self {
        let initial = initial(ranks, None);
        Self { values: initial.clone(), initial, waits: Vec::new() }
    }

    /// Sets the descriptor of the memory that the ranks of this node share.
    pub(super) fn set_memory(&mut self, ranks: &Roster, descriptor: &str) {
        self.initial = initial(ranks, Some(descriptor));
        self.reset();
    }

    /// Restores the initial attributes.
    pub(super) fn reset(&mut self) {
        self.values = self.initial.clone();
    }

    pub(super) fn put(&mut self, node: &mut JobNode, local: LocalRank, key: &[u8], value: &[u8]) -> Response<'static> {
        if let Some(refusal) = node.refuse_pair(local, key, value) {
            return refusal;
        }
        let value = Bytes::copy_from_slice(value);
        self.values.insert(key.to_vec(), value.clone());
        let (served, waiting) = mem::take(&mut self.waits).into_iter().partition(|wait| wait.key == key);
        self.waits = waiting;
        end_waits(node, served, Some(&value));
        Response::Done
    }

    /// Returns the value, or `None` if the answer waits for the put. `in_world` are the ranks that wait in the fence of all ranks.
    pub(super) fn get(
        &mut self,
        node: &mut JobNode,
        in_world: impl Iterator<Item = LocalRank>,
        origin: Origin<'_>,
        key: &[u8],
        wait: bool,
    ) -> Option<Response<'_>> {
        if !wait || self.values.contains_key(key) {
            return Some(Response::Value(self.values.get(key).map(|value| &value[..])));
        }
        let Origin { connection, local, .. } = origin;
        if let Some(refusal) = node.refuse_questions(local, 1) {
            return Some(refusal);
        }
        self.waits.push(AttributeWait { key: key.to_vec(), local, connection, address: origin.address() });
        self.end_hopeless_waits(node, in_world);
        None
    }

    /// Ends the gets of attributes that no rank can put any more.
    pub(super) fn end_hopeless_waits(&mut self, node: &mut JobNode, in_world: impl Iterator<Item = LocalRank>) {
        if self.waits.is_empty() || !node.ranks.iter().any(|(_, state)| state.is_gone()) {
            return;
        }
        let waits = || self.waits.iter().map(|wait| wait.local);
        let lives = waits().map(|local| node.ranks[local].lives).max().unwrap_or(0);
        let waiting: BTreeSet<LocalRank> = waits().chain(in_world).collect();
        if node.ranks.iter().all(|(local, state)| state.is_gone_for(lives) || waiting.contains(&local)) {
            end_waits(node, mem::take(&mut self.waits), None);
        }
    }

    /// Removes all waits without an answer: the programs that wait were replaced.
    pub(super) fn dismiss(&mut self, node: &mut JobNode) {
        for wait in mem::take(&mut self.waits) {
            node.ranks[wait.local].quota.answered();
        }
    }
}

fn end_waits(node: &mut JobNode, waits: Vec<AttributeWait>, value: Option<&[u8]>) {
    for wait in waits {
        node.ranks[wait.local].quota.answered();
        let answer = Response::Value(value).encode_to(&wait.address);
        node.send(wait.connection, answer.into());
    }
}

/// The initial attributes of a node.
fn initial(ranks: &Roster, memory: Option<&str>) -> HashMap<Vec<u8>, Bytes> {
    let here: Vec<Rank> = ranks.iter().map(|(_, state)| state.rank).collect();
    let places = places::node_attributes(&here).map(|(name, value)| (name.into(), Bytes::from(value)));
    let memory = memory.map(|number| [("memPoolType", "anonmmap"), ("memAnonMMAPfd", number)]);
    let memory = memory.into_iter().flatten();
    let memory = memory.map(|(name, value)| (name.into(), Bytes::copy_from_slice(value.as_bytes())));
    places.chain(memory).collect()
}
