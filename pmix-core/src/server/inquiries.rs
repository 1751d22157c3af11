//! Requests that combine answers of several nodes: queries about processes, and signals to ranks.
//!
//! ```text
//! rank: QUERY, JOB_CONTROL ──> its server ──Action::Call──> host of this node ───────┐ handle_answer
//!                                  │    └──Action::Ask───> servers of other nodes ───┤ handle_peer_answer
//! rank <── answer ── when all parts are there <─────────────────────────────────────┘
//! ```
//! A node without an answer is lost, or has finished its part. The combined answer omits it, and its ranks receive no signal.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use pmi_core::ids::{NodeIndex, Rank};
use pmi_core::roster::Quota;
use pmi_core::services::JobProcesses;

use super::node_processes::NodeProcesses;
use super::open_questions::{AnswerReceiver, OpenQuestion};
use super::question::Question;
use super::{Action, Address, Server, Ticket};
use crate::namespace::JobIndex;
use crate::services::Call;
use crate::wire::reader::Proc;
use crate::wire::request::{Query, Request};
use crate::wire::value::{Info, Value};
use crate::wire::{status, types};

/// Maximum number of keys of one query.
const KEYS_MAX: usize = 256;

/// Processes by job and node.
pub(super) type Seen = BTreeMap<(JobIndex, NodeIndex), NodeProcesses>;

/// A request that waits for parts of its answer.
#[derive(Debug)]
pub(super) struct Inquiry {
    address: Address,
    /// Number of missing parts.
    left: usize,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    /// A query, which is decoded again when all parts have arrived.
    Query { payload: Bytes, seen: Seen },
    /// A signal, with the status to answer.
    Signal { status: i32 },
}

impl Kind {
    /// Returns the number of questions that the request counts for while it waits.
    fn questions(&self) -> usize {
        match self {
            Self::Query { payload, .. } => Quota::questions_of(payload.len()),
            Self::Signal { .. } => 1,
        }
    }
}

