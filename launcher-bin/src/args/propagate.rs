//! Values of `--propagate`: limits of the user's shell that ranks receive, in the words of srun(1).

use lattice_console::machine::Machine;
use lattice_session::shell_limits::{ShellLimits, SoftLimit, TooHigh};
use rank_spawner::{LimitParseError, LimitedResource};

/// Value of `--propagate`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Propagate {
    /// Default: all limits except that of locked memory. Compute nodes have a higher one than the machines on which users type, for their
    /// networks. Slurm's documentation advises sites to make the same exception.
    #[default]
    Usual,
    /// These limits. A limit that a node does not allow is reported to the user.
    Named(Vec<LimitedResource>),
}

impl Propagate {
    /// Parses `ALL`, `NONE`, or names of limits such as `CORE,RLIMIT_STACK`.
    pub(super) fn parse(text: &str) -> Result<Self, LimitParseError> {
        let name = |word: &str| word.strip_prefix("RLIMIT_").unwrap_or(word).parse();
        Ok(Self::Named(match text {
            "ALL" => LimitedResource::ALL.to_vec(),
            "NONE" => Vec::new(),
            names => names.split(',').map(name).collect::<Result<_, _>>()?,
        }))
    }

    /// The limits of a shell that ranks receive, with its umask and priority, which ranks always receive.
    pub(crate) fn of(&self, machine: &Machine) -> ShellLimits {
        let is_passed_on = |limit: &&SoftLimit| match self {
            Self::Usual => limit.resource != LimitedResource::Memlock,
            Self::Named(resources) => resources.contains(&limit.resource),
        };
        ShellLimits {
            soft: machine.soft_limits.iter().filter(is_passed_on).copied().collect(),
            umask: machine.umask,
            priority: machine.priority,
            too_high: if *self == Self::Usual { TooHigh::Lowered } else { TooHigh::Told },
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::prepared::tests::commanded;

    use super::*;

    #[test]
    fn limits_are_chosen_in_the_words_of_srun() {
        let check = |flags: &str, expected: &str, too_high: TooHigh| {
            let limits = commanded(&format!("{flags} true")).unwrap().request.settings.shell_limits;
            let names: Vec<String> = limits.soft.iter().map(|limit| limit.resource.to_string()).collect();
            assert_eq!(
                (names.join(" ").as_str(), limits.umask, limits.too_high),
                (expected, Some(0o027), too_high),
                "{flags}"
            );
        };
        check("", "as core cpu data fsize nofile nproc rss stack", TooHigh::Lowered);
        let all = "as core cpu data fsize memlock nofile nproc rss stack";
        check("--propagate", all, TooHigh::Told);
        check("--propagate=ALL", all, TooHigh::Told);
        check("--propagate=NONE", "", TooHigh::Told);
        check("--propagate=STACK,core", "core stack", TooHigh::Told);
        check("--propagate=RLIMIT_NOFILE", "nofile", TooHigh::Told);
        for wrong in ["", "ALL,CORE", "NONE,CORE", "CORE,", "FILES"] {
            assert!(Propagate::parse(wrong).is_err(), "{wrong}");
        }
    }
}
