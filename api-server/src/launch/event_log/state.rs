//! The stored events, the position of each reader, and the rule by which events are dropped. Pure: no clock, no lock, no waiting.

use std::collections::{BTreeMap, VecDeque};

use super::all_kept::AllKept;
use super::{NodeIndex, Start};
use crate::launch::client_message::ClientMessage;
use crate::launch::entry::Entry;
use crate::launch::event::{LogEvent, StartProgress};
use crate::wire::spec::ShownSpec;

/// Memory limit for events that lagging readers need, as the sum of event costs in bytes.
pub(super) const KEPT_MAX: usize = 4 << 20;
/// The same limit while the logs of all launches together exceed [`ALL_KEPT_MAX`](super::all_kept::ALL_KEPT_MAX).
pub(super) const KEPT_WHEN_SHORT: usize = 128 << 10;
/// Maximum cost of a batch in bytes; a batch may consist of one event that costs more.
const BATCH_MAX: usize = 64 << 10;
/// The same limit while the logs of all launches together exceed [`ALL_KEPT_MAX`](super::all_kept::ALL_KEPT_MAX).
const BATCH_WHEN_SHORT: usize = 8 << 10;

/// Room that a lead leaves for the numbers of events, of this server and of earlier servers.
const LEAD_ROOM: u64 = 1 << 40;

/// The stored events and their readers.
#[derive(Debug)]
pub(super) struct State {
    /// With consecutive numbers.
    pub(super) events: VecDeque<Entry>,
    /// The number of the first event: 1, or a greater one in a launch that an earlier server began.
    origin: u64,
    /// The number of the next event.
    next: u64,
    /// Bytes of output in all events so far.
    output: u64,
    /// Cost of `events`.
    pub(super) kept: usize,
    /// Cost of the events of all logs, including this one.
    pub(super) all: AllKept,
    /// Position of the party that settles events.
    settled: Position,
    retention: Retention,
    readers: BTreeMap<u64, Reader>,
    /// Amount that is added to numbers for clients of an earlier server; see [`State::own_number`].
    lead: u64,
}

/// Rule by which events are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Retention {
    /// Unsettled events are never dropped.
    UntilSettled,
    /// Events beyond the limit are dropped, settled or not.
    Bounded,
}

/// Position of a reader: its last event, and the bytes of output up to the end of that event, if known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Position {
    pub(super) sequence: u64,
    output: Option<u64>,
}

#[derive(Debug)]
pub(super) struct Reader {
    pub(super) position: Position,
    /// Amount that is added to the numbers of its events.
    lead: u64,
    pub(super) side: SideMessages,
}

/// Messages to one reader alone. They are sent before the events.
#[derive(Debug, Default)]
pub(crate) struct SideMessages {
    pub spec: Option<ShownSpec>,
    /// Bytes of input that may be sent in addition to earlier grants.
    pub input_credit: u64,
    pub starting: Option<StartProgress>,
}

impl State {
    pub(super) fn new(first: u64, retention: Retention, all: AllKept) -> Self {
        Self {
            all,
            events: VecDeque::new(),
            origin: first,
            next: first,
            output: 0,
            kept: 0,
            settled: Position { sequence: first - 1, output: Some(0) },
            retention,
            readers: BTreeMap::new(),
            lead: 0,
        }
    }

    pub(super) fn push(&mut self, node: NodeIndex, event: LogEvent) -> u64 {
        let sequence = self.next;
        self.next += 1;
        let entry = Entry { sequence, node, event, before: self.output };
        self.output += entry.output();
        self.kept += entry.cost();
        self.all.add(entry.cost());
        self.events.push_back(entry);
        self.trim();
        sequence
    }

    pub(super) fn settle(&mut self, sequence: u64) {
        if sequence > self.settled.sequence {
            self.settled = self.position_of(sequence);
            self.trim();
        }
    }

    pub(super) fn stop_keeping(&mut self) {
        self.retention = Retention::Bounded;
        self.trim();
    }

