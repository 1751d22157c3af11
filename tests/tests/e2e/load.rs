//! Heavy load: many ranks, and much output.

use lattice_tests::{built, launch, turn};

#[test]
fn three_hundred_ranks_start_and_end() {
    let _machine = turn::heavy();
    let outcome = launch("-n 300 --pmi none").words("echo here").run();
    outcome.exits(0).says_nothing().prints_lines(vec!["here"; 300]);
}

#[test]
#[ignore = "second tier"]
fn two_hundred_ranks_exchange_their_keys() {
    let _machine = turn::heavy();
    let outcome = launch("-n 200").arg(built::lattice()).words("pmi exchange").run();
    outcome.exits(0).says_nothing().prints("exchange: 200 ranks, 1 round, 64 bytes: ");
}
