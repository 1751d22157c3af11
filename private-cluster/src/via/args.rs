//! `--via`, the way to nodes that other resource managers or other means of starting programs give, and the flags of `lattice start`.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use lattice_console::formatting::parse_duration;
use lattice_console::values::{self, node_list};
use lattice_dialects::hostfile::{self, Hosts};
use pmi_transport::address::PortRange;

/// Placeholders of the host and the command in a command of the user.
const PLACES: [&str; 2] = ["{host}", "{command}"];

/// Way to the nodes of a launch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Via {
    /// None: this machine.
    None,
    /// Slurm's allocation, by `srun`.
    Slurm,
    /// The job of PBS, by `pbs_tmrsh`.
    Pbs,
    /// The job of LSF, by `blaunch`.
    Lsf,
    /// The job of Grid Engine, by `qrsh`.
    Sge,
    /// The instance of Flux, by `flux exec`.
    Flux,
    /// Pods of Kubernetes, by invitation.
    Kubernetes,
    /// Named hosts, by `ssh`.
    Ssh,
    /// Named hosts, by these words, with `{host}` and `{command}` replaced.
    Command(Vec<String>),
}

/// Error for a text that is no way to nodes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ViaParseError {
    /// An unknown word.
    #[error(
        "{text:?} is none of slurm, pbs, lsf, sge, flux, k8s, ssh, none, and no command with {{host}} and {{command}} in it"
    )]
    Unknown {
        /// The text.
        text: String,
    },
    /// A command without one of the placeholders.
    #[error("the command {text:?} has no {place}; it is called as in 'ssh {{host}} {{command}}'")]
    Incomplete {
        /// The text.
        text: String,
        /// The missing placeholder.
        place: &'static str,
    },
    /// The command is empty.
    #[error("the command is empty; it starts a process on a host, as in 'ssh' or 'rsh -n {{host}} {{command}}'")]
    Empty,
    /// The quotes of the command do not match.
    #[error("the quotes of {text:?} do not match")]
    Quotes {
        /// The text.
        text: String,
    },
}

/// Reads the value of `--via`.
fn parse(text: &str) -> Result<Via, ViaParseError> {
    let text = text.trim();
    Ok(match text {
        "none" => Via::None,
        "slurm" => Via::Slurm,
        "pbs" => Via::Pbs,
        "lsf" => Via::Lsf,
        "sge" => Via::Sge,
        "flux" => Via::Flux,
        "k8s" => Via::Kubernetes,
        "ssh" => Via::Ssh,
        _ if !text.contains([' ', '{']) => return Err(ViaParseError::Unknown { text: text.to_owned() }),
        _ => Via::Command(command(text)?),
    })
}

fn command(text: &str) -> Result<Vec<String>, ViaParseError> {
    let text = || text.to_owned();
    if let Some(place) = PLACES.into_iter().find(|place| !text().contains(place)) {
        return Err(ViaParseError::Incomplete { text: text(), place });
    }
    words(&text())
}

/// Reads the value of `--start-with`: a value of `--via`, with `{host}` and `{command}` appended if it does not have them.
fn parse_start_with(text: &str) -> Result<Via, ViaParseError> {
    let mut words = words(text)?;
    for place in PLACES {
        if !words.iter().any(|word| word.contains(place)) {
            words.push(place.to_owned());
        }
    }
    Ok(Via::Command(words))
}

fn words(text: &str) -> Result<Vec<String>, ViaParseError> {
    let words = shlex::split(text).ok_or_else(|| ViaParseError::Quotes { text: text.to_owned() })?;
    if words.first().is_none_or(String::is_empty) { Err(ViaParseError::Empty) } else { Ok(words) }
}

impl Via {
    /// The value of `--via` as a shell reads it.
    pub fn as_typed(&self) -> String {
        let text = self.to_string();
        // Quoting fails only for a NUL, which users cannot type.
        shlex::try_quote(&text).map_or_else(|_| text.clone(), Into::into)
    }
}

impl fmt::Display for Via {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "none",
            Self::Slurm => "slurm",
            Self::Pbs => "pbs",
            Self::Lsf => "lsf",
            Self::Sge => "sge",
            Self::Flux => "flux",
            Self::Kubernetes => "k8s",
            Self::Ssh => "ssh",
            Self::Command(words) => return f.write_str(&words.join(" ")),
        })
    }
}

/// The way to the nodes, set by flags.
#[derive(Clone, Debug, Default, Args)]
pub struct WayArgs {
    /// Reach the nodes by slurm, pbs, lsf, sge, flux or k8s (the default in an allocation or a pod of theirs), by ssh, or by a command that
    /// runs another one on a host, such as 'rsh {host} {command}'. `none`, for a launch: run on this machine. Neither root nor daemons are
    /// needed.
    #[arg(long, value_name = "HOW", value_parser = parse, conflicts_with = "start_with")]
    via: Option<Via>,
    /// Reach the nodes by this command, which starts a process on a host: `rsh`, `blaunch`, a script. The host and the command are
    /// appended, unless {host} and {command} are in it: a short form of --via.
    #[arg(long, value_name = "COMMAND", value_parser = parse_start_with)]
    start_with: Option<Via>,
}

