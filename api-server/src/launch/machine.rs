//! One launch as a pure state machine: what happens and the time go in, [`Effect`]s come out. No clock, task, lock or channel is in
//! here; the [runner](super::runner) carries the effects out.
//!
//! ```text
//!             all nodes accepted             a cause                   no node is left
//!  Starting ────────────────────> Active ───────────────> Ending ────────────────────────┐
//!   │    │                           └────────────no node is left──────────────────────┐ │
//!   │    └──a cause: Starting, and Ending when all have accepted                       v v
//!   └──a node refused: the others are told to end────────────────────────────────────> Over ──> (forgotten)
//!
//!  Machine ─┬─ Phase                     where the launch is
//!           ├─ Nodes ─┬─ LaunchState     nodes, Ranks, FenceWaits, FirstCause; Desertion is read off it
//!           │         ├─ NodeStream      one for each node: its stream, and how overdue it is
//!           │         ├─ Intake          one for each node: the numbers of its events
//!           │         ├─ ProgressQueries questions to all nodes
//!           │         └─ SilentRanks     notices of all nodes, put together
//!           ├─ Clients ┬─ Attachments    the owner and the viewers
//!           │          ├─ OutputCredit   what nodes may send
//!           │          └─ InputCredit    what the owner may send
//!           ├─ Spawns                    jobs that ranks ask for
//!           ├─ FirstExit                 the time of the others after it
//!           └─ Checkpoint                what is durable, and what waits for that
//! ```
//! Each part is a state machine of its own and knows nothing of the others; what one means for another is decided in this module
//! ([`ending`] for the way to the end, [`reports`] for what nodes report).

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

/// Everything about one launch.
#[derive(Debug)]
pub(crate) struct Machine {
    facts: Facts,
    phase: Phase,
    nodes: Nodes,
    clients: Clients,
    spawns: Spawns,
    checkpoint: Checkpoint,
    first_exit: FirstExit,
    /// Time at which it is ended here, as its sessions have not ended it at their time limit; set when all nodes have accepted it.
    overtime_ends: Option<Instant>,
    /// True once a node itself was lost while the launch ran, and not its part of the launch alone.
    has_lost_a_node: bool,
    /// Nodes whose agent was started anew while nodes were asked to start the launch. They are lost to it if they have accepted it.
    anew: Vec<u32>,
    /// As others were let see it last.
    published: Overview,
    begun: Instant,
    effects: Effects,
}

/// Knowledge of an earlier server about a launch.
#[derive(Debug)]
pub(crate) struct Resumed {
    pub progressed: Progressed,
    /// Since when its owner is stopped, in seconds since 1970; 0 if it is not.
    pub client_stopped_at: u64,
    /// The time at which it was begun, or the earliest time that the clock knows.
    pub begun: Instant,
}

/// State of the delivery of a launch's events to all who follow it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Delivery {
    Complete,
    Partial,
}

impl Machine {
    /// A launch whose nodes are being asked, and whose first event gets the number `first_event`.
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

