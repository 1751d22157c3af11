//! Lines of `scontrol show` that scripts of Slurm's take lists of nodes apart by, as `lattice scontrol` and by the name `scontrol`.

use std::ffi::{OsStr, OsString};
use std::path::Path;

use clap::{Args, Subcommand};

/// Name that a link to this program may have.
pub(super) const NAME: &str = "scontrol";

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
    /// Each name on a line of its own.
    #[command(alias = "hostname")]
    Hostnames {
        /// A list, as node[1-3,7]; else that in SLURM_JOB_NODELIST, SLURM_NODELIST or LATTICE_NODELIST.
        list: Option<String>,
    },
    /// All names as one list, in their order.
    Hostlist {
        /// Names or lists, separated by commas.
        names: String,
    },
    /// All names as one list, sorted, each once.
    Hostlistsorted {
        /// Names or lists, separated by commas.
        names: String,
    },
}

/// The words of `lattice scontrol` that a line of a link called `scontrol` means.
pub(super) fn own_words(words: &[OsString]) -> Option<Vec<OsString>> {
    let (called, rest) = words.split_first()?;
    let is_ours = Path::new(called).file_name() == Some(OsStr::new(NAME));
    is_ours.then(|| ["lattice", NAME].map(OsString::from).into_iter().chain(rest.iter().cloned()).collect())
}
