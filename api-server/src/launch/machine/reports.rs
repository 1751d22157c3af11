//! Reports of nodes, and their consequences for the launch.

use std::sync::Arc;

use lattice_session::cause::{Cause, CauseKind, Reported, StartClass, Subject};
use lattice_session::event::{Event, Notice};
use lattice_session::fence_wait::FenceWait;
use lattice_session::numbered::Arrival;
use lattice_session::settings::LostNodes;
use lattice_session::wire::event::NodeHappening;
use nix::libc;
use pmi_core::ids::NodeIndex;
use tokio::time::Instant;

use super::effect::Effect;
use super::ending::Known;
use super::event::{FIRST_NODE, NodeCommand, NodeEvent, Programs, RankEnd, Status};
use super::intake::Resumption;
use super::nodes::{Idle, Noted, Purpose, completed_timeout};
use super::phase::Phase;
use super::progress_query::{Answer, ProgressQuery};
use super::silent_ranks::Passing;
use super::state::NodePhase;
use super::streams::Overdue;
use super::{Machine, Origin, Part};
use crate::launch::outbox::Attempt;

/// Reason for the loss of a node with missing events.
const LEFT_OUT: &str = "it left out events of its ranks";
/// Reason for the loss of a node with a new agent that does not have the launch. Sessions end with their agent, or after a time without an
/// agent.
const ANEW: &str = "its agent was started anew, and found no session of the launch";

impl Machine {
    /// A node opens its first report stream, or a new one.
    pub(crate) fn on_stream_opened(&mut self, node: NodeIndex, stream: u64, attempt: Attempt, now: Instant) {
        if !self.nodes.state.phase(node).is_live() && !self.checkpoint.holds(node) {
            self.effects.push(Effect::CloseStream { node });
            return;
        }
        match attempt {
            Attempt::First => self.nodes.intake[node.index()].begin(),
            Attempt::Again => {
                let after = self.nodes.intake[node.index()].last();
                self.effects.push(Effect::Resume { node, stream, after });
            }
        }
        if self.nodes.state.phase(node).is_live() {
            self.nodes.state.on_stream(node);
            self.nodes.streams[node.index()].on_opened(stream);
            if attempt == Attempt::First && self.facts.origin == Origin::Resumed {
                self.repeat(node);
            }
        }
        self.settle(now);
    }

    /// A node reports the number after which its events continue.
    pub(crate) fn on_resumed(&mut self, node: NodeIndex, after: u64, now: Instant) {
        match self.nodes.intake[node.index()].resume(after) {
            Resumption::AsAsked => {}
            Resumption::Anew if self.nodes.state.phase(node).is_live() => self.repeat(node),
            Resumption::Anew => {}
            Resumption::Gap => self.give_up(node, LEFT_OUT, now),
        }
        self.settle(now);
    }

    /// Sends a node the commands that the previous server may not have sent.
    fn repeat(&mut self, node: NodeIndex) {
        self.clients.renew(node, &mut self.effects);
        if self.phase.ending().is_some() {
            self.effects.command(node, NodeCommand::GiveUp);
        }
        if self.nodes.idle == Idle::Released {
            self.effects.command(node, NodeCommand::Release);
        }
        for lost in self.nodes.state.nodes_in(NodePhase::Lost) {
            self.effects.command(node, NodeCommand::CutOff(lost));
        }
        let deaths = self.nodes.state.ranks.deaths();
        if !deaths.is_empty() {
            self.effects.command(node, NodeCommand::Deaths(deaths.into()));
        }
        // The node is queried for its waiting ranks. Nodes answer at different moments, so the answers raise suspicions and confirm none.
        self.nodes.returned.push(node);
    }

    /// A report stream has ended. The end of a replaced stream is ignored.
    pub(crate) fn on_stream_closed(&mut self, node: NodeIndex, stream: u64, now: Instant) {
        self.nodes.streams[node.index()].on_closed(stream, now);
    }

