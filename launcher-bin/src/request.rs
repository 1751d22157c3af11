//! Flags become one checked [`LaunchRequest`], once. Nothing downstream parses or checks again.
//!
//! It holds for a launch on this machine and for one on a cluster alike. What is wrong anywhere is refused here; what only this
//! machine can know to be wrong, where the ranks get their places ([`crate::placed`]): both before anything is started.

mod error;

use std::ffi::{OsStr, OsString};
use std::io::{self, IsTerminal};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use lattice_session::spec::{AppSpec, Entrance, Patience, PmiFamily, PmiSpec, SessionSpec, StdinTarget};
use lattice_session::template::Template;
use nix::unistd::gethostname;
use pmi_core::ids::{NodeIndex, Rank};
use pmi_core::job::Job;
use rank_spawner::CpuBind;

pub use self::error::RequestError;
use crate::args::{
    Distribution, EnvSetting, LaunchArgs, PlacementArgs, Pmi, PmiArgs, ProgramArgs, Stdin, StreamArgs, TimeArgs,
};
use crate::hostfile::{self, HostSlots};
use crate::limits::Limits;

/// A launch that makes sense, and that no rank has a place in yet.
#[derive(Clone, Debug)]
pub struct LaunchRequest {
    /// The programs, in the order of their ranks.
    pub programs: Vec<ProgramRequest>,
    /// Which nodes they want.
    pub placement: PlacementRequest,
    /// The environment that every rank starts from.
    pub environment: Vec<(OsString, OsString)>,
    /// Which PMI the ranks are served, and how they reach it.
    pub pmi: PmiSpec,
    /// What MPI_UNIVERSE_SIZE shall be.
    pub universe_size: Option<u32>,
    /// Also set the `SLURM_*` variables.
    pub slurm_environment: bool,
    /// Which CPUs each rank may use.
    pub cpu_bind: CpuBind,
    /// Which ranks read standard input.
    pub stdin: Input,
    /// How long the session waits for what.
    pub patience: Patience,
    /// Where the ranks' output goes, and what is shown of the launch.
    pub output: OutputRequest,
    /// Print the seats and start nothing.
    pub dry_run: bool,
    /// Nobody follows the launch.
    pub detach: bool,
}

/// One program of a launch.
#[derive(Clone, Debug)]
pub struct ProgramRequest {
    /// The program; its directory is absolute.
    pub app: AppSpec,
    /// How many ranks it has; `None`, for an only program, for as many as the placement gives it.
    pub ranks: Option<u32>,
}

/// Which nodes a launch wants, and how its ranks are dealt out among them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PlacementRequest {
    /// How many nodes; `None` for as many as are needed.
    pub nodes: Option<u32>,
    /// The most ranks of a node.
    pub tasks_per_node: Option<u32>,
    /// A hostlist of the nodes to use, in this order.
    pub only: Option<String>,
    /// A hostlist of nodes not to use.
    pub except: Option<String>,
    /// The lines of a hostfile; empty without one.
    pub hosts: Vec<HostSlots>,
    /// How the ranks are dealt out; `None` for block, or slot after slot of a hostfile.
    pub distribution: Option<Distribution>,
}

/// Where the ranks' standard input comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// From nowhere: it is empty.
    None,
    /// One rank reads ours.
    Rank(Rank),
    /// Every rank reads a copy of ours.
    All,
    /// Each rank opens a file by itself.
    File {
        /// Its absolute name, with escapes.
        name: PathBuf,
        /// What names it from our directory.
        template: Template,
    },
}

/// Where the ranks' output goes, how it looks, and what else is shown of a launch.
#[derive(Clone, Debug, Default)]
pub struct OutputRequest {
    /// Files for standard output; `None` for our own.
    pub stdout: Option<Template>,
    /// Files for standard error; `None` for our own.
    pub stderr: Option<Template>,
    /// Keep what is in those files.
    pub append: bool,
    /// A rank's number before each line.
    pub label: bool,
    /// The time before each line.
    pub timestamp: bool,
    /// Events as JSON instead of output as it is.
    pub json: bool,
    /// The file that every PMI message is written to.
    pub pmi_trace: Option<PathBuf>,
    /// Print where each rank runs.
    pub show_map: bool,
}

/// What a request is checked against.
#[derive(Clone, Debug)]
pub struct Machine {
    /// The name of this node.
    pub host: String,
    /// Our working directory; absolute.
    pub directory: PathBuf,
    /// Our environment.
    pub environment: Vec<(OsString, OsString)>,
    /// What it can hold.
    pub limits: Limits,
    /// Whether somebody sits before our standard output.
    pub watched: bool,
}

