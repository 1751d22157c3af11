//! Data between nodes: committed values, context ids, and ranks' own numbers of communicators, as pairs of segments.

use std::collections::BTreeSet;
use std::iter;
use std::ops::Bound;

use bytes::Bytes;
use pmi_core::fence::Merged;
use pmi_core::ids::Rank;
use pmi_core::segment::Segment;

use super::jobs::Jobs;
use super::members::Members;
use crate::namespace::{JobIndex, RankData, Seat, Stored};
use crate::wire::status;

/// First bytes of the keys of a contribution's pairs.
const DATA: u8 = b'd';
const CONTEXT: u8 = b'c';
const NUMBER: u8 = b'n';

/// Returns all data that these ranks have committed for other nodes; no segment if there is none.
pub(super) fn data_of(jobs: &Jobs, seats: &[Seat]) -> Vec<Segment> {
    pairs_of(jobs, seats, |_, _| true)
}

/// Returns the data of the ranks `seats` for a collective of these members. If the members are exactly the ranks of one job, that is
/// only data that no such collective has distributed before: the earlier data is on all nodes of the job.
pub(super) fn take_news_of(jobs: &mut Jobs, seats: &[Seat], members: &Members) -> Vec<Segment> {
    let segments = match members.are_one_job() {
        true => pairs_of(jobs, seats, |data, key| data.unspread.contains(key)),
        false => data_of(jobs, seats),
    };
    for &seat in seats.iter().filter(|seat| members.are_all_of(seat.job)) {
        let rank = jobs.rank(seat).rank;
        if let Some(data) = jobs[seat.job].data.get_mut(&rank) {
            data.unspread.clear();
        }
    }
    segments
}

fn pairs_of(jobs: &Jobs, seats: &[Seat], is_meant: impl Fn(&RankData, &Bytes) -> bool + Copy) -> Vec<Segment> {
    let pairs = seats.iter().flat_map(|&seat| {
        let job = &jobs[seat.job];
        let rank: Rank = jobs.rank(seat).rank;
        let pairs = job.data.get(&rank).into_iter().flat_map(|data| data.remote.iter().map(move |pair| (data, pair)));
        let meant = pairs.filter(move |(data, (key, _))| is_meant(data, key));
        meant.map(move |(_, (key, value))| (data_key(DATA, &job.namespace.name, rank, key), value.tagged()))
    });
    Segment::several(pairs)
}

/// Returns these ranks' own numbers of the communicator of the new group.
pub(super) fn numbers_of(jobs: &Jobs, numbers: &[(Seat, u64)]) -> Segment {
    let pair = |&(seat, number): &(Seat, u64)| {
        let namespace = &jobs[seat.job].namespace.name;
        (data_key(NUMBER, namespace, jobs.rank(seat).rank, &[]), number.to_be_bytes())
    };
    numbers.iter().map(pair).collect()
}

/// Returns the segment of a context id.
pub(super) fn context_segment(context: u64) -> Segment {
    [([CONTEXT], context.to_be_bytes())].into_iter().collect()
}

/// Stores the data of other nodes. Returns the first node's context id, and the ranks with new data.
pub(super) fn absorb(jobs: &mut Jobs, merged: &Merged) -> (u64, BTreeSet<(JobIndex, Rank)>) {
    let pairs = || merged.segments.iter().flat_map(Segment::pairs);
    let context = pairs().find(|(key, _)| *key == [CONTEXT]);
    let context = context.and_then(|(_, value)| value.try_into().ok()).map_or(0, u64::from_be_bytes);
    let mut changed = BTreeSet::new();
    for (key, value) in pairs() {
        if let Some((&kind @ (DATA | NUMBER), key)) = key.split_first() {
            changed.extend(absorb_pair(jobs, kind, key, value, context));
        }
    }
    (context, changed)
}

/// Returns the rank with changed data, if any.
fn absorb_pair(jobs: &mut Jobs, kind: u8, key: &[u8], value: &[u8], context: u64) -> Option<(JobIndex, Rank)> {
    let (namespace, rank, key) = split_data_key(key)?;
    let index = jobs.named(namespace)?;
    let job = &mut jobs[index];
    if job.local(rank).is_some() || job.namespace.job.placement.node_of(rank).is_none() {
        return None;
    }
    if kind == DATA {
        let stored = Stored::untag(value)?;
        job.data.entry(rank).or_default().remote.insert(Bytes::copy_from_slice(key), stored);
        return Some((index, rank));
    }
    job.add_group(rank, context, u64::from_be_bytes(value.try_into().ok()?));
    None
}

/// A data key: kind, namespace with a NUL, rank, key.
fn data_key(kind: u8, namespace: &str, rank: Rank, key: &[u8]) -> Vec<u8> {
    [&[kind], namespace.as_bytes(), &[0], &rank.0.to_be_bytes(), key].concat()
}

fn split_data_key(key: &[u8]) -> Option<(&[u8], Rank, &[u8])> {
    let end = key.iter().position(|&byte| byte == 0)?;
    let (rank, rest) = key[end + 1..].split_first_chunk()?;
    Some((&key[..end], Rank(u32::from_be_bytes(*rank)), rest))
}

/// Returns the answer with these segments: a status of success, and all segments as one.
pub(super) fn encode_segments(segments: &[Segment]) -> Vec<u8> {
    let parts = segments.iter().map(Segment::as_bytes);
    iter::once(&status::SUCCESS.to_be_bytes()[..]).chain(parts).collect::<Vec<_>>().concat()
}

/// A status; after success, a segment of the rank's keys with their values, each value after the tag of its encoding. It holds all keys,
/// or only one.
pub(super) fn encode_values(data: &RankData, alone: Option<&Bytes>) -> Vec<u8> {
    let range = alone.map_or((Bound::Unbounded, Bound::Unbounded), |key| (Bound::Included(key), Bound::Included(key)));
    let pairs = data.remote.range::<Bytes, _>(range);
    let segment: Segment = pairs.map(|(key, value)| (key, value.tagged())).collect();
    [&status::SUCCESS.to_be_bytes(), segment.as_bytes()].concat()
}

/// Returns the pairs of an answer about one rank; `None` if the answer reports none.
pub(super) fn decode_values(answer: &Bytes) -> Option<Vec<(Bytes, Stored)>> {
    let segment = decode_segment(answer)?;
    let pairs = segment.pairs();
    Some(pairs.filter_map(|(key, value)| Some((Bytes::copy_from_slice(key), Stored::untag(value)?))).collect())
}

/// Returns the segment after a status of success; `None` after any other status.
pub(super) fn decode_segment(answer: &Bytes) -> Option<Segment> {
    let (code, _) = answer.split_first_chunk()?;
    let is_success = i32::from_be_bytes(*code) == status::SUCCESS;
    Segment::decode(answer.slice(size_of::<i32>()..)).ok().filter(|_| is_success)
}