    /// The event of a node with this number was received; `None` if this version does not support it. Events over a replaced stream are earlier
    /// events, and are processed.
    pub(crate) fn on_numbered(&mut self, node: NodeIndex, sequence: u64, event: Option<NodeEvent>, now: Instant) {
        let intake = &mut self.nodes.intake[node.index()];
        match intake.take(sequence, event.as_ref().map_or(0, NodeEvent::cost)) {
            Arrival::New => {
                let through = match &event {
                    // Without an acknowledgement, the sessions end the launch on their own.
                    Some(NodeEvent::Happened(NodeHappening::Event(Event::Ending(_)), _)) => intake.tell(),
                    _ => intake.due(),
                };
                self.effects.extend(through.map(|through| Effect::Acknowledge { node, through }));
                if let Some(event) = event {
                    self.on_node_event(node, event, now);
                }
            }
            Arrival::Again => {}
            Arrival::Gap => {
                self.give_up(node, LEFT_OUT, now);
                self.settle(now);
            }
        }
    }

    /// Processes an event of a node.
    pub(crate) fn on_node_event(&mut self, node: NodeIndex, event: NodeEvent, now: Instant) {
        // A refused launch is over while nodes that accepted it still report.
        if self.phase.is_over() || !self.nodes.state.phase(node).is_live() {
            return;
        }
        match event {
            NodeEvent::Happened(NodeHappening::Event(event), programs) => self.on_event(node, event, programs, now),
            NodeEvent::Happened(NodeHappening::StdinTaken(bytes), _) => {
                self.clients.on_input_taken(node, bytes, &mut self.effects);
            }
            NodeEvent::Happened(NodeHappening::InputPassed { offset, missed }, _) => {
                self.clients.on_input_passed(node, offset, missed.as_ref(), &mut self.effects);
            }
            NodeEvent::Happened(NodeHappening::Report { exits, usage, .. }, _) => {
                self.nodes.state.on_report(node, &exits, usage);
                self.checkpoint.note_ended(node, now);
                self.look_for_deserters(now);
                self.on_node_gone(node);
            }
            NodeEvent::Happened(happening @ NodeHappening::Trace(_), programs) => {
                self.append(node, NodeEvent::Happened(happening, programs), now);
            }
            NodeEvent::Happened(NodeHappening::Gathered { question, gathered }, _) => {
                self.nodes.on_gathered(node, question, gathered, now, &mut self.effects);
            }
            // Event of a later version.
            NodeEvent::Happened(..) => {}
            NodeEvent::UnknownEnding => {
                self.give_up(node, "it ended its part for a reason that this version does not know", now);
            }
        }
        self.settle(now);
    }

    /// Processes an event of a node's session. Ignores repetitions, and reports about ranks of other nodes.
    fn on_event(&mut self, node: NodeIndex, event: Event, programs: Programs, now: Instant) {
        match event {
            Event::Mapped(hash) if hash != self.nodes.map => {
                let reason = "this node has read the launch's map otherwise than the API server: other nodes, or other ranks on them";
                let kind = CauseKind::NotStarted { reason: reason.to_owned(), class: StartClass::System };
                self.on_cause(node, Cause { host: self.nodes.state.host(node).to_owned(), kind }, now);
            }
            Event::Started { rank, pid, .. } if self.nodes.state.ranks.on_started(node, rank, pid, &programs) => {
                self.clients.note_start();
                self.append(node, NodeEvent::Happened(NodeHappening::Event(event), programs), now);
            }
            Event::Output(ref output) if self.nodes.state.ranks.owns(node, output.rank) => {
                self.append(node, NodeEvent::of_session(event), now);
            }
            Event::Exited { rank, exit, reached, .. }
                if self.nodes.state.on_exited(node, RankEnd { rank, exit, reached }) =>
            {
                self.append(node, NodeEvent::of_session(event), now);
                self.look_for_deserters(now);
            }
            Event::Notice(notice) => self.on_notice(node, notice, now),
            Event::Ending(cause) => self.on_cause(node, cause, now),
            Event::Spawned { job, failure } => self.spawns.on_spawned(node, &job, failure),
            Event::Progress { question, ranks, stacks } => {
                self.nodes.state.ranks.on_progress(node, &ranks, &programs);
                self.nodes.queries.on_answer(node, question, Answer { ranks, stacks, ..Answer::default() });
            }
            Event::Waiting { ranks } => {
                self.nodes.state.on_waiting(node, &ranks);
                self.look_for_deserters(now);
            }
            Event::LongWait { since } if self.nodes.streams.len() > 1 && self.nodes.stacks.begin_search(now) => {
                self.nodes.ask(Purpose::LongWait { since }, now, &mut self.effects);
            }
            Event::Died(death) if self.nodes.state.ranks.on_died(node, death) => {
                self.nodes.untold_deaths.push(death);
                self.checkpoint.note(now);
                self.look_for_deserters(now);
            }
            // A repetition, or an event of a later version.
            _ => {}
        }
    }

