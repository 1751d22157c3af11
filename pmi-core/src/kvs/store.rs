//! Stores the segments of readable pairs, and counts the readable bytes of each.
//!
//! A segment is in one of three layers and only moves down. The parent module has a diagram.

use super::age::Age;
use super::index::Place;
use crate::segment::{Pair, Segment, SegmentBuilder};

/// Layer of the pairs of a segment. If two layers have a key, a read returns the pair of the higher one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Layer {
    /// Pairs from a fence.
    Merged,
    /// Pairs that were put on this node and are in an incomplete world fence.
    InFlight,
    /// Pairs that were put on this node since the last world fence began.
    Staged,
}

/// Size at which the open segment is full, in bytes. In tests, few pairs fill a segment.
pub(super) const CHUNK: usize = if cfg!(test) { 512 } else { 64 * 1024 };

/// Bytes of a segment in addition to its pairs: its entry here, and about as much for the owner of its bytes.
const OVERHEAD: usize = 2 * size_of::<Held>();

/// The segments, by number. The number of a removed segment is reused.
#[derive(Default)]
pub(super) struct Store {
    /// `None` for vacant entries and for the open segment.
    held: Vec<Option<Held>>,
    vacant: Vec<u32>,
    open: Option<Open>,
    loads: [Load; 3],
}

/// The segment for new puts, in layer `Staged`.
struct Open {
    number: u32,
    pairs: SegmentBuilder,
    readable: usize,
}

struct Held {
    segment: Segment,
    layer: Layer,
    age: Age,
    /// Bytes of its readable pairs.
    readable: usize,
}

/// Sums over all segments of a layer except the open one, in bytes.
#[derive(Clone, Copy, Default)]
struct Load {
    cost: usize,
    readable: usize,
}

impl Held {
    fn cost(&self) -> usize {
        self.segment.as_bytes().len() + OVERHEAD
    }
}

impl Load {
    fn add(&mut self, held: &Held) {
        self.cost += held.cost();
        self.readable += held.readable;
    }

    fn remove(&mut self, held: &Held) {
        self.cost -= held.cost();
        self.readable -= held.readable;
    }
}

impl Store {
    /// Appends a pair to the open segment, and counts it as readable.
    pub(super) fn append(&mut self, key: &[u8], value: &[u8]) -> Place {
        if self.open.is_none() {
            self.open = Some(Open { number: self.allot(), pairs: SegmentBuilder::default(), readable: 0 });
        }
        let open = self.open.as_mut().expect("a segment was opened above");
        let offset = open.pairs.push(key, value);
        open.readable += open.pairs.len() - offset;
        Place { segment: open.number, offset: offset as u32 }
    }

    pub(super) fn open_is_full(&self) -> bool {
        self.open.as_ref().is_some_and(|open| open.pairs.len() >= CHUNK)
    }

    /// Closes the open segment, if any, and returns its number. Places in it stay valid.
    pub(super) fn seal(&mut self, age: Age) -> Option<u32> {
        let Open { number, mut pairs, readable } = self.open.take()?;
        self.fill(number, Held { segment: pairs.finish(), layer: Layer::Staged, age, readable });
        Some(number)
    }

    /// Stores a segment. All its pairs count as readable until they are released. Returns its number.
    pub(super) fn hold(&mut self, segment: Segment, layer: Layer, age: Age) -> u32 {
        let number = self.allot();
        let readable = segment.as_bytes().len();
        self.fill(number, Held { segment, layer, age, readable });
        number
    }

    fn allot(&mut self) -> u32 {
        self.vacant.pop().unwrap_or_else(|| {
            self.held.push(None);
            (self.held.len() - 1) as u32
        })
    }

    fn fill(&mut self, number: u32, held: Held) {
        self.loads[held.layer as usize].add(&held);
        self.held[number as usize] = Some(held);
    }

    /// Removes a segment, and frees its number.
    pub(super) fn remove(&mut self, number: u32) -> Option<Segment> {
        let held = self.held[number as usize].take()?;
        self.loads[held.layer as usize].remove(&held);
        self.vacant.push(number);
        Some(held.segment)
    }

    /// Moves a segment to a lower layer and returns it. A segment without readable pairs is removed instead.
    pub(super) fn lower(&mut self, number: u32, layer: Layer) -> Option<Segment> {
        let held = self.held[number as usize].as_mut()?;
        if held.readable == 0 {
            self.remove(number);
            return None;
        }
        self.loads[held.layer as usize].remove(held);
        held.layer = layer;
        self.loads[layer as usize].add(held);
        Some(held.segment.clone())
    }

    /// Marks the pair at `place` as unreadable. A merged segment without readable pairs is removed.
    pub(super) fn release(&mut self, place: Place) {
        let len = self.pair(place).encoded_len();
        match (&mut self.held[place.segment as usize], &mut self.open) {
            (Some(held), _) => {
                held.readable -= len;
                self.loads[held.layer as usize].readable -= len;
                if held.readable == 0 && held.layer == Layer::Merged {
                    self.remove(place.segment);
                }
            }
            (None, Some(open)) => open.readable -= len,
            (None, None) => {}
        }
    }

    /// The pair that begins at `place`.
    #[inline]
    pub(super) fn pair(&self, place: Place) -> Pair<'_> {
        let bytes = match (&self.held[place.segment as usize], &self.open) {
            (Some(held), _) => held.segment.as_bytes(),
            (None, Some(open)) => open.pairs.as_bytes(),
            (None, None) => &[],
        };
        Pair::read(bytes, place.offset as usize).expect("a place is where a pair of a well-formed segment begins")
    }

    /// Order of a pair among pairs of its key: a read returns the greatest.
    pub(super) fn standing(&self, place: Place) -> (Layer, Age) {
        self.held[place.segment as usize].as_ref().map_or((Layer::Staged, Age::LATEST), |held| (held.layer, held.age))
    }

    /// Age of the segment with this number. An open or removed segment has the latest age.
    pub(super) fn age(&self, number: u32) -> Age {
        self.held[number as usize].as_ref().map_or(Age::LATEST, |held| held.age)
    }

    /// Returns the segment with this number; `None` if it is open or removed.
    pub(super) fn segment(&self, number: u32) -> Option<&Segment> {
        self.held[number as usize].as_ref().map(|held| &held.segment)
    }

    /// Numbers of all segments of a layer except the open one.
    pub(super) fn numbers(&self, layer: Layer) -> Vec<u32> {
        let of_layer = |held: &Option<Held>| held.as_ref().is_some_and(|held| held.layer == layer);
        (0..self.held.len() as u32).filter(|&number| of_layer(&self.held[number as usize])).collect()
    }

    /// Returns true if less than half of a layer's bytes are readable, and the rest is large enough for a rewrite.
    pub(super) fn is_wasteful(&self, layer: Layer) -> bool {
        let Load { cost, readable } = self.loads[layer as usize];
        cost > 2 * readable + CHUNK
    }

    /// Bytes on the heap.
    pub(super) fn memory(&self) -> usize {
        let open = self.open.as_ref().map_or(0, |open| open.pairs.capacity());
        self.loads.iter().map(|load| load.cost).sum::<usize>() + open + self.vacant.capacity() * size_of::<u32>()
    }
}
