//! Flags become one checked [`LaunchRequest`], once. Nothing downstream parses or checks again, and everything that can be
//! known to be wrong is refused here, before anything is started or any file is touched.

mod error;

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, IsTerminal, Read};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use lattice_agent::event::Stream;
use lattice_agent::spec::{AppSpec, Entrance, Patience, PmiFamily, PmiSpec, SessionSpec, StdinTarget};
use lattice_agent::template::{Place, Template};
use nix::unistd::{AccessFlags, eaccess, gethostname};
use pmi_core::ids::{JobId, LocalRank, NodeIndex, Rank};
use pmi_core::job::{App, Job};
use rank_spawner::{CpuSet, Program, plan_here};

pub use self::error::RequestError;
use crate::args::{EnvSetting, LaunchArgs, Pmi, PmiArgs, ProgramArgs, Stdin, StreamArgs, TimeArgs};
use crate::limits::Limits;

/// A launch that can be started: what its session must know, and what the launcher does with the ranks' output.
#[derive(Clone, Debug)]
pub struct LaunchRequest {
    /// What the session runs.
    pub spec: SessionSpec,
    /// Each rank's place in the launch, in rank order.
    pub seats: Vec<Seat>,
    /// Where the ranks' output goes.
    pub output: OutputRequest,
    /// The file that every PMI message is written to.
    pub pmi_trace: Option<PathBuf>,
    /// Print the seats before the start.
    pub show_map: bool,
    /// Print the seats and start nothing.
    pub dry_run: bool,
}

/// Where one rank runs, and what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seat {
    /// Which rank.
    pub rank: Rank,
    /// Its node.
    pub node: NodeIndex,
    /// Its position on that node.
    pub local_rank: LocalRank,
    /// The CPUs it is bound to; `None` leaves it unbound.
    pub cpus: Option<CpuSet>,
    /// The index of its program in the spec.
    pub app: usize,
    /// The file that is executed.
    pub program: PathBuf,
}

/// Where the ranks' output goes, and how it looks.
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

    fn variable(&self, name: &OsStr) -> Option<&OsStr> {
        self.environment.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_os_str())
    }
}

impl LaunchRequest {
    /// Checks `args` against `machine`, and gives the launch a new id.
    ///
    /// # Errors
    /// See the variants of [`RequestError`]; each says what was asked for and what is possible.
    pub fn new(args: &LaunchArgs, machine: &Machine) -> Result<Self, RequestError> {
        refuse_idle_flags(args)?;
        let programs: Vec<&ProgramArgs> = std::iter::once(&args.first).chain(&args.more).collect();
        let counts = rank_counts(&programs, args.placement.tasks_per_node)?;
        let size = counts.iter().sum();
        // Before anything is made of that many parts.
        machine.limits.check(size, 0)?;
        let checked = programs.iter().map(|program| check_program(program, machine)).collect::<Result<Vec<_>, _>>()?;
        let (apps, paths): (Vec<AppSpec>, Vec<PathBuf>) = checked.into_iter().unzip();
        let launch_id = random_id().map_err(RequestError::Random)?;
        let job = Job {
            apps: (0..).zip(&counts).map(|(appnum, &ranks)| App { ranks, appnum }).collect(),
            universe_size: args.pmi.universe_size,
            ..Job::on_one_node(job_id(&launch_id)?, size)
        };
        let seats = seats(args, &job, &paths)?;
        let spec = SessionSpec {
            stdin: stdin_target(&args.streams.stdin, &seats, &launch_id, &machine.directory)?,
            launch_id,
            allocation_id: None,
            node: NodeIndex(0),
            hosts: vec![machine.host.clone()],
            address: None,
            secret: secret().map_err(RequestError::Random)?,
            job,
            apps,
            environment: machine.environment.clone(),
            pmi: pmi_spec(&args.pmi),
            slurm_environment: args.pmi.slurm_env,
            cpu_bind: args.placement.cpu_bind.clone(),
            patience: patience(&args.time, machine.watched && !args.streams.json)?,
        };
        let request = Self {
            spec,
            seats,
            output: output_request(&args.streams),
            pmi_trace: args.pmi.pmi_trace.clone(),
            show_map: args.placement.show_map,
            dry_run: args.placement.dry_run,
        };
        machine.limits.check(size, request.output_files().len())?;
        Ok(request)
    }

