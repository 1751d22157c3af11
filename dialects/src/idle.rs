//! Flags of `srun` that are ignored here, so that scripts run unchanged, and the conditions for a note about them. Flags are refused elsewhere
//! if a result would change without them.

use std::ffi::{OsStr, OsString};

use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};
use lattice_console::Verbosity;

/// A flag of `srun`(1) that is ignored, and the reason.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Idle {
    pub(crate) short: Option<char>,
    pub(crate) long: &'static str,
    pub(crate) value: Value,
    pub(crate) notice: Notice,
    pub(crate) reason: &'static str,
}

/// Command lines that report an ignored flag. With `-v`, all do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Notice {
    /// No command lines: users do not miss the effect of the flag.
    Verbose,
    /// Command lines without an allocation: the flag would select its nodes.
    Unallocated,
    /// All command lines.
    Always,
}

/// Existence of an allocation for a command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Allocation {
    /// The line is for an allocation.
    Given,
    /// No nodes are selected yet, or the launch stays on this machine.
    Missing,
}

impl Notice {
    /// True if the flag is reported without `-v`. A flag that requests nothing, such as `--mem=0`, is not reported.
    pub(crate) fn is_due(self, value: Option<&OsStr>, allocation: Allocation) -> bool {
        let asks_for_nothing = value.is_some_and(|value| ["0", "none", "NONE", "no"].iter().any(|no| value == *no));
        !asks_for_nothing && (self == Self::Always || self == Self::Unallocated && allocation == Allocation::Missing)
    }
}

/// Value of an ignored flag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value {
    /// No value.
    No,
    /// An optional value, after a `=`.
    Optional,
    /// A required value.
    Required,
}

/// Reason why flags for memory are ignored.
pub const NO_MEMORY_LIMIT: &str = "no memory limit is set; an allocation has whole nodes";
pub(crate) const ALL_GPUS: &str =
    "ranks may use all GPUs of their node; --gpus-per-task N and --gpu-bind give each rank its own";
const CHOOSES_NODES: &str = "nodes have no features to choose them by; -w NODES names them";
const NO_SCHEDULER: &str = "there are no accounts, partitions, classes of service and reservations";
const AT_ONCE: &str = "launches start at once, and jobs as soon as there are nodes";
const SHARED: &str = "launches of an allocation share its nodes and their CPUs, and start at once";

/// The flags.
pub(crate) const IDLE: &[Idle] = &[
    idle(Some('A'), "account", Value::Required, Notice::Verbose, NO_SCHEDULER),
    idle(None, "comment", Value::Required, Notice::Verbose, "it is kept nowhere"),
    idle(Some('C'), "constraint", Value::Required, Notice::Unallocated, CHOOSES_NODES),
    idle(None, "disable-status", Value::No, Notice::Verbose, "Ctrl-C ends the launch in order, a second one at once"),
    idle(None, "exact", Value::No, Notice::Always, SHARED),
    idle(None, "exclusive", Value::Optional, Notice::Always, SHARED),
    idle(None, "external-launcher", Value::No, Notice::Verbose, SHARED),
    idle(Some('G'), "gpus", Value::Required, Notice::Always, ALL_GPUS),
    idle(None, "gpus-per-node", Value::Required, Notice::Always, ALL_GPUS),
    idle(None, "gres", Value::Required, Notice::Always, ALL_GPUS),
    idle(Some('I'), "immediate", Value::Optional, Notice::Verbose, AT_ONCE),
    idle(None, "mem", Value::Required, Notice::Always, NO_MEMORY_LIMIT),
    idle(None, "mem-per-cpu", Value::Required, Notice::Always, NO_MEMORY_LIMIT),
    idle(None, "overlap", Value::No, Notice::Verbose, SHARED),
    idle(Some('s'), "oversubscribe", Value::No, Notice::Verbose, "a node may have more ranks than CPUs"),
    idle(Some('p'), "partition", Value::Required, Notice::Unallocated, NO_SCHEDULER),
    idle(None, "qos", Value::Required, Notice::Verbose, NO_SCHEDULER),
    idle(None, "reservation", Value::Required, Notice::Unallocated, NO_SCHEDULER),
];

const fn idle(short: Option<char>, long: &'static str, value: Value, notice: Notice, reason: &'static str) -> Idle {
    Idle { short, long, value, notice, reason }
}

/// The flags of this table that a command line has.
#[derive(Clone, Debug, Default)]
pub struct IdleArgs {
    given: Vec<(&'static Idle, Option<OsString>)>,
}

impl IdleArgs {
    /// These flags and the other ones.
    pub fn and(mut self, others: Self) -> Self {
        self.given.extend(others.given);
        self
    }

    /// One note for each flag to report, with the reason why it is ignored.
    pub fn notes(&self, allocation: Allocation, verbosity: Verbosity) -> impl Iterator<Item = String> {
        let is_shown = move |(flag, value): &&(&'static Idle, Option<OsString>)| match verbosity {
            Verbosity::Quiet => false,
            Verbosity::Normal => flag.notice.is_due(value.as_deref(), allocation),
            Verbosity::Verbose => true,
        };
        self.given.iter().filter(is_shown).map(|(flag, _)| note(&format!("--{}", flag.long), flag.reason))
    }
}

/// The note that a flag, as typed, is ignored.
pub fn note(typed: &str, reason: &str) -> String {
    format!("note: {typed} is ignored: {reason}")
}

impl Args for IdleArgs {
    fn augment_args(command: Command) -> Command {
        command.args(IDLE.iter().map(Idle::arg))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for IdleArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let is_given = |flag: &&Idle| matches.value_source(flag.long) == Some(ValueSource::CommandLine);
        let value = |flag: &Idle| match flag.value {
            Value::No => None,
            Value::Optional | Value::Required => Some(matches.get_raw(flag.long)?.next_back()?.to_owned()),
        };
        Ok(Self { given: IDLE.iter().filter(is_given).map(|flag| (flag, value(flag))).collect() })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Idle {
    fn arg(&self) -> Arg {
        let arg = Arg::new(self.long).long(self.long).help(format!("Ignored: {}", self.reason)).hide(true);
        let arg = match self.short {
            Some(short) => arg.short(short),
            None => arg,
        };
        match self.value {
            Value::No => arg.action(ArgAction::SetTrue),
            Value::Optional => arg.action(ArgAction::Append).num_args(0..=1).require_equals(true),
            Value::Required => arg.action(ArgAction::Append).allow_hyphen_values(true),
        }
    }
}
