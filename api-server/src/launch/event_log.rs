//! The events of a launch, numbered, for all who follow it. Each reads at its own pace and holds up no other.
//!
//! ```text
//!        on disk (spool.rs)             in memory
//!  ┌─ first kept ─────── settled ─┬─────────────────── latest ─┐
//!  │ only if the launch has none  │ kept until it is settled   │ <── push
//!  │ to settle but its spool      │                            │
//!  └──────────────────────────────┴────────────────────────────┘
//!        ^ a reader that is behind              ^ another
//! ```
//!
//! One settles: the owner, by acknowledging, or the spool, by writing. What is settled stays in memory only for readers that are
//! behind, and only as long as all that is kept costs no more than [`KEPT_MAX`](state::KEPT_MAX). A reader that loses something by
//! that is told how many bytes of output it was: every event knows how much there was before it.

mod state;

use std::sync::Arc;

use parking_lot::Mutex;
use pmi_transport::proto::v1::{AttachResponse, LaunchSpec, StartProgress, attach_response};
use tokio::sync::Notify;

use self::state::State;
pub(crate) use self::state::{Aside, Entry};
use super::spool::{Bookmark, Slice, Spool};

/// The events, shared by the launch that adds them and the tasks that read them.
#[derive(Debug)]
pub(crate) struct Tape {
    state: Mutex<State>,
    changed: Notify,
    spool: Option<Arc<Spool>>,
}

/// Where a reader begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Start {
    /// With what is not settled.
    Unsettled,
    /// Behind the event with this number; 0 is before all.
    After(u64),
}

/// What comes next for a reader.
#[derive(Debug)]
pub(crate) enum Next {
    Messages(Vec<AttachResponse>),
    /// It is to be read from the spool, and handed to [`Tape::told_from_spool`].
    Spooled(Slice),
}

impl Tape {
    /// A tape whose first event gets the number `first`. With `waits`, everything is kept until it is settled.
    pub(crate) fn new(first: u64, waits: bool, spool: Option<Arc<Spool>>) -> Arc<Self> {
        Arc::new(Self { state: Mutex::new(State::new(first, waits)), changed: Notify::new(), spool })
    }

    /// Adds an event; returns its number.
    pub(crate) fn push(&self, node: u32, what: attach_response::What) -> u64 {
        let sequence = self.state.lock().push(node, what);
        self.changed.notify_waiters();
        sequence
    }

    /// Everything up to `sequence` is settled.
    pub(crate) fn settle(&self, sequence: u64) {
        self.state.lock().settle(sequence);
    }

    /// Nothing is kept for being unsettled any more.
    pub(crate) fn stop_waiting(&self) {
        self.state.lock().stop_waiting();
    }

    /// All has happened: what is on disk of it makes room for launches that run.
    pub(crate) fn end(&self) {
        if let Some(spool) = &self.spool {
            spool.end();
        }
    }

    /// Somebody reads from now on, under a number of its own. It is told the spec first.
    pub(crate) fn join(&self, number: u64, start: Start, spec: LaunchSpec) {
        self.state.lock().join(number, start, spec);
    }

    /// A reader reads no more.
    pub(crate) fn leave(&self, number: u64) {
        self.state.lock().leave(number);
        self.changed.notify_waiters();
    }

    /// Tells one reader something beside the events.
    pub(crate) fn tell(&self, number: u64, what: impl FnOnce(&mut Aside)) {
        if let Some(reader) = self.state.lock().reader(number) {
            what(&mut reader.aside);
        }
        self.changed.notify_waiters();
    }

    /// Tells all readers how far the start is.
    pub(crate) fn tell_start(&self, progress: StartProgress) {
        self.state.lock().readers().for_each(|reader| reader.aside.starting = Some(progress));
        self.changed.notify_waiters();
    }

    /// The last event that a reader was handed.
    pub(crate) fn told(&self, number: u64) -> u64 {
        self.state.lock().reader(number).map_or(0, |reader| reader.place.sequence)
    }

