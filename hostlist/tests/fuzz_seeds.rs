//! The fuzz target as an ordinary test: lists of real clusters and commands, and damaged copies of them.
//!
//! `cargo test -p lattice-hostlist --test fuzz_seeds -- --ignored` writes the lists as seeds to `fuzz/corpus/`.

use lattice_fuzz_seeds::Target;

fn target() -> Target {
    let lists = include_str!("../testdata/lists.txt").lines();
    let seeds = lists.map(|list| list.as_bytes().to_vec()).collect();
    Target { name: "hostlist", run: hostlist::fuzzing::hostlist, seeds }
}

#[test]
fn lists_in_use_and_damaged_copies_of_them_keep_all_promises() {
    target().run_damaged();
}

#[test]
#[ignore = "writes files: the seeds for cargo fuzz"]
fn write_the_corpus() {
    target().write_seeds();
}
