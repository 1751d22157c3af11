//! `lattice doctor`: checks of this machine, of the settings in force and of the cluster, each with a state and the next step.
//!
//! Each kind of check is a function of a module. All run in parallel, each in a thread with a time limit, because a file system or a program in
//! `PATH` can hang.

mod check;
mod cluster;
mod control_groups;
mod limits;
mod mpi;
mod programs;
mod settings;
mod sockets;

use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use lattice_console::exit::TROUBLE;
use lattice_console::{Verbosity, print, print_json};
use lattice_daemon::build::Build;
use lattice_daemon::printable;
use serde::Serialize;

pub use self::check::ContainerRuntimes;
use self::check::{Check, State, Subject};
use super::error::CommandError;
use super::questions::environment;
use crate::args::TableArgs;

/// Time limit for all checks together, from the start of the command.
const LIMIT: Duration = Duration::from_secs(8);

/// A kind of check: the name of its part, and the function.
type Probe = (&'static str, fn(&Subject) -> Vec<Check>);

/// All kinds of checks, in the order of the output.
const PROBES: [Probe; 8] = [
    ("version", version),
    ("settings", settings::checks),
    ("API server", cluster::checks),
    ("MPI libraries", mpi::checks),
    ("programs", programs::checks),
    ("limits", limits::checks),
    ("control groups", control_groups::checks),
    ("sockets", sockets::checks),
];

/// All results as JSON.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct Report<'a> {
    checks: &'a [Check],
}

/// Checks all parts, and prints the results; returns the exit code.
pub fn doctor(
    args: &TableArgs,
    verbosity: Verbosity,
    build: Build,
    runtimes: ContainerRuntimes,
) -> Result<u8, CommandError> {
    let subject = Subject { build, runtimes, api: args.api.api.clone(), environment: environment() };
    let checks = results(&PROBES, &subject, LIMIT);
    let code = if checks.iter().any(|check| check.state == State::Error) { TROUBLE } else { 0 };
    if args.json {
        return Ok(print_json(&Report { checks: &checks })?.max(code));
    }
    let least = if verbosity == Verbosity::Quiet { State::Warning } else { State::Ok };
    Ok(print(text(&checks, least).as_bytes())?.max(code))
}

/// Results of all probes, in their order. A probe that takes longer than `limit` has an error as its result; its thread ends with the process.
fn results(probes: &[Probe], subject: &Subject, limit: Duration) -> Vec<Check> {
    let deadline = Instant::now() + limit;
    let started: Vec<_> = probes.iter().map(|&(name, probe)| (name, started(name, probe, subject))).collect();
    let collect = |(name, answer): (&str, mpsc::Receiver<Vec<Check>>)| {
        answer.recv_timeout(deadline.saturating_duration_since(Instant::now())).unwrap_or_else(|error| {
            let detail = match error {
                RecvTimeoutError::Timeout => format!("no result within {} s", limit.as_secs()),
                RecvTimeoutError::Disconnected => "the check could not be run".to_owned(),
            };
            vec![Check::error(name, detail, "look for a file system or a program in PATH that hangs")]
        })
    };
    started.into_iter().flat_map(collect).collect()
}

fn started(name: &str, probe: fn(&Subject) -> Vec<Check>, subject: &Subject) -> mpsc::Receiver<Vec<Check>> {
    let (send, receive) = mpsc::channel();
    let subject = subject.clone();
    // Without a thread the channel is closed, which is reported. A result after the time limit has no receiver.
    let _ = thread::Builder::new().name(name.to_owned()).spawn(move || drop(send.send(probe(&subject))));
    receive
}

fn version(Subject { build, .. }: &Subject) -> Vec<Check> {
    let (version, commit, compiler) = (build.version, build.commit(), build.compiler());
    vec![
        Check::ok("version", format!("lattice {version}")),
        Check::ok("build", format!("commit {commit}; features {}; {compiler}", build.features())),
        Check::ok("PMI", build.pmi),
    ]
}

/// The checks of at least this state, one on each line, with the next step below.
fn text(checks: &[Check], least: State) -> String {
    let shown = || checks.iter().filter(|check| check.state >= least);
    let width = shown().map(|check| check.name.chars().count()).max().unwrap_or(0);
    let line = |check: &Check| {
        let Check { name, state, detail, action } = check;
        let mut lines = format!("{:<7}  {name:<width$}  {}\n", state.word(), printable(detail));
        let indent = 7 + 2 + width + 2;
        for step in action.iter().flat_map(|action| action.lines()) {
            lines += &format!("{:indent$}try: {}\n", "", printable(step));
        }
        lines
    };
    shown().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::check::subject;
    use super::*;

    #[test]
    fn a_check_is_a_line_with_its_next_step_below() {
        let checks =
            [Check::ok("gdb", "/usr/bin/gdb"), Check::error("API server", "gone\x1b[2J", "start it\nor another")];
        let error = "error    API server  gone\\x1b[2J\n                     try: start it\n                     try: or another\n";
        assert_eq!(text(&checks, State::Ok), format!("ok       gdb         /usr/bin/gdb\n{error}"));
        assert_eq!(text(&checks, State::Warning), error);
        let json = serde_json::to_value(Report { checks: &checks[..1] }).unwrap();
        let expected = serde_json::json!({ "name": "gdb", "state": "ok", "detail": "/usr/bin/gdb", "action": null });
        assert_eq!(json["checks"][0], expected);
    }

    #[test]
    fn a_check_that_hangs_or_fails_is_an_error_and_delays_no_other() {
        let hangs: Probe = ("hangs", |_| {
            thread::park();
            Vec::new()
        });
        let fails: Probe = ("fails", |_| std::panic::resume_unwind(Box::new(())));
        let works: Probe = ("works", |_| vec![Check::ok("works", "")]);
        let checks = results(&[hangs, fails, works], &subject(Vec::new()), Duration::from_millis(100));
        let seen: Vec<_> = checks.iter().map(|check| (check.name.as_str(), check.state)).collect();
        assert_eq!(seen, [("hangs", State::Error), ("fails", State::Error), ("works", State::Ok)]);
        assert!(checks[..2].iter().all(|check| check.action.is_some()));
    }

    #[test]
    fn an_error_that_has_advice_has_it_as_its_next_step() {
        assert_eq!(Check::failed("a", "bad\ntry: good", "other"), Check::error("a", "bad", "good"));
        assert_eq!(Check::failed("a", "bad", "other"), Check::error("a", "bad", "other"));
    }
}
