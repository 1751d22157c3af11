//! What is on the tape, who has come how far, and what may be dropped for that: without a clock, a lock or anybody who waits.

use std::collections::{BTreeMap, VecDeque};

use lattice_session::wire::event::cost;
use pmi_transport::limits::kept_cost;
use pmi_transport::proto::v1::{AttachResponse, LaunchSpec, StartProgress, attach_response, node_event};

use super::Start;

/// What may be kept in memory for those who are behind, in bytes as events cost.
pub(super) const KEPT_MAX: usize = 4 << 20;
/// What is handed out at once, in the same bytes, or one event that costs more.
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
    /// What `events` cost.
    pub(super) kept: usize,
    /// How far whoever settles has come.
    settled: Place,
    /// Nothing that is not settled may be dropped.
    waits: bool,
    readers: BTreeMap<u64, Reader>,
}

/// One event.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Entry {
    pub response: AttachResponse,
    /// How many bytes of output all events before this one have.
    pub before: u64,
}

/// How far somebody has come: the last event, and the bytes of output up to its end, if that is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) sequence: u64,
    output: Option<u64>,
}

#[derive(Debug)]
pub(super) struct Reader {
    pub(super) place: Place,
    pub(super) aside: Aside,
}

/// What one reader is told beside the events, and ahead of them.
#[derive(Debug, Default)]
pub(crate) struct Aside {
    pub spec: Option<LaunchSpec>,
    /// So much more input may be sent.
    pub input_credit: u64,
    pub starting: Option<StartProgress>,
}

impl State {
    pub(super) fn new(first: u64, waits: bool) -> Self {
        Self {
            events: VecDeque::new(),
            origin: first,
            next: first,
            output: 0,
            kept: 0,
            settled: Place { sequence: first - 1, output: Some(0) },
            waits,
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
            self.settled = self.place_of(sequence);
            self.trim();
        }
    }

    pub(super) fn stop_waiting(&mut self) {
        self.waits = false;
        self.trim();
    }

    pub(super) fn join(&mut self, number: u64, start: Start, spec: LaunchSpec) {
        let place = match start {
            Start::Unsettled => self.settled,
            Start::After(sequence) => self.place_of(sequence),
        };
        let aside = Aside { spec: Some(spec), ..Aside::default() };
        self.readers.insert(number, Reader { place, aside });
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

    pub(super) fn is_told(&self) -> bool {
        let latest = self.latest();
        self.settled.sequence >= latest && self.readers.values().all(|reader| reader.place.sequence >= latest)
    }

    pub(super) fn first(&self) -> u64 {
        self.events.front().map_or(self.next, |entry| entry.response.sequence)
    }

    /// Where somebody is who was told everything up to `sequence`.
    fn place_of(&self, sequence: u64) -> Place {
        if sequence < self.origin {
            // What an earlier server had told beyond that is known to nobody.
            return Place { sequence, output: (self.origin == 1).then_some(0) };
        }
        let sequence = sequence.min(self.latest());
        let before = |index: u64| self.events.get(index as usize).map_or(self.output, |entry| entry.before);
        Place { sequence, output: (sequence + 1).checked_sub(self.first()).map(before) }
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

    /// Takes entries as told to a reader; says ahead of them what it will never be told.
    pub(super) fn hand_out(&mut self, number: u64, entries: Vec<Entry>) -> Vec<AttachResponse> {
        let Some(reader) = self.readers.get_mut(&number) else { return Vec::new() };
        let mut messages = Vec::with_capacity(entries.len() + 1);
        for entry in entries {
            let sequence = entry.response.sequence;
            if sequence <= reader.place.sequence {
                continue;
            }
            let missing = (sequence > reader.place.sequence + 1).then(|| match reader.place.output {
                Some(output) => entry.before - output,
                None => 0,
            });
            // Events without output are no loss worth a word, if it is known that there was none.
            if let Some(bytes) = missing.filter(|&bytes| bytes > 0 || reader.place.output.is_none()) {
                let what = Some(attach_response::What::DroppedOutput(bytes));
                messages.push(AttachResponse { sequence: 0, node: 0, what });
            }
            reader.place = Place { sequence, output: Some(entry.before + entry.output()) };
            messages.push(entry.response);
        }
        self.trim();
        messages
    }

    /// Drops from the front what is kept for nobody, or for too many.
    fn trim(&mut self) {
        let behind = self.readers.values().map(|reader| reader.place.sequence).min().unwrap_or(u64::MAX);
        while let Some(entry) = self.events.front() {
            let sequence = entry.response.sequence;
            let settled = sequence <= self.settled.sequence;
            let too_much = self.kept > KEPT_MAX;
            let is_dropped = match settled {
                true => sequence <= behind || too_much,
                false => too_much && !self.waits,
            };
            if !is_dropped {
                return;
            }
            self.kept -= entry.cost();
            self.events.pop_front();
        }
    }
}

impl Entry {
    /// How many bytes of ranks' output it carries.
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

impl Aside {
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
