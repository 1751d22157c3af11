//! New jobs in a launch. A job that `MPI_Comm_spawn` requests is placed on the nodes with a live session, and all these nodes are ordered to
//! start it. The rank receives the answer when all nodes have reported the start or failure of their part.
//!
//! ```text
//! asked ──the launch is starting──> early ──all nodes have accepted──┐
//!   └────────────────────────────────────────────────────────────────┴─> planned ──durable──> starting ──all report──> running
//!                                                                           │                    └──a failure──> refused ├──durable──> answered
//!                                                                           └──not durable──> refused                  └──not durable──> refused
//! ```

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::ops::Range;
use std::sync::Arc;

use lattice_session::limits::JOBS_MAX;
use lattice_session::spawn::{self, LOCALHOST, SpawnOrder, SpawnParent, SpawnRefusal};
use lattice_session::timeouts;
use pmi_core::ids::{JobId, NodeIndex};
use pmi_core::job::Placement;
use pmi_core::services::SpawnError;
use tokio::time::Instant;

use super::checkpoint::{Progressed, SpawnOutcome, SpawnedJob};
use super::effect::{Effect, Effects};
use super::event::{NodeCommand, SpawnAsked, SpawnWish};
use super::facts::Facts;
use super::state::LaunchState;

/// Number of completed jobs that stay in memory.
const OVER_KEPT: usize = 16;

/// The spawned jobs of a launch.
#[derive(Debug, Default)]
pub(crate) struct Spawns {
    /// Jobs that were not removed, in order.
    known: Vec<SpawnedJob>,
    /// Number of all spawned jobs, including jobs that did not start.
    count: u32,
    /// Completed jobs in `known`, after the order to nodes to drop them.
    over: VecDeque<JobId>,
    /// Requests from the start phase, before all nodes had accepted the launch.
    early: Vec<SpawnWish>,
    /// Jobs that must be durable before nodes are ordered to start them.
    planned: Vec<Planned>,
    /// Jobs that nodes were ordered to start.
    starting: Vec<Starting>,
    /// Running jobs. The spawning ranks receive the answer when that is durable.
    running: Vec<Running>,
}

/// A job that must be durable before nodes are ordered to start it.
#[derive(Debug)]
struct Planned {
    /// The number of the change that records the job.
    change: u64,
    order: Arc<SpawnOrder>,
    ticket: u64,
}

/// A job that not all nodes have reported to run.
#[derive(Debug)]
struct Starting {
    order: Arc<SpawnOrder>,
    awaited: Vec<NodeIndex>,
    failures: Vec<(NodeIndex, String)>,
    deadline: Instant,
    ticket: u64,
}

/// A job that runs on all its nodes.
#[derive(Debug)]
struct Running {
    /// The number of the change that records that the job runs.
    change: u64,
    job: JobId,
    ticket: u64,
}

/// Reason why a job is not started.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NotPlanned {
    #[error("the node that asks has ended its part of the launch")]
    NodeEnded,
    #[error(transparent)]
    Refused(#[from] SpawnRefusal),
}

impl Spawns {
    /// Returns true if no spawn is in progress.
    pub(crate) fn is_idle(&self) -> bool {
        self.starting.is_empty() && self.planned.is_empty() && self.early.is_empty() && self.running.is_empty()
    }

    /// Number of all spawned jobs.
    pub(crate) fn count(&self) -> u32 {
        self.count
    }

    /// The spawned jobs that were not removed.
    pub(crate) fn known(&self) -> &[SpawnedJob] {
        &self.known
    }

    /// Stores a request from the start phase: ranks of a node that accepted early may be fast.
    pub(crate) fn defer(&mut self, wish: SpawnWish, effects: &mut Effects) {
        if self.early.len() < JOBS_MAX {
            self.early.push(wish);
        } else {
            refuse(wish.ticket, "the launch is starting".to_owned(), effects);
        }
    }

    /// Removes and returns the requests from the start phase.
    pub(crate) fn take_early(&mut self) -> Vec<SpawnWish> {
        std::mem::take(&mut self.early)
    }

    /// The running job that this call of a session has already started; an earlier server did not answer the call.
    pub(crate) fn started_by(&self, asked: SpawnAsked) -> Option<&JobId> {
        let is_it = |job: &&SpawnedJob| asked.call != 0 && job.asked == asked && job.outcome == SpawnOutcome::Runs;
        self.known.iter().find(is_it).map(|job| &job.id)
    }

