//! A launch whose ranks have their places: on this machine, or where the API server put them.
//!
//! On this machine all is checked that can be known before the first rank starts: programs, directories, files, CPUs, limits. On
//! a cluster only the nodes know, so that they check.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};

use lattice_session::event::Stream;
use lattice_session::random;
use lattice_session::spec::{AppSpec, SessionSpec};
use lattice_session::template::{Place, Template};
use nix::unistd::{AccessFlags, eaccess};
use pmi_core::ids::{JobId, LocalRank, NodeIndex, Rank};
use pmi_core::job::{App, Job};
use rank_spawner::{CpuSet, Program, plan_here};

use crate::request::{Input, LaunchRequest, Machine, OutputRequest, RequestError, check_rank};

/// A launch that can be started, or that has been: what its session knows, and what the launcher does with its output.
#[derive(Clone, Debug)]
pub struct PlacedLaunch {
    /// What the session of this node runs; on a cluster, that of node 0.
    pub spec: SessionSpec,
    /// Each rank's place in the launch, in rank order.
    pub seats: Vec<Seat>,
    /// Where the ranks' output goes, and what is shown of the launch.
    pub output: OutputRequest,
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
    /// The CPUs it is bound to; `None` where it is not bound, or where its node decides.
    pub cpus: Option<CpuSet>,
    /// The index of its program in the spec.
    pub app: usize,
    /// The file that is executed; where only its node knows it, the program as it was given.
    pub program: PathBuf,
}

impl PlacedLaunch {
    /// Places all ranks on `machine`, which is this one, checks that they can run there, and gives the launch a new id.
    ///
    /// # Errors
    /// See the variants of [`RequestError`].
    pub fn here(request: LaunchRequest, machine: &Machine) -> Result<Self, RequestError> {
        refuse_flags_for_nodes(&request)?;
        let counts = counts(&request)?;
        let size = counts.iter().sum();
        // Before anything is made of that many parts.
        machine.limits.check(size, 0)?;
        let paths: Vec<PathBuf> =
            request.programs.iter().map(|program| resolve(&program.app, machine)).collect::<Result<_, _>>()?;
        let launch_id = random::id().map_err(RequestError::Random)?;
        let job = Job {
            apps: (0..).zip(&counts).map(|(appnum, &ranks)| App { ranks, appnum }).collect(),
            universe_size: request.universe_size,
            ..Job::on_one_node(job_id(&launch_id)?, size)
        };
        let mut seats = seats(&job, &paths);
        let cpus = plan_here(&request.cpu_bind, size)?;
        seats.iter_mut().zip(cpus).for_each(|(seat, cpus)| seat.cpus = cpus);
        check_input(&request.stdin, &seats, &launch_id, machine)?;
        let secret = secret().map_err(RequestError::Random)?;
        let output = request.output.clone();
        let spec = request.into_session(launch_id, job, vec![machine.host.clone()], secret);
        let placed = Self { spec, seats, output };
        machine.limits.check(size, placed.output_files().len())?;
        Ok(placed)
    }

    /// A launch as the API server has placed it; `spec` is that of any of its nodes.
    pub(crate) fn elsewhere(spec: SessionSpec, output: OutputRequest) -> Self {
        let programs: Vec<PathBuf> = spec.apps.iter().map(|app| PathBuf::from(&app.program)).collect();
        Self { seats: seats(&spec.job, &programs), spec, output }
    }

    /// The file that a rank's stream is written to; `None` for our own stream.
    pub fn output_file(&self, seat: &Seat, stream: Stream) -> Option<PathBuf> {
        let template = match stream {
            Stream::Stdout => self.output.stdout.as_ref(),
            Stream::Stderr => self.output.stderr.as_ref(),
        };
        template.map(|template| seat.fill(template, self.spec.host(seat.node), &self.spec.launch_id))
    }

    fn output_files(&self) -> HashSet<PathBuf> {
        let streams = [Stream::Stdout, Stream::Stderr];
        self.seats.iter().flat_map(|seat| streams.map(|stream| self.output_file(seat, stream))).flatten().collect()
    }
}

impl Seat {
    /// The file that a template names for this rank.
    fn fill(&self, template: &Template, host: &str, launch_id: &str) -> PathBuf {
        template.expand(Place { rank: self.rank, local_rank: self.local_rank, node: self.node, host, launch_id })
    }
}

