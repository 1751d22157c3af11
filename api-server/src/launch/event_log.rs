//! The numbered events of a launch, for all its clients. Readers are independent: a slow reader delays no other reader.
//!
//! ```text
//!        on disk (spool.rs)             in memory
//!  ┌─ first kept ─────── settled ─┬─────────────────── latest ─┐
//!  │ only if the spool is         │ kept until it is settled   │ <── push
//!  │ the party that settles       │                            │
//!  └──────────────────────────────┴────────────────────────────┘
//!        ^ a reader that lags                   ^ another reader
//! ```
//!
//! One party settles events: the owner by acknowledging them, or the spool by writing them. Settled events stay in memory only for readers that
//! lag, and only up to a total cost of [`KEPT_MAX`](state::KEPT_MAX). The limit is lower while the logs of all launches together use much
//! memory. A reader that loses events for this reason receives the number of lost bytes of output. Each event records the bytes of output
//! before it, for this purpose.

mod all_kept;
mod state;

use std::sync::Arc;

use pmi_core::ids::NodeIndex;

pub(crate) use self::all_kept::{AllKept, InHand};
use self::state::State;
pub(crate) use self::state::{Retention, SideMessages};
use super::client_message::ClientMessage;
use super::entry::Entry;
use super::event::{LogEvent, StartProgress};
use super::spool::{Bookmark, Slice, Spool};
use crate::watched::Watched;
use crate::wire::spec::ShownSpec;

/// The events, shared by the launch that adds them and the tasks that read them.
#[derive(Debug)]
pub(crate) struct EventLog {
    state: Watched<State>,
    spool: Option<Arc<Spool>>,
}

/// The position at which a reader starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Start {
    /// At the first event that is not settled.
    Unsettled,
    /// After the event with this number; 0 is before the first event.
    After(u64),
}

/// Next item for a reader.
#[derive(Debug)]
pub(crate) enum Next {
    Messages(Vec<ClientMessage>),
    /// The caller must read this piece of the spool, and pass it to [`EventLog::deliver_from_spool`].
    Spooled(Slice),
}

impl EventLog {
    /// A log with the number `first` for its first event. Its memory limit is lower while `all` is above its limit.
    pub(crate) fn new(first: u64, retention: Retention, spool: Option<Arc<Spool>>, all: AllKept) -> Arc<Self> {
        Arc::new(Self { state: Watched::new(State::new(first, retention, all)), spool })
    }

    /// Adds an event. Returns its number.
    pub(crate) fn push(&self, node: NodeIndex, event: LogEvent) -> u64 {
        self.state.change(|state| state.push(node, event))
    }

    /// Settles all events up to `sequence`.
    pub(crate) fn settle(&self, sequence: u64) {
        self.state.lock().settle(sequence);
    }

    /// Stops the retention of unsettled events beyond the limit.
    pub(crate) fn stop_keeping(&self) {
        self.state.lock().stop_keeping();
    }

    /// No event follows: the spool can be dropped to free disk space for running launches.
    pub(crate) fn end(&self) {
        if let Some(spool) = &self.spool {
            spool.end();
        }
    }

    /// Adds a reader under a number of its own. The spec is its first message.
    pub(crate) fn join(&self, number: u64, start: Start, spec: ShownSpec) {
        self.state.lock().join(number, start, spec);
    }

    /// Removes a reader.
    pub(crate) fn leave(&self, number: u64) {
        self.state.change(|state| state.leave(number));
    }

    /// Changes the messages for one reader alone.
    pub(crate) fn tell(&self, number: u64, change: impl FnOnce(&mut SideMessages)) {
        self.state.change(|state| state.reader(number).map(|reader| change(&mut reader.side)));
    }

    /// Sends all readers the progress of the start.
    pub(crate) fn tell_start(&self, progress: StartProgress) {
        self.state.change(|state| state.readers().for_each(|reader| reader.side.starting = Some(progress)));
    }