    pub(super) fn join(&mut self, number: u64, start: Start, spec: ShownSpec) {
        let mut lead = 0;
        let position = match start {
            // Every client receives the final event, even if it is settled.
            Start::Unsettled if self.is_complete() => self.position_of(self.settled.sequence.min(self.latest() - 1)),
            Start::Unsettled => self.settled,
            Start::After(after) => {
                let own = self.own_number(after);
                lead = if own == after { 0 } else { self.lead };
                self.position_of(own)
            }
        };
        let side = SideMessages { spec: Some(spec), ..SideMessages::default() };
        self.readers.insert(number, Reader { position, lead, side });
    }

    /// Converts the number of a client's last event, as the client numbers it, to a number of this log.
    ///
    /// A number beyond the latest event comes from an earlier server with a clock that was ahead. Its client has received no event of this log,
    /// and ignores events with numbers that it has passed. The log adds a lead to the numbers for such a client.
    pub(super) fn own_number(&mut self, after: u64) -> u64 {
        let latest = self.latest();
        if after <= latest {
            return after;
        }
        if self.lead == 0 || after.saturating_sub(self.lead) > latest {
            self.lead = (after - latest).saturating_add(LEAD_ROOM);
        }
        after.saturating_sub(self.lead)
    }

    /// Converts the number that a reader acknowledges to a number of this log, at most the last event that was delivered to it.
    pub(super) fn acknowledged(&self, number: u64, sequence: u64) -> u64 {
        let Some(reader) = self.readers.get(&number) else { return 0 };
        sequence.saturating_sub(reader.lead).min(reader.position.sequence)
    }

    pub(super) fn leave(&mut self, number: u64) {
        self.readers.remove(&number);
        self.trim();
    }

    pub(super) fn reader(&mut self, number: u64) -> Option<&mut Reader> {
        self.readers.get_mut(&number)
    }

    pub(super) fn readers(&mut self) -> impl Iterator<Item = &mut Reader> {
        self.readers.values_mut()
    }

    pub(super) fn latest(&self) -> u64 {
        self.next - 1
    }

    pub(super) fn is_delivered(&self) -> bool {
        let latest = self.latest();
        self.settled.sequence >= latest && self.readers.values().all(|reader| reader.position.sequence >= latest)
    }

    /// Returns true if the latest event is the final one, which is kept for clients that attach late.
    fn is_complete(&self) -> bool {
        matches!(self.events.back(), Some(Entry { event: LogEvent::Complete(_), .. }))
    }

    pub(super) fn first(&self) -> u64 {
        self.events.front().map_or(self.next, |entry| entry.sequence)
    }

    /// The position of a reader that has received all events up to `sequence`.
    fn position_of(&self, sequence: u64) -> Position {
        if sequence < self.origin {
            // The output that an earlier server sent after that event is unknown.
            return Position { sequence, output: (self.origin == 1).then_some(0) };
        }
        let sequence = sequence.min(self.latest());
        let before = |index: u64| self.events.get(index as usize).map_or(self.output, |entry| entry.before);
        Position { sequence, output: (sequence + 1).checked_sub(self.first()).map(before) }
    }

    /// A batch of events after `sequence`.
    pub(super) fn after(&self, sequence: u64) -> Vec<Entry> {
        let skipped = (sequence + 1).saturating_sub(self.first()) as usize;
        let most = if self.all.is_short() { BATCH_WHEN_SHORT } else { BATCH_MAX };
        let mut cost = 0;
        let fits = |entry: &&Entry| {
            let is_first = cost == 0;
            cost += entry.cost();
            is_first || cost <= most
        };
        self.events.iter().skip(skipped).take_while(fits).cloned().collect()
    }

