//! Malformed input from a seed. The source is well-formed frames, from a real program or from the protocol's descriptors. The damage is
//! flipped bits, cut ends, lengths that are too large, or a changed order. The program `malformed` sends it to a given target.

pub mod calls;
pub mod replay;
pub mod set_frames;
pub mod unread;

/// Reproducible random numbers from a seed (SplitMix64).
#[derive(Clone, Debug)]
pub struct Dice(u64);

impl Dice {
    /// Creates the numbers of this seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns any number.
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number below `end`; 0 if `end` is 0.
    pub fn below(&mut self, end: usize) -> usize {
        (self.number() % end.max(1) as u64) as usize
    }

    /// Returns true once in `times` calls on average.
    pub fn once_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }

    /// Returns `count` random bytes.
    pub fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| self.number() as u8).collect()
    }

    /// Returns one of these.
    ///
    /// # Panics
    /// Panics if there are none.
    pub fn one_of<'a, T>(&mut self, these: &'a [T]) -> &'a T {
        &these[self.below(these.len())]
    }
}

/// Damages a frame in one way. An empty frame becomes noise.
pub fn damage(frame: &mut Vec<u8>, dice: &mut Dice) {
    let at = dice.below(frame.len());
    match dice.below(7) {
        _ if frame.is_empty() => *frame = dice.bytes(20),
        0 | 1 => {
            for _ in 0..=dice.below(8) {
                let at = dice.below(frame.len());
                frame[at] ^= 1 << dice.below(8);
            }
        }
        2 => frame.truncate(at),
        // A length at any position: in binary, and in digits.
        3 => frame.splice(at..(at + 4).min(frame.len()), [0xff; 4]).for_each(drop),
        4 => frame.splice(at..(at + 6).min(frame.len()), *b"999999").for_each(drop),
        5 => {
            let noise = dice.below(64);
            frame.splice(at..at, dice.bytes(noise)).for_each(drop);
        }
        _ => {
            let again = frame[at..].to_vec();
            (0..=dice.below(4)).for_each(|_| frame.extend_from_slice(&again));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn copies(seed: u64) -> Vec<Vec<u8>> {
        let mut dice = Dice::new(seed);
        let copy = |_| {
            let mut frame = b"cmd=put key=k value=v\n".to_vec();
            damage(&mut frame, &mut dice);
            frame
        };
        (0..200).map(copy).collect()
    }

    #[test]
    fn a_seed_damages_in_every_way_and_always_the_same() {
        let damaged = copies(7);
        assert_eq!(damaged, copies(7));
        assert_ne!(damaged, copies(8));
        let any = |is: fn(&Vec<u8>) -> bool| damaged.iter().any(is);
        assert!(any(|frame| frame.len() < 10) && any(|frame| frame.len() > 30) && any(|frame| frame.len() == 22));
        let has = |text: &[u8]| damaged.iter().any(|frame| frame.windows(text.len()).any(|window| window == text));
        assert!(has(b"999999") && has(&[0xff; 4]));
        assert!(damaged.iter().filter(|frame| &frame[..] == b"cmd=put key=k value=v\n").count() < 5);
    }

    #[test]
    fn an_empty_frame_becomes_noise() {
        let mut frame = Vec::new();
        damage(&mut frame, &mut Dice::new(1));
        assert_eq!(frame.len(), 20);
    }
}
