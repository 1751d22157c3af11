//! Collectives: fences, connects, disconnects and constructions of groups, over ranks of one job or of several.
//!
//! All follow one course: the listed ranks of this node arrive, their nodes exchange data, and all ranks leave. They differ in the
//! answers to the ranks. Where ranks of other launches take part, the exchange is a [meeting](super::meetings).

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;
use pmi_core::fence::{Contribution, FenceId, Merged, Scope};
use pmi_core::gathering::{Gathering, Groups};
use pmi_core::ids::{Epoch, Rank};
use pmi_core::roster::Quota;

use super::action::Action;
use super::client::Address;
use super::contexts::Contexts;
use super::data::Data;
use super::groups::NamedGroups;
use super::jobs::Jobs;
use super::launch::Launch;
use super::meetings::{data_of_meeting, meet};
use super::members::Members;
use super::mortality::count_fence;
use super::segments::{absorb, context_segment, data_of, numbers_of, take_news_of};
use crate::namespace::{JobIndex, Seat};
use crate::services::Answer;
use crate::wire::reader::Proc;
use crate::wire::value::{Info, Value};
use crate::wire::{reply, status};

/// Collectives with ranks of this node, and the groups that they have created.
#[derive(Default)]
pub(super) struct Collectives {
    pub(super) gatherings: Groups<Seat, Waiter>,
    pub(super) groups: NamedGroups,
    pub(super) contexts: Contexts,
}

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

