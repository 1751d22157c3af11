//! Many launches in a row; half of them end by a rank, a signal or their time limit. Afterwards the daemons have the same resources as
//! before.
//!
//! `LATTICE_SOAK_LAUNCHES=1000 cargo test -p lattice-tests --test cluster soak -- --nocapture` prints the resources after every hundred
//! launches. It asserts that their memory does not grow once the API server has the maximum record of ended launches. This is after 1,000
//! launches and ten minutes, and for the next 500 launches.

use std::time::Duration;

use lattice_tests::{built, script_on, turn};

/// Prints the resources of the daemons: `$1` launches of 16 ranks; the first `$2` do not count. Only files of ranks in the cluster's
/// directory count, because other tests create and remove files in `/tmp`.
const SOAK: &str = include_str!("../../scripts/soak.sh");

#[test]
#[ignore = "second tier"]
fn a_thousand_launches_leave_nothing() {
    let _machine = turn::heavy();
    let launches: usize = std::env::var("LATTICE_SOAK_LAUNCHES").map_or(12, |text| text.parse().expect("a number"));
    let counted_from = (launches / 5).max(6);
    let script = script_on(2, SOAK).arg(launches.to_string()).arg(counted_from.to_string()).arg(built::lattice());
    let beyond = if launches < 1000 { 0 } else { 600 + 4 * 600 };
    let outcome = script.within(Duration::from_secs(300 + 4 * launches as u64 + beyond)).run();
    print!("{}", outcome.text());
    outcome.exits(0);
    let lines = outcome.text().lines();
    let told: Vec<&str> = lines.filter(|line| !line.starts_with("memory ") && !line.starts_with("slope ")).collect();
    assert_eq!(told, ["over"], "{}", outcome.errors());
}
