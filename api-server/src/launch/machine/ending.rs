//! The end of a launch: its first cause, its announcement to nodes and clients, and the completion when no node is left.

use std::sync::Arc;

use lattice_session::cause::{Cause, CauseKind, StartClass};
use lattice_session::event::Event;
use lattice_session::settings::{FailedRanks, LostNodes};
use lattice_session::timeouts;
use nix::libc;
use pmi_core::ids::NodeIndex;
use tokio::time::Instant;

use super::effect::Effect;
use super::event::{Completion, FIRST_NODE, LogEvent, NodeCommand, NodeEvent};
use super::phase::Over;
use super::silent_ranks::Passing;
use super::{Conclusion, Machine, NotStarted, Phase, Stored};
use crate::launch::summary::Course;

/// Source that can report a cause again to the next server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Known {
    /// The node that reported the cause. It keeps its report until the cause is durable.
    ByNode,
    /// No node: only this server has the cause, so it is stored at once.
    HereAlone,
}

impl Machine {
    /// This server has detected a cause that ends the launch. All nodes are ordered to end their parts.
    pub(super) fn fail(&mut self, cause: Cause, now: Instant) {
        if self.nodes.state.cause.fail(cause) {
            self.announce(None, Known::HereAlone, now);
        }
    }

    /// Announces the cause to clients, and to all nodes except `by`, which ends its part on its own.
    pub(super) fn announce(&mut self, by: Option<NodeIndex>, known: Known, now: Instant) {
        self.begin_ending(known, now);
        for node in self.nodes.state.live().filter(|&node| Some(node) != by) {
            self.effects.command(node, NodeCommand::GiveUp);
        }
    }

    /// Ends a launch if the time limit after the exit of its first rank is over.
    pub(super) fn check_first_exit(&mut self, now: Instant) {
        if !matches!(self.phase, Phase::Active { .. }) {
            return;
        }
        let state = &self.nodes.state;
        if self.first_exit.is_ahead()
            && let Some(rank) = state.ranks.first_launched_end()
        {
            self.first_exit.on_exit(rank, now.into_std());
        }
        if let Some((rank, kind)) = self.first_exit.due(now.into_std()) {
            let cause = state.cause_at(rank, kind);
            self.fail(cause, now);
        }
    }

    /// Ends a launch if its sessions have not enforced its time limit. A resumed launch has its whole time limit again.
    pub(super) fn check_time_limit(&mut self, now: Instant) {
        let (Phase::Active { .. }, Some(limit)) = (&self.phase, self.facts.time_limit) else { return };
        let latest = || now.checked_add(limit).and_then(|end| end.checked_add(timeouts::OVERTIME));
        let Some(ends) = self.overtime_ends.or_else(latest) else { return };
        self.overtime_ends = Some(ends);
        if ends <= now {
            let host = self.facts.nodes.first().cloned().unwrap_or_default();
            self.fail(Cause { host, kind: CauseKind::TimedOut { limit } }, now);
        }
    }

    /// Starts the end of the launch for the cause that counts.
    fn begin_ending(&mut self, known: Known, now: Instant) {
        let Some(cause) = self.nodes.state.cause().cloned() else { return };
        self.phase.begin_ending(now);
        match known {
            Known::HereAlone => self.checkpoint.note_urgent(now),
            Known::ByNode => self.checkpoint.note(now),
        };
        self.publish();
        let ending = LogEvent::Node(NodeEvent::of_session(Event::Ending(cause)));
        self.clients.append(FIRST_NODE, ending, &mut self.effects);
    }

    /// A held cause counts from now on.
    pub(super) fn settle_cause(&mut self, now: Instant) {
        if let Some(node) = self.nodes.state.cause.settle() {
            self.announce(Some(node), Known::ByNode, now);
        }
    }

    /// A signal of the client, or the absence of the client, ends the launch. Nodes that receive the command end their ranks on their own.
    pub(super) fn end_by_signal(&mut self, signal: i32, command: &NodeCommand, now: Instant) {
        self.end_by(CauseKind::Interrupted { signal }, now);
        self.nodes.command_live(command, &mut self.effects);
    }

    /// The owner of the launch is absent for too long.
    pub(super) fn end_without_owner(&mut self, now: Instant) {
        let reason = "lattice launch, which followed it, has gone and did not come back".to_owned();
        self.end_by(CauseKind::Ended { who: "the API server".to_owned(), reason }, now);
        // As a shell does with the remaining processes of a terminal that was closed.
        self.nodes.command_live(&NodeCommand::End(libc::SIGHUP), &mut self.effects);
    }

    /// A caller other than the owner ends the launch in order.
    pub(crate) fn on_abort(&mut self, who: String, reason: String, now: Instant) {
        if self.phase.is_over() {
            return;
        }
        self.end_by(CauseKind::Ended { who, reason }, now);
        // The cause that counts may be an incomplete fence timeout. Then the end has not begun yet.
        self.phase.begin_ending(now);
        self.phase.overrule();
        self.publish();
        self.nodes.command_live(&NodeCommand::End(libc::SIGTERM), &mut self.effects);
        self.settle(now);
    }

    fn end_by(&mut self, kind: CauseKind, now: Instant) {
        self.settle_cause(now);
        if !self.phase.is_over() && self.nodes.state.cause.fail(Cause { host: String::new(), kind }) {
            self.begin_ending(Known::HereAlone, now);
        }
    }