    /// Places a job. Nodes are ordered to start it when the change that `note` makes is durable.
    ///
    /// # Errors
    /// Fails if the job cannot be started.
    pub(crate) fn plan(
        &mut self,
        wish: &SpawnWish,
        facts: &Facts,
        state: &mut LaunchState,
        note: impl FnOnce() -> u64,
    ) -> Result<(), NotPlanned> {
        if !state.phase(wish.asked.node).is_live() {
            return Err(NotPlanned::NodeEnded);
        }
        let parent = SpawnParent {
            launched: &facts.job,
            ranks: state.ranks.size(),
            universe_size: facts.universe_size,
            job: &wish.parent,
            rank: wish.rank,
            directory: &facts.directory,
        };
        // The launched job counts as well.
        if self.known.len() + 1 - self.over.len() >= JOBS_MAX {
            return Err(NotPlanned::Refused(SpawnRefusal::Jobs));
        }
        let spawned = spawn::spawned_job(&parent, self.count as usize + 1, &wish.request)?;
        let id = spawned.id().clone();
        let live = state.live().map(|node| (node, state.host(node)));
        let nodes: Vec<_> = live.chain([(wish.asked.node, LOCALHOST)]).collect();
        let elsewhere = |size| share_out(size, &hosts(state, &wish.cores), state.node_count());
        let order = spawned.on(&nodes, elsewhere)?;
        let placement = order.job.placement.clone();
        let first = state.ranks.add_job(&placement);
        self.count += 1;
        self.known.push(SpawnedJob { id, first, placement, outcome: SpawnOutcome::Open, asked: wish.asked });
        self.planned.push(Planned { change: note(), order: Arc::new(order), ticket: wish.ticket });
        Ok(())
    }

    /// The changes up to this one are durable. Orders nodes to start jobs that waited for that, and answers for jobs that run. Nodes without
    /// ranks of a job receive the order too, because their ranks may refer to it. The order waits for a node that does not report yet.
    pub(crate) fn on_durable(&mut self, through: u64, state: &LaunchState, now: Instant, effects: &mut Effects) {
        self.tell_running(through, effects);
        for planned in self.planned.extract_if(.., |planned| planned.change <= through) {
            let awaited: Vec<NodeIndex> = state.live().collect();
            for &node in &awaited {
                effects.command(node, NodeCommand::Spawn(Arc::clone(&planned.order)));
            }
            let gone = |node: &NodeIndex| !state.phase(*node).is_live() && starts_ranks(&planned.order, *node);
            let failures = state.all().filter(gone).map(|node| (node, GONE.to_owned())).collect();
            self.starting.push(Starting {
                order: planned.order,
                awaited,
                failures,
                deadline: now + timeouts::SPAWN,
                ticket: planned.ticket,
            });
        }
    }

    fn tell_running(&mut self, through: u64, effects: &mut Effects) {
        for Running { job, ticket, .. } in self.running.extract_if(.., |running| running.change <= through) {
            effects.push(Effect::AnswerSpawn { ticket, answer: Ok(job) });
        }
    }

    /// The changes up to this one could not be stored: jobs that waited for that are refused. Jobs that already run are ended, because the next
    /// server would end them.
    pub(crate) fn on_not_durable(&mut self, through: u64, state: &mut LaunchState, effects: &mut Effects) {
        for planned in self.planned.extract_if(.., |planned| planned.change <= through) {
            state.void_job(&ranks_of(&planned.order));
            refuse(planned.ticket, NOT_RECORDED.to_owned(), effects);
        }
        for Running { job, ticket, .. } in self.running.extract_if(.., |running| running.change <= through) {
            if let Some(known) = self.known.iter_mut().find(|known| known.id == job) {
                known.outcome = SpawnOutcome::Open;
                disown(&job, &(known.first..known.first + known.placement.size()), state, effects);
            }
            refuse(ticket, NOT_RECORDED.to_owned(), effects);
        }
    }

