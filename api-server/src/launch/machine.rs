//! One launch as a pure state machine. Events and the time are its input, [`Effect`]s are its output. It has no clock, task, lock or
//! channel; the [runner](super::runner) carries out the effects.
//!
//! ```text
//!             all nodes accepted             a cause                   no node is left
//!  Starting ────────────────────> Active ───────────────> Ending ────────────────────────┐
//!   │    │                           └────────────no node is left──────────────────────┐ │
//!   │    └──a cause: Starting, and Ending when all have accepted                       v v
//!   └──a node refused: all other nodes get an abort──────────────────────────────────> Over ──> (forgotten)
//!
//!  Machine ─┬─ Phase                     where the launch is
//!           ├─ Nodes ─┬─ LaunchState     nodes, Ranks, FenceWaits, FirstCause; Desertion is derived from it
//!           │         ├─ NodeStream      one for each node: its stream, and how overdue it is
//!           │         ├─ Intake          one for each node: the numbers of its events
//!           │         ├─ ProgressQueries questions to all nodes
//!           │         └─ SilentRanks     merged notices of all nodes
//!           ├─ Clients ┬─ Attachments    the owner and the viewers
//!           │          ├─ OutputCredit   bytes of output that nodes may send
//!           │          └─ InputCredit    bytes of input that the owner may send
//!           ├─ Spawns                    jobs that ranks request
//!           ├─ FirstExit                 time limit for the other ranks after the first exit
//!           └─ Checkpoint                durable state, and actions that wait for it
//! ```
//! Each part is an independent state machine. This module connects the parts: [`ending`] for the end of a launch, [`reports`] for the
//! reports of nodes.

pub(crate) mod attachments;
pub(crate) mod checkpoint;
mod clients;
mod desertion;
pub(crate) mod effect;
mod ending;
pub(crate) mod event;
pub(crate) mod facts;
mod gathering;
pub(crate) mod input_credit;
mod input_tree;
mod intake;
mod late_stacks;
mod nodes;
mod output_credit;
mod phase;
mod progress_query;
mod ranks;
mod reports;
mod silent_ranks;
mod spawns;
mod state;
mod streams;
#[cfg(test)]
mod tests;

use lattice_session::first_exit::FirstExit;
use lattice_session::timeouts;
use pmi_core::ids::NodeIndex;
use tokio::time::Instant;

use self::attachments::{Joined, Role, TooManyViewers};
pub(crate) use self::checkpoint::Stored;
use self::checkpoint::{Checkpoint, Progressed, Snapshot};
use self::clients::{Clients, OwnerOrder};
use self::effect::{Effect, Effects};
use self::event::{ClientRequest, NodeCommand, Overview, SpawnWish, StatusDetail};
use self::facts::{Facts, Origin, Ownership};
use self::nodes::{Nodes, Purpose};
use self::phase::{Conclusion, Phase};
use self::silent_ranks::Passing;
use self::spawns::Spawns;
use super::Part;
use super::fan_out::NotStarted;
use crate::launch_id::LaunchId;

/// State of one launch.
#[derive(Debug)]
pub(crate) struct Machine {
    facts: Facts,
    phase: Phase,
    nodes: Nodes,
    clients: Clients,
    spawns: Spawns,
    checkpoint: Checkpoint,
    first_exit: FirstExit,
    /// Time at which this server ends the launch because its sessions have not enforced its time limit. Set after all nodes have accepted it.
    overtime_ends: Option<Instant>,
    /// True after a node itself was lost while the launch ran, and not only its part of the launch.
    has_lost_a_node: bool,
    /// Nodes with an agent that restarted during the request to start the launch. A node that had accepted the launch is lost to it.
    anew: Vec<NodeIndex>,
    /// Overview that was published last.
    published: Overview,
    begun: Instant,
    effects: Effects,
}

/// State of a launch that an earlier server stored.
#[derive(Debug)]
pub(crate) struct Resumed {
    pub progressed: Progressed,
    /// Time since which the owner is stopped, in seconds since 1970; 0 if it is not.
    pub client_stopped_at: u64,
    /// Start time of the launch, or the earliest time that the clock supports.
    pub begun: Instant,
}

