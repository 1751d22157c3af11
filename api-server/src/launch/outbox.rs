//! The queue of commands for one node of a launch. Its size is bounded even if the node reads slowly. Grants are summed. A command that is
//! already pending is not added again, like a pending signal of a process.
//!
//! ```text
//! push ──> queue (merged) ──a stream takes it──> sent (numbered) ──the session has taken it──> gone
//!                                                  └──sent again on a new stream, if the session has not received it
//! ```

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use lattice_session::numbered::Unconfirmed;

use super::event::NodeCommand;
use crate::watched::Watched;

/// Size limit for merged pieces of input, in bytes.
const INPUT_PIECE_MAX: usize = 256 << 10;
/// The largest number of pending signals to some of the ranks.
const SIGNALS_MAX: usize = 64;
/// The largest number of commands that were sent to a session without an acknowledgement. Sessions acknowledge commands sooner.
const SENT_MAX: usize = 256;

/// The commands for one node, between the launch and the node's stream.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outbox(Arc<Watched<State>>);

#[derive(Debug, Default)]
struct State {
    queue: VecDeque<NodeCommand>,
    sent: Unconfirmed<NodeCommand>,
    /// The current stream. Earlier streams take no more commands.
    stream: u64,
    opening: Opening,
    /// The launch has received the node's events up to this one.
    events_taken: u64,
    /// The node was sent an acknowledgement of its events up to this one.
    events_told: u64,
    closed: bool,
}

/// State of the current stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Opening {
    /// The stream carries commands.
    #[default]
    Open,
    /// Waits until the launch provides the number of the last received event.
    Asked,
    /// That number must be sent to the node; `None` if it is unknown.
    Resume { after: Option<u64> },
    /// Waits until the session reports the commands that it has received.
    Answering,
}

/// Position of a stream among the streams of its node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Attempt {
    First,
    /// There was an earlier stream. Events and commands that were in transit are sent again.
    Again,
}

/// A message that a stream sends to its node.
#[derive(Clone, Debug)]
pub(crate) struct Message {
    pub content: Content,
    /// The node's events up to this one were received; 0 if there are no new ones.
    pub events_taken: u64,
}

#[derive(Clone, Debug)]
pub(crate) enum Content {
    /// A command, with its number.
    Command(u64, NodeCommand),
    /// The node must send its events again after this one. If it is unknown, the node starts after the events that are known to be delivered.
    Resume {
        after: Option<u64>,
    },
    Nothing,
}

/// Reason for the end of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StreamEnd {
    /// No more commands follow.
    Closed,
    /// Another stream has replaced it.
    Replaced,
}

impl Outbox {
    /// Appends a command to the queue. The launch has received the node's events up to `events_taken`; the message with the command acknowledges
    /// them.
    pub(crate) fn push(&self, command: NodeCommand, events_taken: u64) {
        self.0.change(|state| {
            add(&mut state.queue, command);
            state.events_taken = state.events_taken.max(events_taken);
        });
    }

    /// Opens a new stream, which takes the commands from now on. Returns the number that identifies the stream. A stream after the first one
    /// starts with [`Self::resume`], and sends commands after [`Self::resumed`].
    pub(crate) fn open(&self, attempt: Attempt) -> u64 {
        self.0.change(|state| {
            state.stream += 1;
            match attempt {
                // No node has received the commands that were sent before.
                Attempt::First => drop(state.sent.resume(0)),
                Attempt::Again => state.sent.break_off(),
            }
            state.opening = if attempt == Attempt::First { Opening::Open } else { Opening::Asked };
            state.stream
        })
    }

    /// The launch has received the node's events up to `after`; `None` if it is unknown. Only for streams after the first one.
    pub(crate) fn resume(&self, stream: u64, after: Option<u64>) {
        self.0.change(|state| {
            if state.stream == stream && state.opening == Opening::Asked {
                state.opening = Opening::Resume { after };
            }
        });
    }

    /// The session has answered: it has received the commands up to this one.
    pub(crate) fn resumed(&self, stream: u64, commands_taken: u64) {
        self.0.change(|state| {
            if state.stream != stream || state.opening != Opening::Answering {
                return;
            }
            state.opening = Opening::Open;
            if state.sent.last() == 0 {
                // The earlier commands came from a previous API server.
                state.sent = Unconfirmed::after(commands_taken);
            } else {
                drop(state.sent.resume(commands_taken));
            }
        });
    }

    /// The session has received all commands up to this one.
    pub(crate) fn confirm(&self, commands_taken: u64) {
        self.0.change(|state| drop(state.sent.confirm(commands_taken)));
    }

