//! Gets of clients, which may wait for a commit, or for the data of another node.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use bytes::Bytes;
use pmi_core::ids::{NodeIndex, Rank};

use super::action::{Action, Ticket};
use super::client::Address;
use super::facts;
use super::launch::Launch;
use super::open_questions::{AwaitedValue, Get, OpenQuestion};
use super::pending::Pending;
use super::question::{DataQuestion, Question};
use super::segments::decode_values;
use super::withheld::WithheldData;
use crate::namespace::JobIndex;
use crate::wire::{Encoding, reply, status};

/// Gets that wait for values.
#[derive(Debug, Default)]
pub(super) struct Gets {
    /// Gets that wait for a commit of a rank.
    waits: Pending<(JobIndex, Rank), Wait>,
    /// Requested values, without their tickets: no value is requested twice.
    wanted: HashSet<AwaitedValue>,
    /// Gets that wait for the data of a node.
    fetches: Pending<(JobIndex, NodeIndex), Fetch>,
}

/// A get that waits for a commit.
#[derive(Clone, Debug)]
struct Wait {
    address: Address,
    wanted: AwaitedValue,
}

/// A get that waits for the data of its rank's node.
#[derive(Clone, Debug)]
struct Fetch {
    address: Address,
    get: Get,
}

/// Outcome of a get that waited.
#[derive(Clone, Copy, Debug)]
enum GetOutcome {
    Found,
    NotFound,
}

/// Key of a rank's own number of a group's communicator.
const GROUP_LOCAL_ID: &[u8] = b"pmix.grp.lclid";

/// The rank that spawned a job. libpmix searches for it among the facts about a rank, and requests it when it is missing.
const PARENT: &[u8] = b"pmix.parent";

/// Extra time for the answer of another node.
const PEER_GRACE: Duration = Duration::from_secs(5);

impl Gets {
    /// Answers a get of a rank's values, at once or when they arrive.
    pub(super) fn serve(&mut self, launch: &mut Launch, withheld: &WithheldData, address: Address, get: Get) {
        let Get { job, rank, ref key, immediate, .. } = get;
        let (key, encoding) = (key.as_deref(), address.identity.encoding);
        let state = &launch.jobs[job];
        if key == Some(GROUP_LOCAL_ID) {
            let reply = facts::group_ids(state, encoding, rank);
            return launch.reply(address, &reply.unwrap_or_else(|| reply::status(encoding, status::NOT_FOUND)));
        }
        let is_own = job == address.identity.seat.job;
        let reserved = key.filter(|key| key.starts_with(b"pmix."));
        // Ranks receive the facts about ranks on their node without a request.
        let fact = reserved.filter(|_| is_own).and_then(|key| facts::of_rank(&state.namespace, encoding, rank, key));
        if let Some(reply) = fact {
            return launch.reply(address, &reply);
        }
        let is_fact = key == Some(PARENT) && state.namespace.parent.is_some();
        // The data of a collecting fence exists for its ranks, without a wait for a commit. An earlier value may be outdated.
        if let Some(node) = withheld.withholder(&launch.jobs, job, rank).filter(|_| !is_fact) {
            return self.fetch(launch, node, address, get);
        }
        if state.has_value(rank, key) {
            let with_facts = is_first_answer(launch, address, job);
            let reply = values(launch, encoding, (job, rank), with_facts);
            return launch.reply_shared(address, &reply);
        }
        if is_fact {
            let reply = facts::parent(&state.namespace, encoding, rank);
            return launch.reply(address, &reply);
        }
        if reserved.is_some() && !is_own {
            return send_foreign_job(launch, address, job);
        }
        // Reserved keys are facts, so no rank commits them later. Of other launches, only the data of a meeting is available.
        if immediate || reserved.is_some() || state.is_met() || state.is_gone(rank) {
            return launch.answer(address, status::NOT_FOUND);
        }
        self.wait(launch, address, get);
    }

    /// Makes a get wait for a commit.
    fn wait(&mut self, launch: &mut Launch, address: Address, get: Get) {
        if !launch.charge(address, 1) {
            return;
        }
        let Get { job, rank, key, timeout, .. } = get;
        let wanted = AwaitedValue { job, rank, key, timeout };
        let after = match launch.jobs[job].other_node(rank) {
            // The other node limits the wait; this limit is for a node that never answers.
            Some(node) => {
                self.ask_node(launch, node, &wanted);
                let longest = launch.settings.rank_timeout;
                timeout.unwrap_or(longest).min(longest) + PEER_GRACE
            }
            None => launch.timeout(job, rank, timeout),
        };
        let ticket = launch.new_ticket();
        self.waits.insert(ticket, (job, rank), Wait { address, wanted });
        launch.actions.push_back(Action::SetTimer { ticket, after });
    }

    /// Requests the value of a waiting get from a node, unless that request is already open.
    fn ask_node(&mut self, launch: &mut Launch, node: NodeIndex, wanted: &AwaitedValue) {
        if !self.wanted.insert(wanted.clone()) {
            return;
        }
        let namespace = launch.jobs[wanted.job].namespace.name.clone().into();
        let AwaitedValue { rank, key, timeout, .. } = wanted.clone();
        let question = Question::Data(DataQuestion { namespace, rank, key, timeout });
        launch.ask_peer(node, &question, OpenQuestion::Value(wanted.clone()));
    }