/// State of the delivery of a launch's events to its clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Delivery {
    Complete,
    Partial,
}

impl Machine {
    /// A launch in its start phase. Its first event has the number `first_event`.
    pub(crate) fn new(facts: Facts, first_event: u64, now: Instant) -> Self {
        Self {
            nodes: Nodes::new(&facts, now),
            clients: Clients::new(&facts, first_event, now),
            spawns: Spawns::default(),
            checkpoint: Checkpoint::default(),
            first_exit: FirstExit::new(facts.after_first_exit),
            overtime_ends: None,
            has_lost_a_node: false,
            anew: Vec::new(),
            published: Overview {
                activity: event::Activity::Starting,
                ranks: facts.placement.size(),
                cause: String::new(),
                client_stopped_at: 0,
            },
            phase: Phase::Starting { ending: None },
            begun: now,
            effects: Effects::default(),
            facts,
        }
    }

    /// A launch that ran when the previous server ended. Its nodes must report again.
    pub(crate) fn resume(facts: Facts, first_event: u64, resumed: Resumed, now: Instant) -> Self {
        let Resumed { progressed, client_stopped_at, begun } = resumed;
        let nodes_by = now + timeouts::REPORT_AFTER_RESTART;
        let mut machine = Self { phase: Phase::Active { nodes_by }, begun, ..Self::new(facts, first_event, now) };
        if client_stopped_at > 0 {
            machine.clients.attachments.resume_away(client_stopped_at);
        }
        machine.spawns.resume(&progressed, &mut machine.nodes.state, &mut machine.effects);
        machine.nodes.state.resume(&progressed);
        machine.has_lost_a_node = progressed.has_lost_a_node;
        if progressed.cause.is_some() {
            machine.phase.begin_ending(now);
        }
        for node in progressed.ended.into_iter().chain(progressed.lost) {
            if node.index() < machine.nodes.state.node_count() {
                machine.effects.push(Effect::CloseStream { node });
                machine.on_node_gone(node);
            }
        }
        // The next server must continue the numbers of events from here as well.
        machine.checkpoint.note(now);
        machine.publish();
        machine
    }

    /// Returns all effects since the last call, in the order in which they must be carried out.
    pub(crate) fn take_effects(&mut self) -> Vec<Effect> {
        self.effects.take()
    }

    /// All nodes have answered the request to start, or one of them has refused it.
    pub(crate) fn on_fan_out(&mut self, result: Result<(), NotStarted>, now: Instant) {
        match result {
            Ok(()) if self.phase.on_accepted(now) => {
                self.publish();
                self.clients.attachments.expect_owner(now);
                self.effects.push(Effect::AnswerStart(Ok(())));
                self.spawns.take_early().into_iter().for_each(|wish| self.on_spawn(wish, now));
                std::mem::take(&mut self.anew).into_iter().for_each(|node| self.on_agent_anew(node, now));
            }
            Err(refusal) if matches!(self.phase, Phase::Starting { .. }) => self.refuse(refusal, now),
            _ => {}
        }
        self.settle(now);
    }

    /// A client attaches. It has processed all events up to `after`.
    ///
    /// # Errors
    /// Fails for a viewer if the launch has the maximum number of viewers.
    pub(crate) fn on_attach(&mut self, after: u64, asked: Role) -> Result<Joined, TooManyViewers> {
        self.clients.attach(after, asked, &mut self.effects)
    }

    /// A client sends a request on its stream. An acknowledgement must not exceed the last event that the client was sent.
    pub(crate) fn on_client_request(&mut self, client: u64, request: ClientRequest, now: Instant) {
        match self.clients.on_request(client, request, now, &mut self.effects) {
            Some(OwnerOrder::Signal(signal)) => self.on_signal(&NodeCommand::Signal(signal)),
            Some(OwnerOrder::End(signal)) => self.end_by_signal(signal, &NodeCommand::End(signal), now),
            Some(OwnerOrder::Kill(signal)) => self.end_by_signal(signal, &NodeCommand::Kill(signal), now),
            None => {}
        }
        self.settle(now);
    }

    /// A client has ended its stream of requests, at this time in seconds since 1970.
    pub(crate) fn on_goodbye(&mut self, client: u64, at: u64) {
        self.clients.attachments.on_goodbye(client, at);
    }

