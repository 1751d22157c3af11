//! Segments in transit: short ones are joined and long ones cut, so that frames have about the size of a chunk.
//!
//! A segment is a run of self-delimiting records, so consecutive segments are equivalent to one. A piece that was cut inside
//! a segment is marked as continued. The receiver joins it with the next piece before it passes the segment to a server.

use bytes::{Bytes, BytesMut};

/// Bytes of one or more segments; `goes_on` if the next piece continues the last segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) run: Bytes,
    pub(crate) goes_on: bool,
}

/// Cuts whole segments into pieces of at most `max` bytes each; drops empty segments.
pub(crate) fn cut(segments: impl IntoIterator<Item = Bytes>, max: usize) -> impl Iterator<Item = Piece> {
    segments.into_iter().flat_map(move |mut segment| {
        std::iter::from_fn(move || {
            let run = segment.split_to(segment.len().min(max));
            (!run.is_empty()).then(|| Piece { run, goes_on: !segment.is_empty() })
        })
    })
}

/// Joins adjacent pieces of at most `max` bytes together. A single piece is not copied.
pub(crate) fn pack(pieces: impl IntoIterator<Item = Piece>, max: usize) -> Vec<Piece> {
    let (mut packed, mut group, mut goes_on) = (Vec::new(), Group::default(), false);
    for piece in pieces {
        if group.len + piece.run.len() > max && group.len > 0 {
            packed.push(Piece { run: group.join(), goes_on });
        }
        goes_on = piece.goes_on;
        group.push(piece.run);
    }
    if group.len > 0 {
        packed.push(Piece { run: group.join(), goes_on });
    }
    packed
}

/// Joins consecutive pieces into runs of whole segments.
#[derive(Debug, Default)]
pub(crate) struct Assembly {
    whole: Vec<Bytes>,
    open: Group,
}

impl Assembly {
    pub(crate) fn push(&mut self, piece: Piece) {
        // An empty piece may still end a segment.
        self.open.push(piece.run);
        if !piece.goes_on && self.open.len > 0 {
            self.whole.push(self.open.join());
        }
    }

    /// The runs; `None` if the last piece ends inside a segment.
    pub(crate) fn finish(self) -> Option<Vec<Bytes>> {
        (self.open.len == 0).then_some(self.whole)
    }
}

/// Runs that are to be joined.
#[derive(Debug, Default)]
struct Group {
    runs: Vec<Bytes>,
    len: usize,
}

impl Group {
    fn push(&mut self, run: Bytes) {
        self.len += run.len();
        if !run.is_empty() {
            self.runs.push(run);
        }
    }

    /// Joins all runs, and empties the group.
    fn join(&mut self) -> Bytes {
        let len = std::mem::take(&mut self.len);
        if self.runs.len() == 1 {
            return self.runs.pop().unwrap_or_default();
        }
        let mut joined = BytesMut::with_capacity(len);
        self.runs.drain(..).for_each(|run| joined.extend_from_slice(&run));
        joined.freeze()
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    fn segments(lengths: &[usize]) -> Vec<Bytes> {
        (1_u8..).zip(lengths).map(|(fill, &len)| vec![fill; len].into()).collect()
    }

    #[test]
    fn small_segments_become_one_piece_and_long_ones_several() {
        let lengths = |given: &[usize]| {
            let packed = pack(cut(segments(given), 10), 10);
            packed.iter().map(|piece| (piece.run.len(), piece.goes_on)).collect::<Vec<_>>()
        };
        assert_eq!(lengths(&[]), []);
        assert_eq!(lengths(&[0, 0]), []);
        assert_eq!(lengths(&[1, 0, 2, 3]), [(6, false)]);
        assert_eq!(lengths(&[5, 5, 1]), [(10, false), (1, false)]);
        assert_eq!(lengths(&[25]), [(10, true), (10, true), (5, false)]);
        assert_eq!(lengths(&[3, 25, 3]), [(3, false), (10, true), (10, true), (8, false)]);
    }

    #[test]
    fn a_piece_that_stays_alone_is_not_copied() {
        let segment = Bytes::from(vec![7; 100]);
        let packed = pack(cut([segment.clone()], 60), 60);
        assert_eq!(packed[0].run.as_ptr(), segment.as_ptr());
        assert_eq!(packed[1].run.as_ptr(), segment[60..].as_ptr());
    }

    #[test]
    fn what_ends_inside_a_segment_is_not_whole() {
        let mut assembly = Assembly::default();
        assembly.push(Piece { run: Bytes::from_static(b"ab"), goes_on: true });
        assert_eq!(assembly.finish(), None);
    }

    proptest! {
        #[test]
        fn assembling_undoes_cutting(lengths in vec(0_usize..40, 0..20), max in 1_usize..30) {
            let given = segments(&lengths);
            let packed = pack(cut(given.clone(), max), max);
            let mut assembly = Assembly::default();
            for piece in packed {
                prop_assert!(!piece.run.is_empty() && piece.run.len() <= max);
                assembly.push(piece);
            }
            let runs = assembly.finish().expect("the last piece ends a segment");
            prop_assert_eq!(runs.concat(), given.concat());
            // Each run ends at the end of a segment, because segments are filled with different bytes.
            for pair in runs.windows(2) {
                prop_assert_ne!(pair[0].last(), pair[1].first());
            }
        }
    }
}
