//! The task of a launch. It converts requests and clock ticks to inputs of the [machine](super::machine), and carries out the effects.
//!
//! The runner makes no decisions. The machine decides about all actions, their targets and their order.

mod begin;
mod replies;

use pmi_core::ids::NodeIndex;
use pmi_transport::task;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use lattice_session::cause::CauseKind;
use lattice_session::event::Event;
use lattice_session::unix_time;
use lattice_session::wire::event::NodeHappening;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval};

#[cfg(feature = "simulation")]
pub(crate) use self::begin::input_readers;
pub(crate) use self::begin::{resume, start};
use self::replies::Replies;
use super::attachments::{Role, TooManyViewers};
use super::checkpoint::Snapshot;
use super::client_message::ClientSender;
use super::deliveries::{Deliveries, DeliveryEvent};
use super::event::{ClientRequest, Completion, LogEvent, NodeCommand, NodeEvent, SpawnWish};
use super::event_log::{EventLog, Start};
use super::fan_out::{self, Recipient};
use super::machine::effect::Effect;
use super::machine::facts::Ownership;
use super::machine::{Delivery, Machine, Stored};
use super::summary::Course;
use super::surroundings::{LaunchEnd, Surroundings};
use super::{Outlet, Part, Request, Shared};
use crate::allocations::allocation::LaunchFailure;
use crate::launch_id::LaunchId;
use crate::store::{self, Change, EndedLaunch, LaunchRecord, StoreError};
use crate::wire::spec::ShownSpec;

/// Interval of the machine's ticks. Sufficient for deadlines of a second and more.
const TICK: Duration = Duration::from_millis(100);

/// The task of one launch.
struct Runner {
    surroundings: Surroundings,
    machine: Machine,
    record: LaunchRecord,
    /// Names and addresses of the nodes, by node index.
    recipients: Vec<Recipient>,
    /// The commands for nodes, by node index.
    outlets: Arc<[Outlet]>,
    shared: Arc<Shared>,
    ownership: Ownership,
    log: Arc<EventLog>,
    deliveries: Deliveries,
    replies: Replies,
    /// At most one write is in progress.
    writes: JoinSet<Result<(), StoreError>>,
    inbox: mpsc::Receiver<Request>,
}

impl Runner {
    async fn run(mut self) {
        let mut tick = interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        self.carry_out();
        while !self.machine.is_forgotten(self.delivery(), self.surroundings.clock.now()) {
            let deadline = self.machine.deadline();
            let clock = &self.surroundings.clock;
            tokio::select! {
                request = self.inbox.recv() => match request {
                    Some(request) => self.on_request(request),
                    None => break,
                },
                event = self.deliveries.next() => self.on_delivery(event),
                Some(written) = self.writes.join_next() => self.on_written(written),
                () = clock.sleep_until(deadline.unwrap_or_else(|| clock.now())), if deadline.is_some() => {
                    self.machine.on_tick(self.surroundings.clock.now());
                }
                _ = tick.tick() => self.machine.on_tick(self.surroundings.clock.now()),
            }
            self.carry_out();
        }
        self.surroundings.listener.forget(self.id());
    }

    fn id(&self) -> &LaunchId {
        self.machine.id()
    }

    fn delivery(&self) -> Delivery {
        if self.log.is_delivered() { Delivery::Complete } else { Delivery::Partial }
    }

    fn on_request(&mut self, request: Request) {
        let now = self.surroundings.clock.now();
        let machine = &mut self.machine;
        match request {
            Request::FannedOut(result) => {
                if let Err(error) = &result {
                    tracing::info!(%error, "the launch is rolled back");
                }
                machine.on_fan_out(result, now);
            }
            Request::StreamOpened { node, stream, attempt } => machine.on_stream_opened(node, stream, attempt, now),
            Request::Resumed { node, stream, after, commands_taken } => {
                self.outlets[node.index()].outbox.resumed(stream, commands_taken);
                machine.on_resumed(node, after, now);
            }
            Request::Event { node, sequence, event } => {
                self.surroundings.metrics.count_event();
                machine.on_numbered(node, sequence, event, now);
            }
            Request::StreamClosed { node, stream } => machine.on_stream_closed(node, stream, now),
            Request::NodeAway { node } => machine.on_node_away(node, now),
            Request::NodeBack { node } => machine.on_node_back(node, now),
            Request::NodeLost { node, reason } => machine.on_node_lost(node, &reason, now),
            Request::AgentAnew { node } => machine.on_agent_anew(node, now),
            Request::NotThere { node } => machine.on_not_there(node, now),
            Request::Attach { after, role, client, reply } => {
                // The requester may have disconnected. The delivery to the client then detects that.
                let _ = reply.send(self.attach(after, role, client));
            }
            Request::Client { client, request } => {
                // A client cannot have processed events that it was not sent.
                let request = match request {
                    ClientRequest::Acknowledge(sequence) => {
                        ClientRequest::Acknowledge(self.log.acknowledged(client, sequence))
                    }
                    other => other,
                };
                machine.on_client_request(client, request, now);
            }
            Request::Closed { client } => machine.on_client_closed(client, now),
            Request::Goodbye { client } => machine.on_goodbye(client, unix_time::seconds()),
            Request::Signal(command) => machine.on_signal(&command),
            Request::Abort { who, reason } => {
                tracing::info!(who, reason, "the launch is to end");
                machine.on_abort(who, reason, now);
            }
            Request::Status(detail, reply) => {
                let ticket = self.replies.keep_status(reply);
                machine.on_status(ticket, detail, now);
            }
            Request::Spawn { asked, parent, rank, request, reply } => {
                let (ticket, cores) = (self.replies.keep_spawn(reply), self.cores());
                self.machine.on_spawn(SpawnWish { asked, ticket, parent, rank, request, cores }, now);
            }
            Request::Forget => machine.on_forget(now),
        }
    }

