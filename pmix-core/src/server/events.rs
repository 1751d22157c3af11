//! Delivery of events to clients.

use std::collections::BTreeMap;

use bytes::Bytes;
use pmi_core::Phase;
use pmi_core::connections::ConnectionId;
use pmi_core::deaths::{Death, DeathKind};
use pmi_core::ids::Rank;
use pmi_core::report::Sender;

use super::{Address, Client, Server};
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

impl Server {
    /// A rank sends an event to other ranks. Ranks of other nodes do not receive it.
    pub(super) fn notify(&mut self, address: Address, code: i32, range: u8, infos: &[Info<'_>], payload: &Bytes) {
        let source = address.identity.seat;
        if payload.len() > EVENT_MAX {
            return self.answer(address, status::OUT_OF_RESOURCE);
        }
        self.answer(address, status::SUCCESS);
        let chosen = infos.iter().find(|info| info.key == b"pmix.evrange").map(|info| &info.value);
        let told = |server: &Self, client: &Client, seat: Seat| {
            let concerned = match range {
                types::RANGE_RM | types::RANGE_PROC_LOCAL => false,
                types::RANGE_NAMESPACE => seat.job == source.job,
                types::RANGE_CUSTOM => server.is_chosen(seat, chosen),
                _ => true,
            };
            concerned && seat != source && client.interest.includes(code)
        };
        self.tell((source.job, self.rank(source).rank), code, range, infos, told);
    }

    /// A rank's connection broke before it finalized. Only clients with a registration for this very code receive the event, in any job
    /// of the launch. The launcher decides whether the job continues.
    pub(super) fn tell_of_loss(&mut self, lost: Seat) {
        let namespace = self.jobs[lost.job].namespace.name.clone();
        let affected = Proc { namespace: namespace.as_bytes(), rank: self.rank(lost).rank.0 };
        let infos = [Info::new("pmix.evproc", Value::Proc(affected))];
        let told = |_: &Self, client: &Client, _: Seat| client.interest.names(status::LOST_CONNECTION);
        self.tell((lost.job, self.rank(lost).rank), status::LOST_CONNECTION, types::RANGE_NAMESPACE, &infos, told);
    }

    /// Ranks of a job have died, and the other ranks continue. Only clients with a registration for such codes receive the events, in any
    /// job of the launch: parents wait for ranks that they have spawned, and vice versa. Each client receives each death once, and each
    /// lost node once. Default handlers treat such events as fatal.
    pub(super) fn tell_of_deaths(&mut self, job: JobIndex, deaths: &[Death]) {
        let namespace = self.jobs[job].namespace.name.clone();
        let mut lost_nodes = BTreeMap::new();
        for death in deaths {
            let affected = Proc { namespace: namespace.as_bytes(), rank: death.rank.0 };
            let infos = [Info::new("pmix.evproc", Value::Proc(affected))];
            self.tell_by_first_name(job, death.rank, codes_of(death.kind), &infos);
            if death.kind == DeathKind::NodeLost
                && let Some(node) = self.jobs[job].namespace.job.placement.node_of(death.rank)
            {
                lost_nodes.entry(node).or_insert(death.rank);
            }
        }
        for (node, rank) in lost_nodes {
            let host = self.jobs[job].namespace.hosts.get(node.index()).cloned().unwrap_or_default();
            let infos = [Info::new("pmix.hname", Value::Text(host.as_bytes()))];
            self.tell_by_first_name(job, rank, &[status::NODE_DOWN], &infos);
        }
    }

    /// Sends an event with several codes. Each rank receives the first code that it has registered for.
    fn tell_by_first_name(&mut self, job: JobIndex, source: Rank, codes: &[i32], infos: &[Info<'_>]) {
        for (index, &code) in codes.iter().enumerate() {
            let told = |_: &Self, client: &Client, _: Seat| {
                codes.iter().position(|&code| client.interest.names(code)) == Some(index)
            };
            self.tell((job, source), code, types::RANGE_NAMESPACE, infos, told);
        }
    }

    fn tell(
        &mut self,
        (job, rank): (JobIndex, Rank),
        code: i32,
        range: u8,
        infos: &[Info<'_>],
        told: impl Fn(&Self, &Client, Seat) -> bool,
    ) {
        let namespace = self.jobs[job].namespace.name.clone();
        let proc = Proc { namespace: namespace.as_bytes(), rank: rank.0 };
        let listens = |(connection, client): (ConnectionId, &Client)| {
            let identity = client.identity?;
            let state = self.rank(identity.seat);
            let is_open = state.phase == Phase::Open && !state.exited;
            (is_open && told(self, client, identity.seat)).then_some((connection, identity.encoding))
        };
        let listeners: Vec<_> = self.clients.iter().filter_map(listens).collect();
        // All receivers with one encoding share one message.
        let mut messages: [Option<Bytes>; 2] = [None, None];
        for (connection, encoding) in listeners {
            let write = || frame::message(TAG_NOTIFY, &reply::event(encoding, code, proc, infos, range));
            let message = messages[encoding as usize].get_or_insert_with(write).clone();
            if self.settings.trace {
                self.trace(connection, Sender::Server, TAG_NOTIFY, &message[frame::HEADER..]);
            }
            self.push_send(connection, message);
        }
    }

    /// Returns true if the range list of an event includes this rank.
    fn is_chosen(&self, seat: Seat, list: Option<&Value<'_>>) -> bool {
        let procs = match list {
            Some(Value::Procs(procs)) => &procs[..],
            Some(Value::Proc(proc)) => std::slice::from_ref(proc),
            _ => &[],
        };
        let namespace = self.jobs[seat.job].namespace.name.as_bytes();
        let rank = self.rank(seat).rank.0;
        procs.iter().any(|proc| proc.namespace == namespace && [rank, types::RANK_WILDCARD].contains(&proc.rank))
    }
}
