//! Ranks with output that passes through another process, or that another process holds, with every end of their launch. No line may be
//! lost.

use crate::{Command, built, cluster};

/// Runs each kind of rank to each end with `$LAUNCH`. Prints for each pair the number of received lines, the exit code, and the message
/// about a killed process, if any. The filter writes nothing before its input ends.
const TABLE: &str = include_str!("../scripts/late_output.sh");

fn expected() -> Vec<String> {
    let code = |end: &str| match end {
        "good" => 0,
        "bad" => 3,
        "abort" => 7,
        _ => 143,
    };
    let line = |kind: &str, end: &str| match kind {
        "endless" => format!("{kind} {end}: 20 lines, code {} still held the output of rank 0", code(end)),
        _ => format!("{kind} {end}: 20 lines, code {}", code(end)),
    };
    let mut expected = Vec::new();
    for kind in ["stdout", "stderr", "pipeline", "tee", "python", "daemon"] {
        expected.extend(["good", "bad", "abort", "term"].map(|end| line(kind, end)));
    }
    expected.extend(
        [("endless", "good"), ("endless", "bad"), ("apart", "good"), ("apart", "bad")]
            .map(|(kind, end)| line(kind, end)),
    );
    expected
}

/// Runs the table in a cluster of `nodes` nodes, with a rank on each. For 0 nodes, runs it on this machine alone.
///
/// # Panics
/// Panics if a line is lost, if a launch waits for a process that does not hold the output, or if a killed process is not named.
pub fn no_line_is_lost(nodes: u32) {
    let command = match nodes {
        0 => Command::new("bash").words("-c").arg(format!("LAUNCH=\"$LATTICE launch -n 1\"\n{TABLE}")),
        nodes => cluster(nodes).bash(&format!("LAUNCH=\"lattice launch -n {nodes}\"\n{TABLE}")),
    };
    let outcome = command.env("LATTICE", built::lattice()).run();
    let lines: Vec<&str> = outcome.text().lines().collect();
    outcome.exits(0).check(lines == expected(), || format!("should have printed {:#?}", expected()));
}
