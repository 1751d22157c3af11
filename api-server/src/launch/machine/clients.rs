//! The interface between a launch and its clients: the numbers of events, the rights of clients, and the credit for output and input.

use std::time::Duration;

use lattice_session::flow_control::Overrun;
use lattice_session::gathered::NodeSelection;
use pmi_core::ids::NodeIndex;
use tokio::time::Instant;

use super::attachments::{Attachments, Dismissal, Joined, Role, SIGNAL_MAX, TooManyViewers};
use super::effect::{Effect, Effects};
use super::event::{ClientRequest, LogEvent, NodeCommand, NodeEvent, StartProgress};
use super::facts::Facts;
use super::input_credit::{Flow, InputCredit};
use super::output_credit::OutputCredit;
use super::streams::Output;

/// Interval of reports on the start to clients.
const START_REPORTS: Duration = Duration::from_millis(100);

/// The part of a launch that communicates with its clients.
#[derive(Debug)]
pub(crate) struct Clients {
    pub(super) attachments: Attachments,
    output: OutputCredit,
    input: InputCredit,
    start: StartReports,
    /// The number of the next event.
    next: u64,
}

/// Schedule of the reports on the start to clients.
#[derive(Debug)]
struct StartReports {
    /// True if the start has progressed since the last report.
    due: bool,
    reported: Instant,
}

/// An owner's request that affects the whole launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OwnerOrder {
    Signal(i32),
    End(i32),
    Kill(i32),
}

impl Clients {
    /// Clients of a launch. Its first event has the number `first`.
    pub(crate) fn new(facts: &Facts, first: u64, now: Instant) -> Self {
        Self {
            attachments: Attachments::new(facts.ownership, now),
            output: OutputCredit::new(facts.nodes.len(), facts.output_window, facts.settler),
            input: InputCredit::new(&facts.input_readers, facts.input_window, facts.origin),
            start: StartReports { due: false, reported: now },
            next: first,
        }
    }

    /// The number of the latest event.
    pub(super) fn latest(&self) -> u64 {
        self.next - 1
    }

    /// Adds an event of the API server itself.
    pub(crate) fn append(&mut self, node: NodeIndex, event: LogEvent, effects: &mut Effects) {
        effects.push(Effect::Append { sequence: self.next, node, event });
        self.next += 1;
    }

    /// Adds an event of a node, and charges the node for it.
    ///
    /// # Errors
    /// Fails if the node has sent more than it was granted.
    pub(crate) fn append_charged(
        &mut self,
        node: NodeIndex,
        event: NodeEvent,
        effects: &mut Effects,
    ) -> Result<(), Overrun> {
        let cost = event.cost();
        let sequence = self.next;
        self.append(node, LogEvent::Node(event), effects);
        let grant = self.output.charge(sequence, node, cost)?;
        grant_all(grant.map(|bytes| (node, bytes)), effects);
        Ok(())
    }

    /// The party that settles events has settled all events up to this one.
    pub(crate) fn settle(&mut self, sequence: u64, effects: &mut Effects) {
        let sequence = sequence.min(self.latest());
        effects.push(Effect::Settle { sequence });
        grant_all(self.output.settle(sequence), effects);
    }

    /// Stops waiting for the owner to read output: it will not return, or delays a launch that must end.
    pub(crate) fn stop_waiting(&mut self, effects: &mut Effects) {
        if self.output.waits() {
            effects.push(Effect::StopKeeping);
            grant_all(self.output.stop_waiting(), effects);
        }
    }

    /// A node has a new stream. Earlier grants may have been lost.
    pub(crate) fn renew(&mut self, node: NodeIndex, effects: &mut Effects) {
        let grant = self.output.renew(node);
        grant_all(grant.map(|bytes| (node, bytes)), effects);
    }

    /// Returns the state of a node's output.
    pub(crate) fn output_of(&self, node: NodeIndex) -> Output {
        if self.output.is_held_up(node) { Output::HeldUp } else { Output::Flows }
    }

    /// A client attaches. It has processed all events up to `after`.
    ///
    /// # Errors
    /// Fails for a viewer if the launch has the maximum number of viewers.
    pub(crate) fn attach(&mut self, after: u64, asked: Role, effects: &mut Effects) -> Result<Joined, TooManyViewers> {
        let mut joined = self.attachments.join(asked)?;
        if let Some(client) = joined.replaced {
            effects.push(Effect::Dismiss { client, why: Dismissal::Replaced });
        }
        if joined.role == Role::Owner {
            self.settle(after, effects);
            joined.input_window = self.input.attach();
        }
        self.start.due = true;
        Ok(joined)
    }