impl Server {
    /// Answers queries, at once unless they concern processes.
    pub(super) fn query(&mut self, address: Address, queries: &[Query<'_>], payload: &Bytes) {
        if queries.iter().map(|query| query.keys.len()).sum::<usize>() > KEYS_MAX {
            return self.answer(address, status::BAD_PARAM);
        }
        let wanted = self.processes_wanted(address.identity.seat, queries);
        if wanted.is_empty() {
            return self.answer_query(address, queries, &Seen::new());
        }
        // Copied, because a slice would keep the whole buffer of its message.
        let kind = Kind::Query { payload: Bytes::copy_from_slice(payload), seen: Seen::new() };
        let Some(inquiry) = self.begin_inquiry(address, wanted.len(), kind) else { return };
        for (job, node) in wanted {
            if node == self.jobs[job].namespace.node {
                self.call_host(address, job, Call::Look, AnswerReceiver::Look { inquiry, job });
            } else {
                let namespace = self.jobs[job].namespace.name.clone().into();
                self.ask_peer(node, &Question::Processes { namespace }, OpenQuestion::Look { inquiry, job, node });
            }
        }
    }

    /// Sends a signal to ranks of this launch, on any node.
    pub(super) fn signal(&mut self, address: Address, targets: &[Proc<'_>], signal: i32) {
        let Some(parts) = self.signal_parts(address, targets) else {
            return self.answer(address, status::BAD_PARAM);
        };
        let kind = Kind::Signal { status: status::SUCCESS };
        let Some(inquiry) = self.begin_inquiry(address, parts.len(), kind) else { return };
        for ((job, node), ranks) in parts {
            let namespace = &self.jobs[job].namespace;
            if node == namespace.node {
                self.call_host(address, job, Call::Signal { ranks, signal }, AnswerReceiver::Signal { inquiry });
            } else {
                let namespace = namespace.name.clone().into();
                self.ask_peer(node, &Question::Signal { namespace, signal, ranks }, OpenQuestion::Signal { inquiry });
            }
        }
    }

    /// Returns the target ranks, by job and node. An empty list means the caller's job, or the job that a tool inspects. Returns `None`
    /// if the launch does not have one of them.
    fn signal_parts(
        &self,
        address: Address,
        targets: &[Proc<'_>],
    ) -> Option<BTreeMap<(JobIndex, NodeIndex), Vec<Rank>>> {
        let (mut whole, mut meant) = (BTreeSet::new(), BTreeSet::new());
        if targets.is_empty() {
            whole.insert(self.job_meant(address.identity.seat));
        }
        for target in targets {
            let job = self.own_job(target.namespace)?;
            match target.rank {
                types::RANK_WILDCARD => drop(whole.insert(job)),
                rank if rank < self.jobs[job].namespace.job.size() => drop(meant.insert((job, Rank(rank)))),
                _ => return None,
            }
        }
        for job in whole {
            meant.extend((0..self.jobs[job].namespace.job.size()).map(|rank| (job, Rank(rank))));
        }
        let mut parts = BTreeMap::<_, Vec<Rank>>::new();
        for (job, rank) in meant {
            let node = self.jobs[job].namespace.job.placement.node_of(rank)?;
            parts.entry((job, node)).or_default().push(rank);
        }
        Some(parts)
    }

    /// Registers a request with `left` missing parts; refuses it and returns `None` if the rank has too many.
    fn begin_inquiry(&mut self, address: Address, left: usize, kind: Kind) -> Option<Ticket> {
        let most = self.questions_max(address.identity.seat);
        if !self.rank_mut(address.identity.seat)?.quota.ask_many(kind.questions(), most) {
            self.answer(address, status::OUT_OF_RESOURCE);
            return None;
        }
        let inquiry = self.new_ticket();
        self.inquiries.insert(inquiry, Inquiry { address, left, kind });
        Some(inquiry)
    }

    fn call_host(&mut self, address: Address, job: JobIndex, call: Call, asked: AnswerReceiver) {
        let (ticket, rank) = (self.new_ticket(), self.rank(address.identity.seat).rank);
        self.asked.insert(ticket, asked);
        self.actions.push_back(Action::Call { ticket, job, rank, call });
    }

    /// The host has returned the processes of a job here, for an inquiry of this node.
    pub(super) fn on_look(&mut self, inquiry: Ticket, job: JobIndex, seen: &JobProcesses) {
        let node = self.jobs[job].namespace.node;
        let processes = self.node_processes(job, seen);
        self.on_processes(inquiry, job, node, Some(processes));
    }

    /// A node has returned its processes of a job; `None` if it gives no answer.
    pub(super) fn on_processes(
        &mut self,
        inquiry: Ticket,
        job: JobIndex,
        node: NodeIndex,
        processes: Option<NodeProcesses>,
    ) {
        if let Some(Inquiry { kind: Kind::Query { seen, .. }, .. }) = self.inquiries.get_mut(&inquiry)
            && let Some(processes) = processes
        {
            seen.insert((job, node), processes);
        }
        self.end_part(inquiry);
    }

    /// A node has sent a signal, or has failed to send it.
    pub(super) fn on_signalled(&mut self, inquiry: Ticket, answer: i32) {
        if let Some(Inquiry { kind: Kind::Signal { status }, .. }) = self.inquiries.get_mut(&inquiry)
            && *status == status::SUCCESS
        {
            *status = answer;
        }
        self.end_part(inquiry);
    }

    /// Answers the request if all parts of its answer have arrived.
    fn end_part(&mut self, inquiry: Ticket) {
        let Some(open) = self.inquiries.get_mut(&inquiry) else { return };
        open.left -= 1;
        if open.left > 0 {
            return;
        }
        let Some(Inquiry { address, kind, .. }) = self.inquiries.remove(&inquiry) else { return };
        if let Some(state) = self.rank_mut(address.identity.seat) {
            state.quota.answered_many(kind.questions());
        }
        match kind {
            Kind::Signal { status } => self.answer(address, status),
            Kind::Query { payload, seen } => {
                if let Ok(Request::Query(queries)) = Request::decode(address.identity.encoding, &payload) {
                    self.answer_query(address, &queries, &seen);
                }
            }
        }
    }

    /// A server of another node requests the processes of a job here.
    pub(super) fn on_processes_question(&mut self, ticket: Ticket, namespace: &[u8]) {
        self.call_for_peer(ticket, namespace, Call::Look, |job| AnswerReceiver::PeerLook { ticket, job });
    }

    /// A server of another node requests a signal to ranks here.
    pub(super) fn on_signal_question(&mut self, ticket: Ticket, namespace: &[u8], signal: i32, ranks: Vec<Rank>) {
        self.call_for_peer(ticket, namespace, Call::Signal { ranks, signal }, |_| AnswerReceiver::PeerSignal {
            ticket,
        });
    }

    fn call_for_peer(
        &mut self,
        ticket: Ticket,
        namespace: &[u8],
        call: Call,
        asked: impl FnOnce(JobIndex) -> AnswerReceiver,
    ) {
        let Some(job) = self.own_job(namespace) else {
            return self.reply_to_peer(ticket, status::NOT_FOUND.to_be_bytes().to_vec());
        };
        let own = self.new_ticket();
        self.asked.insert(own, asked(job));
        self.actions.push_back(Action::Call { ticket: own, job, rank: Rank(0), call });
    }

    /// The job of this launch with that namespace.
    pub(super) fn own_job(&self, namespace: &[u8]) -> Option<JobIndex> {
        self.job_named(namespace).filter(|&job| !self.jobs[job].is_met())
    }

    /// Combines the processes from the host with the connection states of their ranks.
    pub(super) fn node_processes(&self, job: JobIndex, seen: &JobProcesses) -> NodeProcesses {
        let state = &self.jobs[job];
        NodeProcesses::new(seen, |rank| state.local(rank).is_some_and(|local| state.ranks[local].connection.is_some()))
    }
}

/// Signal of a job control request; `None` for another request, or for several.
pub(super) fn signal_wanted(infos: &[Info<'_>]) -> Option<i32> {
    let mut wanted = None;
    for info in infos {
        let signal = match (info.key, &info.value) {
            // A name for the request, by which other clients could cancel it.
            (b"pmix.jctrl.id", _) => continue,
            (b"pmix.jctrl.sig", value) => i32::try_from(value.number()?).ok()?,
            (b"pmix.jctrl.pause", Value::Bool(true)) => linux::STOP,
            (b"pmix.jctrl.resume", Value::Bool(true)) => linux::CONTINUE,
            (b"pmix.jctrl.kill", Value::Bool(true)) => linux::KILL,
            (b"pmix.jctrl.term", Value::Bool(true)) => linux::TERMINATE,
            _ => return None,
        };
        if wanted.replace(signal).is_some() {
            return None;
        }
    }
    wanted
}

/// Signal numbers of Linux, the same on all machines except MIPS and SPARC.
mod linux {
    pub(super) const KILL: i32 = 9;
    pub(super) const TERMINATE: i32 = 15;
    pub(super) const CONTINUE: i32 = 18;
    pub(super) const STOP: i32 = 19;
}
