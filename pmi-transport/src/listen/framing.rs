//! Tracks the message framing of a request in its byte stream: a prefix of five bytes (a flag and the length) precedes each gRPC
//! message. The full size of a message counts from its prefix on, before its bytes arrive.

/// Length of the prefix of a message.
const PREFIX: usize = 5;

/// Position in a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Framing {
    prefix: [u8; PREFIX],
    /// Received bytes of the prefix.
    prefix_len: usize,
    /// Missing bytes of the message, once the prefix is complete.
    left: usize,
    /// Length of the message, once the prefix is complete.
    length: usize,
    /// Number of complete messages.
    whole: u64,
}

impl Framing {
    /// Processes received bytes. Returns the length of the longest message that begins in them.
    pub(super) fn take(&mut self, mut bytes: &[u8]) -> usize {
        let mut longest = 0;
        while !bytes.is_empty() {
            if self.prefix_len < PREFIX {
                let here = (PREFIX - self.prefix_len).min(bytes.len());
                self.prefix[self.prefix_len..self.prefix_len + here].copy_from_slice(&bytes[..here]);
                self.prefix_len += here;
                bytes = &bytes[here..];
                if self.prefix_len < PREFIX {
                    break;
                }
                let [_, length @ ..] = self.prefix;
                self.length = u32::from_be_bytes(length) as usize;
                self.left = self.length;
                longest = longest.max(self.length);
            }
            let here = self.left.min(bytes.len());
            self.left -= here;
            bytes = &bytes[here..];
            if self.left == 0 {
                (self.prefix_len, self.length) = (0, 0);
                self.whole += 1;
            }
        }
        longest
    }

    /// Size of the incomplete message in bytes, with its prefix.
    pub(super) fn unfinished(&self) -> usize {
        if self.prefix_len == 0 { 0 } else { PREFIX + self.length }
    }

    /// Number of complete messages.
    pub(super) fn whole(&self) -> u64 {
        self.whole
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn message(length: usize) -> Vec<u8> {
        let mut bytes = vec![0];
        bytes.extend(u32::try_from(length).unwrap().to_be_bytes());
        bytes.resize(PREFIX + length, 7);
        bytes
    }

    #[test]
    fn a_message_counts_from_its_length_on_until_it_is_whole() {
        let bytes = message(1000);
        let mut framing = Framing::default();
        let mut take = |range: std::ops::Range<usize>| (framing.take(&bytes[range]), framing.unfinished());
        assert_eq!(take(0..1), (0, PREFIX));
        assert_eq!(take(1..4), (0, PREFIX));
        assert_eq!(take(4..5), (1000, PREFIX + 1000));
        assert_eq!(take(5..1004), (0, PREFIX + 1000));
        assert_eq!(take(1004..1005), (0, 0));
        assert_eq!(framing.whole(), 1);
    }

    #[test]
    fn an_empty_message_is_whole_at_once() {
        let mut framing = Framing::default();
        assert_eq!((framing.take(&message(0)), framing.unfinished(), framing.whole()), (0, 0, 1));
    }

    proptest! {
        /// The same messages are found wherever a request is cut.
        #[test]
        fn cuts_mean_nothing(lengths in proptest::collection::vec(0..50_usize, 0..8), cuts in proptest::collection::vec(1..40_usize, 1..9)) {
            let bytes: Vec<u8> = lengths.iter().flat_map(|&length| message(length)).collect();
            let (mut rest, mut framing, mut longest) = (&bytes[..], Framing::default(), 0);
            for &cut in cuts.iter().cycle() {
                if rest.is_empty() {
                    break;
                }
                let (piece, others) = rest.split_at(cut.min(rest.len()));
                longest = longest.max(framing.take(piece));
                prop_assert!(framing.unfinished() <= PREFIX + 50);
                rest = others;
            }
            prop_assert_eq!((framing.whole(), framing.unfinished()), (lengths.len() as u64, 0));
            prop_assert_eq!(longest, lengths.iter().copied().max().unwrap_or(0));
        }
    }
}