    /// The number of the latest event.
    pub(crate) fn latest(&self) -> u64 {
        self.state.lock().latest()
    }

    /// Whether everything is settled, and handed to all who read.
    pub(crate) fn is_told(&self) -> bool {
        self.state.lock().is_told()
    }

    /// What is next for a reader, as soon as there is something; `None` when it has left. `bookmark` is where it is in the spool.
    pub(crate) async fn next(&self, number: u64, bookmark: &Bookmark) -> Option<Next> {
        self.when(|state| {
            let Some(reader) = state.reader(number) else { return Some(None) };
            if let Some(message) = reader.aside.take() {
                return Some(Some(Next::Messages(vec![message])));
            }
            let after = reader.place.sequence;
            if after + 1 < state.first()
                && let Some(slice) = self.spool.as_ref().and_then(|spool| spool.after(after, bookmark))
            {
                return Some(Some(Next::Spooled(slice)));
            }
            let batch = state.after(after);
            (!batch.is_empty()).then(|| Some(Next::Messages(state.hand_out(number, batch))))
        })
        .await
    }

    /// What was read from the spool, as the reader is to be told it.
    pub(crate) fn told_from_spool(&self, number: u64, entries: Vec<Entry>) -> Vec<AttachResponse> {
        self.state.lock().hand_out(number, entries)
    }

    /// The events behind `sequence`, as soon as there are some: a batch of them.
    pub(crate) async fn after(&self, sequence: u64) -> Vec<Entry> {
        self.when(|state| Some(state.after(sequence)).filter(|batch| !batch.is_empty())).await
    }

