//! The events that are kept, how far each reader has come, and what may be dropped for that. Pure: no clock, no lock, no waiting.

use std::collections::{BTreeMap, VecDeque};

use crate::launch::entry::Entry;
use lattice_session::wire::event::cost;
use pmi_transport::limits::kept_cost;
use pmi_transport::proto::v1::{AttachResponse, LaunchSpec, StartProgress, attach_response, node_event};

use super::Start;

/// The most that is kept in memory for readers that are behind, in bytes as events cost.
pub(super) const KEPT_MAX: usize = 4 << 20;
/// The most that is handed out at once, in the same bytes, or one event that costs more.
const BATCH_MAX: usize = 256 << 10;

/// The events that are kept, and who reads them.
#[derive(Debug)]
pub(super) struct State {
    /// With consecutive numbers.
    pub(super) events: VecDeque<Entry>,
    /// The number that the first event got: 1, or a greater one in a launch that an earlier server began.
    origin: u64,
    /// The number that the next event gets.
    next: u64,
    /// Bytes of output in all events so far.
    output: u64,
    /// Cost of `events`.
    pub(super) kept: usize,
    /// Position of whoever settles.
    settled: Position,
    retention: Retention,
    readers: BTreeMap<u64, Reader>,
}

/// Rule by which events are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Retention {
    /// Nothing that is not settled may be dropped.
    UntilSettled,
    /// Events beyond the limit are dropped, settled or not.
    Bounded,
}

/// Position of a reader: the last event, and the bytes of output up to its end, if that is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Position {
    pub(super) sequence: u64,
    output: Option<u64>,
}

#[derive(Debug)]
pub(super) struct Reader {
    pub(super) position: Position,
    pub(super) side: SideMessages,
}

/// Messages to one reader alone, which go ahead of the events.
#[derive(Debug, Default)]
pub(crate) struct SideMessages {
    pub spec: Option<LaunchSpec>,
    /// The bytes of input that may be sent beyond those granted before.
    pub input_credit: u64,
    pub starting: Option<StartProgress>,
}

impl State {
    pub(super) fn new(first: u64, retention: Retention) -> Self {
        Self {
            events: VecDeque::new(),
            origin: first,
            next: first,
            output: 0,
            kept: 0,
            settled: Position { sequence: first - 1, output: Some(0) },
            retention,
            readers: BTreeMap::new(),
        }
    }

    pub(super) fn push(&mut self, node: u32, what: attach_response::What) -> u64 {
        let sequence = self.next;
        self.next += 1;
        let entry = Entry { response: AttachResponse { sequence, node, what: Some(what) }, before: self.output };
        self.output += entry.output();
        self.kept += entry.cost();
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

    pub(super) fn join(&mut self, number: u64, start: Start, spec: LaunchSpec) {
        let position = match start {
            Start::Unsettled => self.settled,
            Start::After(sequence) => self.position_of(sequence),
        };
        let side = SideMessages { spec: Some(spec), ..SideMessages::default() };
        self.readers.insert(number, Reader { position, side });
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

    pub(super) fn first(&self) -> u64 {
        self.events.front().map_or(self.next, |entry| entry.response.sequence)
    }

    /// The position of a reader that was handed everything up to `sequence`.
    fn position_of(&self, sequence: u64) -> Position {
        if sequence < self.origin {
            // What an earlier server had sent beyond that is known to nobody.
            return Position { sequence, output: (self.origin == 1).then_some(0) };
        }
        let sequence = sequence.min(self.latest());
        let before = |index: u64| self.events.get(index as usize).map_or(self.output, |entry| entry.before);
        Position { sequence, output: (sequence + 1).checked_sub(self.first()).map(before) }
    }

    /// A batch of events behind `sequence`.
    pub(super) fn after(&self, sequence: u64) -> Vec<Entry> {
        let skipped = (sequence + 1).saturating_sub(self.first()) as usize;
        let mut cost = 0;
        let fits = |entry: &&Entry| {
            let is_first = cost == 0;
            cost += entry.cost();
            is_first || cost <= BATCH_MAX
        };
        self.events.iter().skip(skipped).take_while(fits).cloned().collect()
    }

    /// Takes entries as delivered to a reader. Returns the messages, each ahead of which stands what the reader has lost.
    pub(super) fn deliver(&mut self, number: u64, entries: Vec<Entry>) -> Vec<AttachResponse> {
        let Some(reader) = self.readers.get_mut(&number) else { return Vec::new() };
        let mut messages = Vec::with_capacity(entries.len() + 1);
        for entry in entries {
            let sequence = entry.response.sequence;
            if sequence <= reader.position.sequence {
                continue;
            }
            let missing = (sequence > reader.position.sequence + 1).then(|| match reader.position.output {
                Some(output) => entry.before - output,
                None => 0,
            });
            // Events without output are no loss worth a word, if it is known that there was none.
            if let Some(bytes) = missing.filter(|&bytes| bytes > 0 || reader.position.output.is_none()) {
                let what = Some(attach_response::What::DroppedOutput(bytes));
                messages.push(AttachResponse { sequence: 0, node: 0, what });
            }
            reader.position = Position { sequence, output: Some(entry.before + entry.output()) };
            messages.push(entry.response);
        }
        self.trim();
        messages
    }

    /// Drops the oldest events that no reader needs, and those that cost more than may be kept.
    fn trim(&mut self) {
        let behind = self.readers.values().map(|reader| reader.position.sequence).min().unwrap_or(u64::MAX);
        let must_be_settled = self.retention == Retention::UntilSettled;
        while let Some(entry) = self.events.front() {
            let sequence = entry.response.sequence;
            let settled = sequence <= self.settled.sequence;
            let too_much = self.kept > KEPT_MAX;
            let is_dropped = if settled { sequence <= behind || too_much } else { too_much && !must_be_settled };
            if !is_dropped {
                return;
            }
            self.kept -= entry.cost();
            self.events.pop_front();
        }
    }
}

impl Entry {
    /// The bytes of ranks' output in this event.
    fn output(&self) -> u64 {
        match &self.response.what {
            Some(attach_response::What::Event(event)) => match &event.what {
                Some(node_event::What::Output(output)) => output.data.len() as u64,
                _ => 0,
            },
            _ => 0,
        }
    }

    fn cost(&self) -> usize {
        match &self.response.what {
            Some(attach_response::What::Event(event)) => cost(event).max(kept_cost(0)),
            _ => kept_cost(0),
        }
    }
}

impl SideMessages {
    /// The next message of this reader alone.
    pub(super) fn take(&mut self) -> Option<AttachResponse> {
        use attach_response::What;
        let what = if let Some(spec) = self.spec.take() {
            What::Spec(spec)
        } else if self.input_credit > 0 {
            What::StdinCredit(std::mem::take(&mut self.input_credit))
        } else {
            What::Starting(self.starting.take()?)
        };
        Some(AttachResponse { sequence: 0, node: 0, what: Some(what) })
    }
}
