//! The fuzz targets as ordinary tests: seeds and mutations of them go through the same functions that the targets in `fuzz/` call.
//!
//! `cargo test -p rank-spawner --test fuzz_seeds -- --ignored` writes the seeds to `fuzz/corpus/`.

use lattice_fuzz_seeds::{Target, mutations};
use proptest::collection::vec;
use proptest::prelude::*;
use rank_spawner::fuzzing;

/// Packet in the format of a fork server, with this many descriptors.
fn packet(descriptors: u8, numbers: [i32; 3]) -> Vec<u8> {
    [vec![descriptors], numbers.iter().flat_map(|number| number.to_ne_bytes()).collect()].concat()
}

/// Messages of a fork server: started, not started, exited, killed; to a later daemon: welcome, kept and running, kept and exited, kept
/// and killed, end of list. Messages of daemons: start, keep, forget, end, listen, take up.
fn packets() -> Vec<Vec<u8>> {
    let said = [(2, 1, 0), (0, 2, 0), (0, 3, 2), (0, 4, 9), (0, 16, 0), (3, 17, 0), (1, 18, 2), (1, 19, 9), (0, 20, 0)];
    let asked = [(0, 32, 0), (2, 33, 0), (0, 34, 0), (0, 35, 0), (1, 36, 0), (0, 37, 0)];
    said.into_iter().chain(asked).map(|(descriptors, kind, detail)| packet(descriptors, [kind, 4711, detail])).collect()
}

/// Texts as in launch requests and under `/sys`.
fn texts() -> Vec<Vec<u8>> {
    let texts = ["0-3,8", "none", "cores", "threads", "map:0,2,4-5", "nofile=1024:4096", "memlock=unlimited"];
    texts.map(|text| text.as_bytes().to_vec()).to_vec()
}

fn targets() -> [Target; 2] {
    [
        Target { name: "fork_server_packet", run: fuzzing::fork_server_packet, seeds: packets() },
        Target { name: "text", run: fuzzing::text, seeds: texts() },
    ]
}

#[test]
fn every_seed_keeps_the_promises() {
    targets().iter().for_each(Target::run_seeds);
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
    targets().iter().for_each(Target::write_seeds);
}