impl Machine {
    /// This machine, as this process sees it.
    ///
    /// # Errors
    /// Fails if the host name or the working directory cannot be told.
    pub fn this() -> Result<Self, RequestError> {
        let host = gethostname().map_err(RequestError::HostName)?;
        Ok(Self {
            host: host.to_string_lossy().into_owned(),
            directory: std::env::current_dir().map_err(RequestError::WorkingDirectory)?,
            environment: std::env::vars_os().collect(),
            limits: Limits::of_this_process(),
            watched: io::stdout().is_terminal(),
        })
    }

    pub(crate) fn variable(&self, name: &OsStr) -> Option<&OsStr> {
        self.environment.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_os_str())
    }
}

impl LaunchRequest {
    /// Checks `args`, as far as that can be done without knowing the nodes.
    ///
    /// # Errors
    /// See the variants of [`RequestError`]; each says what was asked for and what is possible.
    pub fn new(args: &LaunchArgs, machine: &Machine) -> Result<Self, RequestError> {
        refuse_idle_flags(args)?;
        let placement = placement(&args.placement)?;
        let mut programs = std::iter::once(&args.first)
            .chain(&args.more)
            .map(|program| program_request(program, machine))
            .collect::<Result<Vec<_>, _>>()?;
        count_ranks(&mut programs)?;
        let request = Self {
            stdin: input(&args.streams.stdin, &machine.directory, args.cluster.detach),
            programs,
            placement,
            environment: machine.environment.clone(),
            pmi: pmi_spec(&args.pmi),
            universe_size: args.pmi.universe_size,
            slurm_environment: args.pmi.slurm_env,
            cpu_bind: args.placement.cpu_bind.clone(),
            patience: patience(&args.time, machine.watched && !args.streams.json)?,
            output: output_request(args),
            dry_run: args.placement.dry_run,
            detach: args.cluster.detach,
        };
        if let (&Input::Rank(rank), Some(size)) = (&request.stdin, request.size()) {
            check_rank(rank, size)?;
        }
        Ok(request)
    }

    /// How many ranks there are; `None` if that depends on the nodes.
    pub fn size(&self) -> Option<u32> {
        self.programs.iter().map(|program| program.ranks).sum()
    }

    /// What a session of it runs on the first of `hosts`, with what is not for the request to say.
    pub(crate) fn into_session(self, launch_id: String, job: Job, hosts: Vec<String>, secret: String) -> SessionSpec {
        SessionSpec {
            launch_id,
            allocation_id: None,
            job,
            node: NodeIndex(0),
            hosts,
            address: None,
            secret,
            stdin: self.stdin.target(),
            apps: self.programs.into_iter().map(|program| program.app).collect(),
            environment: self.environment,
            pmi: self.pmi,
            slurm_environment: self.slurm_environment,
            cpu_bind: self.cpu_bind,
            patience: self.patience,
        }
    }
}

impl Input {
    /// The same for a session.
    pub fn target(&self) -> StdinTarget {
        match self {
            Self::None => StdinTarget::None,
            &Self::Rank(rank) => StdinTarget::Rank(rank),
            Self::All => StdinTarget::All,
            Self::File { name, .. } => StdinTarget::File(name.clone()),
        }
    }
}

/// Refuses a rank that reads standard input, and that a job of `size` ranks does not have.
pub(crate) fn check_rank(rank: Rank, size: u32) -> Result<(), RequestError> {
    if rank.0 < size { Ok(()) } else { Err(RequestError::NoSuchRank { rank: rank.0, last: size.saturating_sub(1) }) }
}

/// Refuses flags that would do nothing beside the others.
fn refuse_idle_flags(args: &LaunchArgs) -> Result<(), RequestError> {
    let PmiArgs { pmi, pmi_port, pmi_group_barriers, universe_size, pmi_trace, .. } = &args.pmi;
    let needs_pmi = [
        ("--pmi-trace", pmi_trace.is_some()),
        ("--pmi-port", *pmi_port),
        ("--pmi-group-barriers", *pmi_group_barriers),
        ("--universe-size", universe_size.is_some()),
        ("--fence-timeout", args.time.fence_timeout.is_some()),
    ];
    match needs_pmi.into_iter().find(|&(_, given)| given && *pmi == Pmi::None) {
        Some((flag, _)) => return Err(RequestError::NoPmi { flag }),
        None if *pmi == Pmi::Pmi2 && *pmi_group_barriers => return Err(RequestError::NoPmi1),
        None => {}
    }
    let StreamArgs { output, error, append, .. } = &args.streams;
    if *append && output.is_none() && error.is_none() {
        return Err(RequestError::NothingToAppendTo);
    }
    Ok(())
}

fn placement(args: &PlacementArgs) -> Result<PlacementRequest, RequestError> {
    Ok(PlacementRequest {
        nodes: args.nodes,
        tasks_per_node: args.tasks_per_node,
        only: args.nodelist.clone(),
        except: args.exclude.clone(),
        hosts: args.hostfile.as_deref().map(hostfile::read).transpose()?.unwrap_or_default(),
        distribution: args.distribution,
    })
}