    /// Records entries as delivered to a reader. Returns their messages. A message about lost output precedes the event that follows the loss.
    pub(super) fn deliver(&mut self, number: u64, entries: Vec<Entry>) -> Vec<ClientMessage> {
        let Some(reader) = self.readers.get_mut(&number) else { return Vec::new() };
        let mut messages = Vec::with_capacity(entries.len() + 1);
        for entry in entries {
            let sequence = entry.sequence;
            if sequence <= reader.position.sequence {
                continue;
            }
            let missing = (sequence > reader.position.sequence + 1)
                .then(|| reader.position.output.map(|output| entry.before - output));
            // Lost events without output are not reported, if it is known that they had none.
            messages.extend(missing.filter(|&bytes| bytes != Some(0)).map(ClientMessage::DroppedOutput));
            reader.position = Position { sequence, output: Some(entry.before + entry.output()) };
            let sequence = sequence.saturating_add(reader.lead);
            messages.push(ClientMessage::Event(Entry { sequence, ..entry }));
        }
        self.trim();
        messages
    }

    /// Drops the oldest events that no reader needs, and events beyond the memory limit.
    fn trim(&mut self) {
        let behind = self.readers.values().map(|reader| reader.position.sequence).min().unwrap_or(u64::MAX);
        let must_be_settled = self.retention == Retention::UntilSettled;
        let most = if self.all.is_short() { KEPT_WHEN_SHORT } else { KEPT_MAX };
        while let Some(entry) = self.events.front() {
            if self.is_complete() && self.events.len() == 1 {
                return;
            }
            let sequence = entry.sequence;
            let settled = sequence <= self.settled.sequence;
            let too_much = self.kept > most;
            let is_dropped = if settled { sequence <= behind || too_much } else { too_much && !must_be_settled };
            if !is_dropped {
                return;
            }
            self.kept -= entry.cost();
            self.all.subtract(entry.cost());
            self.events.pop_front();
        }
    }
}

impl Drop for State {
    fn drop(&mut self) {
        self.all.subtract(self.kept);
    }
}

