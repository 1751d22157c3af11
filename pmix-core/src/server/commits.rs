//! Commits of ranks, and the data that fences distribute to other nodes.
//!
//! With each commit, clients send all pairs that their rank has ever put. Only new or changed pairs count: for the rank's quota by the
//! growth of its data, for fences as data to distribute.

use std::collections::BTreeMap;

use bytes::Bytes;
use pmi_core::ids::Rank;
use pmi_core::roster::Quota;
use pmi_core::segment::Segment;

use super::collectives::{DATA, data_key};
use super::members::Members;
use super::{Address, Server};
use crate::namespace::{RankData, Seat, Stored};
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

impl Server {
    /// A rank commits values: all of them, or none if they exceed its quota.
    pub(super) fn commit(&mut self, address: Address, scopes: &[Committed<'_>]) {
        let identity = address.identity;
        let (seat, limit) = (identity.seat, self.settings.bytes_per_rank);
        if scopes.iter().any(|scope| bytes_of(scope) > VALUES_MAX) {
            return self.answer(address, status::OUT_OF_RESOURCE);
        }
        let Some(job) = self.jobs.get_mut(seat.job) else { return };
        let Some(state) = job.ranks.get_mut(seat.local) else { return };
        let rank = state.rank;
        let nothing = RankData::default();
        let known = job.data.get(&rank).unwrap_or(&nothing);
        let changes = Changes::of(known, scopes, identity.encoding);
        let (bytes, replaced) = changes.bytes(known);
        if !state.quota.replace_bytes(replaced, bytes, limit) {
            return self.answer(address, status::OUT_OF_RESOURCE);
        }
        job.data.entry(rank).or_default().take(&changes, identity.encoding);
        self.answer(address, status::SUCCESS);
        self.serve_waits(seat.job, rank);
        self.serve_peers(seat.job, rank);
    }

    /// Returns all data that these ranks have committed for other nodes; no segment if there is none.
    pub(super) fn data_of(&self, seats: &[Seat]) -> Vec<Segment> {
        self.pairs_of(seats, |_, _| true)
    }

    /// Returns the data of the ranks `seats` for a collective of these members. If the members are exactly the ranks of one job, that is
    /// only data that no such collective has distributed before: the earlier data is on all nodes of the job.
    pub(super) fn take_news_of(&mut self, seats: &[Seat], members: &Members) -> Vec<Segment> {
        let segments = match members.are_one_job() {
            true => self.pairs_of(seats, |data, key| data.unspread.contains(key)),
            false => self.data_of(seats),
        };
        for &seat in seats.iter().filter(|seat| members.are_all_of(seat.job)) {
            let rank = self.rank(seat).rank;
            if let Some(data) = self.jobs[seat.job].data.get_mut(&rank) {
                data.unspread.clear();
            }
        }
        segments
    }

    fn pairs_of(&self, seats: &[Seat], is_meant: impl Fn(&RankData, &Bytes) -> bool + Copy) -> Vec<Segment> {
        let pairs = seats.iter().flat_map(|&seat| {
            let job = &self.jobs[seat.job];
            let rank: Rank = self.rank(seat).rank;
            let pairs =
                job.data.get(&rank).into_iter().flat_map(|data| data.remote.iter().map(move |pair| (data, pair)));
            let meant = pairs.filter(move |(data, (key, _))| is_meant(data, key));
            meant.map(move |(_, (key, value))| (data_key(DATA, &job.namespace.name, rank, key), value.tagged()))
        });
        Segment::several(pairs)
    }
}