    /// A node reports that its part of a spawned job has started, or has failed.
    pub(crate) fn on_spawned(&mut self, node: NodeIndex, job: &JobId, failure: Option<String>) {
        let starting = self.starting.iter_mut().find(|starting| starting.order.job.id == *job);
        let Some(starting) = starting.filter(|starting| starting.awaited.contains(&node)) else { return };
        starting.awaited.retain(|&awaited| awaited != node);
        starting.failures.extend(failure.map(|failure| (node, failure)));
    }

    /// A node that is gone starts no job.
    pub(crate) fn on_node_gone(&mut self, node: NodeIndex) {
        for starting in self.starting.iter_mut().filter(|starting| starting.awaited.contains(&node)) {
            starting.awaited.retain(|&awaited| awaited != node);
            // A node without ranks of the job is not needed.
            if starts_ranks(&starting.order, node) {
                starting.failures.push((node, GONE.to_owned()));
            }
        }
    }

    /// Fails the starts of jobs on nodes that exceed the time limit.
    pub(crate) fn on_tick(&mut self, now: Instant) {
        for starting in self.starting.iter_mut().filter(|starting| now >= starting.deadline) {
            let late = std::mem::take(&mut starting.awaited);
            let limit = timeouts::SPAWN.as_secs();
            let failure = |node| (node, format!("the node did not report within {limit} s that its ranks run"));
            starting.failures.extend(late.into_iter().map(failure));
        }
    }

    /// Completes the starts of jobs after the reports of all nodes. For a job that runs, the rank is answered when the change that `note` makes
    /// is durable: a server without that record would end the job. A job that did not start on all nodes is ended, because its ranks would wait
    /// for missing ranks. The launch continues.
    pub(crate) fn close(&mut self, state: &mut LaunchState, effects: &mut Effects, mut note: impl FnMut() -> u64) {
        for starting in self.starting.extract_if(.., |starting| starting.awaited.is_empty()) {
            let job = &starting.order.job;
            match starting.failures.first() {
                None => {
                    let known = self.known.iter_mut().find(|known| known.id == job.id);
                    known.into_iter().for_each(|known| known.outcome = SpawnOutcome::Runs);
                    self.running.push(Running { change: note(), job: job.id.clone(), ticket: starting.ticket });
                }
                Some((node, failure)) => {
                    let reason = format!("{}: {failure}", state.host(*node));
                    disown(&job.id, &ranks_of(&starting.order), state, effects);
                    let answer = Err(SpawnError::Failed { reason });
                    effects.push(Effect::AnswerSpawn { ticket: starting.ticket, answer });
                }
            }
        }
    }

    /// The launch is over: all pending requests for jobs are refused.
    pub(crate) fn refuse_all(&mut self, effects: &mut Effects) {
        let early = self.early.drain(..).map(|wish| wish.ticket);
        let planned = self.planned.drain(..).map(|planned| planned.ticket);
        let starting = self.starting.drain(..).map(|starting| starting.ticket);
        let running = self.running.drain(..).map(|running| running.ticket);
        for ticket in early.chain(planned).chain(starting).chain(running) {
            refuse(ticket, "the launch is over".to_owned(), effects);
        }
    }

    /// Restores the jobs that were spawned under another server. A rank with a job in its start phase received the answer that the job did not
    /// start.
    pub(crate) fn resume(&mut self, progressed: &Progressed, state: &mut LaunchState, effects: &mut Effects) {
        for job in &progressed.spawned {
            state.ranks.skip_to(job.first);
            let first = state.ranks.add_job(&job.placement);
            if job.outcome == SpawnOutcome::Open {
                disown(&job.id, &(first..first + job.placement.size()), state, effects);
            }
        }
        state.ranks.skip_to(progressed.ranks_shown);
        self.known.clone_from(&progressed.spawned);
        self.count = progressed.jobs_spawned;
    }

    /// Orders nodes to drop completed jobs. The last completed jobs stay in memory: a session may repeat its request for one if an earlier
    /// server did not deliver the answer. Returns true if a job was removed.
    pub(crate) fn end_jobs(&mut self, state: &mut LaunchState, effects: &mut Effects) -> bool {
        let is_ending = |job: &&SpawnedJob| {
            !self.over.contains(&job.id) && !self.is_in_use(&job.id) && state.ranks.is_over(job.first)
        };
        let ending: Vec<JobId> = self.known.iter().filter(is_ending).map(|job| job.id.clone()).collect();
        for job in ending {
            for node in state.live() {
                effects.command(node, NodeCommand::JobOver(job.clone()));
            }
            self.over.push_back(job);
        }
        let mut has_forgotten = false;
        while self.over.len() > OVER_KEPT
            && let Some(job) = self.over.pop_front()
        {
            for job in self.known.extract_if(.., |known| known.id == job) {
                state.forget_job(job.first);
                has_forgotten = true;
            }
        }
        has_forgotten
    }

