//! Attributes of the node: data that its ranks exchange without a fence (PMI-2).
//!
//! A get may wait for a put. It ends without a value when no rank of the node can put the attribute any more. Each rank has then
//! finalized or ended, or waits for an attribute, or waits in the fence of all ranks, which the rank of the get cannot reach.

use std::collections::BTreeSet;

use bytes::Bytes;

use super::requests::address_of;
use super::{AttributeWait, Server};
use crate::connections::ConnectionId;
use crate::ids::LocalRank;
use crate::wire::Response;
use crate::wire::request::Message;

impl Server {
    pub(super) fn put_node_attribute(
        &mut self,
        local: LocalRank,
        key: &[u8],
        value: &[u8],
    ) -> Option<Response<'static>> {
        if let Some(refusal) = self.refuse_pair(local, key, value) {
            return Some(refusal);
        }
        let value = Bytes::copy_from_slice(value);
        self.node_attributes.insert(key.to_vec(), value.clone());
        let (served, waiting) = std::mem::take(&mut self.attribute_waits).into_iter().partition(|wait| wait.key == key);
        self.attribute_waits = waiting;
        self.end_attribute_waits(served, Some(&value));
        Some(Response::Done)
    }

    pub(super) fn get_node_attribute(
        &mut self,
        connection: ConnectionId,
        local: LocalRank,
        key: &[u8],
        wait: bool,
        message: &Message<'_>,
    ) -> Option<Response<'_>> {
        if !wait || self.node_attributes.contains_key(key) {
            return Some(Response::Value(self.node_attributes.get(key).map(|value| &value[..])));
        }
        if let Some(refusal) = self.refuse_questions(local, 1) {
            return Some(refusal);
        }
        let address = address_of(message);
        self.attribute_waits.push(AttributeWait { key: key.to_vec(), local, connection, address });
        self.look_for_attributes_that_nobody_puts();
        None
    }

    /// Ends the gets of attributes that no rank can put any more.
    pub(super) fn look_for_attributes_that_nobody_puts(&mut self) {
        if self.attribute_waits.is_empty() || !self.ranks.iter().any(|(_, state)| state.is_gone()) {
            return;
        }
        let waits = || self.attribute_waits.iter().map(|wait| wait.local);
        let lives = waits().map(|local| self.ranks[local].lives).max().unwrap_or(0);
        let waiting: BTreeSet<LocalRank> = waits().chain(self.world.present()).collect();
        if self.ranks.iter().all(|(local, state)| state.is_gone_for(lives) || waiting.contains(&local)) {
            let over = std::mem::take(&mut self.attribute_waits);
            self.end_attribute_waits(over, None);
        }
    }

    fn end_attribute_waits(&mut self, waits: Vec<AttributeWait>, value: Option<&[u8]>) {
        for wait in waits {
            self.ranks[wait.local].quota.answered();
            let answer = Response::Value(value).encode_to(&wait.address);
            self.send(wait.connection, answer.into());
        }
    }
}
