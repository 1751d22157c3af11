//! Flags of `srun` that choose nothing here: taken, so that scripts run as they are, and noted with `-v`.

use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};

/// A flag of `srun`(1), and the reason why nothing depends on it here.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Idle {
    pub(super) short: Option<char>,
    pub(super) long: &'static str,
    pub(super) value: Value,
    pub(super) reason: &'static str,
}

/// Value of such a flag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Value {
    /// It has none.
    No,
    /// It may have one, behind a `=`.
    Optional,
    /// It has one.
    Required,
}

const WHOLE_NODES: &str = "an allocation is whole nodes";
const NO_SCHEDULER: &str = "there are no accounts, partitions, classes of service and reservations";
const AT_ONCE: &str = "launches start at once, and jobs as soon as there are nodes";
const SHARED: &str = "launches of an allocation share its nodes";

const fn idle(short: Option<char>, long: &'static str, value: Value, reason: &'static str) -> Idle {
    Idle { short, long, value, reason }
}

/// The flags. Those that would change a result if they were passed over are not here.
pub(super) const IDLE: &[Idle] = &[
    idle(Some('A'), "account", Value::Required, NO_SCHEDULER),
    idle(None, "comment", Value::Required, "it is kept nowhere"),
    idle(Some('C'), "constraint", Value::Required, WHOLE_NODES),
    idle(None, "disable-status", Value::No, "Ctrl-C ends the launch in order, a second one at once"),
    idle(None, "exact", Value::No, SHARED),
    idle(None, "exclusive", Value::Optional, WHOLE_NODES),
    idle(None, "external-launcher", Value::No, SHARED),
    idle(None, "gpus", Value::Required, WHOLE_NODES),
    idle(None, "gpus-per-node", Value::Required, WHOLE_NODES),
    idle(None, "gres", Value::Required, WHOLE_NODES),
    idle(Some('I'), "immediate", Value::Optional, AT_ONCE),
    idle(None, "mem", Value::Required, WHOLE_NODES),
    idle(None, "mem-per-cpu", Value::Required, WHOLE_NODES),
    idle(None, "overlap", Value::No, SHARED),
    idle(Some('s'), "oversubscribe", Value::No, "a node may have more ranks than CPUs"),
    idle(Some('p'), "partition", Value::Required, NO_SCHEDULER),
    idle(None, "qos", Value::Required, NO_SCHEDULER),
    idle(None, "reservation", Value::Required, NO_SCHEDULER),
];

/// The flags of this table that a command line has.
#[derive(Clone, Debug, Default)]
pub struct IdleArgs {
    given: Vec<&'static Idle>,
}

impl IdleArgs {
    /// These flags and others.
    pub(super) fn and(mut self, others: Self) -> Self {
        self.given.extend(others.given);
        self
    }

    /// One line for each flag that was given, with the reason why it chooses nothing.
    pub fn notes(&self) -> impl Iterator<Item = String> {
        self.given.iter().map(|flag| format!("--{} is taken and chooses nothing: {}", flag.long, flag.reason))
    }
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
        let is_given = |flag: &&Idle| matches.value_source(flag.long) == Some(clap::parser::ValueSource::CommandLine);
        Ok(Self { given: IDLE.iter().filter(is_given).collect() })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Idle {
    fn arg(&self) -> Arg {
        let arg = Arg::new(self.long).long(self.long).help(format!("Nothing: {}", self.reason)).hide(true);
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