    /// A launch that ran when the server before this one ended. Its nodes are expected to report again.
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
            if (node as usize) < machine.nodes.state.node_count() {
                machine.effects.push(Effect::CloseStream { node });
                machine.on_node_gone(node);
            }
        }
        // Numbers of events go on from here for the next server, too.
        machine.checkpoint.note(now);
        machine.publish();
        machine
    }

    /// All effects since the last call, in the order in which they are to be carried out.
    pub(crate) fn take_effects(&mut self) -> Vec<Effect> {
        self.effects.take()
    }

    /// All nodes have answered the request to start.
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

    /// A client follows from now on, and has dealt with everything up to `after`.
    ///
    /// # Errors
    /// Refuses a viewer when there are too many.
    pub(crate) fn on_attach(&mut self, after: u64, asked: Role) -> Result<Joined, TooManyViewers> {
        self.clients.attach(after, asked, &mut self.effects)
    }

    /// A client asks for something on the stream by which it follows. An acknowledgement must not go beyond what it was sent.
    pub(crate) fn on_client_request(&mut self, client: u64, request: ClientRequest, now: Instant) {
        match self.clients.on_request(client, request, now, &mut self.effects) {
            Some(OwnerOrder::Signal(signal)) => self.on_signal(&NodeCommand::Signal(signal)),
            Some(OwnerOrder::End(signal)) => self.end_by_signal(signal, &NodeCommand::End(signal), now),
            Some(OwnerOrder::Kill(signal)) => self.end_by_signal(signal, &NodeCommand::Kill(signal), now),
            None => {}
        }
        self.settle(now);
    }

    /// A client sends no more, at this time in seconds since 1970.
    pub(crate) fn on_goodbye(&mut self, client: u64, at: u64) {
        self.clients.attachments.on_goodbye(client, at);
    }

    /// A client's end of the connection was closed without a goodbye.
    pub(crate) fn on_client_closed(&mut self, client: u64, now: Instant) {
        self.clients.attachments.on_closed(client, now);
    }

    /// A client follows no more.
    pub(crate) fn on_client_gone(&mut self, client: u64, now: Instant) {
        self.clients.on_gone(client, now, &mut self.effects);
    }

    /// The spool has everything up to this event.
    pub(crate) fn on_spooled(&mut self, sequence: u64) {
        self.clients.settle(sequence, &mut self.effects);
    }

    /// The spool takes no more.
    pub(crate) fn on_spool_failed(&mut self) {
        self.clients.stop_waiting(&mut self.effects);
    }

    /// Ranks are to get a signal, which all nodes are told.
    pub(crate) fn on_signal(&mut self, command: &NodeCommand) {
        self.nodes.command_live(command, &mut self.effects);
    }

    /// Somebody wants to know how far every rank is.
    pub(crate) fn on_status(&mut self, ticket: u64, detail: StatusDetail, now: Instant) {
        self.nodes.ask(Purpose::Status { ticket, detail }, now, &mut self.effects);
        self.settle(now);
    }

    /// A rank wants a new job.
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

    /// An attempt to make something durable has ended.
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

    /// Time has passed. To be called every tenth of a second, and at [`Self::deadline`].
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

    /// The latest time at which [`Self::on_tick`] is to be called, if that is before the next tick.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.nodes.hold_ends()
    }

    /// The launch is no more needed for others than its owner.
    pub(crate) fn on_forget(&mut self, now: Instant) {
        if let Phase::Over(over) = &mut self.phase {
            over.until = now;
        }
    }

    /// Returns true if nobody needs this launch any more: an owner that is slow does, for as long as it is there. One whose end is not
    /// durable is kept until it is: as long as that takes, no launch begins, so there are no more of them.
    pub(crate) fn is_forgotten(&self, delivery: Delivery, now: Instant) -> bool {
        let Phase::Over(over) = &self.phase else { return false };
        if !self.checkpoint.is_clean() || over.conclusion.is_some() {
            return false;
        }
        let is_told = self.facts.ownership == Ownership::Owned && delivery == Delivery::Complete;
        is_told || now >= over.until && !self.clients.attachments.expects_owner(now)
    }

    /// Returns true if no node is left, so that [`Self::on_complete`] is to be called.
    pub(crate) fn is_complete(&self) -> bool {
        matches!(self.phase, Phase::Active { .. } | Phase::Ending { .. }) && self.nodes.state.live().next().is_none()
    }

    /// The id of the launch.
    pub(crate) fn id(&self) -> &str {
        &self.facts.id
    }

    /// The number up to which all events of a node have come; 0 if that is not known.
    pub(crate) fn events_taken(&self, node: u32) -> u64 {
        self.nodes.intake[node as usize].last().unwrap_or_default()
    }

    /// The time at which the launch was begun.
    pub(crate) fn begun(&self) -> Instant {
        self.begun
    }

    /// Returns true if an attempt to make something durable has failed, and none has succeeded since.
    pub(crate) fn is_failing_to_store(&self) -> bool {
        self.checkpoint.is_failing()
    }

    /// Does what follows from any change: answers that are complete, and what is due to be written down.
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

    /// Lets others see the launch as it is now, if that is another than before.
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

    /// Ends a launch whose owner is missing; tells clients how far the start is.
    fn check_owner(&mut self, now: Instant) {
        if self.phase.is_over() {
            return;
        }
        // Others see whether the owner is stopped, and a server that comes after this one knows.
        if self.clients.attachments.stopped_since().unwrap_or(0) != self.published.client_stopped_at {
            self.checkpoint.note(now);
            self.publish();
        }
        // Before all nodes have accepted it, nobody was told whom to follow.
        if self.phase.nodes_by().is_some() && self.clients.attachments.gives_up_owner(now) {
            self.end_without_owner(now);
            self.clients.stop_waiting(&mut self.effects);
        }
        let progress = || self.nodes.state.start_progress();
        self.clients.report_start(progress, now, &mut self.effects);
    }

    /// Releases nodes without ranks when no rank is left anywhere that could spawn a job on them.
    fn release_when_idle(&mut self) {
        let idle = self.nodes.idle == nodes::Idle::Needed && self.spawns.is_idle() && !self.phase.is_over();
        if idle && self.nodes.state.ranks.all_exited() {
            self.nodes.idle = nodes::Idle::Released;
            self.nodes.command_live(&NodeCommand::Release, &mut self.effects);
        }
    }
}
