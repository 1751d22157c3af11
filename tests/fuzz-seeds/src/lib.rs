//! Fuzz targets as ordinary tests. The test `fuzz_seeds` of each crate lists its targets, with inputs from real programs. It runs the
//! targets on these inputs and on damaged copies, and writes the inputs to the corpus of `cargo fuzz`.
#![forbid(unsafe_code)]

use std::fs;
use std::path::Path;

use proptest::collection::vec;
use proptest::prelude::*;

/// A fuzz target, with meaningful inputs.
#[derive(Clone, Debug)]
pub struct Target {
    /// Name of the file below `fuzz/fuzz_targets`, without its extension.
    pub name: &'static str,
    /// The function that the target calls. It panics if a guarantee is violated.
    pub run: fn(&[u8]),
    /// The inputs.
    pub seeds: Vec<Vec<u8>>,
}

impl Target {
    /// Runs the target on every seed.
    ///
    /// # Panics
    /// Panics if there is no seed, or if a guarantee is violated.
    pub fn run_seeds(&self) {
        assert!(!self.seeds.is_empty(), "{} has no seeds", self.name);
        self.seeds.iter().for_each(|seed| (self.run)(seed));
    }

    /// Runs the target on every seed, on every prefix of it, and with every byte changed in two ways.
    ///
    /// # Panics
    /// Panics if there is no seed, or if a guarantee is violated.
    pub fn run_damaged(&self) {
        self.run_seeds();
        for seed in &self.seeds {
            damaged(seed).for_each(|copy| (self.run)(&copy));
        }
    }

    /// Writes the seeds to `fuzz/corpus/NAME` of the repository.
    ///
    /// # Panics
    /// Panics if a file cannot be written.
    pub fn write_seeds(&self) {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(self.name);
        fs::create_dir_all(&directory).expect("the directory of the corpus cannot be made");
        for (number, seed) in self.seeds.iter().enumerate() {
            fs::write(directory.join(format!("seed-{number:04}")), seed).expect("a seed cannot be written");
        }
    }
}

/// Returns every prefix of a seed, and the seed with the lowest and the highest bit of every byte changed.
fn damaged(seed: &[u8]) -> impl Iterator<Item = Vec<u8>> + '_ {
    let changed = move |at: usize, bit: u8| {
        let mut copy = seed.to_vec();
        copy[at] ^= bit;
        copy
    };
    (0..seed.len()).flat_map(move |at| [seed[..at].to_vec(), changed(at, 1), changed(at, 0x80)])
}

/// Copies of seeds with some bytes changed, cut off or added.
pub fn mutations(seeds: Vec<Vec<u8>>) -> impl Strategy<Value = Vec<u8>> {
    let changes = vec((any::<prop::sample::Index>(), any::<u8>()), 0..4);
    (prop::sample::select(seeds), changes, any::<prop::sample::Index>(), vec(any::<u8>(), 0..4)).prop_map(
        |(mut bytes, changes, cut, tail)| {
            for (index, byte) in changes {
                let index = index.index(bytes.len());
                bytes[index] = byte;
            }
            bytes.truncate(cut.index(2 * bytes.len()).max(1));
            bytes.extend(tail);
            bytes
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damage_is_every_beginning_and_two_changes_of_every_byte() {
        let copies: Vec<_> = damaged(&[0, 0xff]).collect();
        assert_eq!(copies, [&[][..], &[1, 0xff], &[0x80, 0xff], &[0], &[0, 0xfe], &[0, 0x7f]]);
    }

    #[test]
    #[should_panic(expected = "empty has no seeds")]
    fn a_target_without_seeds_tests_nothing() {
        Target { name: "empty", run: |_| {}, seeds: Vec::new() }.run_damaged();
    }
}
