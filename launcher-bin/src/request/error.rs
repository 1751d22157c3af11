//! Reasons to refuse a launch before any process starts.

use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use hostlist::HostlistError;
use lattice_console::formatting::duration;
use lattice_console::limits::TooManyRanks;
use lattice_dialects::hostfile::{HostfileError, HostsError};
use lattice_session::count::counted;
use lattice_session::gpus::GpuError;
use lattice_session::request::{Overcommit, PlaceError, ProgramsError};
use pmi_core::ids::JobIdError;
use rank_spawner::{BindHereError, CpuBind, MemBindError, ProgramError, ProgramFailure};

use super::containers::ContainerError;
use super::copies::CopyError;
use super::environment::EnvironmentError;
use super::multi_prog::MultiProgError;
use super::node_groups::NodeGroupError;
use super::rankfile::RankfileError;
use crate::args::is_command;

/// Flag with the short form `-x`, which sets variables in mpirun: `-x NAME`.
pub(crate) const EXCLUDE: &str = "--exclude";

/// Refusal of a launch before any process starts.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RequestError {
    /// A flag that needs PMI is combined with `--pmi=none`.
    #[error(
        "{flag} and --pmi=none exclude each other: without PMI there is nothing that it could change\ntry: the line without one of both"
    )]
    NoPmi {
        /// The flag.
        flag: &'static str,
    },
    /// Group barriers are requested without PMI-1.
    #[error(
        "--pmi-group-barriers and --pmi=pmi2 exclude each other: group barriers are a part of PMI 1.2\ntry: the line without one of both"
    )]
    NoPmi1,
    /// A flag for output files is given without an output file.
    #[error("{flag} needs --output or --error: it is about the files that they name\ntry: --output FILE beside it")]
    NoFiles {
        /// The flag.
        flag: &'static str,
    },
    /// A flag that selects nodes is given for a launch without an allocation.
    #[error(
        "{flag} needs the nodes of an allocation; this launch has none, and stays on this machine\n\
         try: --alloc ID or LATTICE_ALLOC_ID, to name one (lattice alloc list shows them); --via ssh, for hosts that ssh reaches; \
         lattice dev-cluster, for nodes that are made on this machine{}",
        if *flag == EXCLUDE { "; variables are passed on anyway, and --env NAME=VALUE sets one" } else { "" }
    )]
    NoAllocation {
        /// The flag.
        flag: &'static str,
    },
    /// A command for nodes is given without an allocation.
    #[error(
        "lattice exec needs the nodes of an allocation, and none is named\n\
         try: --alloc ID or LATTICE_ALLOC_ID, to name one (lattice alloc list shows them); \
         lattice start --via ssh --host {nodes} -- lattice exec {nodes} -- COMMAND, for hosts that ssh reaches"
    )]
    NoNodes {
        /// The nodes, as they were typed.
        nodes: String,
    },
    /// `--fill` is given for several programs.
    #[error("--fill is for one program, and the line has several\ntry: -n N for each of them")]
    FillsForSeveral,
    /// A list of nodes cannot be used.
    #[error("{flag} {list}: {source}")]
    NodeList {
        /// The flag.
        flag: &'static str,
        /// The list.
        list: String,
        /// Fault of the list.
        #[source]
        source: HostlistError,
    },
    /// A variable is given instead of a list of nodes.
    #[error(
        "-x {list}: -x leaves nodes out, and {list} is a variable\n\
         try: --env {list}, which sets it in the ranks; all variables of this shell are passed on anyway"
    )]
    ExcludedVariable {
        /// The variable, as it was typed.
        list: String,
    },
    /// Variables cannot be used.
    #[error(transparent)]
    Environment(#[from] EnvironmentError),
    /// Files cannot be copied to the nodes.
    #[error("{error}{instead}", error = .0, instead = .0.program().map(tip).unwrap_or_default())]
    Copy(#[from] CopyError),
    /// A container cannot be used.
    #[error(transparent)]
    Container(#[from] ContainerError),
    /// A word of a program names a descriptor of the shell.
    #[error(
        "{} is a descriptor of this shell, as <(command) makes one, and ranks do not inherit it\n\
         try: a file in its place; or the whole line in each rank: bash -c 'PROGRAM <(command)'",
        word.display()
    )]
    ShellDescriptor {
        /// The word.
        word: OsString,
    },
    /// A file of programs cannot be used.
    #[error(transparent)]
    MultiProg(#[from] MultiProgError),
    /// `--threads-per-core` is given for ranks that are not bound to parts of cores.
    #[error(
        "--threads-per-core has no meaning for ranks with --cpu-bind={bind}: leave one of the two out, or bind them to threads, cores, \
         l3caches, numa, sockets, gpus or nics"
    )]
    NoPartOfCores {
        /// Binding of the ranks.
        bind: CpuBind,
    },
    /// A node of a list is another machine.
    #[error(
        "{flag}: {node} is not this machine, which is {here}, and this launch has no allocation to find it in\n\
         try: --via ssh, if ssh reaches it; or lattice alloc create -w {node}, and its id as --alloc ID"
    )]
    NotThisMachine {
        /// The flag.
        flag: &'static str,
        /// The node.
        node: String,
        /// Name of this machine.
        here: String,
    },
    /// The hostfile has fewer slots than the requested number of ranks.
    #[error(
        "{ranks} ranks do not fit: {flag} gives this machine {}\n\
         try: -n {slots}, or fewer; --overcommit (mpirun's --oversubscribe), which lets them share",
        counted(*slots, "slot")
    )]
    TooFewSlots {
        /// The flag.
        flag: &'static str,
        /// Requested number of ranks.
        ranks: u64,
        /// Number of slots.
        slots: u64,
    },
    /// The hosts of the environment cannot be parsed.
    #[error("LATTICE_HOSTS: {0}\ntry: LATTICE_HOSTS=HOST:SLOTS,HOST:SLOTS, or unset LATTICE_HOSTS")]
    UsualHosts(#[source] HostsError),
    /// The rankfile cannot be used.
    #[error(transparent)]
    Rankfile(#[from] RankfileError),
    /// The separate nodes of programs cannot be assigned.
    #[error(transparent)]
    NodeGroup(#[from] NodeGroupError),
    /// There are more ranks than CPUs, and ranks must not share CPUs.
    #[error(transparent)]
    Overcommit(#[from] Overcommit),
    /// The objects of this machine take fewer ranks than requested.
    #[error(
        "{ranks} ranks do not fit: this machine has room for {room} with {} on each {object}\n\
         try: -n {room}, or fewer; --overcommit (mpirun's --oversubscribe), which lets them share",
        counted(*per_object, "rank")
    )]
    TooFewObjects {
        /// Requested number of ranks.
        ranks: u64,
        /// Number of ranks for each object.
        per_object: u32,
        /// Kind of the objects.
        object: &'static str,
        /// Number of ranks that fit.
        room: u32,
    },
    /// The hostfile cannot be used.
    #[error("{error}{instead}", error = .0, instead = without_file(.0))]
    Hostfile(#[from] HostfileError),
    /// The job does not fit on the single node.
    #[error(
        "{ranks} ranks do not fit on 1 node with --tasks-per-node={per_node}\n\
         try: -n {per_node}, or fewer; --tasks-per-node={ranks}"
    )]
    NodeTooSmall {
        /// Requested number of ranks.
        ranks: u64,
        /// Number of ranks that a node may hold.
        per_node: u32,
    },
    /// The programs do not form a valid launch.
    #[error(transparent)]
    Programs(#[from] ProgramsError),
    /// The job is larger than this machine can hold.
    #[error(transparent)]
    TooManyRanks(#[from] TooManyRanks),
    /// No program is given.
    #[error("there is no program to start\ntry: lattice launch ./a.out")]
    NoProgram,
    /// A program cannot be started.
    #[error("{error}{instead}", error = .0, instead = tip(.0))]
    Program(#[from] ProgramError),
    /// A task prolog or epilog is not a program of this machine.
    #[error("{flag}: {error}\ntry: {flag} with the path of a program, such as ./NAME; or leave it out")]
    TaskScript {
        /// The flag.
        flag: &'static str,
        /// Fault of the program.
        error: ProgramError,
    },
    /// Ranks cannot start in the directory.
    #[error("cannot start ranks in {}: {source}\ntry: --chdir with a directory that you may enter{}", path.display(), or_make(path, source))]
    Directory {
        /// The directory.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
    /// `--stdin` names a rank that the job does not have.
    #[error(
        "--stdin {rank}: there is no such rank; {}\n\
         try: --stdin {last}, or --stdin all; -n {} starts ranks enough; a file of that name is ./{rank}",
        if *last == 0 { "the job has rank 0 alone".to_owned() } else { format!("the job has ranks 0 to {last}") },
        u64::from(*rank) + 1
    )]
    NoSuchRank {
        /// Requested rank.
        rank: u32,
        /// Last rank of the job.
        last: u32,
    },
    /// A file for standard input cannot be read.
    #[error("cannot read standard input from {}: {source}\ntry: the path of another file; or --stdin none, if ranks read nothing", path.display())]
    InputFile {
        /// The file.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
    /// A time is 0.
    #[error("{flag}: the time must be more than 0\ntry: {flag} 30s, or another time; or leave it out")]
    NoTime {
        /// The flag.
        flag: &'static str,
    },
    /// A signal before the time limit would be sent at the start of the launch.
    #[error(
        "--signal: the signal comes {} before the time limit, which is {}\n\
         try: a time after its @ that is shorter than the limit",
        duration(*.ahead),
        duration(*.limit)
    )]
    SignalAtOnce {
        /// Time from the signal to the limit.
        ahead: Duration,
        /// The limit.
        limit: Duration,
    },
    /// A signal before the time limit is requested without a time limit.
    #[error(
        "--signal: the launch has no time limit before which the signal could be sent; a time of 0 is none\n\
         try: --time LIMIT beside it, such as --time 10:00; without a limit, lattice signal ID SIGNAL sends one at any time"
    )]
    SignalWithoutLimit,
    /// `--hint` and another binding are given: a hint is itself a binding (srun(1), `--hint`).
    #[error("--hint and --cpu-bind={bind} exclude each other: both bind ranks\ntry: the line without one of both")]
    HintedAndBound {
        /// The binding.
        bind: CpuBind,
    },
    /// Ranks cannot be bound as requested.
    #[error("--cpu-bind: {0}")]
    Bind(#[from] BindHereError),
    /// Memory of ranks cannot be bound as requested.
    #[error("--mem-bind: {0}")]
    Memory(#[from] MemBindError),
    /// Ranks cannot get the requested GPUs.
    #[error("--gpu-bind: {0}\ntry: lattice nodes --topology, which shows the GPUs")]
    Gpus(#[from] GpuError),
    /// No random bytes are available for a launch id.
    #[error("cannot read /dev/urandom: {0}")]
    Random(#[source] io::Error),
    /// The launch id cannot be converted to a job id.
    #[error(transparent)]
    JobId(JobIdError),
    /// The ranks cannot be placed.
    #[error(transparent)]
    Place(PlaceError),
}

impl From<PlaceError> for RequestError {
    fn from(error: PlaceError) -> Self {
        match error {
            PlaceError::NoSuchRank { rank, last } => Self::NoSuchRank { rank: rank.0, last: last.0 },
            PlaceError::JobId(error) => Self::JobId(error),
            other => Self::Place(other),
        }
    }
}

impl RequestError {
    /// Class of a program that cannot be executed; `None` for every other reason.
    pub fn program_failure(&self) -> Option<ProgramFailure> {
        match self {
            Self::Program(error) => Some(error.failure()),
            Self::Copy(error) => error.program().map(ProgramError::failure),
            _ => None,
        }
    }
}

/// Remedy for a program that is not found. A line in quotes is one word, and a command of `lattice` must precede `launch`.
fn tip(error: &ProgramError) -> String {
    let name = match error {
        ProgramError::NotFound { name, .. } => name,
        ProgramError::NotExecutable { path } => return format!("\ntry: chmod +x {}", path.display()),
        ProgramError::IsDirectory { path } => return format!("\ntry: the path of a program in {}", path.display()),
        ProgramError::UnknownFormat { path, .. } => return format!("\ntry: {}", with_interpreter(path)),
        _ => return String::new(),
    };
    let typed = name.to_string_lossy();
    match typed.as_ref() {
        variable if is_assignment(variable) => {
            format!(
                "\ntry: env {variable} PROGRAM, as a shell sets a variable for one program; or --env {variable} before it"
            )
        }
        line if line.contains(' ') => format!("\ntry: {line}, without quotes around it; or sh -c '{line}'"),
        command if is_command(command) => format!("\ntry: lattice {command}"),
        path if path.contains('/') => {
            "\ntry: its whole path; one that does not begin with / begins at --chdir, or where you are".to_owned()
        }
        here if Path::new(here).is_file() => format!("\ntry: ./{here}, as a shell wants it, too"),
        _ => {
            "\ntry: its path, such as ./NAME; or PATH with its directory, as --env PATH=... or in this shell".to_owned()
        }
    }
}

/// True for `NAME=VALUE`, which a shell treats as a variable in the position of a program.
fn is_assignment(word: &str) -> bool {
    let name = word.split_once('=').map_or("", |(name, _)| name);
    let is_of_name =
        |(index, byte): (usize, u8)| byte == b'_' || byte.is_ascii_alphabetic() || index > 0 && byte.is_ascii_digit();
    !name.is_empty() && name.bytes().enumerate().all(is_of_name)
}

/// Command line for a file that the system cannot execute: its interpreter by the file name extension, then the file.
fn with_interpreter(path: &Path) -> String {
    let interpreter = match path.extension().and_then(OsStr::to_str) {
        Some("py") => "python3",
        Some("pl") => "perl",
        Some("jl") => "julia",
        Some("R" | "r") => "Rscript",
        _ => return format!("sh {}, if it is a script; its first line would be #!/bin/sh", path.display()),
    };
    format!("{interpreter} {}; or #!/usr/bin/env {interpreter} as its first line", path.display())
}

/// Remedy for a hostfile that cannot be read.
fn without_file(error: &HostfileError) -> &'static str {
    match error {
        HostfileError::Read { .. } => {
            "\ntry: the path of another file; or --host NODE:SLOTS,NODE:SLOTS, which needs none"
        }
        HostfileError::Empty { .. } => {
            "\ntry: a line with NODE slots=N for each node in it; or --host NODE:SLOTS,NODE:SLOTS, which needs no file"
        }
        _ => "",
    }
}

/// Additional remedy for a missing directory.
fn or_make(path: &Path, error: &io::Error) -> String {
    let is_missing = error.kind() == io::ErrorKind::NotFound;
    if is_missing { format!(", or mkdir -p {}", path.display()) } else { String::new() }
}