/// One of several programs has a rank if nobody says how many, and their sum can be counted.
fn count_ranks(programs: &mut [ProgramRequest]) -> Result<(), RequestError> {
    if programs.len() > 1 {
        programs.iter_mut().for_each(|program| program.ranks = program.ranks.or(Some(1)));
    }
    let ranks = programs.iter().filter_map(|program| program.ranks).map(u64::from).sum();
    if ranks > i32::MAX as u64 { Err(RequestError::BeyondMpi { ranks }) } else { Ok(()) }
}

/// One program; its ranks are those of `-n`.
fn program_request(program: &ProgramArgs, machine: &Machine) -> Result<ProgramRequest, RequestError> {
    let set = program.env.iter().map(|setting| variable(setting, machine)).collect::<Result<Vec<_>, _>>()?;
    let mut command = program.command.iter();
    let app = AppSpec {
        program: command.next().ok_or(RequestError::NoProgram)?.clone(),
        args: command.cloned().collect(),
        set,
        remove: program.env_remove.clone(),
        directory: program
            .chdir
            .as_ref()
            .map_or_else(|| machine.directory.clone(), |path| machine.directory.join(path)),
    };
    Ok(ProgramRequest { app, ranks: program.ranks })
}

fn variable(setting: &EnvSetting, machine: &Machine) -> Result<(OsString, OsString), RequestError> {
    let value = match &setting.value {
        Some(value) => value.as_os_str(),
        None => machine
            .variable(&setting.name)
            .ok_or_else(|| RequestError::NoSuchVariable { name: setting.name.to_string_lossy().into_owned() })?,
    };
    Ok((setting.name.clone(), value.to_owned()))
}

/// Nobody is there to give input to a detached launch, so its ranks shall not wait for any.
fn input(stdin: &Stdin, directory: &Path, detached: bool) -> Input {
    match stdin {
        Stdin::File(name, template) => {
            Input::File { name: absolute_template(directory, name), template: template.clone() }
        }
        Stdin::Rank(rank) if !detached => Input::Rank(Rank(*rank)),
        Stdin::All if !detached => Input::All,
        Stdin::None | Stdin::Rank(_) | Stdin::All => Input::None,
    }
}

/// `name` under `directory`, whose percent signs are no escapes.
fn absolute_template(directory: &Path, name: &Path) -> PathBuf {
    let mut escaped = Vec::new();
    for &byte in directory.as_os_str().as_bytes() {
        escaped.extend(std::iter::repeat_n(byte, if byte == b'%' { 2 } else { 1 }));
    }
    PathBuf::from(OsString::from_vec(escaped)).join(name)
}

fn pmi_spec(args: &PmiArgs) -> PmiSpec {
    PmiSpec {
        family: match args.pmi {
            Pmi::Auto => PmiFamily::Auto,
            Pmi::Pmi1 => PmiFamily::Pmi1,
            Pmi::Pmi2 => PmiFamily::Pmi2,
            Pmi::Pmix => PmiFamily::Pmix,
            Pmi::None => PmiFamily::None,
        },
        entrance: if args.pmi_port { Entrance::Port } else { Entrance::Socket },
        group_barriers: args.pmi_group_barriers,
    }
}

/// How long a rank may pause in a line before somebody who watches gets to see its beginning.
const PROMPT: Duration = Duration::from_millis(100);

fn patience(args: &TimeArgs, watched: bool) -> Result<Patience, RequestError> {
    let positive = |flag, time: Option<Duration>| match time {
        Some(Duration::ZERO) => Err(RequestError::NoTime { flag }),
        time => Ok(time),
    };
    let default = Patience::default();
    Ok(Patience {
        timeout: positive("--timeout", args.timeout)?,
        fence: positive("--fence-timeout", args.fence_timeout)?,
        stuck: positive("--stuck-after", args.stuck_after)?.unwrap_or(default.stuck),
        after_failure: args.kill_wait.unwrap_or(default.after_failure),
        after_interrupt: args.kill_wait.unwrap_or(default.after_interrupt),
        prompt: watched.then_some(PROMPT),
        ..default
    })
}

fn output_request(args: &LaunchArgs) -> OutputRequest {
    OutputRequest {
        stdout: args.streams.output.clone(),
        stderr: args.streams.error.clone(),
        append: args.streams.append,
        label: args.streams.label,
        timestamp: args.streams.timestamp,
        json: args.streams.json,
        pmi_trace: args.pmi.pmi_trace.clone(),
        show_map: args.placement.show_map,
    }
}

#[cfg(test)]
mod tests;
