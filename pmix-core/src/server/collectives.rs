//! Collectives: fences, connects, disconnects and constructions of groups, over ranks of one job or of several.
//!
//! All follow one course: the listed ranks of this node arrive, their nodes exchange data, and all ranks leave. They differ in the
//! answers to the ranks. Where ranks of other launches take part, the exchange is a [meeting](super::meetings).

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;
use pmi_core::fence::{Contribution, FenceId, Merged, Scope};
use pmi_core::gathering::Gathering;
use pmi_core::ids::{Epoch, NodeIndex, Rank};
use pmi_core::roster::Quota;
use pmi_core::segment::Segment;

use super::members::Members;
use super::{Action, Address, Server, contexts};
use crate::namespace::{JobIndex, Seat, Stored};
use crate::wire::reader::Proc;
use crate::wire::value::{Info, Value};
use crate::wire::{reply, status};

/// A rank that waits for the end of a collective.
#[derive(Clone, Debug)]
pub(super) struct Waiter {
    pub(super) address: Address,
    pub(super) members: Arc<Members>,
    outcome: Outcome,
    /// Number of questions that its list counts for while it waits.
    pub(super) questions: usize,
}

/// Answer to a rank at the end.
#[derive(Clone, Debug)]
enum Outcome {
    /// The end of the collective. Fences may collect data.
    Over { collect: bool },
    /// The facts about the other jobs.
    Jobs,
    /// The group's members and context id; `number` is the rank's own number of the group's communicator.
    Group { name: Bytes, number: Option<u64> },
}

/// Maximum length of a group's name in bytes, as in clients.
const NAME_MAX: usize = 511;

/// First bytes of the keys of a contribution's pairs.
pub(super) const DATA: u8 = b'd';
const CONTEXT: u8 = b'c';
const NUMBER: u8 = b'n';

