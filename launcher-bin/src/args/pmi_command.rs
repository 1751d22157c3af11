//! The flags of `lattice pmi`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

use super::value::whole;

/// Talk PMI to the launcher of this process, as one rank of its job
#[derive(Args, Debug)]
pub struct PmiCommand {
    /// The way to the launcher; `auto` is PMI-1, and PMIx where a launcher serves that alone
    #[arg(long, value_enum, default_value_t, global = true)]
    pub(crate) method: Method,
    /// The file that `lib` or `lib2` loads; else what programs in C find under the name libpmi.so.0 or libpmi2.so.0
    #[arg(long, value_name = "FILE", global = true)]
    pub(crate) library: Option<PathBuf>,
    #[command(subcommand)]
    pub(crate) probe: Probe,
}

#[derive(Clone, Copy, Debug, Default, ValueEnum)]
pub(crate) enum Method {
    #[default]
    Auto,
    Pmi1,
    Pmi2,
    Pmix,
    /// PMI-1 through libpmi.so.0
    Lib,
    /// PMI-2 through libpmi2.so.0
    Lib2,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Probe {
    /// Time fences
    Barrier {
        /// Number of fences
        #[arg(long, default_value_t = 10, value_parser = whole(1..=u32::MAX))]
        count: u32,
    },
    /// Let every rank put a value and get everybody's, as MPI_Init does, and check what it gets
    Exchange {
        /// Number of rounds; the launcher keeps the values of all of them
        #[arg(long, default_value_t = 1, value_parser = whole(1..=u32::MAX))]
        count: u32,
        /// The length of each value, within what the launcher takes (1023 bytes as a rule)
        #[arg(long, value_name = "BYTES", default_value_t = 64)]
        size: usize,
    },
    /// Have rank 0 start a job of more ranks, as MPI_Comm_spawn does, and time that
    Spawn {
        /// Number of ranks of the new job
        #[arg(short = 'n', long, default_value_t = 1, value_parser = whole(1..=u32::MAX))]
        ranks: u32,
        /// What they run
        #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "PROGRAM")]
        command: Vec<String>,
    },
    /// Become a program that reaches the launcher from within a container, by a socket in the file system; profiles of --container do it
    Connect {
        /// The program and its arguments
        #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "PROGRAM")]
        command: Vec<OsString>,
    },
    /// Stand for a program that nothing launched and that listens on PORT of this machine; mpiexec -pmi_args does it, by which MPICH spawns
    Adopt {
        /// The port
        port: u16,
    },
    /// Print where libpmi.so.0 and libpmi2.so.0 are, for programs in C, with version and number of functions; needs no launcher
    Library {
        /// Print the names of the functions as well
        #[arg(long)]
        functions: bool,
    },
    /// Print what the launcher tells about the job
    Get {
        /// Keys of the job, such as PMI_process_mapping
        #[arg(required = true, value_name = "KEY")]
        keys: Vec<String>,
    },
}