    /// Adds an event of a node to the event log. A node that exceeds its credit is lost.
    fn append(&mut self, node: NodeIndex, event: NodeEvent, now: Instant) {
        if let Err(overrun) = self.clients.append_charged(node, event, &mut self.effects) {
            self.give_up(node, &overrun.to_string(), now);
        }
    }

    fn on_notice(&mut self, node: NodeIndex, notice: Notice, now: Instant) {
        if let Notice::Leftover { .. } = notice {
            // The session of the node ends soon. The node is not allocated again before its agent reports that no process is left.
            self.effects.push(Effect::MarkUnclean { node });
        }
        match self.nodes.on_notice(node, notice, now) {
            Noted::PassOn(notice) => self.append(node, NodeEvent::notice(notice), now),
            Noted::Ask(purpose) => self.nodes.ask(purpose, now, &mut self.effects),
            Noted::Kept => {}
        }
    }

    /// Sends clients the notices of silent ranks, and the call stacks.
    pub(super) fn report_collected(&mut self, passing: Passing, now: Instant) {
        let stacks = self.nodes.stacks.take(now, passing);
        for notice in self.nodes.silent.take(now, passing).into_iter().chain(stacks) {
            self.append(FIRST_NODE, NodeEvent::notice(notice), now);
        }
    }

    /// A node reports why it ends its part.
    fn on_cause(&mut self, node: NodeIndex, cause: Cause, now: Instant) {
        if let CauseKind::FenceTimeout { limit, waiting, missing } = &cause.kind
            && self.nodes.streams.len() > 1
        {
            let (host, limit, waiting, missing) = (cause.host.clone(), *limit, *waiting, missing.clone());
            // Consequences of the timeout must not become the cause while the other nodes are queried.
            if self.nodes.state.cause.fail(cause) {
                let purpose = Purpose::FenceTimeout { node, host, limit, waiting, missing };
                self.nodes.ask(purpose, now, &mut self.effects);
            }
            return;
        }
        let subject = if self.nodes.state.host(node) == cause.host { Subject::Itself } else { Subject::Another };
        if let (CauseKind::NodeLost { reason }, Subject::Itself, LostNodes::AreBorne) =
            (&cause.kind, subject, self.facts.lost_nodes)
        {
            // The agent of the node reports that its session is gone.
            return self.lose(node, reason, now);
        }
        let cause = match (&cause.kind, subject) {
            // Ranks of the missing node failed, and its session tolerated the failure.
            (CauseKind::NodeLost { .. }, Subject::Another) => {
                self.nodes.state.first_failure_on(&cause.host).unwrap_or(cause)
            }
            _ => cause,
        };
        match self.nodes.state.cause.report(node, cause, subject, now) {
            Reported::Counts => self.announce(Some(node), Known::ByNode, now),
            // There are no other nodes with an earlier cause.
            Reported::Held if self.nodes.streams.len() == 1 => self.settle_cause(now),
            Reported::Held | Reported::Follows => {}
        }
    }