    /// The launch has received all events of the node up to this one. The next message acknowledges them.
    pub(crate) fn acknowledge(&self, through: u64) {
        self.0.change(|state| state.events_taken = state.events_taken.max(through));
    }

    /// Ends all streams and drops the pending commands. No more commands follow.
    pub(crate) fn close(&self) {
        self.0.change(|state| {
            state.closed = true;
            state.queue.clear();
            state.sent = Unconfirmed::default();
        });
    }

    /// Returns true if the communication with the node has ended.
    pub(crate) fn is_closed(&self) -> bool {
        self.0.lock().closed
    }

    /// Waits for the next message for this stream. Cancel-safe: a command that was not delivered is sent again on the next stream.
    ///
    /// # Errors
    /// Fails if the stream has ended.
    pub(crate) async fn next(&self, stream: u64) -> Result<Message, StreamEnd> {
        self.0.when(|state| state.next(stream).transpose()).await
    }

    /// The same without waiting; `None` if there is no message.
    #[cfg(feature = "simulation")]
    pub(crate) fn try_next(&self, stream: u64) -> Option<Result<Message, StreamEnd>> {
        self.0.change(|state| state.next(stream).transpose())
    }
}

impl State {
    fn next(&mut self, stream: u64) -> Result<Option<Message>, StreamEnd> {
        if self.stream != stream {
            return Err(StreamEnd::Replaced);
        }
        if self.closed {
            return Err(StreamEnd::Closed);
        }
        let content = match self.opening {
            Opening::Asked | Opening::Answering => None,
            Opening::Resume { after } => {
                self.opening = Opening::Answering;
                Some(Content::Resume { after })
            }
            Opening::Open => self.next_command(),
        };
        let events_taken = if self.events_taken > self.events_told { self.events_taken } else { 0 };
        if content.is_none() && events_taken == 0 {
            return Ok(None);
        }
        self.events_told = self.events_taken;
        Ok(Some(Message { content: content.unwrap_or(Content::Nothing), events_taken }))
    }

    fn next_command(&mut self) -> Option<Content> {
        if !self.sent.has_next()
            && self.sent.count() < SENT_MAX
            && let Some(command) = self.queue.pop_front()
        {
            self.sent.push(command);
        }
        self.sent.next_to_write().map(|(number, command)| Content::Command(number, command.clone()))
    }
}

fn add(queue: &mut VecDeque<NodeCommand>, command: NodeCommand) {
    use NodeCommand as C;
    if let (C::Stdin(new), Some(C::Stdin(last))) = (&command, queue.back_mut())
        && last.len() + new.len() <= INPUT_PIECE_MAX
    {
        *last = joined(last, new);
        return;
    }
    match &command {
        C::OutputCredit(more) => {
            if let Some(credit) = queue.iter_mut().find_map(|waiting| match waiting {
                C::OutputCredit(credit) => Some(credit),
                _ => None,
            }) {
                *credit += more;
                return;
            }
        }
        // Only the answer to the latest query is needed, because it answers earlier queries too.
        C::AskProgress(_) => queue.retain(|waiting| !matches!(waiting, C::AskProgress(_))),
        C::AskUsage(_) => queue.retain(|waiting| !matches!(waiting, C::AskUsage(_))),
        C::AskStacks(_) => queue.retain(|waiting| !matches!(waiting, C::AskStacks(_))),
        // A healthy node never has this many pending signals. Beyond the limit, the oldest signal is dropped.
        C::SignalRanks(..) => {
            let waits = |waiting: &C| matches!(waiting, C::SignalRanks(..));
            if queue.iter().filter(|waiting| waits(waiting)).count() >= SIGNALS_MAX
                && let Some(oldest) = queue.iter().position(waits)
            {
                queue.remove(oldest);
            }
        }
        // Only the ranks that are late now matter.
        C::LookAtStacks(_) => queue.retain(|waiting| !matches!(waiting, C::LookAtStacks(_))),
        C::ResizeTerminal(_) => queue.retain(|waiting| !matches!(waiting, C::ResizeTerminal(_))),
        // Only the last signal counts: a process that is stopped, continued, and stopped again is stopped.
        C::Signal(signal) => queue.retain(|waiting| !matches!(waiting, C::Signal(other) if other == signal)),
        C::End(_) | C::Kill(_) | C::GiveUp | C::Release | C::StdinEnd
            if queue.iter().any(|waiting| is_same(waiting, &command)) =>
        {
            return;
        }
        _ => {}
    }
    queue.push_back(command);
}

