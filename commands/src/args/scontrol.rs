//! `scontrol show`, by which scripts for Slurm expand and fold lists of nodes, as `lattice scontrol` and under the name `scontrol`.

use std::ffi::{OsStr, OsString};
use std::path::Path;

use clap::{Args, Subcommand};

/// Name that a link to this program may have.
const NAME: &str = "scontrol";

/// Flags of `lattice scontrol`.
#[derive(Clone, Debug, PartialEq, Eq, Args)]
pub struct ScontrolArgs {
    /// The command.
    #[command(subcommand)]
    pub command: ScontrolCommand,
}

/// Commands of `scontrol`.
#[derive(Clone, Debug, PartialEq, Eq, Subcommand)]
pub enum ScontrolCommand {
    /// Print names of nodes.
    #[command(subcommand)]
    Show(Shown),
}

/// Form in which `scontrol show` prints names.
#[derive(Clone, Debug, PartialEq, Eq, Subcommand)]
pub enum Shown {
    /// Print each name on a line of its own.
    #[command(visible_alias = "hostname")]
    Hostnames {
        /// A list, such as node[1-3,7] [default: SLURM_JOB_NODELIST, SLURM_NODELIST or LATTICE_NODELIST].
        list: Option<String>,
    },
    /// Print all names as one list, in their order.
    Hostlist {
        /// Names or lists, separated by commas.
        names: String,
    },
    /// Print all names as one sorted list, without repetitions.
    Hostlistsorted {
        /// Names or lists, separated by commas.
        names: String,
    },
}

/// Translates a line of a link named `scontrol` to words of `lattice scontrol`; `None` for other lines.
pub fn own_words(words: &[OsString]) -> Option<Vec<OsString>> {
    let (called, rest) = words.split_first()?;
    let is_ours = Path::new(called).file_name() == Some(OsStr::new(NAME));
    is_ours.then(|| ["lattice", NAME].map(OsString::from).into_iter().chain(rest.iter().cloned()).collect())
}
