//! Requests that combine answers of several nodes: queries about processes, and signals to ranks.
//!
//! ```text
//! rank: QUERY, JOB_CONTROL ──> its server ──Action::Call──> host of this node ───────┐ handle_answer
//!                                  │    └──Action::Ask───> servers of other nodes ───┤ handle_peer_answer
//! rank <── answer ── when all parts are there <─────────────────────────────────────┘
//! ```
//! A node without an answer is lost, or has finished its part. The combined answer omits it, and its ranks receive no signal.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use bytes::Bytes;
use pmi_core::ids::{NodeIndex, Rank};
use pmi_core::roster::Quota;
use pmi_core::services::{JobProcesses, SignalError};

use super::action::Ticket;
use super::client::Address;
use super::groups::NamedGroups;
use super::jobs::Jobs;
use super::launch::Launch;
use super::node_processes::{NodeProcesses, Seen};
use super::open_questions::{AnswerReceiver, OpenQuestion};
use super::queries::{answer_query, processes_wanted};
use super::question::Question;
use crate::namespace::JobIndex;
use crate::services::Call;
use crate::wire::reader::Proc;
use crate::wire::request::{Query, Request};
use crate::wire::value::{Info, Value};
use crate::wire::{status, types};

/// Maximum number of keys of one query.
const KEYS_MAX: usize = 256;

/// Requests that wait for answers of several nodes.
#[derive(Debug, Default)]
pub(super) struct Inquiries {
    open: HashMap<Ticket, Inquiry>,
}