    /// The file that a rank's stream is written to; `None` for our own stream.
    pub fn output_file(&self, seat: &Seat, stream: Stream) -> Option<PathBuf> {
        let template = match stream {
            Stream::Stdout => self.output.stdout.as_ref(),
            Stream::Stderr => self.output.stderr.as_ref(),
        };
        template.map(|template| seat.fill(template, &self.spec.launch_id))
    }

    fn output_files(&self) -> HashSet<PathBuf> {
        let streams = [Stream::Stdout, Stream::Stderr];
        self.seats.iter().flat_map(|seat| streams.map(|stream| self.output_file(seat, stream))).flatten().collect()
    }
}

/// Refuses flags that would do nothing beside the others.
fn refuse_idle_flags(args: &LaunchArgs) -> Result<(), RequestError> {
    let PmiArgs { pmi, pmi_port, pmi_group_barriers, universe_size, pmi_trace, .. } = &args.pmi;
    let needs_pmi = [
        ("--pmi-trace", pmi_trace.is_some()),
        ("--pmi-port", *pmi_port),
        ("--pmi-group-barriers", *pmi_group_barriers),
        ("--universe-size", universe_size.is_some()),
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

/// How many ranks each program gets.
fn rank_counts(programs: &[&ProgramArgs], tasks_per_node: Option<u32>) -> Result<Vec<u32>, RequestError> {
    let counts: Vec<u32> = match (programs, tasks_per_node) {
        ([only], Some(per_node)) => vec![only.ranks.unwrap_or(per_node)],
        _ => programs.iter().map(|program| program.ranks.unwrap_or(1)).collect(),
    };
    let size: u64 = counts.iter().copied().map(u64::from).sum();
    match tasks_per_node {
        Some(per_node) if size > u64::from(per_node) => Err(RequestError::NodeTooSmall { ranks: size, per_node }),
        _ if size > i32::MAX as u64 => Err(RequestError::BeyondMpi { ranks: size }),
        _ => Ok(counts),
    }
}

/// Everything about one program that can be wrong on this machine; returns the file that it means.
fn check_program(program: &ProgramArgs, machine: &Machine) -> Result<(AppSpec, PathBuf), RequestError> {
    let directory = match &program.chdir {
        Some(directory) => machine.directory.join(directory),
        None => machine.directory.clone(),
    };
    check_directory(&directory)?;
    let set = program.env.iter().map(|setting| variable(setting, machine)).collect::<Result<Vec<_>, _>>()?;
    let mut command = program.command.iter();
    let name = command.next().ok_or(RequestError::NoProgram)?;
    let app = AppSpec {
        program: name.clone(),
        args: command.cloned().collect(),
        set,
        remove: program.env_remove.clone(),
        directory,
    };
    let resolved = Program::resolve(name, path_variable(&app, machine), &app.directory)?;
    Ok((app, resolved.path().to_owned()))
}

fn check_directory(directory: &Path) -> Result<(), RequestError> {
    let refused = |source| RequestError::Directory { path: directory.to_owned(), source };
    if !std::fs::metadata(directory).map_err(refused)?.is_dir() {
        return Err(refused(io::ErrorKind::NotADirectory.into()));
    }
    eaccess(directory, AccessFlags::X_OK).map_err(|errno| refused(errno.into()))
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

/// `PATH` as the ranks of `app` will see it.
fn path_variable<'a>(app: &'a AppSpec, machine: &'a Machine) -> Option<&'a OsStr> {
    let set = app.set.iter().rev().find(|(name, _)| name == "PATH").map(|(_, value)| value.as_os_str());
    let removed = app.removes("PATH");
    set.or_else(|| if removed { None } else { machine.variable(OsStr::new("PATH")) })
}

fn job_id(launch_id: &str) -> Result<JobId, RequestError> {
    JobId::new(&format!("kvs_{launch_id}_0")).map_err(RequestError::JobId)
}

fn seats(args: &LaunchArgs, job: &Job, programs: &[PathBuf]) -> Result<Vec<Seat>, RequestError> {
    let node = NodeIndex(0);
    let ranks = job.placement.ranks_on(node);
    let cpus = plan_here(&args.placement.cpu_bind, job.size())?;
    let apps = (0..).zip(&job.apps).flat_map(|(index, app)| std::iter::repeat_n(index, app.ranks as usize));
    let local_ranks = (0..).map(LocalRank);
    let seats = ranks.into_iter().zip(local_ranks).zip(cpus).zip(apps);
    Ok(seats
        .map(|(((rank, local_rank), cpus), app)| Seat {
            rank,
            node,
            local_rank,
            cpus,
            app,
            program: programs[app].clone(),
        })
        .collect())
}

/// Where input comes from; a file is checked to be readable under the name that each rank will open it by.
fn stdin_target(stdin: &Stdin, seats: &[Seat], launch_id: &str, directory: &Path) -> Result<StdinTarget, RequestError> {
    Ok(match stdin {
        Stdin::None => StdinTarget::None,
        Stdin::All => StdinTarget::All,
        &Stdin::Rank(rank) if rank as usize >= seats.len() => {
            return Err(RequestError::NoSuchRank { rank, last: seats.len() as u32 - 1 });
        }
        &Stdin::Rank(rank) => StdinTarget::Rank(Rank(rank)),
        Stdin::File(name, template) => {
            let names: HashSet<PathBuf> = seats.iter().map(|seat| seat.fill(template, launch_id)).collect();
            for name in names {
                check_input_file(&directory.join(name))?;
            }
            StdinTarget::File(absolute_template(directory, name))
        }
    })
}

fn check_input_file(path: &Path) -> Result<(), RequestError> {
    let refused = |source| RequestError::InputFile { path: path.to_owned(), source };
    if std::fs::metadata(path).map_err(refused)?.is_dir() {
        return Err(refused(io::ErrorKind::IsADirectory.into()));
    }
    eaccess(path, AccessFlags::R_OK).map_err(|errno| refused(errno.into()))
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
        stuck: positive("--stuck-after", args.stuck_after)?.unwrap_or(default.stuck),
        after_failure: args.kill_wait.unwrap_or(default.after_failure),
        after_interrupt: args.kill_wait.unwrap_or(default.after_interrupt),
        prompt: watched.then_some(PROMPT),
        ..default
    })
}

fn output_request(args: &StreamArgs) -> OutputRequest {
    OutputRequest {
        stdout: args.output.clone(),
        stderr: args.error.clone(),
        append: args.append,
        label: args.label,
        timestamp: args.timestamp,
        json: args.json,
    }
}

impl Seat {
    /// The file that a template names for this rank.
    fn fill(&self, template: &Template, launch_id: &str) -> PathBuf {
        template.expand(Place { rank: self.rank, local_rank: self.local_rank, node: self.node, launch_id })
    }
}

/// Ten characters that no other launch has: 50 random bits, in digits that cannot be mistaken for each other.
pub(crate) fn random_id() -> io::Result<String> {
    const DIGITS: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";
    let mut random = [0; 10];
    File::open("/dev/urandom")?.read_exact(&mut random)?;
    Ok(random.iter().map(|byte| char::from(DIGITS[usize::from(byte % 32)])).collect())
}

/// 128 random bits in hexadecimal.
fn secret() -> io::Result<String> {
    let mut random = [0; 16];
    File::open("/dev/urandom")?.read_exact(&mut random)?;
    Ok(random.iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
pub(crate) mod tests;
