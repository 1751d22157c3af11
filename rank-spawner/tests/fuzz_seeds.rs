//! The fuzz targets as ordinary tests: seeds, and changes to them, go through the very functions that the targets in `fuzz/` call.
//!
//! `cargo test -p rank-spawner --test fuzz_seeds -- --ignored` writes the seeds to `fuzz/corpus/`.

use std::fs;
use std::path::Path;

use proptest::collection::vec;
use proptest::prelude::*;
use rank_spawner::fuzzing;

/// A packet as a fork server sends it, with this many descriptors.
fn packet(descriptors: u8, numbers: [i32; 3]) -> Vec<u8> {
    [vec![descriptors], numbers.iter().flat_map(|number| number.to_ne_bytes()).collect()].concat()
}

/// What a fork server says: started, not started, ended by a status, ended by a signal.
fn packets() -> Vec<Vec<u8>> {
    vec![packet(2, [1, 4711, 0]), packet(0, [2, 24, 0]), packet(0, [3, 4711, 2]), packet(0, [4, 4711, 9])]
}

/// Texts that stand in launch requests and under `/sys`.
fn texts() -> Vec<Vec<u8>> {
    let texts = ["0-3,8", "none", "cores", "threads", "map:0,2,4-5", "nofile=1024:4096", "memlock=unlimited"];
    texts.map(|text| text.as_bytes().to_vec()).to_vec()
}

/// A target and its seeds.
struct Target {
    name: &'static str,
    run: fn(&[u8]),
    seeds: Vec<Vec<u8>>,
}

fn targets() -> [Target; 2] {
    [
        Target { name: "fork_server_packet", run: fuzzing::fork_server_packet, seeds: packets() },
        Target { name: "text", run: fuzzing::text, seeds: texts() },
    ]
}

#[test]
fn every_seed_keeps_the_promises() {
    for Target { run, seeds, .. } in targets() {
        seeds.iter().for_each(|seed| run(seed));
    }
}

/// A seed of which some bytes were changed, cut off or added.
fn mutations(seeds: Vec<Vec<u8>>) -> impl Strategy<Value = Vec<u8>> {
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

proptest! {
    #[test]
    fn a_packet_that_no_fork_server_sends_leaves_no_descriptor_open(bytes in mutations(packets())) {
        fuzzing::fork_server_packet(&bytes);
    }

    #[test]
    fn texts_are_read_and_printed_alike(bytes in mutations(texts())) {
        fuzzing::text(&bytes);
    }

    #[test]
    fn bytes_that_mean_nothing_are_refused(bytes in vec(any::<u8>(), 0..64)) {
        fuzzing::fork_server_packet(&bytes);
        fuzzing::text(&bytes);
    }
}

#[test]
#[ignore = "writes files: the seeds for cargo fuzz"]
fn write_seeds() {
    for Target { name, seeds, .. } in targets() {
        let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(name);
        fs::create_dir_all(&corpus).unwrap();
        for (number, seed) in seeds.iter().enumerate() {
            fs::write(corpus.join(format!("seed-{number}")), seed).unwrap();
        }
    }
}
