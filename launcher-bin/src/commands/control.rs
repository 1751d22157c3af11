//! `lattice signal` and `lattice abort`: control of a launch to which the command is not attached. With `--json` the command prints the
//! request and the launch; without it, nothing.

use serde::Serialize;

use super::{CommandError, ask_about, here};
use crate::args::{AbortArgs, SignalArgs, TableArgs};
use crate::console::print_json;

/// Request about a launch as JSON.
#[derive(Debug, Serialize)]
#[serde(tag = "asked", rename_all = "snake_case")]
enum Asked<'a> {
    Signal {
        launch_id: &'a str,
        signal: &'static str,
        /// `None` for all ranks.
        ranks: Option<Vec<Range>>,
    },
    Abort {
        launch_id: &'a str,
        reason: &'a str,
    },
}

/// Range of ranks, both ends included.
#[derive(Debug, Serialize)]
struct Range {
    first: u32,
    last: u32,
}

/// Sends a signal to ranks of a launch; returns the exit code.
pub(crate) fn signal(args: &SignalArgs) -> Result<u8, CommandError> {
    match here(&args.launch, &args.table.api) {
        Some(launch) => launch.signal(args.signal, args.ranks.as_ref())?,
        None => ask_about(&args.launch, &args.table.api, async |cluster| {
            Ok(cluster.signal_launch(&args.launch, args.signal, args.ranks.as_ref()).await?)
        })?,
    }
    let range = |(first, last)| Range { first, last };
    let ranks = args.ranks.as_ref().map(|ranks| ranks.ends().map(range).collect());
    print_asked(&args.table, Asked::Signal { launch_id: &args.launch, signal: args.signal.as_str(), ranks })
}

/// Ends a launch. A launch that has already ended is no error. Returns the exit code.
pub(crate) fn abort(args: &AbortArgs) -> Result<u8, CommandError> {
    match here(&args.launch, &args.table.api) {
        Some(launch) => launch.abort(&args.reason)?,
        None => ask_about(&args.launch, &args.table.api, async |cluster| {
            Ok(cluster.abort_launch(&args.launch, &args.reason).await?)
        })?,
    }
    print_asked(&args.table, Asked::Abort { launch_id: &args.launch, reason: &args.reason })
}

fn print_asked(table: &TableArgs, asked: Asked<'_>) -> Result<u8, CommandError> {
    if table.json { Ok(print_json(&asked)?) } else { Ok(0) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn programs_are_told_what_was_asked_of_which_launch() {
        let check = |asked: Asked<'_>, expected| assert_eq!(serde_json::to_value(asked).unwrap(), expected);
        let ranks = Some(vec![Range { first: 0, last: 3 }]);
        check(
            Asked::Signal { launch_id: "k3jq", signal: "SIGUSR1", ranks },
            json!({ "asked": "signal", "launch_id": "k3jq", "signal": "SIGUSR1", "ranks": [{ "first": 0, "last": 3 }] }),
        );
        check(
            Asked::Signal { launch_id: "k3jq", signal: "SIGTERM", ranks: None },
            json!({ "asked": "signal", "launch_id": "k3jq", "signal": "SIGTERM", "ranks": null }),
        );
        check(
            Asked::Abort { launch_id: "k3jq", reason: "wrong input" },
            json!({ "asked": "abort", "launch_id": "k3jq", "reason": "wrong input" }),
        );
    }
}
