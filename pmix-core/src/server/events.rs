//! Delivery of events to clients.

use std::collections::BTreeMap;

use bytes::Bytes;
use pmi_core::Phase;
use pmi_core::connections::ConnectionId;
use pmi_core::deaths::{Death, DeathKind};
use pmi_core::ids::Rank;
use pmi_core::report::Sender;

use super::client::{Address, Client};
use super::jobs::Jobs;
use super::launch::Launch;
use crate::namespace::{JobIndex, Seat};
use crate::wire::frame::{self, TAG_NOTIFY};
use crate::wire::reader::Proc;
use crate::wire::value::{Info, Value};
use crate::wire::{reply, status, types};

/// Maximum size of an event from a rank in bytes, as received.
const EVENT_MAX: usize = 1024 * 1024;

/// Codes of the event of a rank's death: PRRTE's code first, then the codes of other implementations.
fn codes_of(kind: DeathKind) -> &'static [i32] {
    match kind {
        DeathKind::Killed => &[status::PROC_ABORTED_BY_SIG, status::PROC_ABORTED],
        DeathKind::Exited => &[status::PROC_TERM_WO_SYNC, status::EXIT_NONZERO_TERM, status::PROC_ABORTED],
        DeathKind::NodeLost => &[status::PROC_TERM_WO_SYNC, status::PROC_ABORTED],
    }
}

/// An event for clients.
struct Event<'a> {
    /// The rank that it comes from.
    source: (JobIndex, Rank),
    code: i32,
    range: u8,
    infos: &'a [Info<'a>],
}

impl Event<'_> {
    /// Sends the event to the clients with `is_receiver`.
    fn send(&self, launch: &mut Launch, is_receiver: impl Fn(&Jobs, &Client, Seat) -> bool) {
        let &Self { source: (job, rank), code, range, infos } = self;
        let namespace = launch.jobs[job].namespace.name.clone();
        let proc = Proc { namespace: namespace.as_bytes(), rank: rank.0 };
        let listens = |(connection, client): (ConnectionId, &Client)| {
            let identity = client.identity?;
            let state = launch.jobs.rank(identity.seat);
            let is_open = state.phase == Phase::Open && !state.exited;
            let receives = is_open && is_receiver(&launch.jobs, client, identity.seat);
            receives.then_some((connection, identity.encoding))
        };
        let listeners: Vec<_> = launch.clients.iter().filter_map(listens).collect();
        // All receivers with one encoding share one message.
        let mut messages: [Option<Bytes>; 2] = [None, None];
        for (connection, encoding) in listeners {
            let write = || frame::message(TAG_NOTIFY, &reply::event(encoding, code, proc, infos, range));
            let message = messages[encoding as usize].get_or_insert_with(write).clone();
            if launch.settings.trace {
                launch.trace(connection, Sender::Server, TAG_NOTIFY, &message[frame::HEADER..]);
            }
            launch.push_send(connection, message);
        }
    }
}

/// A rank sends an event to other ranks. Ranks of other nodes do not receive it.
pub(super) fn notify(launch: &mut Launch, address: Address, code: i32, range: u8, infos: &[Info<'_>], payload: &Bytes) {
    let sender = address.identity.seat;
    if payload.len() > EVENT_MAX {
        return launch.answer(address, status::OUT_OF_RESOURCE);
    }
    launch.answer(address, status::SUCCESS);
    let chosen = infos.iter().find(|info| info.key == b"pmix.evrange").map(|info| &info.value);
    let is_receiver = |jobs: &Jobs, client: &Client, seat: Seat| {
        let concerned = match range {
            types::RANGE_RM | types::RANGE_PROC_LOCAL => false,
            types::RANGE_NAMESPACE => seat.job == sender.job,
            types::RANGE_CUSTOM => is_chosen(jobs, seat, chosen),
            _ => true,
        };
        concerned && seat != sender && client.interest.includes(code)
    };
    let source = (sender.job, launch.jobs.rank(sender).rank);
    Event { source, code, range, infos }.send(launch, is_receiver);
}

/// A rank's connection broke before it finalized. Only clients with a registration for this very code receive the event, in any job
/// of the launch. The launcher decides whether the job continues.
pub(super) fn report_loss(launch: &mut Launch, lost: Seat) {
    let (namespace, rank) = (launch.jobs[lost.job].namespace.name.clone(), launch.jobs.rank(lost).rank);
    let affected = Proc { namespace: namespace.as_bytes(), rank: rank.0 };
    let infos = [Info::new("pmix.evproc", Value::Proc(affected))];
    let code = status::LOST_CONNECTION;
    let event = Event { source: (lost.job, rank), code, range: types::RANGE_NAMESPACE, infos: &infos };
    event.send(launch, |_, client, _| client.interest.names(code));
}

/// Ranks of a job have died, and the other ranks continue. Only clients with a registration for such codes receive the events, in any
/// job of the launch: parents wait for ranks that they have spawned, and vice versa. Each client receives each death once, and each
/// lost node once. Default handlers treat such events as fatal.
pub(super) fn report_deaths(launch: &mut Launch, job: JobIndex, deaths: &[Death]) {
    let namespace = launch.jobs[job].namespace.name.clone();
    let mut lost_nodes = BTreeMap::new();
    for death in deaths {
        let affected = Proc { namespace: namespace.as_bytes(), rank: death.rank.0 };
        let infos = [Info::new("pmix.evproc", Value::Proc(affected))];
        report_by_first_name(launch, (job, death.rank), codes_of(death.kind), &infos);
        if death.kind == DeathKind::NodeLost
            && let Some(node) = launch.jobs[job].namespace.job.placement.node_of(death.rank)
        {
            lost_nodes.entry(node).or_insert(death.rank);
        }
    }
    for (node, rank) in lost_nodes {
        let host = launch.jobs[job].namespace.hosts.get(node.index()).cloned().unwrap_or_default();
        let infos = [Info::new("pmix.hname", Value::Text(host.as_bytes()))];
        report_by_first_name(launch, (job, rank), &[status::NODE_DOWN], &infos);
    }
}

/// Sends an event with several codes. Each rank receives the first code that it has registered for.
fn report_by_first_name(launch: &mut Launch, source: (JobIndex, Rank), codes: &[i32], infos: &[Info<'_>]) {
    for (index, &code) in codes.iter().enumerate() {
        let event = Event { source, code, range: types::RANGE_NAMESPACE, infos };
        let first = |client: &Client| codes.iter().position(|&code| client.interest.names(code));
        event.send(launch, |_, client, _| first(client) == Some(index));
    }
}

/// Returns true if the range list of an event includes this rank.
fn is_chosen(jobs: &Jobs, seat: Seat, list: Option<&Value<'_>>) -> bool {
    let procs = match list {
        Some(Value::Procs(procs)) => &procs[..],
        Some(Value::Proc(proc)) => std::slice::from_ref(proc),
        _ => &[],
    };
    let namespace = jobs[seat.job].namespace.name.as_bytes();
    let rank = jobs.rank(seat).rank.0;
    procs.iter().any(|proc| proc.namespace == namespace && [rank, types::RANK_WILDCARD].contains(&proc.rank))
}