    /// Makes a get wait for the data of a node, which is requested once.
    fn fetch(&mut self, launch: &mut Launch, node: NodeIndex, address: Address, get: Get) {
        let (job, after) = (get.job, launch.settings.rank_timeout);
        if !launch.charge(address, 1) {
            return;
        }
        if !self.fetches.has(&(job, node)) {
            let namespace = Bytes::copy_from_slice(launch.jobs[job].namespace.name.as_bytes());
            launch.ask_peer(node, &Question::AllOf { namespace }, OpenQuestion::Withheld { job, node });
        }
        let ticket = launch.new_ticket();
        self.fetches.insert(ticket, (job, node), Fetch { address, get });
        launch.actions.push_back(Action::SetTimer { ticket, after });
    }

    /// The node of a rank has answered the request of a waiting get; `None` if it gives no answer.
    pub(super) fn on_value(&mut self, launch: &mut Launch, wanted: &AwaitedValue, answer: Option<&Bytes>) {
        let AwaitedValue { job, rank, .. } = *wanted;
        self.wanted.remove(wanted);
        if let Some(data) = answer.and_then(decode_values) {
            launch.jobs[job].data.entry(rank).or_default().remote.extend(data);
            self.serve_waits(launch, job, rank);
        }
        let waits = self.waits.take(&(job, rank), |wait| wait.wanted == *wanted);
        end_waits(launch, waits, GetOutcome::NotFound);
    }

    /// Checks the gets that wait for a rank again.
    pub(super) fn serve_waits(&mut self, launch: &mut Launch, job: JobIndex, rank: Rank) {
        let Some(values) = launch.jobs[job].values(rank) else { return };
        let is_there = |key: Option<&Bytes>| key.map_or(!values.is_empty(), |key| values.contains_key(key));
        let served = self.waits.take(&(job, rank), |wait| is_there(wait.wanted.key.as_ref()));
        end_waits(launch, served, GetOutcome::Found);
    }

    /// Serves the gets that wait for these nodes' data again.
    pub(super) fn serve_fetched(
        &mut self,
        launch: &mut Launch,
        withheld: &WithheldData,
        is_here: impl Fn((JobIndex, NodeIndex)) -> bool,
    ) {
        for at in self.fetches.keys(..).into_iter().filter(|&at| is_here(at)) {
            for (ticket, Fetch { address, get }) in self.fetches.take(&at, |_| true) {
                launch.actions.push_back(Action::CancelTimer { ticket });
                launch.credit(address.identity.seat, 1);
                self.serve(launch, withheld, address, get);
            }
        }
    }

    /// Ends the gets that wait for a rank, which commits nothing more.
    pub(super) fn give_up(&mut self, launch: &mut Launch, job: JobIndex, rank: Rank) {
        let waits = self.waits.take(&(job, rank), |_| true);
        end_waits(launch, waits, GetOutcome::NotFound);
    }

    /// Returns the ranks of a job that gets wait for.
    pub(super) fn awaited_ranks(&self, job: JobIndex) -> impl Iterator<Item = Rank> + use<> {
        self.waits.keys((job, Rank(0))..=(job, Rank(u32::MAX))).into_iter().map(|(_, rank)| rank)
    }

    /// The time of a get has expired; returns false if the ticket is of another kind.
    pub(super) fn expire(&mut self, launch: &mut Launch, ticket: Ticket) -> bool {
        if let Some(wait) = self.waits.remove(ticket) {
            end_waits(launch, vec![(ticket, wait)], GetOutcome::NotFound);
        } else if let Some(Fetch { address, .. }) = self.fetches.remove(ticket) {
            launch.credit(address.identity.seat, 1);
            launch.answer(address, status::NOT_FOUND);
        } else {
            return false;
        }
        true
    }
}

fn end_waits(launch: &mut Launch, waits: Vec<(Ticket, Wait)>, outcome: GetOutcome) {
    // All gets wait for one rank. So their answers differ only by encoding, and by whether they include the facts about its job. Each
    // variant is encoded once.
    let mut replies = HashMap::new();
    for (ticket, Wait { address, wanted }) in waits {
        launch.actions.push_back(Action::CancelTimer { ticket });
        launch.credit(address.identity.seat, 1);
        match outcome {
            GetOutcome::Found => {
                let (encoding, about) = (address.identity.encoding, (wanted.job, wanted.rank));
                let with_facts = is_first_answer(launch, address, wanted.job);
                let reply = replies
                    .entry((about, encoding, with_facts))
                    .or_insert_with(|| values(launch, encoding, about, with_facts));
                launch.reply_shared(address, reply);
            }
            GetOutcome::NotFound => launch.answer(address, status::NOT_FOUND),
        }
    }
}

/// Returns true if the next answer about a job must include the facts about the job, and records them as sent.
fn is_first_answer(launch: &mut Launch, address: Address, job: JobIndex) -> bool {
    let client = launch.clients.get_mut(address.connection);
    job != address.identity.seat.job && client.is_none_or(|client| client.known_jobs.insert(job))
}

/// The answer with all committed values of a rank.
fn values(launch: &mut Launch, encoding: Encoding, (job, rank): (JobIndex, Rank), with_facts: bool) -> Bytes {
    let foreign = with_facts.then(|| facts::foreign_job(&mut launch.jobs[job], encoding));
    facts::values(&launch.jobs[job], encoding, rank, foreign.as_deref())
}

/// Sends the facts about another job than the client's.
pub(super) fn send_foreign_job(launch: &mut Launch, address: Address, job: JobIndex) {
    let encoding = address.identity.encoding;
    is_first_answer(launch, address, job);
    let facts = facts::foreign_job(&mut launch.jobs[job], encoding);
    launch.reply(address, &reply::objects(encoding, [&facts[..]]));
}