/// Returns true if two commands that end something are equal.
fn is_same(one: &NodeCommand, other: &NodeCommand) -> bool {
    use NodeCommand as C;
    match (one, other) {
        (C::End(one), C::End(other)) | (C::Kill(one), C::Kill(other)) => one == other,
        (C::GiveUp, C::GiveUp) | (C::Release, C::Release) | (C::StdinEnd, C::StdinEnd) => true,
        _ => false,
    }
}

fn joined(first: &Bytes, second: &Bytes) -> Bytes {
    let mut both = BytesMut::with_capacity(first.len() + second.len());
    both.extend_from_slice(first);
    both.extend_from_slice(second);
    both.freeze()
}

#[cfg(test)]
mod tests {
    use lattice_session::rank_ranges::RankRanges;
    use lattice_session::settings::TerminalSize;
    use pmi_core::ids::JobId;
    use pmi_transport::proto::v1 as proto;
    use proptest::prelude::*;
    use proto::node_command::What;

    use super::*;
    use crate::wire::node::encode_command;

    fn messages(queue: VecDeque<NodeCommand>) -> Vec<What> {
        queue.into_iter().filter_map(|command| encode_command(command).what).collect()
    }

    #[test]
    fn what_waits_does_not_grow_with_what_is_said() {
        let mut queue = VecDeque::new();
        for round in 0..1000 {
            add(&mut queue, NodeCommand::Signal(10));
            add(&mut queue, NodeCommand::OutputCredit(2));
            add(&mut queue, NodeCommand::AskProgress(round));
            add(&mut queue, NodeCommand::Signal(12));
            add(&mut queue, NodeCommand::GiveUp);
            add(&mut queue, NodeCommand::ResizeTerminal(TerminalSize { rows: round as u16, columns: 80 }));
        }
        let mut left = messages(queue);
        left.sort_by_key(|command| format!("{command:?}"));
        let expected = [
            What::AskProgress(999),
            What::GiveUp(Default::default()),
            What::OutputCredit(2000),
            What::ResizeTerminal(proto::TerminalSize { rows: 999, columns: 80 }),
            What::Signal(10),
            What::Signal(12),
        ];
        assert_eq!(left, expected);
    }

    #[test]
    fn the_last_signal_counts() {
        let mut queue = VecDeque::new();
        [19, 18, 19].into_iter().for_each(|signal| add(&mut queue, NodeCommand::Signal(signal)));
        assert_eq!(messages(queue), [What::Signal(18), What::Signal(19)]);
    }

    #[test]
    fn signals_to_some_ranks_wait_one_by_one_and_do_not_pile_up() {
        let mut queue = VecDeque::new();
        add(&mut queue, NodeCommand::Signal(10));
        let ranks = RankRanges::new(&[(0, 1)]).unwrap();
        (0..100).for_each(|number| add(&mut queue, NodeCommand::SignalRanks(number, ranks.clone())));
        assert_eq!(queue.len(), 65);
        assert!(matches!(queue.front(), Some(NodeCommand::Signal(10))));
        assert!(matches!(queue.back(), Some(NodeCommand::SignalRanks(99, _))));
    }

    #[test]
    fn input_keeps_its_order_and_its_bytes() {
        let mut queue = VecDeque::new();
        for _ in 0..100 {
            add(&mut queue, NodeCommand::Stdin(Bytes::from_static(b"ab")));
        }
        add(&mut queue, NodeCommand::StdinEnd);
        assert_eq!(messages(queue), [What::Stdin(b"ab".repeat(100).into()), What::StdinEnd(Default::default())]);
    }

    fn command() -> impl Strategy<Value = NodeCommand> {
        prop_oneof![
            (1..100_u64).prop_map(NodeCommand::OutputCredit),
            prop::collection::vec(any::<u8>(), 1..5).prop_map(|bytes| NodeCommand::Stdin(bytes.into())),
            (0..1000_u32).prop_map(|job| NodeCommand::Disown(JobId::new(&format!("job{job}")).unwrap())),
            (1..4_i32).prop_map(NodeCommand::Signal),
            (1..1000_u64).prop_map(NodeCommand::AskProgress),
            Just(NodeCommand::GiveUp),
        ]
    }