/// A request that waits for parts of its answer.
#[derive(Debug)]
struct Inquiry {
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

impl Inquiries {
    /// Answers queries, at once unless they concern processes.
    pub(super) fn query(
        &mut self,
        launch: &mut Launch,
        groups: &NamedGroups,
        address: Address,
        queries: &[Query<'_>],
        payload: &Bytes,
    ) {
        if queries.iter().map(|query| query.keys.len()).sum::<usize>() > KEYS_MAX {
            return launch.answer(address, status::BAD_PARAM);
        }
        let wanted = processes_wanted(&launch.jobs, address.identity.seat, queries);
        if wanted.is_empty() {
            return answer_query(launch, groups, address, queries, &Seen::new());
        }
        // Copied, because a slice would keep the whole buffer of its message.
        let kind = Kind::Query { payload: Bytes::copy_from_slice(payload), seen: Seen::new() };
        let Some(inquiry) = self.begin(launch, address, wanted.len(), kind) else { return };
        for (job, node) in wanted {
            let namespace = &launch.jobs[job].namespace;
            if node == namespace.node {
                let rank = launch.jobs.rank(address.identity.seat).rank;
                launch.call(job, rank, Call::Look, AnswerReceiver::Look { inquiry, job });
            } else {
                let namespace = namespace.name.clone().into();
                launch.ask_peer(node, &Question::Processes { namespace }, OpenQuestion::Look { inquiry, job, node });
            }
        }
    }

    /// Sends a signal to ranks of this launch, on any node.
    pub(super) fn signal(&mut self, launch: &mut Launch, address: Address, targets: &[Proc<'_>], signal: i32) {
        let Some(parts) = signal_parts(&launch.jobs, address, targets) else {
            return launch.answer(address, status::BAD_PARAM);
        };
        let kind = Kind::Signal { status: status::SUCCESS };
        let Some(inquiry) = self.begin(launch, address, parts.len(), kind) else { return };
        for ((job, node), ranks) in parts {
            let namespace = &launch.jobs[job].namespace;
            if node == namespace.node {
                let rank = launch.jobs.rank(address.identity.seat).rank;
                launch.call(job, rank, Call::Signal { ranks, signal }, AnswerReceiver::Signal { inquiry });
            } else {
                let namespace = namespace.name.clone().into();
                let question = Question::Signal { namespace, signal, ranks };
                launch.ask_peer(node, &question, OpenQuestion::Signal { inquiry });
            }
        }
    }

    /// Registers a request with `left` missing parts; refuses it and returns `None` if the rank has too many.
    fn begin(&mut self, launch: &mut Launch, address: Address, left: usize, kind: Kind) -> Option<Ticket> {
        if !launch.charge(address, kind.questions()) {
            return None;
        }
        let inquiry = launch.new_ticket();
        self.open.insert(inquiry, Inquiry { address, left, kind });
        Some(inquiry)
    }

    /// A node has returned its processes of a job; `None` if it gives no answer.
    pub(super) fn on_processes(
        &mut self,
        launch: &mut Launch,
        groups: &NamedGroups,
        inquiry: Ticket,
        at: (JobIndex, NodeIndex),
        processes: Option<NodeProcesses>,
    ) {
        if let Some(Inquiry { kind: Kind::Query { seen, .. }, .. }) = self.open.get_mut(&inquiry)
            && let Some(processes) = processes
        {
            seen.insert(at, processes);
        }
        self.end_part(launch, groups, inquiry);
    }

    /// A node has sent a signal, or has failed to send it.
    pub(super) fn on_signalled(&mut self, launch: &mut Launch, groups: &NamedGroups, inquiry: Ticket, answer: i32) {
        if let Some(Inquiry { kind: Kind::Signal { status }, .. }) = self.open.get_mut(&inquiry)
            && *status == status::SUCCESS
        {
            *status = answer;
        }
        self.end_part(launch, groups, inquiry);
    }

    /// Answers the request if all parts of its answer have arrived.
    fn end_part(&mut self, launch: &mut Launch, groups: &NamedGroups, inquiry: Ticket) {
        let Some(open) = self.open.get_mut(&inquiry) else { return };
        open.left -= 1;
        if open.left > 0 {
            return;
        }
        let Some(Inquiry { address, kind, .. }) = self.open.remove(&inquiry) else { return };
        launch.credit(address.identity.seat, kind.questions());
        match kind {
            Kind::Signal { status } => launch.answer(address, status),
            Kind::Query { payload, seen } => {
                if let Ok(Request::Query(queries)) = Request::decode(address.identity.encoding, &payload) {
                    answer_query(launch, groups, address, &queries, &seen);
                }
            }
        }
    }
}

/// Returns the target ranks, by job and node. An empty list means the caller's job, or the job that a tool inspects. Returns `None`
/// if the launch does not have one of them.
fn signal_parts(
    jobs: &Jobs,
    address: Address,
    targets: &[Proc<'_>],
) -> Option<BTreeMap<(JobIndex, NodeIndex), Vec<Rank>>> {
    let (mut whole, mut meant) = (BTreeSet::new(), BTreeSet::new());
    if targets.is_empty() {
        whole.insert(jobs.meant_by(address.identity.seat));
    }
    for target in targets {
        let job = jobs.own(target.namespace)?;
        match target.rank {
            types::RANK_WILDCARD => drop(whole.insert(job)),
            rank if rank < jobs[job].namespace.job.size() => drop(meant.insert((job, Rank(rank)))),
            _ => return None,
        }
    }
    for job in whole {
        meant.extend((0..jobs[job].namespace.job.size()).map(|rank| (job, Rank(rank))));
    }
    let mut parts = BTreeMap::<_, Vec<Rank>>::new();
    for (job, rank) in meant {
        let node = jobs[job].namespace.job.placement.node_of(rank)?;
        parts.entry((job, node)).or_default().push(rank);
    }
    Some(parts)
}

/// A server of another node requests the processes of a job here.
pub(super) fn look_for_peer(launch: &mut Launch, ticket: Ticket, namespace: &[u8]) {
    call_for_peer(launch, ticket, namespace, Call::Look, |job| AnswerReceiver::PeerLook { ticket, job });
}

/// A server of another node requests a signal to ranks here.
pub(super) fn signal_for_peer(launch: &mut Launch, ticket: Ticket, namespace: &[u8], signal: i32, ranks: Vec<Rank>) {
    call_for_peer(launch, ticket, namespace, Call::Signal { ranks, signal }, |_| AnswerReceiver::PeerSignal { ticket });
}

fn call_for_peer(
    launch: &mut Launch,
    ticket: Ticket,
    namespace: &[u8],
    call: Call,
    receiver: impl FnOnce(JobIndex) -> AnswerReceiver,
) {
    match launch.jobs.own(namespace) {
        Some(job) => launch.call(job, Rank(0), call, receiver(job)),
        None => launch.answer_peer(ticket, status::NOT_FOUND),
    }
}

/// Combines the processes from the host with the connection states of their ranks.
pub(super) fn node_processes(jobs: &Jobs, job: JobIndex, seen: &JobProcesses) -> NodeProcesses {
    let state = &jobs[job];
    NodeProcesses::new(seen, |rank| state.local(rank).is_some_and(|local| state.ranks[local].connection.is_some()))
}

/// Status for the result of a signal.
pub(super) fn signal_status(result: &Result<(), SignalError>) -> i32 {
    match result {
        Ok(()) => status::SUCCESS,
        Err(SignalError::NoSuchSignal { .. }) => status::BAD_PARAM,
        Err(_) => status::NOT_SUPPORTED,
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