impl SideMessages {
    /// Removes and returns the next message to this reader alone.
    pub(super) fn take(&mut self) -> Option<ClientMessage> {
        if let Some(spec) = self.spec.take() {
            return Some(ClientMessage::Spec(spec));
        }
        if self.input_credit > 0 {
            return Some(ClientMessage::InputCredit(std::mem::take(&mut self.input_credit)));
        }
        self.starting.take().map(ClientMessage::Start)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;

    use super::super::tests::{output, started};
    use super::*;

    /// A change of a log.
    #[derive(Clone, Debug)]
    enum Step {
        Output(usize),
        Started,
        Settle(u64),
        StopKeeping,
        Join(u64, Option<u64>),
        Leave(u64),
        Read(u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        let (reader, sequence) = (0..4_u64, 0..60_u64);
        prop_oneof![
            8 => (0..700_000_usize).prop_map(Step::Output),
            4 => Just(Step::Started),
            4 => sequence.clone().prop_map(Step::Settle),
            1 => Just(Step::StopKeeping),
            2 => (reader.clone(), prop::option::of(sequence)).prop_map(|(reader, after)| Step::Join(reader, after)),
            1 => reader.clone().prop_map(Step::Leave),
            6 => reader.prop_map(Step::Read),
        ]
    }

    /// The part of a log that a reader has received.
    #[derive(Clone, Copy, Debug)]
    struct Seen {
        sequence: u64,
        /// Bytes of output since the beginning of the log that the reader received, or that were reported to it as lost.
        output: u64,
    }

    /// A log, and the part of it that each reader has received.
    struct Model {
        state: State,
        seen: BTreeMap<u64, Seen>,
        /// Bytes of output up to the end of each event.
        ends: Vec<u64>,
    }

    impl Model {
        fn push(&mut self, event: LogEvent, bytes: usize) {
            assert_eq!(self.state.push(NodeIndex(0), event), self.ends.len() as u64 + 1);
            self.ends.push(self.ends.last().copied().unwrap_or(0) + bytes as u64);
        }

        fn end(&self, sequence: u64) -> u64 {
            sequence.checked_sub(1).map_or(0, |index| self.ends[index as usize])
        }

        fn take(&mut self, step: &Step) {
            match *step {
                Step::Output(bytes) => self.push(output(bytes), bytes),
                Step::Started => self.push(started(0), 0),
                Step::Settle(sequence) => self.state.settle(sequence),
                Step::StopKeeping => self.state.stop_keeping(),
                Step::Join(reader, after) => {
                    let start = after.map_or(Start::Unsettled, |after| Start::After(after.min(self.state.latest())));
                    self.state.join(reader, start, ShownSpec::default());
                    let Position { sequence, output } = self.state.readers[&reader].position;
                    // A reader that starts before the first stored event receives a report of a loss of unknown size.
                    let seen = output.map(|output| Seen { sequence, output });
                    assert!(output.is_none_or(|output| output == self.end(sequence)));
                    self.seen.remove(&reader);
                    self.seen.extend(seen.map(|seen| (reader, seen)));
                }
                Step::Leave(reader) => {
                    self.state.leave(reader);
                    self.seen.remove(&reader);
                }
                Step::Read(reader) => self.read(reader),
            }
        }

        /// Delivers one batch to a reader.
        fn read(&mut self, reader: u64) {
            let Some(position) = self.state.reader(reader).map(|reader| reader.position.sequence) else { return };
            let batch = self.state.after(position);
            for message in self.state.deliver(reader, batch) {
                let Some(seen) = self.seen.get_mut(&reader) else { continue };
                match message {
                    ClientMessage::DroppedOutput(bytes) => seen.output += bytes.expect("its size is known"),
                    ClientMessage::Event(entry) => {
                        assert!(entry.sequence > seen.sequence, "events come in order, each once");
                        assert_eq!(seen.output, entry.before, "what was lost is told before the next event");
                        *seen = Seen { sequence: entry.sequence, output: entry.before + entry.output() };
                    }
                    other => panic!("{other:?}"),
                }
            }
        }
    }

    proptest! {
        #[test]
        fn every_reader_has_every_byte_or_is_told_that_it_is_lost(steps in prop::collection::vec(step(), 0..60)) {
            let mut model = Model { state: State::new(1, Retention::UntilSettled, AllKept::default()), seen: BTreeMap::new(), ends: Vec::new() };
            let mut keeps = true;
            for step in &steps {
                model.take(step);
                keeps &= !matches!(step, Step::StopKeeping);
                let state = &model.state;
                prop_assert_eq!(state.kept, state.events.iter().map(Entry::cost).sum::<usize>());
                if keeps {
                    prop_assert!(state.first() <= state.settled.sequence + 1, "what is not settled is kept");
                } else {
                    prop_assert!(state.kept <= KEPT_MAX);
                }
                let settled_is_kept = state.events.front().is_some_and(|entry| entry.sequence <= state.settled.sequence);
                prop_assert!(!settled_is_kept || state.kept <= KEPT_MAX, "what is settled is kept within the limit only");
            }
            model.push(LogEvent::Complete(Arc::default()), 0);
            for reader in 0..4 {
                while model.state.reader(reader).is_some_and(|reader| reader.position.sequence < model.ends.len() as u64) {
                    model.read(reader);
                }
            }
            for seen in model.seen.values() {
                prop_assert_eq!(seen.sequence, model.ends.len() as u64);
                prop_assert_eq!(seen.output, model.end(seen.sequence));
            }
        }
    }

    #[test]
    fn whoever_joins_when_all_is_settled_is_told_how_the_launch_ended() {
        let mut state = State::new(1, Retention::UntilSettled, AllKept::default());
        state.push(NodeIndex(0), output(10));
        state.push(NodeIndex(0), LogEvent::Complete(Arc::default()));
        state.settle(2);
        for (reader, start) in [(1, Start::Unsettled), (2, Start::After(0)), (3, Start::After(1))] {
            state.join(reader, start, ShownSpec::default());
            assert!(!state.is_delivered(), "{start:?}");
            let position = state.readers[&reader].position.sequence;
            let batch = state.after(position);
            let last = state.deliver(reader, batch).pop();
            let ClientMessage::Event(Entry { sequence: 2, event: LogEvent::Complete(_), .. }) = last.unwrap() else {
                panic!("{start:?}");
            };
            assert!(state.is_delivered(), "{start:?}");
        }
    }

    #[test]
    fn a_client_whose_numbers_are_ahead_is_sent_every_event_under_numbers_that_go_on() {
        const AHEAD: u64 = 1_800_000_000 << 20;
        for origin in [1, 1_500_000_000 << 20] {
            let mut state = State::new(origin, Retention::UntilSettled, AllKept::default());
            state.push(NodeIndex(0), output(10));
            let numbers = |state: &mut State, reader| {
                let batch = state.after(state.readers[&reader].position.sequence);
                let messages = state.deliver(reader, batch);
                let number = |message| match message {
                    ClientMessage::Event(entry) => Some(entry.sequence),
                    _ => None,
                };
                messages.into_iter().filter_map(number).collect::<Vec<u64>>()
            };
            state.join(1, Start::After(AHEAD), ShownSpec::default());
            let first = numbers(&mut state, 1);
            assert!(first.len() == 1 && first[0] > AHEAD, "{first:?}");
            assert!(state.acknowledged(1, AHEAD) < origin, "nothing of this log");
            assert_eq!(state.acknowledged(1, first[0] + 5), origin, "no more than it was handed");
            // The client continues at its position. The same holds for a client with an earlier position.
            state.push(NodeIndex(0), output(10));
            state.leave(1);
            state.join(2, Start::After(first[0]), ShownSpec::default());
            assert_eq!(numbers(&mut state, 2), [first[0] + 1]);
            state.join(3, Start::After(AHEAD - 7), ShownSpec::default());
            assert_eq!(numbers(&mut state, 3), [first[0], first[0] + 1]);
            state.join(4, Start::After(u64::MAX), ShownSpec::default());
            assert_eq!(numbers(&mut state, 4).len(), 2, "a number that makes no sense hides nothing");
        }
    }

    #[test]
    fn a_batch_has_a_limit_and_at_least_one_event() {
        let check = |pieces: &[usize], expected: usize| {
            let mut state = State::new(1, Retention::UntilSettled, AllKept::default());
            for &bytes in pieces {
                state.push(NodeIndex(0), output(bytes));
            }
            assert_eq!(state.after(0).len(), expected, "{pieces:?}");
        };
        check(&[], 0);
        check(&[1, 1, 1], 3);
        check(&[3 * BATCH_MAX, 1], 1);
        check(&[1, 3 * BATCH_MAX, 1], 1);
        check(&[BATCH_MAX / 2, BATCH_MAX / 4, BATCH_MAX / 2], 2);
    }

    #[test]
    fn a_viewer_that_is_behind_keeps_settled_events_only_within_the_limit() {
        let mut state = State::new(1, Retention::UntilSettled, AllKept::default());
        state.join(1, Start::After(0), ShownSpec::default());
        for sequence in 1..=100 {
            state.push(NodeIndex(0), output(100_000));
            state.settle(sequence);
            assert!(state.kept <= KEPT_MAX);
        }
        assert!(!state.events.is_empty(), "the viewer may still have them");
        state.leave(1);
        assert!(state.events.is_empty(), "nobody reads them");
    }

    #[test]
    fn messages_to_one_reader_go_ahead_in_their_order() {
        let progress = StartProgress { nodes: 2, nodes_started: 1, ranks: 4, ranks_started: 2, ranks_initialized: 0 };
        let mut side = SideMessages { spec: None, input_credit: 7, starting: Some(progress) };
        side.spec = Some(ShownSpec::default());
        assert!(matches!(side.take(), Some(ClientMessage::Spec(_))));
        assert!(matches!(side.take(), Some(ClientMessage::InputCredit(7))));
        assert!(matches!(side.take(), Some(ClientMessage::Start(sent)) if sent == progress));
        assert!(side.take().is_none());
    }
}