    /// The client's end of the connection was closed without a goodbye.
    pub(crate) fn on_client_closed(&mut self, client: u64, now: Instant) {
        self.clients.attachments.on_closed(client, now);
    }

    /// A client has detached.
    pub(crate) fn on_client_gone(&mut self, client: u64, now: Instant) {
        self.clients.on_gone(client, now, &mut self.effects);
    }

    /// The spool contains all events up to this one.
    pub(crate) fn on_spooled(&mut self, sequence: u64) {
        self.clients.settle(sequence, &mut self.effects);
    }

    /// The spool accepts no more events.
    pub(crate) fn on_spool_failed(&mut self) {
        self.clients.stop_waiting(&mut self.effects);
    }

    /// Sends all live nodes this command, which signals ranks.
    pub(crate) fn on_signal(&mut self, command: &NodeCommand) {
        self.nodes.command_live(command, &mut self.effects);
    }

    /// A caller requests the progress of every rank.
    pub(crate) fn on_status(&mut self, ticket: u64, detail: StatusDetail, now: Instant) {
        self.nodes.ask(Purpose::Status { ticket, detail }, now, &mut self.effects);
        self.settle(now);
    }

    /// A rank requests a new job.
    pub(crate) fn on_spawn(&mut self, wish: SpawnWish, now: Instant) {
        let ticket = wish.ticket;
        if let Some(job) = self.spawns.started_by(wish.asked) {
            return self.effects.push(Effect::AnswerSpawn { ticket, answer: Ok(job.clone()) });
        }
        match &self.phase {
            Phase::Starting { .. } => self.spawns.defer(wish, &mut self.effects),
            Phase::Active { .. } if self.nodes.state.cause().is_none() => {
                let note = || self.checkpoint.note_urgent(now);
                match self.spawns.plan(&wish, &self.facts, &mut self.nodes.state, note) {
                    Ok(()) => self.publish(),
                    Err(error) => spawns::refuse(ticket, error.to_string(), &mut self.effects),
                }
            }
            Phase::Active { .. } | Phase::Ending { .. } | Phase::Over(_) => {
                spawns::refuse(ticket, "the launch is ending".to_owned(), &mut self.effects);
            }
        }
        self.settle(now);
    }

    /// An attempt to store state has ended.
    pub(crate) fn on_stored(&mut self, stored: Stored, now: Instant) {
        let attempt = self.checkpoint.on_stored(stored, now);
        match stored {
            Stored::Durable => {
                let closed = |node| Effect::CloseStream { node };
                attempt.released.into_iter().for_each(|node| self.effects.push(closed(node)));
                self.spawns.on_durable(attempt.through, &self.nodes.state, now, &mut self.effects);
            }
            Stored::Failed => self.spawns.on_not_durable(attempt.through, &mut self.nodes.state, &mut self.effects),
        }
        self.conclude(attempt.through, stored);
        self.settle(now);
    }

    /// Handles timeouts. Must be called every 100 ms, and at [`Self::deadline`].
    pub(crate) fn on_tick(&mut self, now: Instant) {
        if self.nodes.hold_ends().is_some_and(|end| now >= end) {
            self.settle_cause(now);
        }
        self.nodes.tell_deaths(&mut self.effects);
        self.nodes.ask_returned(now, &mut self.effects);
        self.nodes.check_gathering(now, &mut self.effects);
        self.check_streams(now);
        self.check_overdue(now);
        self.spawns.on_tick(now);
        self.check_first_exit(now);
        self.check_time_limit(now);
        self.check_owner(now);
        self.report_collected(Passing::Due, now);
        let output_of = |node| self.clients.output_of(node);
        self.nodes.ask_about_desertion(output_of, now, &mut self.effects);
        self.settle(now);
    }