    fn attach(&mut self, after: u64, role: Role, client: ClientSender) -> Result<u64, TooManyViewers> {
        let joined = self.machine.on_attach(self.log.own_number(after), role)?;
        let start = match self.ownership {
            Ownership::Owned if after == 0 => Start::Unsettled,
            _ => Start::After(after),
        };
        let spec = ShownSpec::of(&self.record).with_window(joined.input_window);
        self.deliveries.add(joined.client, start, spec, client);
        Ok(joined.client)
    }

    /// The cores of each node; 1 if unknown.
    fn cores(&self) -> Arc<[u32]> {
        let registry = self.surroundings.nodes.lock();
        let cores = |node: &Recipient| registry.up(&node.name).and_then(|facts| facts.cores).map_or(1, NonZeroU32::get);
        self.recipients.iter().map(cores).collect()
    }

    fn on_delivery(&mut self, event: DeliveryEvent) {
        match event {
            DeliveryEvent::Gone(client) => self.machine.on_client_gone(client, self.surroundings.clock.now()),
            DeliveryEvent::Spooled(sequence) => self.machine.on_spooled(sequence),
            DeliveryEvent::SpoolFailed => self.machine.on_spool_failed(),
        }
    }

    fn on_written(&mut self, written: Result<Result<(), StoreError>, tokio::task::JoinError>) {
        let failed_before = self.machine.is_failing_to_store();
        let stored = match written {
            Ok(Ok(())) => Stored::Durable,
            Ok(Err(error)) => {
                // Only the first of several failures is reported to the operator.
                if !failed_before {
                    let error = pmi_transport::error_chain::chain(&error);
                    tracing::error!(error, "what is known of the launch is not written down; it is tried again");
                }
                Stored::Failed
            }
            // A write is never cancelled. A panic of the database continues here.
            Err(error) => std::panic::resume_unwind(error.into_panic()),
        };
        if failed_before && stored == Stored::Durable {
            tracing::info!("what is known of the launch is written down again");
        }
        self.machine.on_stored(stored, self.surroundings.clock.now());
    }

    /// Carries out all effects, including the effects of the completion when no node is left.
    fn carry_out(&mut self) {
        loop {
            for effect in self.machine.take_effects() {
                self.carry_out_one(effect);
            }
            if !self.machine.is_complete() {
                return;
            }
            let unclean = self.unclean_nodes();
            self.machine.on_complete(&unclean, self.surroundings.clock.now());
        }
    }