    fn look_for_deserters(&mut self, now: Instant) {
        if let Some(cause) = self.nodes.look_for_deserters(now) {
            self.fail(cause, now);
        }
    }

    /// Processes the answered queries. If the launch is over, only status queries matter.
    pub(super) fn close_queries(&mut self, now: Instant) {
        let mut told: Option<(ProgressQuery<Purpose>, Arc<Status>)> = None;
        for query in self.nodes.queries.take_closed(now) {
            match &query.purpose {
                Purpose::Status { ticket, .. } => {
                    let ticket = *ticket;
                    // Queries with the same answers share one status, because there may be many queries, each with many ranks.
                    let same = told.as_ref().filter(|(before, _)| before.has_answers_of(&query));
                    let status = match same {
                        Some((_, status)) => Arc::clone(status),
                        None => Arc::new(self.nodes.status(&query)),
                    };
                    told = Some((query, Arc::clone(&status)));
                    self.effects.push(Effect::AnswerStatus { ticket, status });
                }
                _ if self.phase.is_over() => {}
                Purpose::Stuck { after, waiting, missing } => {
                    if let Some(kind) = query.in_two_protocols(self.nodes.state.ranks.jobs()) {
                        let host = self.nodes.state.host(FIRST_NODE).to_owned();
                        self.fail(Cause { host, kind }, now);
                        continue;
                    }
                    self.nodes.stacks.expect(FenceWait {
                        waiting: query.waiting_ranks(),
                        since: *after / 2,
                        at_start: true,
                    });
                    let (waiting, missing) = (query.waiting().max(*waiting), query.missing(missing));
                    self.nodes.look_at_late_ranks(&missing, &mut self.effects);
                    self.append(FIRST_NODE, NodeEvent::notice(Notice::Stuck { after: *after, waiting, missing }), now);
                }
                Purpose::LongWait { since } => {
                    let waiting = query.waiting_ranks();
                    let missing = query.missing_in(self.nodes.state.ranks.jobs(), &waiting);
                    self.nodes.look_at_late_ranks(&missing, &mut self.effects);
                    self.nodes.stacks.expect(FenceWait { waiting, since: *since, at_start: false });
                }
                Purpose::FenceTimeout { .. } => {
                    if let Some((node, cause)) = completed_timeout(&query) {
                        self.nodes.state.cause.complete(cause);
                        self.announce(Some(node), Known::ByNode, now);
                    }
                }
                // The answers contained exits, which were applied.
                Purpose::Exits => self.look_for_deserters(now),
                Purpose::Waits => {
                    self.nodes.state.on_waits(&query.answers);
                    self.look_for_deserters(now);
                }
                Purpose::Desertion => {
                    self.nodes.desertion.clear();
                    match self.nodes.state.confirm(&query.answers) {
                        Some(cause) => self.fail(cause, now),
                        None => self.look_for_deserters(now),
                    }
                }
            }
        }
    }

    /// The agent of a node is offline. No reports are expected from the node until its agent is back, or the node is lost.
    pub(crate) fn on_node_away(&mut self, node: NodeIndex, now: Instant) {
        self.nodes.streams[node.index()].on_away();
        self.settle(now);
    }

    /// The agent of a node is online again, and reports soon.
    pub(crate) fn on_node_back(&mut self, node: NodeIndex, now: Instant) {
        self.nodes.streams[node.index()].on_back(now);
        self.settle(now);
    }

    /// A node is lost, for this reason.
    pub(crate) fn on_node_lost(&mut self, node: NodeIndex, reason: &str, now: Instant) {
        self.has_lost_a_node |= self.nodes.state.phase(node).is_live();
        self.lose(node, reason, now);
        self.settle(now);
    }

    /// The agent of a node was restarted, and does not have a launch that its predecessor was asked to start. During the start phase, the answer
    /// to the request decides whether the launch can have begun there.
    pub(crate) fn on_agent_anew(&mut self, node: NodeIndex, now: Instant) {
        match self.phase {
            Phase::Starting { .. } => self.anew.push(node),
            _ => self.on_node_lost(node, ANEW, now),
        }
    }