impl Collectives {
    pub(super) fn fence(&mut self, launch: &mut Launch, address: Address, procs: &[Proc<'_>], collect: bool) {
        self.arrive(launch, address, "fence", procs, Outcome::Over { collect });
    }

    pub(super) fn connect(&mut self, launch: &mut Launch, address: Address, procs: &[Proc<'_>]) {
        forget_facts(launch, address, procs);
        self.arrive(launch, address, "connect", procs, Outcome::Jobs);
    }

    pub(super) fn disconnect(&mut self, launch: &mut Launch, address: Address, procs: &[Proc<'_>]) {
        forget_facts(launch, address, procs);
        self.arrive(launch, address, "disconnect", procs, Outcome::Over { collect: false });
    }

    pub(super) fn construct_group(
        &mut self,
        launch: &mut Launch,
        address: Address,
        name: &[u8],
        procs: &[Proc<'_>],
        infos: &[Info<'_>],
    ) {
        let number = infos.iter().find(|info| info.key == b"pmix.grp.info").and_then(|info| match &info.value {
            Value::Infos(infos) => infos.iter().find(|info| info.key == b"pmix.grp.lclid")?.value.number(),
            _ => None,
        });
        if name.len() > NAME_MAX {
            return launch.answer(address, status::BAD_PARAM);
        }
        if procs.is_empty() {
            // An added member of a group lists no members. The other members must list all of them instead.
            return launch.answer(address, status::NOT_SUPPORTED);
        }
        let kind = format!("group {}", name.escape_ascii());
        let name = Bytes::copy_from_slice(name);
        self.arrive(launch, address, &kind, procs, Outcome::Group { name, number });
    }

    fn arrive(&mut self, launch: &mut Launch, address: Address, kind: &str, procs: &[Proc<'_>], outcome: Outcome) {
        let seat = address.identity.seat;
        let members = match Members::new(&launch.jobs, procs) {
            Ok(members) => members,
            Err(status) => return launch.answer(address, status),
        };
        if !members.include(seat.job, launch.jobs.rank(seat).rank) {
            return launch.answer(address, status::BAD_PARAM);
        }
        let name = members.collective_name(&launch.jobs, kind);
        // A short list costs no more than the request itself.
        let questions = Quota::questions_of(members.bytes()) - 1;
        if !launch.charge(address, questions) {
            return;
        }
        let seats = members.seats(&launch.jobs);
        let gathering = self.gatherings.open(&name, || Gathering::new(seats));
        let arrived = gathering.is_some_and(|gathering| {
            let known = gathering.waiters().next().map(|waiter: &Waiter| &waiter.members);
            let members =
                known.filter(|known| ***known == members).map_or_else(|| Arc::new(members.clone()), Arc::clone);
            gathering.arrive(seat, Waiter { address, members, outcome, questions })
        });
        if !arrived {
            launch.credit(seat, questions);
            return launch.answer(address, status::OUT_OF_RESOURCE);
        }
        match self.begin_collective(&launch.jobs, &name) {
            None => self.look_for_deserters_of(launch, &name),
            Some(epoch) => self.exchange_round(launch, name.into(), epoch),
        }
    }

    /// Begins the exchange of a collective's next round, if no needed rank is missing.
    fn begin_collective(&mut self, jobs: &Jobs, name: &str) -> Option<Epoch> {
        self.gatherings.get_mut(name)?.begin(|seat| jobs[seat.job].can_do_without(seat.local))
    }

    /// Begins the collectives that no longer wait for a rank of this node.
    pub(super) fn begin_collectives(&mut self, launch: &mut Launch) {
        let names: Vec<_> = self.gatherings.names().cloned().collect();
        for name in names {
            if let Some(epoch) = self.begin_collective(&launch.jobs, &name) {
                self.exchange_round(launch, name, epoch);
            }
        }
    }

    /// Exchanges the data of a round that has begun.
    fn exchange_round(&mut self, launch: &mut Launch, name: Arc<str>, epoch: Epoch) {
        let Some(members) = self.members_leaving(&name) else { return };
        let nodes = members.nodes(&launch.jobs).into();
        self.exchange(launch, FenceId { scope: Scope::Foreign { name, nodes }, epoch });
        members.ours.keys().for_each(|&job| self.look_for_missed_node(launch, job));
    }

    /// Exchanges a complete round with the other nodes, if any.
    fn exchange(&mut self, launch: &mut Launch, id: FenceId) {
        let Scope::Foreign { name, nodes } = &id.scope else { return };
        let Some(gathering) = self.gatherings.get_mut(name) else { return };
        let Some(first) = gathering.leaving().first().cloned() else { return };
        if nodes.len() < 2 && !first.members.meet_others() {
            let is_group = matches!(first.outcome, Outcome::Group { .. });
            let context = if is_group { self.contexts.next_of(&launch.jobs) } else { 0 };
            return self.release_all(launch, &id, context).into_iter().for_each(|job| count_fence(launch, job));
        }
        let seats: Vec<Seat> = gathering.members().collect();
        let numbers: Vec<(Seat, u64)> = gathering.leaving().iter().filter_map(Waiter::number).collect();
        let collects = gathering.leaving().iter().any(Waiter::collects);
        if first.members.meet_others() {
            let mut segments = data_of(&launch.jobs, &seats);
            segments.push(numbers_of(&launch.jobs, &numbers));
            return meet(launch, id, &first.members, first.address.identity.seat, segments);
        }
        let Some(job) = first.members.host(&launch.jobs) else { return };
        let is_barrier = !collects && matches!(first.outcome, Outcome::Over { .. });
        // A fence that collects nothing is only a barrier: ranks request data of other ranks later.
        let mut segments = if is_barrier { Vec::new() } else { take_news_of(&mut launch.jobs, &seats, &first.members) };
        let contribution = match first.outcome {
            Outcome::Over { .. } => Contribution { segments, exchange: launch.settings.exchange },
            Outcome::Jobs => segments.into(),
            Outcome::Group { .. } => {
                let context = self.contexts.next_of(&launch.jobs);
                segments.extend([numbers_of(&launch.jobs, &numbers), context_segment(context)]);
                segments.into()
            }
        };
        launch.actions.push_back(Action::Fence { job, id, contribution });
    }

    /// All nodes have arrived: their data is available, and the ranks of this node continue.
    pub(super) fn leave(&mut self, launch: &mut Launch, data: &mut Data, id: &FenceId, merged: &Merged) {
        if merged.withheld > 0
            && let Scope::Foreign { name, .. } = &id.scope
            && let Some(members) = self.members_leaving(name)
        {
            data.withhold(launch, id, merged, members);
        }
        let (context, changed) = absorb(&mut launch.jobs, merged);
        let whole = self.release_all(launch, id, context);
        data.serve_waits(launch, changed);
        whole.into_iter().for_each(|job| count_fence(launch, job));
    }

    /// The host has completed the meeting, or reports why it cannot.
    pub(super) fn end_meeting(&mut self, launch: &mut Launch, data: &mut Data, id: &FenceId, answer: &Answer) {
        if launch.ended {
            return;
        }
        match data_of_meeting(launch, answer) {
            Ok(merged) => self.leave(launch, data, id, &merged),
            Err(code) => self.end_round(launch, id, |_, launch, waiter| launch.answer(waiter.address, code)),
        }
    }

    /// Releases the ranks of a round. Returns the jobs that leave it with all their ranks.
    fn release_all(&mut self, launch: &mut Launch, id: &FenceId, context: u64) -> Vec<JobIndex> {
        let Scope::Foreign { name, .. } = &id.scope else { return Vec::new() };
        let whole = |(&job, ranks): (&JobIndex, &Option<Vec<Rank>>)| ranks.is_none().then_some(job);
        let members = self.members_leaving(name);
        let whole = members.map(|members| members.ours.iter().filter_map(whole).collect()).unwrap_or_default();
        self.end_round(launch, id, |groups, launch, waiter| release(groups, launch, waiter, context));
        whole
    }

    /// Returns the members of the round in exchange, as one of its ranks has listed them.
    fn members_leaving(&self, name: &str) -> Option<Arc<Members>> {
        let first = self.gatherings.get(name)?.leaving().first()?;
        Some(Arc::clone(&first.members))
    }

    /// Ends a round: releases each of its ranks, and begins the next round if no rank is missing.
    fn end_round(
        &mut self,
        launch: &mut Launch,
        id: &FenceId,
        mut release: impl FnMut(&mut NamedGroups, &mut Launch, Waiter),
    ) {
        let Scope::Foreign { name, nodes } = &id.scope else { return };
        let Some(gathering) = self.gatherings.get_mut(name) else { return };
        let waiters = gathering.complete();
        let next = self.begin_collective(&launch.jobs, name);
        if self.gatherings.get(name).is_some_and(Gathering::is_idle) {
            let meets = waiters.first().is_some_and(|waiter| waiter.members.meet_others());
            if nodes.len() > 1 || meets {
                self.gatherings.rest(name);
            } else {
                self.gatherings.forget(name);
            }
        }
        for waiter in waiters {
            launch.credit(waiter.address.identity.seat, waiter.questions);
            release(&mut self.groups, launch, waiter);
        }
        match next {
            Some(epoch) => self.exchange(launch, FenceId { scope: id.scope.clone(), epoch }),
            // A rank may have finalized after this round, while other ranks wait for it in the next one.
            None => self.look_for_deserters_of(launch, name),
        }
    }

    /// Ends the collectives with members of a removed job, and drops its groups.
    pub(super) fn remove(&mut self, launch: &mut Launch, job: JobIndex) {
        let has_members = |gathering: &Gathering<Seat, Waiter>| {
            let is_named = |waiter: &Waiter| waiter.members.ours.contains_key(&job);
            gathering.members().any(|seat| seat.job == job) || gathering.waiters().any(is_named)
        };
        let named = self.gatherings.named().filter(|(_, gathering)| has_members(gathering));
        let ended: Vec<(Arc<str>, Vec<Waiter>)> =
            named.map(|(name, gathering)| (Arc::clone(name), gathering.waiters().cloned().collect())).collect();
        for (name, waiters) in ended {
            self.gatherings.forget(&name);
            for waiter in waiters {
                launch.credit(waiter.address.identity.seat, waiter.questions);
                launch.answer(waiter.address, status::LOST_CONNECTION);
            }
        }
        self.groups.forget(job);
    }
}

/// Clients drop the facts about jobs from which they disconnect, including facts that they received in the meantime.
fn forget_facts(launch: &mut Launch, address: Address, procs: &[Proc<'_>]) {
    let names: BTreeSet<&[u8]> = procs.iter().map(|proc| proc.namespace).collect();
    if let Some(client) = launch.clients.get_mut(address.connection) {
        client.known_jobs.retain(|&job| !names.contains(launch.jobs[job].namespace.name.as_bytes()));
    }
}

/// Answers a rank at the end of its collective.
fn release(groups: &mut NamedGroups, launch: &mut Launch, waiter: Waiter, context: u64) {
    let Waiter { address, members, outcome, .. } = waiter;
    if members.lack_any(&launch.jobs) {
        // The same status as from OpenPMIx's server.
        return launch.answer(address, status::LOST_CONNECTION);
    }
    match outcome {
        Outcome::Over { .. } => launch.answer(address, status::SUCCESS),
        Outcome::Jobs => send_jobs(launch, address, &members),
        Outcome::Group { name, number } => {
            let identity = address.identity;
            let rank = launch.jobs.rank(identity.seat).rank;
            if let Some(number) = number {
                launch.jobs[identity.seat.job].add_group(rank, context, number);
            }
            groups.add(name, &members, context);
            let reply = reply::group(identity.encoding, identity.version, &members.procs(&launch.jobs), context);
            launch.reply(address, &reply);
        }
    }
}

/// Sends the facts about all participating jobs, except the client's own.
fn send_jobs(launch: &mut Launch, address: Address, members: &Members) {
    let encoding = address.identity.encoding;
    let mut objects = Vec::new();
    let own = address.identity.seat.job;
    let others: Vec<JobIndex> = members.by_job(&launch.jobs).map(|(job, _)| job).filter(|&job| job != own).collect();
    for job in others {
        let job = &mut launch.jobs[job];
        let mut object = reply::namespace_heading(encoding, job.namespace.name.as_bytes());
        object.extend_from_slice(&job.facts(encoding));
        objects.push(object);
    }
    let reply = reply::objects(encoding, objects.iter().map(Vec::as_slice));
    launch.reply(address, &reply);
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