    /// Looks until there is what is looked for.
    async fn when<T>(&self, mut look: impl FnMut(&mut State) -> Option<T>) -> T {
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            // What comes after the look counts as well.
            changed.as_mut().enable();
            if let Some(found) = look(&mut self.state.lock()) {
                return found;
            }
            changed.await;
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use attach_response::What;
    use pmi_transport::limits::kept_cost;
    use pmi_transport::proto::v1::{NodeEvent, RankOutput, RankStarted, node_event};

    use super::state::KEPT_MAX;
    use super::*;

    pub(crate) fn output(bytes: usize) -> What {
        let output = RankOutput { rank: 0, on_stderr: false, data: vec![b'x'; bytes].into() };
        What::Event(NodeEvent { what: Some(node_event::What::Output(output)) })
    }

    fn started(rank: u32) -> What {
        let started = RankStarted { rank, ..Default::default() };
        What::Event(NodeEvent { what: Some(node_event::What::Started(started)) })
    }

    fn push(tape: &Tape, times: usize, bytes: usize) {
        for _ in 0..times {
            tape.push(0, output(bytes));
        }
    }

    /// A reader that has heard the spec.
    async fn join(tape: &Tape, number: u64, start: Start) {
        tape.join(number, start, LaunchSpec::default());
        assert!(matches!(read(tape, number).await[..], [AttachResponse { what: Some(What::Spec(_)), .. }]));
    }

    async fn read(tape: &Tape, number: u64) -> Vec<AttachResponse> {
        match tape.next(number, &Bookmark::default()).await {
            Some(Next::Messages(messages)) => messages,
            other => panic!("{other:?}"),
        }
    }

    /// What a reader is told until it has the latest event: the numbers of events, and the bytes that it lost.
    async fn read_all(tape: &Tape, number: u64) -> (Vec<u64>, u64) {
        let (mut numbers, mut lost) = (Vec::new(), 0);
        while tape.told(number) < tape.latest() {
            for message in read(tape, number).await {
                match message.what {
                    Some(What::DroppedOutput(bytes)) => lost += bytes,
                    _ => numbers.push(message.sequence),
                }
            }
        }
        (numbers, lost)
    }

    #[tokio::test]
    async fn readers_go_at_their_own_pace() {
        let tape = Tape::new(1, true, None);
        join(&tape, 1, Start::After(0)).await;
        tape.push(0, started(0));
        assert_eq!(read_all(&tape, 1).await, (vec![1], 0));
        join(&tape, 2, Start::After(0)).await;
        tape.push(0, output(10));
        assert_eq!(read_all(&tape, 1).await, (vec![2], 0));
        tape.settle(1);
        join(&tape, 3, Start::Unsettled).await;
        assert_eq!(read_all(&tape, 2).await, (vec![1, 2], 0));
        assert_eq!(read_all(&tape, 3).await, (vec![2], 0));
        assert!(!tape.is_told());
        tape.settle(2);
        assert!(tape.is_told() && tape.state.lock().events.is_empty());
    }

    #[tokio::test]
    async fn who_is_too_slow_hears_how_much_was_lost() {
        let tape = Tape::new(1, true, None);
        join(&tape, 1, Start::After(0)).await;
        const EACH: usize = 100_000;
        for sequence in 1..=100 {
            assert_eq!(tape.push(0, output(EACH)), sequence);
            tape.settle(sequence);
        }
        assert!(tape.state.lock().kept <= KEPT_MAX);
        let (numbers, lost) = read_all(&tape, 1).await;
        assert_eq!(lost, (100 - numbers.len() as u64) * EACH as u64);
        assert_eq!(numbers.last(), Some(&100));
        assert!(numbers.len() > 30, "{numbers:?}");
    }

    #[tokio::test]
    async fn what_nobody_settles_is_kept_unless_nobody_waits() {
        let tape = Tape::new(1, true, None);
        push(&tape, 100, 100_000);
        assert!(tape.state.lock().kept > 2 * KEPT_MAX);
        tape.stop_waiting();
        assert!(tape.state.lock().kept <= KEPT_MAX);
        join(&tape, 1, Start::After(0)).await;
        let (numbers, lost) = read_all(&tape, 1).await;
        assert_eq!(lost + 100_000 * numbers.len() as u64, 10_000_000);
    }

    #[tokio::test]
    async fn small_events_cost_more_than_they_carry() {
        let tape = Tape::new(1, false, None);
        push(&tape, 100_000, 1);
        assert!(tape.state.lock().events.len() <= KEPT_MAX / kept_cost(1));
    }

    #[tokio::test]
    async fn who_comes_back_is_told_of_a_gap_though_not_of_its_size() {
        let tape = Tape::new(1, false, None);
        push(&tape, 100, 100_000);
        join(&tape, 1, Start::After(3)).await;
        assert!(matches!(read(&tape, 1).await[0].what, Some(What::DroppedOutput(0))));
        join(&tape, 2, Start::After(99)).await;
        assert_eq!(read_all(&tape, 2).await, (vec![100], 0));
        join(&tape, 3, Start::After(1000)).await;
        assert_eq!(tape.told(3), 100, "there is no more than the latest");
    }

    #[tokio::test]
    async fn who_began_with_an_earlier_server_is_told_that_something_may_be_missing() {
        let tape = Tape::new(1000, true, None);
        join(&tape, 1, Start::After(7)).await;
        join(&tape, 2, Start::Unsettled).await;
        tape.push(0, output(10));
        let told = read(&tape, 1).await;
        assert!(matches!(told[0].what, Some(What::DroppedOutput(0))));
        assert_eq!(told[1].sequence, 1000);
        assert_eq!(read(&tape, 2).await.len(), 1, "it begins here");
        tape.push(0, output(10));
        assert_eq!(read_all(&tape, 1).await, (vec![1001], 0));
    }

    #[tokio::test]
    async fn who_has_left_is_told_nothing() {
        let tape = Tape::new(1, true, None);
        join(&tape, 1, Start::After(0)).await;
        tape.leave(1);
        assert!(tape.next(1, &Bookmark::default()).await.is_none());
    }
}
