//! The fuzz target as an ordinary test: lists of real clusters and commands, and damaged copies of them.
//!
//! `cargo test -p hostlist --test fuzz_seeds -- --ignored` writes the lists as seeds to `fuzz/corpus/`.

use std::fs;
use std::path::Path;

use hostlist::fuzzing::hostlist;

const LISTS: &str = include_str!("../testdata/lists.txt");

#[test]
fn lists_in_use_and_damaged_copies_of_them_keep_all_promises() {
    LISTS.lines().for_each(|list| damage(list.as_bytes(), hostlist));
}

/// Runs the target on the seed, on every beginning of it, and with every byte changed in two ways.
fn damage(seed: &[u8], run: fn(&[u8])) {
    run(seed);
    for at in 0..seed.len() {
        run(&seed[..at]);
        for bit in [1, 0x80] {
            let mut changed = seed.to_vec();
            changed[at] ^= bit;
            run(&changed);
        }
    }
}

#[test]
#[ignore = "writes files: the seeds for cargo fuzz"]
fn write_the_corpus() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus/hostlist");
    fs::create_dir_all(&directory).unwrap();
    for (number, list) in LISTS.lines().enumerate() {
        fs::write(directory.join(format!("list-{number:04}")), list).unwrap();
    }
}
