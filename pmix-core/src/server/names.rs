//! Published values: the values among the infos of a request, their range and lifetime, and the search of a lookup.

use std::collections::HashSet;
use std::time::Duration;

use bytes::Bytes;
use pmi_core::services::{Lifetime, NamePeer, NameRange};

use super::action::Action;
use super::client::Address;
use super::host::ask;
use super::launch::Launch;
use crate::namespace::{JobIndex, Seat};
use crate::services::{Call, Published};
use crate::wire::reader::Proc;
use crate::wire::reply::Encoded;
use crate::wire::value::{Info, Value};
use crate::wire::writer::Writer;
use crate::wire::{status, types};

/// Wait of a lookup without its own limit; the end of the launch ends it.
const WITHOUT_LIMIT: Duration = Duration::from_secs(365 * 24 * 3600);
/// Maximum number of processes in a custom range.
const LISTED_MAX: usize = 1024;

/// Publishers of values with the lifetime of their process.
#[derive(Debug, Default)]
pub(super) struct Publishers {
    ranks: HashSet<Seat>,
}

impl Publishers {
    /// Publishes every info that is not a directive.
    pub(super) fn publish(&mut self, launch: &mut Launch, address: Address, infos: &[Info<'_>]) {
        let seat = address.identity.seat;
        let encoding = address.identity.encoding;
        let (Some(range), Some(lifetime)) = (range_of(infos), lifetime_of(infos)) else {
            return launch.answer(address, status::BAD_PARAM);
        };
        let namespace = launch.jobs[seat.job].namespace.name.clone();
        let publisher = Proc { namespace: namespace.as_bytes(), rank: launch.jobs.rank(seat).rank.0 };
        let pack = |info: &Info<'_>| {
            let mut value = Writer::new(encoding);
            value.value(&info.value);
            let value = value.into_bytes();
            (own(info.key), Published::new(publisher, Encoded { encoding, bytes: &value }))
        };
        let values = infos.iter().filter(|info| !is_directive(info)).map(pack).collect();
        if lifetime == Lifetime::Process {
            self.ranks.insert(seat);
        }
        ask(launch, address, Call::Publish { values, lifetime, range });
    }

    /// The process of a rank has ended: withdraws the values with the lifetime of the process.
    pub(super) fn end(&mut self, launch: &mut Launch, seat: Seat) {
        if self.ranks.remove(&seat) {
            let (ticket, rank) = (launch.new_ticket(), launch.jobs.rank(seat).rank);
            launch.actions.push_back(Action::Call { ticket, job: seat.job, rank, call: Call::Leave });
        }
    }

    /// Drops the ranks of a removed job.
    pub(super) fn remove(&mut self, job: JobIndex) {
        self.ranks.retain(|seat| seat.job != job);
    }
}

/// A client searches for published values.
pub(super) fn look_up(launch: &mut Launch, address: Address, keys: &[&[u8]], infos: &[Info<'_>]) {
    let number = |key: &[u8]| infos.iter().find(|info| info.key == key).map(|info| info.value.number());
    // A tool may disconnect long before.
    let longest = if launch.jobs.is_tool(address.identity.seat) { launch.settings.rank_timeout } else { WITHOUT_LIMIT };
    let limit = match number(b"pmix.timeout") {
        Some(Some(seconds @ 1..)) => Duration::from_secs(seconds).min(longest),
        _ => longest,
    };
    // Its number is the number of values to wait for, 0 for all. A wait for one of several values returns all of them, later.
    let timeout = number(b"pmix.wait").map(|_| limit);
    let range = match number(b"pmix.range").flatten().and_then(|range| u8::try_from(range).ok()) {
        Some(types::RANGE_RM) => NameRange::Host,
        Some(types::RANGE_LOCAL) => NameRange::Node,
        Some(types::RANGE_NAMESPACE) => NameRange::Job,
        Some(types::RANGE_GLOBAL) => NameRange::User,
        Some(types::RANGE_PROC_LOCAL) => NameRange::Process,
        // Open MPI 5 sends an uninitialized number: an undefined number counts as no range.
        _ => NameRange::Session,
    };
    ask(launch, address, Call::Lookup { names: keys.iter().map(|key| own(key)).collect(), timeout, range });
}

/// A client withdraws values.
pub(super) fn unpublish(launch: &mut Launch, address: Address, keys: &[&[u8]]) {
    ask(launch, address, Call::Unpublish { names: keys.iter().map(|key| own(key)).collect() });
}

fn is_directive(info: &Info<'_>) -> bool {
    info.key.starts_with(b"pmix.")
}

/// Range of a publication; the default is the session. `None` for a range that the standard does not define, and for a custom range
/// without processes.
fn range_of(infos: &[Info<'_>]) -> Option<NameRange> {
    let value = |key: &[u8]| infos.iter().find(|info| info.key == key).map(|info| &info.value);
    let Some(range) = value(b"pmix.range") else { return Some(NameRange::Session) };
    Some(match u8::try_from(range.number()?).ok()? {
        types::RANGE_UNDEFINED | types::RANGE_SESSION => NameRange::Session,
        types::RANGE_RM => NameRange::Host,
        types::RANGE_LOCAL => NameRange::Node,
        types::RANGE_NAMESPACE => NameRange::Job,
        types::RANGE_GLOBAL => NameRange::User,
        types::RANGE_PROC_LOCAL => NameRange::Process,
        types::RANGE_CUSTOM => {
            let peers = match value(b"pmix.evrange") {
                Some(Value::Procs(procs)) => procs.iter().map(peer).collect::<Option<Vec<_>>>()?,
                Some(Value::Proc(proc)) => vec![peer(proc)?],
                // Permissions list users, and values never reach another user than the publisher's.
                _ => {
                    return [&b"pmix.aperms"[..], b"pmix.auids"]
                        .iter()
                        .find_map(|key| value(key))
                        .map(|_| NameRange::User);
                }
            };
            (1..=LISTED_MAX).contains(&peers.len()).then_some(NameRange::Listed(peers))?
        }
        _ => return None,
    })
}

/// A process of a custom range; its namespace consists of the id of its job and a secret of the launch.
fn peer(proc: &Proc<'_>) -> Option<NamePeer> {
    let namespace = str::from_utf8(proc.namespace).ok()?;
    let job = namespace.rsplit_once('.').map_or(namespace, |(job, _)| job).to_owned();
    Some(NamePeer { job, rank: (proc.rank != types::RANK_WILDCARD).then_some(proc.rank) })
}

/// Lifetime of a publication; `None` for a lifetime that the standard does not define. No value outlives its launch.
fn lifetime_of(infos: &[Info<'_>]) -> Option<Lifetime> {
    let Some(info) = infos.iter().find(|info| info.key == b"pmix.persist") else { return Some(Lifetime::Withdrawn) };
    match u8::try_from(info.value.number()?).ok()? {
        types::PERSIST_FIRST_READ => Some(Lifetime::FirstRead),
        types::PERSIST_PROC => Some(Lifetime::Process),
        0..=types::PERSIST_SESSION => Some(Lifetime::Withdrawn),
        _ => None,
    }
}

fn own(bytes: &[u8]) -> Bytes {
    Bytes::copy_from_slice(bytes)
}