impl Server {
    pub(super) fn fence(&mut self, address: Address, procs: &[Proc<'_>], collect: bool) {
        self.arrive(address, "fence", procs, Outcome::Over { collect });
    }

    pub(super) fn connect(&mut self, address: Address, procs: &[Proc<'_>]) {
        self.forget_told(address, procs);
        self.arrive(address, "connect", procs, Outcome::Jobs);
    }

    pub(super) fn disconnect(&mut self, address: Address, procs: &[Proc<'_>]) {
        self.forget_told(address, procs);
        self.arrive(address, "disconnect", procs, Outcome::Over { collect: false });
    }

    /// Clients drop the facts about jobs from which they disconnect, including facts that they received in the meantime.
    fn forget_told(&mut self, address: Address, procs: &[Proc<'_>]) {
        let names: BTreeSet<&[u8]> = procs.iter().map(|proc| proc.namespace).collect();
        if let Some(client) = self.clients.get_mut(address.connection) {
            client.known_jobs.retain(|&job| !names.contains(self.jobs[job].namespace.name.as_bytes()));
        }
    }

    pub(super) fn construct_group(&mut self, address: Address, name: &[u8], procs: &[Proc<'_>], infos: &[Info<'_>]) {
        let number = infos.iter().find(|info| info.key == b"pmix.grp.info").and_then(|info| match &info.value {
            Value::Infos(infos) => infos.iter().find(|info| info.key == b"pmix.grp.lclid")?.value.number(),
            _ => None,
        });
        if name.len() > NAME_MAX {
            return self.answer(address, status::BAD_PARAM);
        }
        if procs.is_empty() {
            // An added member of a group lists no members. The other members must list all of them instead.
            return self.answer(address, status::NOT_SUPPORTED);
        }
        let kind = format!("group {}", name.escape_ascii());
        let name = Bytes::copy_from_slice(name);
        self.arrive(address, &kind, procs, Outcome::Group { name, number });
    }

    fn arrive(&mut self, address: Address, kind: &str, procs: &[Proc<'_>], outcome: Outcome) {
        let seat = address.identity.seat;
        let members = match self.members(procs) {
            Ok(members) => members,
            Err(status) => return self.answer(address, status),
        };
        if !members.include(seat.job, self.rank(seat).rank) {
            return self.answer(address, status::BAD_PARAM);
        }
        let name = self.collective_name(kind, &members);
        // A short list costs no more than the request itself.
        let (questions, most) = (Quota::questions_of(members.bytes()) - 1, self.questions_max(seat));
        if !self.rank_mut(seat).is_some_and(|state| state.quota.ask_many(questions, most)) {
            return self.answer(address, status::OUT_OF_RESOURCE);
        }
        let seats = self.seats(&members);
        let gathering = self.collectives.open(&name, || Gathering::new(seats));
        let arrived = gathering.is_some_and(|gathering| {
            let known = gathering.waiters().next().map(|waiter: &Waiter| &waiter.members);
            let members =
                known.filter(|known| ***known == members).map_or_else(|| Arc::new(members.clone()), Arc::clone);
            gathering.arrive(seat, Waiter { address, members, outcome, questions })
        });
        if !arrived {
            self.give_back(seat, questions);
            return self.answer(address, status::OUT_OF_RESOURCE);
        }
        match self.begin_collective(&name) {
            None => self.look_for_deserters_of(&name),
            Some(epoch) => self.exchange_round(name.into(), epoch),
        }
    }

    pub(super) fn give_back(&mut self, seat: Seat, questions: usize) {
        if let Some(state) = self.rank_mut(seat) {
            state.quota.answered_many(questions);
        }
    }

    /// Exchanges the data of a round that has begun.
    pub(super) fn exchange_round(&mut self, name: Arc<str>, epoch: Epoch) {
        let first = self.collectives.get_mut(&name).and_then(|gathering| gathering.leaving().first());
        let Some(members) = first.map(|waiter| Arc::clone(&waiter.members)) else { return };
        let nodes = self.nodes(&members).into();
        self.exchange(FenceId { scope: Scope::Foreign { name, nodes }, epoch });
        members.ours.keys().for_each(|&job| self.look_for_missed_node(job));
    }

    /// Exchanges a complete round with the other nodes, if any.
    fn exchange(&mut self, id: FenceId) {
        let Scope::Foreign { name, nodes } = &id.scope else { return };
        let Some(gathering) = self.collectives.get_mut(name) else { return };
        let Some(first) = gathering.leaving().first().cloned() else { return };
        if nodes.len() < 2 && !first.members.meet_others() {
            let context = matches!(first.outcome, Outcome::Group { .. }).then(|| self.context());
            return self.leave(&id, &Vec::from_iter(context).into());
        }
        let seats: Vec<Seat> = gathering.members().collect();
        let numbers: Vec<(Seat, u64)> = gathering.leaving().iter().filter_map(Waiter::number).collect();
        let collects = gathering.leaving().iter().any(Waiter::collects);
        if first.members.meet_others() {
            let mut segments = self.data_of(&seats);
            segments.push(self.numbers_of(&numbers));
            return self.meet(id, &first, segments);
        }
        let Some(job) = self.host_of(&first.members) else { return };
        let is_barrier = !collects && matches!(first.outcome, Outcome::Over { .. });
        // A fence that collects nothing is only a barrier: ranks request data of other ranks later.
        let mut segments = if is_barrier { Vec::new() } else { self.take_news_of(&seats, &first.members) };
        let contribution = match first.outcome {
            Outcome::Over { .. } => Contribution { segments, exchange: self.settings.exchange },
            Outcome::Jobs => segments.into(),
            Outcome::Group { .. } => {
                segments.extend([self.numbers_of(&numbers), self.context()]);
                segments.into()
            }
        };
        self.actions.push_back(Action::Fence { job, id, contribution });
    }

    /// Returns the job for the fence of members of several jobs. Every node must select the same job, although nodes may have received
    /// the jobs in different orders.
    pub(super) fn host_of(&self, members: &Members) -> Option<JobIndex> {
        members.ours.keys().copied().min_by_key(|&job| &self.jobs[job].namespace.name)
    }

    /// Returns a context id that no other node uses. The id of the first node takes effect.
    fn context(&mut self) -> Segment {
        let first = self.jobs.first().map(|job| &job.namespace);
        let (launch, node) = first.map_or(("", NodeIndex(0)), |namespace| (&namespace.name, namespace.node));
        let nodes = first.map_or(1, |namespace| namespace.hosts.len() as u32);
        let launch = self.launch_number.unwrap_or_else(|| contexts::hash(launch));
        context_segment(self.contexts.next(launch, node, nodes))
    }

    /// All nodes have arrived: their data is available, and the ranks of this node continue.
    pub(super) fn leave(&mut self, id: &FenceId, merged: &Merged) {
        if merged.withheld > 0 {
            self.withhold(id, merged);
        }
        let (context, changed) = self.absorb(merged);
        let whole = self.whole_jobs(id);
        self.part(id, |server, waiter| server.release(waiter, context));
        for (job, rank) in changed {
            self.serve_waits(job, rank);
        }
        whole.into_iter().for_each(|job| self.count_fence(job));
    }

    /// Returns the jobs that leave a round with all their ranks.
    fn whole_jobs(&mut self, id: &FenceId) -> Vec<JobIndex> {
        let Scope::Foreign { name, .. } = &id.scope else { return Vec::new() };
        let first = self.collectives.get_mut(name).and_then(|gathering| gathering.leaving().first());
        let whole = |(&job, ranks): (&JobIndex, &Option<Vec<Rank>>)| ranks.is_none().then_some(job);
        first.map(|waiter| waiter.members.ours.iter().filter_map(whole).collect()).unwrap_or_default()
    }

    /// Ends a round: releases each of its ranks, and begins the next round if no rank is missing.
    pub(super) fn part(&mut self, id: &FenceId, mut let_go: impl FnMut(&mut Self, Waiter)) {
        let Scope::Foreign { name, nodes } = &id.scope else { return };
        let Some(gathering) = self.collectives.get_mut(name) else { return };
        let waiters = gathering.complete();
        let next = self.begin_collective(name);
        if self.collectives.get_mut(name).is_some_and(|gathering| gathering.is_idle()) {
            let meets = waiters.first().is_some_and(|waiter| waiter.members.meet_others());
            if nodes.len() > 1 || meets {
                self.collectives.rest(name);
            } else {
                self.collectives.forget(name);
            }
        }
        for waiter in waiters {
            self.give_back(waiter.address.identity.seat, waiter.questions);
            let_go(self, waiter);
        }
        match next {
            Some(epoch) => self.exchange(FenceId { scope: id.scope.clone(), epoch }),
            // A rank may have finalized after this round, while other ranks wait for it in the next one.
            None => self.look_for_deserters_of(name),
        }
    }

    /// Returns these ranks' own numbers of the communicator of the new group.
    fn numbers_of(&self, numbers: &[(Seat, u64)]) -> Segment {
        let pair = |&(seat, number): &(Seat, u64)| {
            let namespace = &self.jobs[seat.job].namespace.name;
            (data_key(NUMBER, namespace, self.rank(seat).rank, &[]), number.to_be_bytes())
        };
        numbers.iter().map(pair).collect()
    }

    /// Stores the data of other nodes. Returns the first node's context id, and the ranks with new data.
    pub(super) fn absorb(&mut self, merged: &Merged) -> (u64, BTreeSet<(JobIndex, Rank)>) {
        let pairs = || merged.segments.iter().flat_map(Segment::pairs);
        let context = pairs().find(|(key, _)| *key == [CONTEXT]);
        let context = context.and_then(|(_, value)| value.try_into().ok()).map_or(0, u64::from_be_bytes);
        let mut changed = BTreeSet::new();
        for (key, value) in pairs() {
            if let Some((&kind @ (DATA | NUMBER), key)) = key.split_first() {
                changed.extend(self.absorb_pair(kind, key, value, context));
            }
        }
        (context, changed)
    }

    /// Returns the rank with changed data, if any.
    fn absorb_pair(&mut self, kind: u8, key: &[u8], value: &[u8], context: u64) -> Option<(JobIndex, Rank)> {
        let (namespace, rank, key) = split_data_key(key)?;
        let index = self.job_named(namespace)?;
        let job = &mut self.jobs[index];
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

    fn release(&mut self, Waiter { address, members, outcome, .. }: Waiter, context: u64) {
        if self.lacks_any(&members) {
            // The same status as from OpenPMIx's server.
            return self.answer(address, status::LOST_CONNECTION);
        }
        match outcome {
            Outcome::Over { .. } => self.answer(address, status::SUCCESS),
            Outcome::Jobs => self.tell_jobs(address, &members),
            Outcome::Group { name, number } => {
                let seat = address.identity.seat;
                let rank = self.rank(seat).rank;
                if let Some(number) = number {
                    self.jobs[seat.job].add_group(rank, context, number);
                }
                self.groups.add(name, &members, context);
                self.tell_group(address, &members, context);
            }
        }
    }

    /// Sends the facts about all participating jobs, except the client's own.
    fn tell_jobs(&mut self, address: Address, members: &Members) {
        let encoding = address.identity.encoding;
        let mut objects = Vec::new();
        let own = address.identity.seat.job;
        let others: Vec<JobIndex> = self.by_job(members).map(|(job, _)| job).filter(|&job| job != own).collect();
        for job in others {
            let job = &mut self.jobs[job];
            let mut object = reply::namespace_heading(encoding, job.namespace.name.as_bytes());
            object.extend_from_slice(&job.facts(encoding));
            objects.push(object);
        }
        let reply = reply::objects(encoding, objects.iter().map(Vec::as_slice));
        self.reply(address, &reply);
    }

    fn tell_group(&mut self, address: Address, members: &Members, context: u64) {
        let procs = self.group_members(members);
        let reply = reply::group(address.identity.encoding, address.identity.version, &procs, context);
        self.reply(address, &reply);
    }
}

impl Waiter {
    /// Returns the rank, and its own number of the group's communicator.
    fn number(&self) -> Option<(Seat, u64)> {
        match self.outcome {
            Outcome::Group { number: Some(number), .. } => Some((self.address.identity.seat, number)),
            _ => None,
        }
    }

    /// Returns true if the rank requests the members' data.
    fn collects(&self) -> bool {
        matches!(self.outcome, Outcome::Over { collect: true })
    }

    /// Returns true if every rank of a job takes part in the collective, and no rank of another launch, which may arrive at any time.
    pub(super) fn takes_whole(&self, job: JobIndex) -> bool {
        !self.members.meet_others() && self.members.are_all_of(job)
    }
}

/// Returns the segment of a context id.
pub(super) fn context_segment(context: u64) -> Segment {
    [([CONTEXT], context.to_be_bytes())].into_iter().collect()
}

/// A data key: kind, namespace with a NUL, rank, key.
pub(super) fn data_key(kind: u8, namespace: &str, rank: Rank, key: &[u8]) -> Vec<u8> {
    [&[kind], namespace.as_bytes(), &[0], &rank.0.to_be_bytes(), key].concat()
}

fn split_data_key(key: &[u8]) -> Option<(&[u8], Rank, &[u8])> {
    let end = key.iter().position(|&byte| byte == 0)?;
    let (rank, rest) = key[end + 1..].split_first_chunk()?;
    Some((&key[..end], Rank(u32::from_be_bytes(*rank)), rest))
}