    /// Data that must not be lost or reordered: granted bytes, bytes of input, and jobs.
    fn promised<'a>(commands: impl IntoIterator<Item = &'a NodeCommand>) -> (u64, Vec<u8>, Vec<&'a JobId>) {
        let (mut credit, mut input, mut jobs) = (0, Vec::new(), Vec::new());
        for command in commands {
            match command {
                NodeCommand::OutputCredit(bytes) => credit += bytes,
                NodeCommand::Stdin(bytes) => input.extend_from_slice(bytes),
                NodeCommand::Disown(job) => jobs.push(job),
                _ => {}
            }
        }
        (credit, input, jobs)
    }

    proptest! {
        #[test]
        fn no_credit_input_or_job_is_lost_or_overtaken_while_it_waits(commands in prop::collection::vec(command(), 0..100)) {
            let mut queue = VecDeque::new();
            commands.iter().for_each(|command| add(&mut queue, command.clone()));
            prop_assert_eq!(promised(&queue), promised(&commands));
            let is_last = |is: fn(&NodeCommand) -> bool| {
                let waiting: Vec<String> = queue.iter().filter(|command| is(command)).map(|all| format!("{all:?}")).collect();
                let last = commands.iter().rev().find(|command| is(command)).map(|command| format!("{command:?}"));
                waiting == Vec::from_iter(last)
            };
            prop_assert!(is_last(|command| matches!(command, NodeCommand::AskProgress(_))), "the last question");
            prop_assert!(is_last(|command| matches!(command, NodeCommand::GiveUp)), "once");
        }
    }

    /// Text form of the next message of a stream.
    async fn carried(outbox: &Outbox, stream: u64) -> String {
        let Message { content, events_taken } = outbox.next(stream).await.unwrap();
        match content {
            Content::Command(number, NodeCommand::Signal(signal)) => {
                format!("{number}: signal {signal}, {events_taken}")
            }
            other => format!("{other:?}, {events_taken}"),
        }
    }

    fn is_quiet(outbox: &Outbox, stream: u64) -> bool {
        outbox.0.change(|state| state.next(stream)).unwrap().is_none()
    }

    #[tokio::test]
    async fn a_new_stream_takes_over_and_commands_are_sent_again_until_they_were_taken() {
        let outbox = Outbox::default();
        let first = outbox.open(Attempt::First);
        [10, 12, 15].into_iter().for_each(|signal| outbox.push(NodeCommand::Signal(signal), 0));
        assert_eq!(carried(&outbox, first).await, "1: signal 10, 0");
        assert_eq!(carried(&outbox, first).await, "2: signal 12, 0");
        outbox.acknowledge(7);
        assert_eq!(carried(&outbox, first).await, "3: signal 15, 7");
        let second = outbox.open(Attempt::Again);
        assert_eq!(outbox.next(first).await.unwrap_err(), StreamEnd::Replaced);
        outbox.push(NodeCommand::Signal(18), 0);
        assert!(is_quiet(&outbox, second), "nobody knows yet what the session has");
        outbox.resume(first, Some(1));
        assert!(is_quiet(&outbox, second), "that was for another stream");
        outbox.resume(second, Some(9));
        assert_eq!(carried(&outbox, second).await, "Resume { after: Some(9) }, 0");
        outbox.resumed(second, 1);
        assert_eq!(carried(&outbox, second).await, "2: signal 12, 0");
        outbox.confirm(2);
        assert_eq!(carried(&outbox, second).await, "3: signal 15, 0");
        assert_eq!(carried(&outbox, second).await, "4: signal 18, 0");
        assert!(is_quiet(&outbox, second));
        outbox.acknowledge(9);
        assert_eq!(carried(&outbox, second).await, "Nothing, 9");
        outbox.close();
        assert_eq!(outbox.next(second).await.unwrap_err(), StreamEnd::Closed);
    }

    #[tokio::test]
    async fn commands_of_a_server_that_was_started_anew_are_counted_on() {
        let outbox = Outbox::default();
        let stream = outbox.open(Attempt::Again);
        outbox.push(NodeCommand::Signal(10), 0);
        outbox.resume(stream, None);
        assert_eq!(carried(&outbox, stream).await, "Resume { after: None }, 0");
        outbox.resumed(stream, 41);
        assert_eq!(carried(&outbox, stream).await, "42: signal 10, 0");
    }

    #[tokio::test]
    async fn a_session_that_never_says_what_it_took_is_not_sent_everything() {
        let outbox = Outbox::default();
        let stream = outbox.open(Attempt::First);
        let ranks = RankRanges::new(&[(0, 1)]).unwrap();
        for _ in 0..2 * SENT_MAX {
            outbox.push(NodeCommand::SignalRanks(10, ranks.clone()), 0);
            outbox.0.change(|state| state.next(stream)).unwrap();
        }
        assert_eq!(outbox.0.lock().sent.count(), SENT_MAX);
        assert_eq!(outbox.0.lock().queue.len(), SIGNALS_MAX);
        outbox.confirm(1);
        assert!(!is_quiet(&outbox, stream));
    }
}