    /// The latest time at which [`Self::on_tick`] must be called; `None` if the next tick is soon enough.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.nodes.hold_ends()
    }

    /// Only the owner needs the launch from now on.
    pub(crate) fn on_forget(&mut self, now: Instant) {
        if let Phase::Over(over) = &mut self.phase {
            over.until = now;
        }
    }

    /// Returns true if the launch can be removed from memory. An attached owner that reads slowly keeps it.
    /// A launch stays until its end is durable. The number of such launches is bounded, because no launch starts while the store fails.
    pub(crate) fn is_forgotten(&self, delivery: Delivery, now: Instant) -> bool {
        let Phase::Over(over) = &self.phase else { return false };
        if !self.checkpoint.is_clean() || over.conclusion.is_some() {
            return false;
        }
        let is_told = self.facts.ownership == Ownership::Owned && delivery == Delivery::Complete;
        is_told || now >= over.until && !self.clients.attachments.expects_owner(now)
    }

    /// Returns true if no node is left. Then the caller must call [`Self::on_complete`].
    pub(crate) fn is_complete(&self) -> bool {
        matches!(self.phase, Phase::Active { .. } | Phase::Ending { .. }) && self.nodes.state.live().next().is_none()
    }

    /// The id of the launch.
    pub(crate) fn id(&self) -> &LaunchId {
        &self.facts.id
    }

    /// The number up to which all events of a node were received; 0 if it is unknown.
    pub(crate) fn events_taken(&self, node: NodeIndex) -> u64 {
        self.nodes.intake[node.index()].last().unwrap_or_default()
    }

    /// The start time of the launch.
    pub(crate) fn begun(&self) -> Instant {
        self.begun
    }

    /// Returns true if an attempt to store state has failed, and none has succeeded since.
    pub(crate) fn is_failing_to_store(&self) -> bool {
        self.checkpoint.is_failing()
    }

    /// Carries out the consequences of any change: completes answers, and starts a write that is due.
    fn settle(&mut self, now: Instant) {
        self.close_queries(now);
        self.spawns.close(&mut self.nodes.state, &mut self.effects, || self.checkpoint.note_urgent(now));
        if self.spawns.end_jobs(&mut self.nodes.state, &mut self.effects) {
            self.checkpoint.note(now);
        }
        self.release_when_idle();
        if matches!(self.phase, Phase::Starting { .. }) || !self.checkpoint.begin(now) {
            return;
        }
        self.effects.push(Effect::Store(match self.phase {
            Phase::Over(_) => Snapshot::Over,
            _ => Snapshot::Running(Box::new(Progressed {
                has_lost_a_node: self.has_lost_a_node,
                spawned: self.spawns.known().to_vec(),
                jobs_spawned: self.spawns.count(),
                ..self.nodes.state.progressed(self.clients.latest())
            })),
        }));
    }

    /// Publishes the overview of the launch if it has changed.
    fn publish(&mut self) {
        let Some(activity) = self.phase.activity() else { return };
        let overview = Overview {
            activity,
            ranks: self.nodes.state.ranks.size(),
            cause: self.nodes.state.cause().map(ToString::to_string).unwrap_or_default(),
            client_stopped_at: self.clients.attachments.stopped_since().unwrap_or(0),
        };
        if overview != self.published {
            self.published = overview.clone();
            self.effects.push(Effect::Publish(overview));
        }
    }

    /// Ends a launch if its owner is missing for too long, and sends clients the progress of the start.
    fn check_owner(&mut self, now: Instant) {
        if self.phase.is_over() {
            return;
        }
        // Users see whether the owner is stopped. The next server needs that too.
        if self.clients.attachments.stopped_since().unwrap_or(0) != self.published.client_stopped_at {
            self.checkpoint.note(now);
            self.publish();
        }
        // Before all nodes have accepted the launch, the owner does not have its id.
        if self.phase.nodes_by().is_some() && self.clients.attachments.gives_up_owner(now) {
            self.end_without_owner(now);
            self.clients.stop_waiting(&mut self.effects);
        }
        let progress = || self.nodes.state.start_progress();
        self.clients.report_start(progress, now, &mut self.effects);
    }

    /// Releases nodes without ranks when no rank is left that could spawn a job on them.
    fn release_when_idle(&mut self) {
        let idle = self.nodes.idle == nodes::Idle::Needed && self.spawns.is_idle() && !self.phase.is_over();
        if idle && self.nodes.state.ranks.all_exited() {
            self.nodes.idle = nodes::Idle::Released;
            self.nodes.command_live(&NodeCommand::Release, &mut self.effects);
        }
    }
}