    /// Converts the number of a client's last event, as the client numbers it, to a number of this log.
    pub(crate) fn own_number(&self, after: u64) -> u64 {
        self.state.lock().own_number(after)
    }

    /// Converts the number that a reader acknowledges to a number of this log. The result does not exceed the last event that the reader
    /// was sent.
    pub(crate) fn acknowledged(&self, number: u64, sequence: u64) -> u64 {
        self.state.lock().acknowledged(number, sequence)
    }

    /// The last event that was delivered to a reader.
    #[cfg(test)]
    fn delivered(&self, number: u64) -> u64 {
        self.state.lock().reader(number).map_or(0, |reader| reader.position.sequence)
    }

    /// Returns true if all events are settled, and were delivered to all readers.
    pub(crate) fn is_delivered(&self) -> bool {
        self.state.lock().is_delivered()
    }

    /// Waits for the next item for a reader; `None` if the reader was removed. `bookmark` is its position in the spool.
    pub(crate) async fn next(&self, number: u64, bookmark: &Bookmark) -> Option<Next> {
        self.state
            .when(|state| {
                let has_left = state.reader(number).is_none();
                if has_left { Some(None) } else { self.look(state, number, bookmark).map(Some) }
            })
            .await
    }

    /// Returns the next item for an existing reader, if there is one.
    fn look(&self, state: &mut State, number: u64, bookmark: &Bookmark) -> Option<Next> {
        let reader = state.reader(number)?;
        if let Some(message) = reader.side.take() {
            return Some(Next::Messages(vec![message]));
        }
        let after = reader.position.sequence;
        if after + 1 < state.first()
            && let Some(slice) = self.spool.as_ref().and_then(|spool| spool.after(after, bookmark))
        {
            return Some(Next::Spooled(slice));
        }
        let batch = state.after(after);
        (!batch.is_empty()).then(|| Next::Messages(state.deliver(number, batch)))
    }

    /// Returns the next messages for a reader of a log without a spool, if there are any.
    #[cfg(feature = "simulation")]
    pub(crate) fn try_next(&self, number: u64) -> Option<Vec<ClientMessage>> {
        match self.look(&mut self.state.lock(), number, &Bookmark::default())? {
            Next::Messages(messages) => Some(messages),
            Next::Spooled(_) => None,
        }
    }

    /// Converts entries that were read from the spool to messages for a reader.
    pub(crate) fn deliver_from_spool(&self, number: u64, entries: Vec<Entry>) -> Vec<ClientMessage> {
        self.state.lock().deliver(number, entries)
    }

    /// Counts messages in delivery to a reader as memory of all logs, until the result is dropped.
    pub(crate) fn hold(&self, messages: &[ClientMessage]) -> InHand {
        self.state.lock().all.hold(messages)
    }

    /// Waits for events after `sequence`, and returns a batch of them.
    pub(crate) async fn after(&self, sequence: u64) -> Vec<Entry> {
        self.state.when(|state| Some(state.after(sequence)).filter(|batch| !batch.is_empty())).await
    }