/// Refuses what makes sense only where there are nodes to choose from.
fn refuse_flags_for_nodes(request: &LaunchRequest) -> Result<(), RequestError> {
    let placement = &request.placement;
    let flags = [
        ("--nodes", placement.nodes.is_some_and(|nodes| nodes > 1)),
        ("--nodelist", placement.only.is_some()),
        ("--exclude", placement.except.is_some()),
        ("--hostfile", !placement.hosts.is_empty()),
        ("--detach", request.detach),
    ];
    match flags.into_iter().find(|&(_, given)| given) {
        Some((flag, _)) => Err(RequestError::NoAllocation { flag }),
        None => Ok(()),
    }
}

/// How many ranks each program has on one node.
fn counts(request: &LaunchRequest) -> Result<Vec<u32>, RequestError> {
    let per_node = request.placement.tasks_per_node;
    let counts: Vec<u32> = request.programs.iter().map(|program| program.ranks.or(per_node).unwrap_or(1)).collect();
    let ranks: u64 = counts.iter().copied().map(u64::from).sum();
    match per_node {
        Some(per_node) if ranks > u64::from(per_node) => Err(RequestError::NodeTooSmall { ranks, per_node }),
        _ => Ok(counts),
    }
}

/// The file that a program means here; everything about it that can be wrong on this machine is refused.
fn resolve(app: &AppSpec, machine: &Machine) -> Result<PathBuf, RequestError> {
    check_directory(&app.directory)?;
    Ok(Program::resolve(&app.program, path_variable(app, machine), &app.directory)?.path().to_owned())
}

fn check_directory(directory: &Path) -> Result<(), RequestError> {
    let refused = |source| RequestError::Directory { path: directory.to_owned(), source };
    if !std::fs::metadata(directory).map_err(refused)?.is_dir() {
        return Err(refused(io::ErrorKind::NotADirectory.into()));
    }
    eaccess(directory, AccessFlags::X_OK).map_err(|errno| refused(errno.into()))
}

/// `PATH` as the ranks of `app` will see it.
fn path_variable<'a>(app: &'a AppSpec, machine: &'a Machine) -> Option<&'a OsStr> {
    let set = app.set.iter().rev().find(|(name, _)| name == "PATH").map(|(_, value)| value.as_os_str());
    let removed = app.removes("PATH");
    set.or_else(|| if removed { None } else { machine.variable(OsStr::new("PATH")) })
}

/// The seats of a job's ranks, which are not bound yet.
fn seats(job: &Job, programs: &[PathBuf]) -> Vec<Seat> {
    let apps = (0..).zip(&job.apps).flat_map(|(index, app)| std::iter::repeat_n(index, app.ranks as usize));
    let mut places: Vec<(Rank, NodeIndex, LocalRank)> = (0..job.placement.nodes())
        .map(NodeIndex)
        .flat_map(|node| {
            job.placement
                .ranks_on(node)
                .into_iter()
                .zip((0..).map(LocalRank))
                .map(move |(rank, local)| (rank, node, local))
        })
        .collect();
    places.sort_unstable();
    let seat = |((rank, node, local_rank), app): (_, usize)| {
        let program = programs.get(app).cloned().unwrap_or_default();
        Seat { rank, node, local_rank, cpus: None, app, program }
    };
    places.into_iter().zip(apps).map(seat).collect()
}

/// A file is checked to be readable under the name that each rank will open it by.
fn check_input(input: &Input, seats: &[Seat], launch_id: &str, machine: &Machine) -> Result<(), RequestError> {
    match input {
        Input::None | Input::All => Ok(()),
        &Input::Rank(rank) => check_rank(rank, seats.len() as u32),
        Input::File { template, .. } => {
            let names: HashSet<PathBuf> =
                seats.iter().map(|seat| seat.fill(template, &machine.host, launch_id)).collect();
            names.iter().try_for_each(|name| check_input_file(&machine.directory.join(name)))
        }
    }
}

fn check_input_file(path: &Path) -> Result<(), RequestError> {
    let refused = |source| RequestError::InputFile { path: path.to_owned(), source };
    if std::fs::metadata(path).map_err(refused)?.is_dir() {
        return Err(refused(io::ErrorKind::IsADirectory.into()));
    }
    eaccess(path, AccessFlags::R_OK).map_err(|errno| refused(errno.into()))
}

fn job_id(launch_id: &str) -> Result<JobId, RequestError> {
    JobId::new(&format!("kvs_{launch_id}_0")).map_err(RequestError::JobId)
}

/// 128 random bits in hexadecimal.
fn secret() -> io::Result<String> {
    Ok(format!("{:032x}", u128::from_be_bytes(random::bytes()?)))
}

#[cfg(test)]
pub(crate) mod tests;