    /// The agent of a node does not have a launch that this server resumed. The node itself is not lost.
    pub(crate) fn on_not_there(&mut self, node: NodeIndex, now: Instant) {
        let reason =
            "its agent does not have the launch: it was started anew, or had not been asked when the API server ended";
        self.lose(node, reason, now);
        self.settle(now);
    }

    /// A node does not do its part: it is lost to the launch. If its agent is online, its allocation keeps the node until the agent reports that
    /// no process is left. An agent that is offline reports its launches when it registers, and gets no new ones before.
    fn give_up(&mut self, node: NodeIndex, reason: &str, now: Instant) {
        if !self.phase.is_over() && self.nodes.state.phase(node).is_live() {
            self.effects.push(Effect::MarkUnclean { node });
            self.lose(node, reason, now);
        }
    }

    /// A node is lost: no reports are expected from it. It is ordered to end its part, if it is reachable.
    fn lose(&mut self, node: NodeIndex, reason: &str, now: Instant) {
        if self.phase.is_over() || !self.nodes.state.phase(node).is_live() {
            return;
        }
        self.effects.push(Effect::CountLostNode { node, reason: reason.to_owned() });
        match self.facts.lost_nodes {
            LostNodes::EndLaunch => {
                if self.nodes.state.on_lost(node, reason) {
                    self.announce(Some(node), Known::HereAlone, now);
                }
            }
            LostNodes::AreBorne => {
                let deaths = self.nodes.state.on_lost_and_borne(node, reason);
                self.nodes.untold_deaths.extend(deaths);
            }
        }
        // This follows the order to end, if there is one. Failures because of the missing node are consequences of that order.
        self.nodes.command_live(&NodeCommand::CutOff(node), &mut self.effects);
        self.effects.push(Effect::AbortNode { node, reason: reason.to_owned(), signal: libc::SIGKILL });
        self.checkpoint.note(now);
        self.effects.push(Effect::CloseStream { node });
        self.on_node_gone(node);
    }

    /// No reports are expected from a node.
    pub(super) fn on_node_gone(&mut self, node: NodeIndex) {
        let part = if self.nodes.state.phase(node) == NodePhase::Lost { Part::Lost } else { Part::Ended };
        self.effects.push(Effect::PublishPart { node, part });
        self.nodes.queries.on_gone(node);
        self.nodes.gathering.on_gone(node);
        self.clients.on_node_gone(node, &mut self.effects);
        self.spawns.on_node_gone(node);
    }

    /// Detects nodes that should report and do not.
    pub(super) fn check_streams(&mut self, now: Instant) {
        let Some(nodes_by) = self.phase.nodes_by() else { return };
        for (node, reason) in self.nodes.silent_nodes(nodes_by, self.facts.origin, now) {
            self.give_up(node, reason, now);
        }
    }

    /// Detects nodes that exceed the time limit for their part.
    pub(super) fn check_overdue(&mut self, now: Instant) {
        let (Some(ending), Some(_)) = (self.phase.ending(), self.phase.nodes_by()) else { return };
        let grace = ending.grace(self.facts.grace);
        if ending.is_overruled() && now >= ending.since + grace {
            self.clients.stop_waiting(&mut self.effects);
        }
        let output_of = |node| self.clients.output_of(node);
        for (node, overdue) in self.nodes.overdue_nodes(ending.since, grace, output_of, now) {
            let mut abort = |reason: &str, signal| {
                self.effects.push(Effect::AbortNode { node, reason: reason.to_owned(), signal });
            };
            match overdue {
                Overdue::AbortInOrder => abort("the launch is ending", libc::SIGTERM),
                Overdue::AbortAtOnce => abort("the launch should have ended", libc::SIGKILL),
                Overdue::GiveUp => self.give_up(node, "it did not end its part of the launch", now),
            }
        }
    }
}
