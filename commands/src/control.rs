//! `lattice signal`: a signal to ranks of a launch to which the command is not attached. With `--json` the command prints the request and
//! the launch; without it, a confirmation on a terminal.

use std::fmt;

use lattice_console::{Verbosity, confirm, print_json};
use serde::Serialize;

use super::error::CommandError;
use super::questions::{ask_about, here};
use crate::args::SignalArgs;

/// A sent signal as JSON.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct Sent<'a> {
    asked: &'static str,
    launch_id: &'a str,
    signal: &'static str,
    /// `None` for all ranks.
    ranks: Option<Vec<Range>>,
}

/// Range of ranks, both ends included.
#[derive(Clone, Copy, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct Range {
    first: u32,
    last: u32,
}

/// Sends a signal to ranks of a launch; returns the exit code.
pub fn signal(args: &SignalArgs, verbosity: Verbosity) -> Result<u8, CommandError> {
    match here(&args.launch, &args.table.api) {
        Some(launch) => launch.signal(args.signal, args.ranks.as_ref())?,
        None => ask_about(&args.launch, &args.table.api, async |cluster| {
            Ok(cluster.signal_launch(&args.launch, args.signal, args.ranks.as_ref()).await?)
        })?,
    }
    let range = |(first, last)| Range { first, last };
    let ranks = args.ranks.as_ref().map(|ranks| ranks.ends().map(range).collect());
    let sent = Sent { asked: "signal", launch_id: &args.launch, signal: args.signal.as_str(), ranks };
    if args.table.json {
        return Ok(print_json(&sent)?);
    }
    confirm(&sent.to_string(), verbosity);
    Ok(0)
}

impl fmt::Display for Sent<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { signal, launch_id, .. } = self;
        let range =
            |&Range { first, last }: &Range| if first == last { first.to_string() } else { format!("{first}-{last}") };
        match &self.ranks {
            None => write!(f, "{signal} is sent to all ranks of launch {launch_id}"),
            Some(ranks) => {
                let ranks = ranks.iter().map(range).collect::<Vec<_>>().join(",");
                write!(f, "{signal} is sent to ranks {ranks} of launch {launch_id}")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_sent_signal_is_one_line_or_json() {
        let check = |ranks, line: &str, expected| {
            let sent = Sent { asked: "signal", launch_id: "k3jq", signal: "SIGUSR1", ranks };
            assert_eq!(sent.to_string(), line);
            assert_eq!(serde_json::to_value(sent).unwrap(), expected);
        };
        check(
            Some(vec![Range { first: 0, last: 3 }, Range { first: 8, last: 8 }]),
            "SIGUSR1 is sent to ranks 0-3,8 of launch k3jq",
            json!({ "asked": "signal", "launch_id": "k3jq", "signal": "SIGUSR1",
                    "ranks": [{ "first": 0, "last": 3 }, { "first": 8, "last": 8 }] }),
        );
        check(
            None,
            "SIGUSR1 is sent to all ranks of launch k3jq",
            json!({ "asked": "signal", "launch_id": "k3jq", "signal": "SIGUSR1", "ranks": null }),
        );
    }
}
