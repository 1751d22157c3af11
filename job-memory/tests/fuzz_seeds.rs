//! The fuzz target as an ordinary test: seeds and mutations of them go through the same function that the target in `fuzz/` calls.
//!
//! `cargo test -p job-memory --test fuzz_seeds -- --ignored` writes the seeds to `fuzz/corpus/`.

use std::fs::File;
use std::io::Read;

use job_memory::{JobFacts, JobWriter, NodeFacts, RankFacts, fuzzing};
use lattice_fuzz_seeds::{Target, mutations};
use proptest::collection::vec;
use proptest::prelude::*;

/// Bytes in use of the memory of a job of two ranks, with this number of pairs.
fn memory(pairs: u32) -> Vec<u8> {
    let rank = |rank| RankFacts { local_rank: rank, node_rank: rank, cpus: Some("0-3".into()), ..RankFacts::default() };
    let facts = JobFacts {
        job_id: "kvs_1_0".into(),
        ranks: vec![rank(0), rank(1)],
        nodes: vec![NodeFacts { name: "node0".into(), address: Some("10.0.0.1:50052".into()) }],
        attributes: vec![("universeSize".into(), "-1".into())],
        ..JobFacts::default()
    };
    let (mut writer, descriptor) = JobWriter::with_capacity(&facts, 64 * 1024).unwrap();
    for number in 0..pairs {
        writer.publish(format!("key-{number}").as_bytes(), &[b'v'; 40]).unwrap();
    }
    writer.complete(1);
    let mut bytes = Vec::new();
    File::from(descriptor).read_to_end(&mut bytes).unwrap();
    // The memory is unused after its last nonzero byte.
    let used = bytes.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
    bytes.truncate(used.next_multiple_of(8));
    bytes
}

fn target() -> Target {
    Target { name: "job_memory", run: fuzzing::memory, seeds: vec![memory(0), memory(1), memory(40)] }
}

#[test]
fn damaged_memory_keeps_the_promises() {
    target().run_damaged();
}

proptest! {
    #[test]
    fn memory_that_no_session_wrote_keeps_them_too(bytes in mutations(target().seeds)) {
        fuzzing::memory(&bytes);
    }

    #[test]
    fn so_do_bytes_that_mean_nothing(bytes in vec(any::<u8>(), 0..1024)) {
        fuzzing::memory(&bytes);
    }
}

#[test]
#[ignore = "writes files: the seeds for cargo fuzz"]
fn write_seeds() {
    target().write_seeds();
}