    /// Returns true for a job in its start phase, and for the parent of such a job.
    fn is_in_use(&self, job: &JobId) -> bool {
        let concerns = |order: &SpawnOrder| order.job.id == *job || order.job.spawner.as_ref() == Some(job);
        self.planned.iter().any(|planned| concerns(&planned.order))
            || self.starting.iter().any(|starting| concerns(&starting.order))
            || self.running.iter().any(|running| running.job == *job)
    }
}

/// Refusal of a job after its record was not stored.
const NOT_RECORDED: &str = "the API server cannot write down that there is a new job";
/// Failure of a job on a node that is gone.
const GONE: &str = "the node has ended its part of the launch";

/// The numbers under which the ranks of a job are shown.
fn ranks_of(order: &SpawnOrder) -> Range<u32> {
    order.first_shown.0..order.first_shown.0 + order.job.size()
}

fn starts_ranks(order: &SpawnOrder, node: NodeIndex) -> bool {
    !order.job.placement.ranks_on(node).is_empty()
}

/// Refuses the request of a rank for a job.
pub(crate) fn refuse(ticket: u64, reason: String, effects: &mut Effects) {
    effects.push(Effect::AnswerSpawn { ticket, answer: Err(SpawnError::Refused { reason }) });
}

/// Ends all processes of a job on all nodes.
fn disown(job: &JobId, ranks: &Range<u32>, state: &mut LaunchState, effects: &mut Effects) {
    state.void_job(ranks);
    for node in state.live() {
        effects.command(node, NodeCommand::Disown(job.clone()));
    }
}

/// A node that ranks can be spawned on.
#[derive(Clone, Copy, Debug)]
struct Host {
    node: NodeIndex,
    load: u32,
    cores: u32,
}

fn hosts(state: &LaunchState, cores: &[u32]) -> Vec<Host> {
    let load = state.ranks.load(state.node_count());
    let cores = |node: NodeIndex| cores.get(node.index()).map_or(1, |&cores| cores.max(1));
    state.live().map(|node| Host { node, load: load[node.index()], cores: cores(node) }).collect()
}

/// Places `size` ranks on hosts. Each rank goes to the host with the fewest ranks per core at that point. The ranks of a host are neighbours.
fn share_out(size: u32, hosts: &[Host], nodes: usize) -> Placement {
    let crowd = |host: &Host| (u64::from(host.load + 1) << 20) / u64::from(host.cores);
    let mut counts = vec![0; nodes];
    let mut queue: BinaryHeap<_> =
        hosts.iter().map(|host| Reverse((crowd(host), host.node, host.load, host.cores))).collect();
    for _ in 0..size {
        let Some(Reverse((_, node, load, cores))) = queue.pop() else { break };
        counts[node.index()] += 1;
        let host = Host { node, load: load + 1, cores };
        queue.push(Reverse((crowd(&host), node, load + 1, cores)));
    }
    Placement::block(&counts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spawned_ranks_go_where_there_is_most_room() {
        let check = |size, hosts: &[(u32, u32, u32)], expected: &[usize]| {
            let host = |&(node, load, cores): &(u32, u32, u32)| Host { node: NodeIndex(node), load, cores };
            let placement = share_out(size, &hosts.iter().map(host).collect::<Vec<_>>(), expected.len());
            let counts: Vec<usize> =
                (0..expected.len()).map(|node| placement.ranks_on(NodeIndex(node as u32)).len()).collect();
            assert_eq!(counts, expected);
        };
        check(4, &[(0, 1, 1), (1, 1, 1)], &[2, 2]);
        check(3, &[(0, 4, 4), (1, 0, 4)], &[0, 3]);
        check(6, &[(0, 0, 2), (2, 0, 4)], &[2, 0, 4]);
    }
}