    /// A client sends a request. Returns the part of it that affects the whole launch.
    pub(crate) fn on_request(
        &mut self,
        client: u64,
        request: ClientRequest,
        now: Instant,
        effects: &mut Effects,
    ) -> Option<OwnerOrder> {
        match (self.attachments.role(client), request) {
            (None, _) | (Some(Role::Viewer), ClientRequest::Acknowledge(_)) => {}
            (_, ClientRequest::Attach) => self.dismiss(client, Dismissal::AttachedTwice, now, effects),
            (Some(Role::Viewer), _) => self.dismiss(client, Dismissal::OwnersOnly, now, effects),
            (Some(Role::Owner), ClientRequest::Acknowledge(sequence)) => self.settle(sequence, effects),
            (Some(Role::Owner), ClientRequest::Stdin(piece)) => match self.input.push(piece) {
                Ok(flow) => self.pass_on(flow, effects),
                Err(error) => self.dismiss(client, error.into(), now, effects),
            },
            (Some(Role::Owner), ClientRequest::StdinEnd) => {
                let flow = self.input.end();
                self.pass_on(flow, effects);
            }
            (Some(Role::Owner), ClientRequest::ResizeTerminal(size)) => {
                self.input
                    .readers()
                    .into_iter()
                    .for_each(|node| effects.command(node, NodeCommand::ResizeTerminal(size)));
            }
            (_, ClientRequest::Signal(signal) | ClientRequest::End(signal) | ClientRequest::Kill(signal))
                if !(1..=SIGNAL_MAX).contains(&signal) =>
            {
                self.dismiss(client, Dismissal::NoSignal(signal), now, effects);
            }
            (_, ClientRequest::Signal(signal)) => return Some(OwnerOrder::Signal(signal)),
            (_, ClientRequest::End(signal)) => return Some(OwnerOrder::End(signal)),
            (_, ClientRequest::Kill(signal)) => return Some(OwnerOrder::Kill(signal)),
        }
        None
    }

    fn dismiss(&mut self, client: u64, why: Dismissal, now: Instant, effects: &mut Effects) {
        self.attachments.dismiss(client, now);
        effects.push(Effect::Dismiss { client, why });
    }

    /// A client has detached.
    pub(crate) fn on_gone(&mut self, client: u64, now: Instant, effects: &mut Effects) {
        self.attachments.on_gone(client, now);
        effects.push(Effect::Forget { client });
    }

    /// The ranks of a node have read this many bytes of input.
    pub(crate) fn on_input_taken(&mut self, node: NodeIndex, bytes: u64, effects: &mut Effects) {
        let flow = self.input.on_taken(node, bytes);
        self.pass_on(flow, effects);
    }

    /// The ranks of several nodes have received a piece of input.
    pub(crate) fn on_input_passed(
        &mut self,
        node: NodeIndex,
        offset: u64,
        missed: Option<&NodeSelection>,
        effects: &mut Effects,
    ) {
        let flow = self.input.on_passed(node, offset, missed);
        self.pass_on(flow, effects);
    }

    /// A node no longer reads input.
    pub(crate) fn on_node_gone(&mut self, node: NodeIndex, effects: &mut Effects) {
        let flow = self.input.on_gone(node);
        self.pass_on(flow, effects);
    }

    fn pass_on(&self, flow: Flow, effects: &mut Effects) {
        flow.commands.into_iter().for_each(|(node, command)| effects.command(node, command));
        if let Some(client) = self.attachments.owner()
            && flow.credit > 0
        {
            effects.push(Effect::GrantInput { client, bytes: flow.credit });
        }
    }

    /// Records that ranks have started since the last report to clients.
    pub(crate) fn note_start(&mut self) {
        self.start.due = true;
    }

    /// Sends clients the progress of the start, if it has changed and a client is attached.
    pub(crate) fn report_start(
        &mut self,
        progress: impl FnOnce() -> StartProgress,
        now: Instant,
        effects: &mut Effects,
    ) {
        if self.start.due && !self.attachments.is_empty() && now >= self.start.reported + START_REPORTS {
            self.start = StartReports { due: false, reported: now };
            effects.push(Effect::ReportStart(progress()));
        }
    }
}

fn grant_all(grants: impl IntoIterator<Item = (NodeIndex, u64)>, effects: &mut Effects) {
    for (node, bytes) in grants {
        effects.command(node, NodeCommand::OutputCredit(bytes));
    }
}