impl WayArgs {
    /// Variable that replaces the flags.
    pub const VARIABLE: &str = "LATTICE_VIA";

    /// The selected way: that of a flag, else the value of [`Self::VARIABLE`].
    ///
    /// # Errors
    /// Returns an error if that value is no way.
    pub fn chosen(&self, variable: Option<&OsStr>) -> Result<Option<Via>, ViaParseError> {
        match self.via.as_ref().or(self.start_with.as_ref()) {
            Some(way) => Ok(Some(way.clone())),
            None => variable.map(|value| parse(&value.to_string_lossy())).transpose(),
        }
    }
}

/// The flags of `lattice start`, and the command that runs with the nodes ready.
#[derive(Clone, Debug, Args)]
pub struct StartArgs {
    /// The way to the nodes.
    #[command(flatten)]
    pub way: WayArgs,
    /// How nodes join.
    #[command(flatten)]
    pub join: JoinArgs,
    /// Hosts, if no manager names them.
    #[command(flatten)]
    pub hosts: HostArgs,
    /// Command to run, and its arguments; else your shell.
    #[arg(value_name = "COMMAND [ARGS]", trailing_var_arg = true, num_args = 0..)]
    pub command: Vec<OsString>,
}

/// How nodes join a cluster: the time that they have for it, and ports.
#[derive(Clone, Copy, Debug, Default, Args)]
pub struct JoinArgs {
    /// Wait this long for each node of --via (90 s; pods: 10 min).
    #[arg(long, value_name = values::TIME, env = "LATTICE_JOIN_TIMEOUT", hide_env = true, value_parser = parse_duration)]
    pub join_timeout: Option<Duration>,
    /// Listen on ports of this range, here and on the nodes of --via, such as 60000-60100 (any).
    #[arg(long, value_name = "FIRST-LAST", env = "LATTICE_PORT_RANGE", hide_env = true)]
    pub port_range: Option<PortRange>,
}

/// Hosts that a command of the user reaches.
#[derive(Clone, Debug, Default, Args)]
pub struct HostArgs {
    /// Use these hosts, such as node[0-3,7].
    #[arg(short = 'w', long, value_name = "NODES", value_parser = node_list, conflicts_with = "hostfile")]
    pub nodelist: Option<String>,
    /// Use the hosts in FILE, with their slots: lines `HOST slots=N`, `HOST:N` or `HOST`.
    #[arg(long, visible_alias = "machinefile", value_name = "FILE")]
    pub hostfile: Option<PathBuf>,
    /// The same, with the lines given here: HOST or HOST:N, separated by commas.
    #[arg(short = 'H', long, value_name = "HOSTS", value_parser = hostfile::parse_hosts, conflicts_with_all = ["hostfile", "nodelist"])]
    pub host: Option<Hosts>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_way_is_a_word_of_ours_or_a_whole_command() {
        for word in ["none", "slurm", "pbs", "lsf", "sge", "flux", "k8s", "ssh"] {
            assert_eq!(parse(word).unwrap().to_string(), word);
        }
        let words = |text: &str| match parse(text) {
            Ok(Via::Command(words)) => words,
            other => panic!("{text}: {other:?}"),
        };
        assert_eq!(words("ssh -p 22 {host} {command}"), ["ssh", "-p", "22", "{host}", "{command}"]);
        assert_eq!(words("sh -c 'enter {host}; exec {command}'"), ["sh", "-c", "enter {host}; exec {command}"]);
    }

    #[test]
    fn a_command_that_leaves_something_out_is_refused_with_what_is_missing() {
        let check = |text: &str, expected: &str| {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        };
        check("slrum", "\"slrum\" is none of slurm, pbs, lsf, sge, flux, k8s, ssh, none");
        check("", "is none of");
        check("ssh {host}", "has no {command}");
        check("rsh {command}", "has no {host}");
        check("sh -c 'x {host} {command}", "the quotes of");
        check("'' {host} {command}", "the command is empty");
    }

    #[test]
    fn a_command_to_start_with_is_completed_by_what_it_leaves_out() {
        let words = |text: &str| match parse_start_with(text) {
            Ok(Via::Command(words)) => words,
            other => panic!("{text}: {other:?}"),
        };
        assert_eq!(words("rsh"), ["rsh", "{host}", "{command}"]);
        assert_eq!(words("ssh -p '2 2'"), ["ssh", "-p", "2 2", "{host}", "{command}"]);
        assert_eq!(words("on {host} -q"), ["on", "{host}", "-q", "{command}"]);
        assert_eq!(words("sh -c '{command}'"), ["sh", "-c", "{command}", "{host}"]);
        assert_eq!(words("sh -c 'on {host} {command}'"), ["sh", "-c", "on {host} {command}"]);
        for empty in ["", "  ", "''"] {
            assert_eq!(parse_start_with(empty), Err(ViaParseError::Empty));
        }
        assert!(parse_start_with("sh -c 'x").unwrap_err().to_string().contains("the quotes of"));
    }
}