    fn carry_out_one(&mut self, effect: Effect) {
        match effect {
            Effect::Command { node, command } => {
                use NodeCommand::{AskProgress, AskStacks, AskUsage, Gather};
                match command {
                    AskProgress(_) | AskUsage(_) | AskStacks(_) => self.surroundings.metrics.count_question_to_node(),
                    Gather { .. } => self.surroundings.metrics.count_question_to_tree(),
                    _ => {}
                }
                self.outlets[node.index()].outbox.push(command, self.machine.events_taken(node));
            }
            Effect::Resume { node, stream, after } => self.outlets[node.index()].outbox.resume(stream, after),
            Effect::Acknowledge { node, through } => self.outlets[node.index()].outbox.acknowledge(through),
            Effect::CloseStream { node } => self.outlets[node.index()].outbox.close(),
            Effect::AbortNode { node, reason, signal } => {
                let recipient = self.recipients[node.index()].clone();
                let (channels, id) = (self.surroundings.channels.clone(), self.id().clone());
                task::spawn(fan_out::abort(channels, recipient, id, reason, signal));
            }
            Effect::MarkUnclean { node } => self.mark_unclean(node),
            Effect::PublishPart { node, part } => self.shared.parts.lock()[node.index()] = part,
            Effect::Publish(overview) => self.shared.summary.lock().update(overview),
            Effect::Append { sequence, node, event } => self.append(sequence, node, event),
            Effect::Settle { sequence } => self.log.settle(sequence),
            Effect::StopKeeping => self.log.stop_keeping(),
            Effect::GrantInput { client, bytes } => self.log.tell(client, |side| side.input_credit += bytes),
            Effect::ReportStart(progress) => self.log.tell_start(progress),
            Effect::Dismiss { client, why } => self.deliveries.dismiss(client, why),
            Effect::Forget { client } => self.deliveries.forget(client),
            Effect::Store(snapshot) => self.write(snapshot),
            Effect::AnswerStart(result) => self.replies.answer_start(result),
            Effect::AnswerStatus { ticket, status } => self.replies.answer_status(ticket, status),
            Effect::AnswerSpawn { ticket, answer } => self.replies.answer_spawn(ticket, answer),
            Effect::Finish { completion, ranks, course } => self.finish(&completion, ranks, course),
            Effect::Conclude(completion) => self.conclude(&completion),
            Effect::CountLostNode { node, reason } => {
                let node = &self.recipients[node.index()].name;
                tracing::warn!(node, reason, "a node is lost");
                self.surroundings.metrics.count_lost_node();
            }
        }
    }

    fn append(&mut self, sequence: u64, node: NodeIndex, event: LogEvent) {
        if let LogEvent::Node(NodeEvent::Happened(NodeHappening::Event(Event::Ending(cause)), _)) = &event {
            tracing::info!(%cause, "the launch is ending");
        }
        let is_last = matches!(event, LogEvent::Complete(_));
        let numbered = self.log.push(node, event);
        debug_assert_eq!(numbered, sequence, "the machine and the log count the same events");
        if is_last {
            self.record.last_event = sequence;
            self.log.end();
        }
    }

    fn mark_unclean(&self, node: NodeIndex) {
        let name = &self.recipients[node.index()].name;
        if self.surroundings.nodes.lock().up(name).is_some() {
            self.surroundings.unclean.lock().add(name, self.id());
        }
    }

    /// The nodes that were given up, and have not confirmed since then that no process is left.
    fn unclean_nodes(&self) -> Vec<String> {
        let unclean = self.surroundings.unclean.lock();
        let names = self.recipients.iter().map(|node| &node.name);
        names.filter(|name| unclean.has(name, self.id())).cloned().collect()
    }

    /// Stores the progress of the launch, or its end.
    fn write(&mut self, snapshot: Snapshot) {
        if let Snapshot::Running(progressed) = &snapshot {
            let now = self.surroundings.clock.now();
            let summary = self.shared.summary.lock().clone().at(self.machine.begun(), now);
            self.record.note_progress(progressed, &summary);
        }
        let store = Arc::clone(&self.surroundings.store);
        let change = match self.record.complete {
            Some(_) => Change::Ended(Box::new(EndedLaunch::of(&self.record))),
            None => Change::Launch(Box::new(self.record.clone())),
        };
        self.writes.spawn(task::boxed(async move { store::write(&store, vec![change]).await }));
    }

    /// The launch is over: updates its record and its summary.
    fn finish(&mut self, completion: &Completion, ranks: u32, course: Course) {
        let mut summary = self.shared.summary.lock();
        summary.conclude(completion, ranks);
        self.record.note_end(completion, &summary, course);
        drop(summary);
        let success = completion.cause.is_none();
        tracing::info!(success, cause = completion.message, "the launch is over");
    }

    fn conclude(&mut self, completion: &Completion) {
        for part in self.shared.parts.lock().iter_mut().filter(|part| **part == Part::Expected) {
            *part = Part::Ended;
        }
        let course = self.record.course();
        let failure = completion.cause.as_ref().map(|cause| {
            let is_loss = matches!(cause.kind, CauseKind::NodeLost { .. } | CauseKind::LostNodes { .. });
            // A launch can lose a part on a node that is not lost itself.
            LaunchFailure::new(&completion.launch_id, &completion.message, is_loss && course.has_lost_a_node())
        });
        let summary = self.shared.summary.lock().clone();
        let first = completion.ends.iter().find(|end| end.rank.0 == 0);
        let exit_code = first.and_then(|end| u32::try_from(end.exit.shell_code()).ok());
        Arc::clone(&self.surroundings.listener).launch_over(&summary, LaunchEnd { failure, exit_code, course });
    }
}
