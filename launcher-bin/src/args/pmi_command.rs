//! The flags of `lattice pmi`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use lattice_console::values::whole;

/// Send PMI requests to the launcher of this process, as one rank of its job
#[derive(Args, Debug)]
pub struct PmiCommand {
    /// Protocol or library to use; `auto` is PMI-1, or PMIx if the launcher serves only PMIx
    #[arg(long, value_enum, default_value_t, global = true)]
    pub(crate) method: Method,
    /// File that `lib` or `lib2` loads [default: libpmi.so.0 or libpmi2.so.0, as C programs find it]
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
    /// Measure the time of fences
    Barrier {
        /// Number of fences
        #[arg(long, default_value_t = 10, value_parser = whole(1..=u32::MAX))]
        count: u32,
    },
    /// Put a value in each rank, get the values of all ranks, as MPI_Init does, and check them
    Exchange {
        /// Number of rounds; the launcher keeps the values of all rounds
        #[arg(long, default_value_t = 1, value_parser = whole(1..=u32::MAX))]
        count: u32,
        /// Length of each value, up to the limit of the launcher (usually 1023 bytes)
        #[arg(long, value_name = "BYTES", default_value_t = 64)]
        size: usize,
    },
    /// Start a job of new ranks from rank 0, as MPI_Comm_spawn does, and measure the time
    Spawn {
        /// Number of ranks of the new job
        #[arg(short = 'n', long = "ntasks", value_name = "N", default_value_t = 1, value_parser = whole(1..=u32::MAX))]
        ranks: u32,
        /// Program of the new ranks, and its arguments
        #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "PROGRAM")]
        command: Vec<String>,
    },
    /// Replace this process by a program that connects to the launcher from within a container, by a socket in the file system; for profiles of
    /// --container
    Connect {
        /// The program and its arguments
        #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "PROGRAM")]
        command: Vec<OsString>,
    },
    /// Represent a program that runs without a launcher and listens on PORT of this machine; for mpiexec -pmi_args, by which MPICH spawns
    Adopt {
        /// The port
        port: u16,
    },
    /// Print the paths of libpmi.so.0 and libpmi2.so.0, for programs in C, with version and number of functions; needs no launcher
    Library {
        /// Print the names of the functions as well
        #[arg(long)]
        functions: bool,
    },
    /// Print values that the launcher provides about the job
    Get {
        /// Keys of the job, such as PMI_process_mapping
        #[arg(required = true, value_name = "KEY")]
        keys: Vec<String>,
    },
}