    /// The number of the latest event.
    #[cfg(test)]
    fn latest(&self) -> u64 {
        self.state.lock().latest()
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::time::Duration;

    use lattice_session::event::{Event, Output, Stream};
    use pmi_core::ids::{NodeIndex, Rank};
    use pmi_transport::limits::kept_cost;

    use super::all_kept::ALL_KEPT_MAX;
    use super::state::{KEPT_MAX, KEPT_WHEN_SHORT};
    use super::*;
    use crate::launch::event::NodeEvent;

    pub(crate) fn output(bytes: usize) -> LogEvent {
        let output = Output { rank: Rank(0), stream: Stream::Stdout, bytes: vec![b'x'; bytes].into() };
        LogEvent::Node(NodeEvent::of_session(Event::Output(output)))
    }

    pub(crate) fn started(rank: u32) -> LogEvent {
        LogEvent::Node(NodeEvent::of_session(Event::Started { rank: Rank(rank), pid: 100 + rank, at: Duration::ZERO }))
    }

    fn push(log: &EventLog, times: usize, bytes: usize) {
        for _ in 0..times {
            log.push(NodeIndex(0), output(bytes));
        }
    }

    /// Adds a reader that was sent the spec.
    async fn join(log: &EventLog, number: u64, start: Start) {
        log.join(number, start, ShownSpec::default());
        assert!(matches!(read(log, number).await[..], [ClientMessage::Spec(_)]));
    }

    async fn read(log: &EventLog, number: u64) -> Vec<ClientMessage> {
        match log.next(number, &Bookmark::default()).await {
            Some(Next::Messages(messages)) => messages,
            other => panic!("{other:?}"),
        }
    }

    /// Reads up to the latest event. Returns the numbers of the events, and the bytes of output that were lost.
    async fn read_all(log: &EventLog, number: u64) -> (Vec<u64>, u64) {
        let (mut numbers, mut lost) = (Vec::new(), 0);
        while log.delivered(number) < log.latest() {
            for message in read(log, number).await {
                match message {
                    ClientMessage::DroppedOutput(bytes) => lost += bytes.unwrap_or(0),
                    ClientMessage::Event(entry) => numbers.push(entry.sequence),
                    other => panic!("{other:?}"),
                }
            }
        }
        (numbers, lost)
    }

    #[tokio::test]
    async fn readers_go_at_their_own_pace() {
        let log = EventLog::new(1, Retention::UntilSettled, None, AllKept::default());
        join(&log, 1, Start::After(0)).await;
        log.push(NodeIndex(0), started(0));
        assert_eq!(read_all(&log, 1).await, (vec![1], 0));
        join(&log, 2, Start::After(0)).await;
        log.push(NodeIndex(0), output(10));
        assert_eq!(read_all(&log, 1).await, (vec![2], 0));
        log.settle(1);
        join(&log, 3, Start::Unsettled).await;
        assert_eq!(read_all(&log, 2).await, (vec![1, 2], 0));
        assert_eq!(read_all(&log, 3).await, (vec![2], 0));
        assert!(!log.is_delivered());
        log.settle(2);
        assert!(log.is_delivered() && log.state.lock().events.is_empty());
    }

    /// Eighty launches write output, and each has a reader that does not read.
    #[tokio::test]
    async fn readers_that_are_behind_do_not_fill_memory_together() {
        let all = AllKept::default();
        let new = |_| EventLog::new(1, Retention::UntilSettled, None, all.clone());
        let logs: Vec<_> = (0..80).map(new).collect();
        for log in &logs {
            join(log, 1, Start::After(0)).await;
            for sequence in 1..=50 {
                assert_eq!(log.push(NodeIndex(0), output(100_000)), sequence);
                log.settle(sequence);
            }
        }
        let kept = |log: &Arc<EventLog>| log.state.lock().kept;
        assert!(kept(&logs[0]) > KEPT_MAX / 2 && kept(&logs[79]) <= KEPT_WHEN_SHORT);
        let sum: usize = logs.iter().map(kept).sum();
        assert!(sum <= ALL_KEPT_MAX + KEPT_MAX + 80 * KEPT_WHEN_SHORT, "{sum}");
        let (numbers, lost) = read_all(&logs[79], 1).await;
        assert_eq!((numbers.last(), lost), (Some(&50), (50 - numbers.len() as u64) * 100_000));
        drop(logs);
        assert!(!all.is_short() && all.is_empty());
    }

    /// Each reader that has stopped reading holds one batch. There may be a thousand of them.
    #[tokio::test]
    async fn what_readers_have_in_hand_counts_and_makes_batches_small() {
        let all = AllKept::default();
        let log = EventLog::new(1, Retention::UntilSettled, None, all.clone());
        push(&log, 100, 4096);
        let readers = (ALL_KEPT_MAX >> 16) as u64 + 2;
        let mut in_hand = Vec::new();
        for number in 1..=readers {
            join(&log, number, Start::After(0)).await;
            in_hand.push(log.hold(&read(&log, number).await));
        }
        assert!(all.is_short());
        let next = read(&log, 1).await;
        assert!(!next.is_empty() && next.len() <= 2, "{}", next.len());
        in_hand.clear();
        assert!(!all.is_short());
        assert!(read(&log, 1).await.len() > 10);
        drop(log);
        assert!(all.is_empty());
    }

    #[tokio::test]
    async fn who_is_too_slow_is_told_how_much_was_lost() {
        let log = EventLog::new(1, Retention::UntilSettled, None, AllKept::default());
        join(&log, 1, Start::After(0)).await;
        const EACH: usize = 100_000;
        for sequence in 1..=100 {
            assert_eq!(log.push(NodeIndex(0), output(EACH)), sequence);
            log.settle(sequence);
        }
        assert!(log.state.lock().kept <= KEPT_MAX);
        let (numbers, lost) = read_all(&log, 1).await;
        assert_eq!(lost, (100 - numbers.len() as u64) * EACH as u64);
        assert_eq!(numbers.last(), Some(&100));
        assert!(numbers.len() > 30, "{numbers:?}");
    }

    #[tokio::test]
    async fn what_nobody_settles_is_kept_unless_nobody_waits() {
        let log = EventLog::new(1, Retention::UntilSettled, None, AllKept::default());
        push(&log, 100, 100_000);
        assert!(log.state.lock().kept > 2 * KEPT_MAX);
        log.stop_keeping();
        assert!(log.state.lock().kept <= KEPT_MAX);
        join(&log, 1, Start::After(0)).await;
        let (numbers, lost) = read_all(&log, 1).await;
        assert_eq!(lost + 100_000 * numbers.len() as u64, 10_000_000);
    }

    #[tokio::test]
    async fn small_events_cost_more_than_they_carry() {
        let log = EventLog::new(1, Retention::Bounded, None, AllKept::default());
        push(&log, 100_000, 1);
        assert!(log.state.lock().events.len() <= KEPT_MAX / kept_cost(1));
    }

    #[tokio::test]
    async fn who_comes_back_is_told_of_a_gap_though_not_of_its_size() {
        let log = EventLog::new(1, Retention::Bounded, None, AllKept::default());
        push(&log, 100, 100_000);
        join(&log, 1, Start::After(3)).await;
        assert!(matches!(read(&log, 1).await[0], ClientMessage::DroppedOutput(None)));
        join(&log, 2, Start::After(99)).await;
        assert_eq!(read_all(&log, 2).await, (vec![100], 0));
        join(&log, 3, Start::After(1000)).await;
        let all = read(&log, 3).await;
        assert!(matches!(all[0], ClientMessage::DroppedOutput(Some(_))), "it has nothing of this log: {:?}", all[0]);
    }

    #[tokio::test]
    async fn who_began_with_an_earlier_server_is_told_that_something_may_be_missing() {
        let log = EventLog::new(1000, Retention::UntilSettled, None, AllKept::default());
        join(&log, 1, Start::After(7)).await;
        join(&log, 2, Start::Unsettled).await;
        log.push(NodeIndex(0), output(10));
        let told = read(&log, 1).await;
        assert!(matches!(
            &told[..],
            [ClientMessage::DroppedOutput(None), ClientMessage::Event(Entry { sequence: 1000, .. })]
        ));
        assert_eq!(read(&log, 2).await.len(), 1, "it begins here");
        log.push(NodeIndex(0), output(10));
        assert_eq!(read_all(&log, 1).await, (vec![1001], 0));
    }

    #[tokio::test]
    async fn who_has_left_is_told_nothing() {
        let log = EventLog::new(1, Retention::UntilSettled, None, AllKept::default());
        join(&log, 1, Start::After(0)).await;
        log.leave(1);
        assert!(log.next(1, &Bookmark::default()).await.is_none());
    }
}
