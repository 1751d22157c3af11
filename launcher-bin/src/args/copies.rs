//! Files that are copied to the nodes of a launch before it starts.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use clap::builder::{OsStringValueParser, TypedValueParser};
use clap::{Args, ValueEnum};

/// Directories with shared libraries that all nodes have, as in Slurm (slurm.conf(5), BcastExclude).
const SYSTEM_DIRECTORIES: &str = "/lib,/usr/lib,/lib64,/usr/lib64";

/// Files that are copied to the nodes of a launch before it starts, and removed when it has ended.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Copies")]
pub struct CopyArgs {
    /// On a cluster, copy the programs to each node first and run the copies: a single program to PATH, all into a directory PATH/, or into
    /// one in /tmp. The copies are removed at the end of the launch.
    #[arg(long, value_name = "PATH", num_args = 0..=1, require_equals = true, default_missing_value = "",
          value_parser = OsStringValueParser::new().map(PathBuf::from), conflicts_with_all = ["detach", "container"])]
    pub bcast: Option<PathBuf>,
    /// Copy the shared libraries that each program needs, as its loader finds them here, into a directory next to it. It is first in
    /// LD_LIBRARY_PATH.
    #[arg(long, value_enum, value_name = "yes|no", num_args = 0..=1, require_equals = true, default_value = "no",
          default_missing_value = "yes", hide_possible_values = true, hide_default_value = true, requires = "bcast")]
    pub send_libs: SendLibs,
    /// Leave out shared libraries below these directories, of which nodes have their own; NONE sends all.
    #[arg(long, value_name = "NONE|DIRECTORIES", default_value = SYSTEM_DIRECTORIES, value_parser = OsStringValueParser::new().map(Excluded::of))]
    pub bcast_exclude: Excluded,
    /// Copy these files to each node first, into the working directories of the programs. A file with the same contents on a node is used
    /// and stays; copies are removed at the end of the launch.
    #[arg(long, value_name = "FILE,...", value_delimiter = ',', conflicts_with = "detach")]
    pub preload_files: Vec<PathBuf>,
    /// Copy them into DIR instead, which nodes must have.
    #[arg(long, value_name = "DIR", requires = "preload_files")]
    pub preload_dest_dir: Option<PathBuf>,
    /// Compress the copies on the network (gzip), which takes time if the network is fast.
    #[arg(long, value_enum, value_name = "gzip|none", num_args = 0..=1, require_equals = true, default_value = "none",
          default_missing_value = "gzip", hide_possible_values = true, hide_default_value = true)]
    pub compress: Compression,
}

/// Shared libraries are copied with a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SendLibs {
    /// They are.
    Yes,
    /// They are not.
    No,
}

/// Form of copies on their way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Compression {
    /// Compressed by `gzip`, which every node has.
    Gzip,
    /// As they are.
    #[default]
    None,
}

/// Directories with shared libraries that are not copied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Excluded(pub Vec<PathBuf>);

impl Excluded {
    fn of(list: OsString) -> Self {
        if list == "NONE" {
            return Self(Vec::new());
        }
        let directories = list.as_bytes().split(|&byte| byte == b',').filter(|directory| !directory.is_empty());
        Self(directories.map(|directory| OsStr::from_bytes(directory).into()).collect())
    }
}
