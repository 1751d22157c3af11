//! The commands that wait for one node of a launch. Bounded however slowly the node reads: what adds up is added up, and what is
//! pending already is not put there twice, as with a process's pending signals.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};

use super::event::NodeCommand;
use crate::watched::Watched;

/// Pieces of input are put together up to this size.
const INPUT_PIECE_MAX: usize = 256 << 10;
/// The most signals to some of the ranks that wait.
const SIGNALS_MAX: usize = 64;

/// The commands for one node, between the launch that gives them and the stream that carries them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outbox(Arc<Watched<State>>);

#[derive(Debug, Default)]
struct State {
    queue: VecDeque<NodeCommand>,
    /// The stream that may take commands; those before it may not any more.
    stream: u64,
    closed: bool,
}

impl Outbox {
    /// Puts a command behind those that wait.
    pub(crate) fn push(&self, command: NodeCommand) {
        self.0.change(|state| add(&mut state.queue, command));
    }

    /// A new stream takes the commands from now on. Returns the number with which it asks.
    pub(crate) fn open(&self) -> u64 {
        self.0.change(|state| {
            state.stream += 1;
            state.stream
        })
    }

    /// There will be no more commands; those that wait are dropped, and streams end.
    pub(crate) fn close(&self) {
        self.0.change(|state| {
            state.closed = true;
            state.queue.clear();
        });
    }

    /// The next command for this stream; `None` when it has been replaced, or when there will be no more. Cancel-safe.
    pub(crate) async fn next(&self, stream: u64) -> Option<NodeCommand> {
        let look = |state: &mut State| {
            if state.closed || state.stream != stream { Some(None) } else { state.queue.pop_front().map(Some) }
        };
        self.0.when(look).await
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
        // Only the answer to the latest query is waited for by those who ask again.
        C::AskProgress(_) => queue.retain(|waiting| !matches!(waiting, C::AskProgress(_))),
        // Of more than a healthy node ever leaves waiting, the oldest are lost.
        C::SignalRanks(..) => {
            let waits = |waiting: &C| matches!(waiting, C::SignalRanks(..));
            if queue.iter().filter(|waiting| waits(waiting)).count() >= SIGNALS_MAX
                && let Some(oldest) = queue.iter().position(waits)
            {
                queue.remove(oldest);
            }
        }
        // The last one counts: stopped, continued, and stopped again is stopped.
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

/// Returns true if two commands that end something are one.
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
    use pmi_core::ids::JobId;
    use pmi_transport::proto::v1::node_command::What;
    use proptest::prelude::*;

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
        }
        let mut left = messages(queue);
        left.sort_by_key(|command| format!("{command:?}"));
        let expected = [
            What::AskProgress(999),
            What::GiveUp(Default::default()),
            What::OutputCredit(2000),
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

    /// The parts that must not get lost or change their order: bytes granted, bytes of input, and jobs.
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

    #[tokio::test]
    async fn a_new_stream_takes_over_what_waits() {
        let outbox = Outbox::default();
        let first = outbox.open();
        outbox.push(NodeCommand::Signal(10));
        let second = outbox.open();
        assert!(outbox.next(first).await.is_none());
        assert!(matches!(outbox.next(second).await, Some(NodeCommand::Signal(10))));
        outbox.close();
        assert!(outbox.next(second).await.is_none());
    }
}
