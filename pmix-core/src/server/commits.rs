//! Commits of ranks.
//!
//! With each commit, clients send all pairs that their rank has ever put. Only new or changed pairs count: for the rank's quota by the
//! growth of its data, for fences as data to distribute.

use std::collections::BTreeMap;

use bytes::Bytes;
use pmi_core::ids::Rank;
use pmi_core::roster::Quota;

use super::client::Address;
use super::launch::Launch;
use crate::namespace::{RankData, Stored};
use crate::wire::frame::VALUES_MAX;
use crate::wire::request::Committed;
use crate::wire::{Encoding, status, types};

/// New or changed pairs of a commit, by their keys, in their encoding. Of two pairs with one key, the last value counts.
#[derive(Debug, Default)]
struct Changes<'a> {
    local: BTreeMap<&'a [u8], &'a [u8]>,
    remote: BTreeMap<&'a [u8], &'a [u8]>,
}

impl<'a> Changes<'a> {
    fn of(known: &RankData, scopes: &'a [Committed<'a>], encoding: Encoding) -> Self {
        let mut changes = Self::default();
        for committed in scopes {
            let pairs = || committed.pairs.iter().copied();
            if [types::SCOPE_LOCAL, types::SCOPE_GLOBAL].contains(&committed.scope) {
                changes.local.extend(pairs());
            }
            if [types::SCOPE_REMOTE, types::SCOPE_GLOBAL].contains(&committed.scope) {
                changes.remote.extend(pairs());
            }
        }
        let differs = |known: &BTreeMap<Bytes, Stored>, key: &[u8], value: &[u8]| {
            known.get(key).is_none_or(|stored| stored.encoding != encoding || stored.bytes != value)
        };
        changes.local.retain(|key, value| differs(&known.local, key, value));
        changes.remote.retain(|key, value| differs(&known.remote, key, value));
        changes
    }

    /// Bytes of the pairs, and bytes of the pairs that they replace.
    fn bytes(&self, known: &RankData) -> (usize, usize) {
        let cost = |key: &[u8], value: &[u8]| key.len() + value.len() + Quota::PAIR_COST;
        let new = self.local.iter().chain(&self.remote).map(|(key, value)| cost(key, value)).sum();
        let replaced = |known: &BTreeMap<Bytes, Stored>, changes: &BTreeMap<&[u8], &[u8]>| -> usize {
            changes.keys().filter_map(|&key| Some(cost(key, &known.get(key)?.bytes))).sum()
        };
        (new, replaced(&known.local, &self.local) + replaced(&known.remote, &self.remote))
    }
}

impl RankData {
    fn take(&mut self, changes: &Changes<'_>, encoding: Encoding) {
        // Copied, because a slice would keep the whole buffer of its message, however small it is.
        let own = |key: &[u8], value: &[u8]| {
            (Bytes::copy_from_slice(key), Stored { encoding, bytes: Bytes::copy_from_slice(value) })
        };
        self.local.extend(changes.local.iter().map(|(key, value)| own(key, value)));
        for (key, value) in &changes.remote {
            let (key, stored) = own(key, value);
            self.unspread.insert(key.clone());
            self.remote.insert(key, stored);
        }
    }
}

/// Bytes of the keys and values of one scope.
fn bytes_of(committed: &Committed<'_>) -> usize {
    committed.pairs.iter().map(|(key, value)| key.len() + value.len()).sum()
}

/// A rank commits values: all of them, or none if they exceed its quota. Returns the rank if its values are stored.
pub(super) fn commit(launch: &mut Launch, address: Address, scopes: &[Committed<'_>]) -> Option<Rank> {
    let identity = address.identity;
    let (seat, limit) = (identity.seat, launch.settings.bytes_per_rank);
    if scopes.iter().any(|scope| bytes_of(scope) > VALUES_MAX) {
        launch.answer(address, status::OUT_OF_RESOURCE);
        return None;
    }
    let job = launch.jobs.get_mut(seat.job)?;
    let state = job.ranks.get_mut(seat.local)?;
    let rank = state.rank;
    let nothing = RankData::default();
    let known = job.data.get(&rank).unwrap_or(&nothing);
    let changes = Changes::of(known, scopes, identity.encoding);
    let (bytes, replaced) = changes.bytes(known);
    if !state.quota.replace_bytes(replaced, bytes, limit) {
        launch.answer(address, status::OUT_OF_RESOURCE);
        return None;
    }
    job.data.entry(rank).or_default().take(&changes, identity.encoding);
    launch.answer(address, status::SUCCESS);
    Some(rank)
}
