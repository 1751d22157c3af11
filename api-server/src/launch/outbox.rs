//! What is still to be said to one node of a launch. Bounded however slowly the node listens: what adds up is added up, and
//! what is pending already is not said twice, as with a process's pending signals.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use parking_lot::Mutex;
use pmi_transport::proto::v1::{NodeCommand, node_command};
use tokio::sync::Notify;

/// Pieces of input are put together up to this size.
const INPUT_PIECE_MAX: usize = 256 << 10;
/// How many signals to some of the ranks wait at most.
const SIGNALS_MAX: usize = 64;

/// The commands for one node, between the launch that gives them and the stream that carries them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outbox(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct State {
    queue: VecDeque<node_command::What>,
    /// The stream that may take commands; those before it may not any more.
    stream: u64,
    closed: bool,
}

impl Outbox {
    /// Puts a command behind those that wait.
    pub(crate) fn push(&self, command: node_command::What) {
        add(&mut self.0.state.lock().queue, command);
        self.0.changed.notify_waiters();
    }

    /// A new stream takes the commands from now on. The number is what it asks with.
    pub(crate) fn open(&self) -> u64 {
        let mut state = self.0.state.lock();
        state.stream += 1;
        self.0.changed.notify_waiters();
        state.stream
    }

    /// There will be no more commands; those that wait are dropped, and streams end.
    pub(crate) fn close(&self) {
        let mut state = self.0.state.lock();
        state.closed = true;
        state.queue.clear();
        self.0.changed.notify_waiters();
    }

    /// The next command for this stream; `None` when it has been replaced, or when there will be no more.
    pub(crate) async fn next(&self, stream: u64) -> Option<NodeCommand> {
        loop {
            let mut changed = std::pin::pin!(self.0.changed.notified());
            // What is pushed after the look counts as well.
            changed.as_mut().enable();
            {
                let mut state = self.0.state.lock();
                if state.closed || state.stream != stream {
                    return None;
                }
                if let Some(what) = state.queue.pop_front() {
                    return Some(NodeCommand { what: Some(what) });
                }
            }
            changed.await;
        }
    }
}

fn add(queue: &mut VecDeque<node_command::What>, command: node_command::What) {
    use node_command::What;
    if let (What::Stdin(new), Some(What::Stdin(last))) = (&command, queue.back_mut())
        && last.len() + new.len() <= INPUT_PIECE_MAX
    {
        *last = joined(last, new);
        return;
    }
    match &command {
        What::OutputCredit(more) => {
            if let Some(credit) = queue.iter_mut().find_map(|waiting| match waiting {
                What::OutputCredit(credit) => Some(credit),
                _ => None,
            }) {
                *credit += more;
                return;
            }
        }
        // Only the answer to the latest question is waited for by those who ask again.
        What::AskProgress(_) => queue.retain(|waiting| !matches!(waiting, What::AskProgress(_))),
        // Of more than a healthy node ever leaves waiting, the oldest are lost.
        What::SignalRanks(_) => {
            let waits = |waiting: &What| matches!(waiting, What::SignalRanks(_));
            if queue.iter().filter(|waiting| waits(waiting)).count() >= SIGNALS_MAX
                && let Some(oldest) = queue.iter().position(waits)
            {
                queue.remove(oldest);
            }
        }
        // What is done last counts: stopped, continued, and stopped again is stopped.
        What::Signal(_) => queue.retain(|waiting| *waiting != command),
        What::End(_) | What::Kill(_) | What::GiveUp(_) | What::Release(_) | What::StdinEnd(_)
            if queue.contains(&command) =>
        {
            return;
        }
        _ => {}
    }
    queue.push_back(command);
}

fn joined(first: &Bytes, second: &Bytes) -> Bytes {
    let mut both = BytesMut::with_capacity(first.len() + second.len());
    both.extend_from_slice(first);
    both.extend_from_slice(second);
    both.freeze()
}

#[cfg(test)]
mod tests {
    use node_command::What;
    use pmi_transport::proto::v1::SignalRanks;

    use super::*;

    #[test]
    fn what_waits_does_not_grow_with_what_is_said() {
        let mut queue = VecDeque::new();
        for round in 0..1000 {
            add(&mut queue, What::Signal(10));
            add(&mut queue, What::OutputCredit(2));
            add(&mut queue, What::AskProgress(round));
            add(&mut queue, What::Signal(12));
        }
        let expected = [What::OutputCredit(2000), What::Signal(10), What::AskProgress(999), What::Signal(12)];
        assert_eq!(queue.into_iter().collect::<Vec<_>>(), expected);
    }

    #[test]
    fn signals_to_some_ranks_wait_one_by_one_and_do_not_pile_up() {
        let mut queue = VecDeque::new();
        let signal = |signal| What::SignalRanks(SignalRanks { signal, ranks: Vec::new() });
        add(&mut queue, What::Signal(10));
        (0..100).for_each(|number| add(&mut queue, signal(number)));
        assert_eq!((queue.len(), queue.front(), queue.back()), (65, Some(&What::Signal(10)), Some(&signal(99))));
    }

    #[test]
    fn input_keeps_its_order_and_its_bytes() {
        let mut queue = VecDeque::new();
        for _ in 0..100 {
            add(&mut queue, What::Stdin(Bytes::from_static(b"ab")));
        }
        add(&mut queue, What::StdinEnd(Default::default()));
        assert_eq!(queue.len(), 2);
        assert_eq!(queue.pop_front(), Some(What::Stdin(b"ab".repeat(100).into())));
    }

    #[tokio::test]
    async fn a_new_stream_takes_over_what_waits() {
        let outbox = Outbox::default();
        let first = outbox.open();
        outbox.push(What::Signal(10));
        let second = outbox.open();
        assert_eq!(outbox.next(first).await, None);
        assert_eq!(outbox.next(second).await.and_then(|command| command.what), Some(What::Signal(10)));
        outbox.close();
        assert_eq!(outbox.next(second).await, None);
    }
}