    /// The launch ends before it began.
    pub(super) fn refuse(&mut self, refusal: NotStarted, now: Instant) {
        let (host, reason) = refusal.blame();
        let kind = CauseKind::NotStarted { reason, class: StartClass::System };
        self.nodes.state.cause.fail(Cause { host: host.to_owned(), kind });
        for (node, _) in self.nodes.state.all().zip(&self.facts.nodes).filter(|(_, name)| refusal.may_run_on(name)) {
            // The allocation keeps the node until its agent reports that no process of the launch is left.
            self.effects.push(Effect::MarkUnclean { node });
        }
        // The launch id was not sent to any client.
        self.end(&[], Some(refusal), now, now);
    }

    /// No node is left: the launch is over. `unclean` are the nodes that did not confirm that no process of the launch is left.
    pub(crate) fn on_complete(&mut self, unclean: &[String], now: Instant) {
        self.end(unclean, None, now + timeouts::LINGER, now);
        self.settle(now);
    }

    fn end(&mut self, unclean: &[String], refusal: Option<NotStarted>, until: Instant, now: Instant) {
        self.report_collected(Passing::All, now);
        self.settle_cause(now);
        self.sum_up_failures();
        self.spawns.refuse_all(&mut self.effects);
        let completion = Arc::new(self.completion(unclean, now));
        let course = match (&refusal, self.has_lost_a_node) {
            (Some(_), _) => Course::NotBegun,
            (None, true) => Course::LostNode,
            (None, false) => Course::Ran,
        };
        let ranks = self.nodes.state.ranks.size();
        self.effects.push(Effect::Finish { completion: Arc::clone(&completion), ranks, course });
        if !unclean.is_empty() {
            self.clients.append(FIRST_NODE, LogEvent::Unclean(unclean.to_vec()), &mut self.effects);
        }
        self.clients.append(FIRST_NODE, LogEvent::Complete(Arc::clone(&completion)), &mut self.effects);
        // Clients can read the completion before it is on disk. Nodes keep their reports until their streams end, which is after the write. They
        // would report the same to the next server.
        let change = self.checkpoint.note_urgent(now);
        self.phase = Phase::Over(Over { until, change, conclusion: Some(Conclusion { completion, refusal }) });
    }

    /// Makes the tolerated failures and losses the cause of the launch, if it has no other cause. A launch that tolerates none has another
    /// cause, with one exception. The previous server may have been ending the launch for a cause that it had not stored. Then the launch fails
    /// for the rank that it ended.
    fn sum_up_failures(&mut self) {
        let state = &self.nodes.state;
        let failed = state.ranks.failures();
        let bears_failures = self.facts.failed_ranks == FailedRanks::AreBorne;
        let nodes = match self.facts.lost_nodes {
            LostNodes::AreBorne => state.losses(),
            LostNodes::EndLaunch => Vec::new(),
        };
        let cause = match (nodes.first(), failed.first()) {
            (Some((host, _)), _) => {
                let failed = if bears_failures { failed } else { Vec::new() };
                Cause { host: host.clone(), kind: CauseKind::LostNodes { nodes, failed } }
            }
            (None, Some(_)) if bears_failures => {
                let host = state.hosts_of(failed.iter().map(|&(rank, _)| rank));
                Cause { host, kind: CauseKind::FailedRanks { failed } }
            }
            (None, Some(&(rank, exit))) => state.cause_at(rank, CauseKind::Failed { rank, exit }),
            (None, None) => return,
        };
        self.nodes.state.cause.fail(cause);
    }

    fn completion(&self, unclean: &[String], now: Instant) -> Completion {
        let state = &self.nodes.state;
        let cause = state.cause().cloned();
        let mut message = cause.as_ref().map(ToString::to_string).unwrap_or_default();
        if !unclean.is_empty() {
            let separator = if message.is_empty() { "" } else { "; " };
            let (nodes, parts) = (hostlist::fold(unclean), if unclean.len() == 1 { "its part" } else { "their parts" });
            message += &format!("{separator}{nodes} did not report the end of {parts}, processes may be left there");
        }
        let duration = now.saturating_duration_since(self.begun);
        Completion {
            launch_id: self.facts.id.clone(),
            allocation_id: self.facts.allocation_id.clone(),
            cause,
            message,
            ends: state.ranks.all_ends(),
            duration,
            usage: state.usage(),
            by_node: state.usage_by_node(),
        }
    }

    /// The changes up to `through` are durable, or the attempt to store them has failed. Carries out the actions that wait for the end to be
    /// stored. Answers wait for the first attempt only.
    pub(super) fn conclude(&mut self, through: u64, stored: Stored) {
        let Phase::Over(over) = &mut self.phase else { return };
        if through < over.change {
            return;
        }
        if let Some(Conclusion { completion, refusal }) = over.conclusion.take() {
            self.effects.push(Effect::Conclude(completion));
            self.effects.extend(refusal.map(|refusal| Effect::AnswerStart(Err(refusal))));
        }
        if stored == Stored::Durable {
            let close = |node| Effect::CloseStream { node };
            self.effects.extend(self.nodes.state.all().map(close));
        }
    }
}
