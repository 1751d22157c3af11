//! A placed launch, with all data that the launcher needs to show it. This machine or the API server has placed it.
//!
//! On this machine, everything is checked that can be known before the first rank starts: programs, directories, files, CPUs, limits. On a
//! cluster, the nodes check this, because only they have the data.

mod binding;
mod objects;
mod pictures;

use std::collections::HashSet;
use std::ffi::OsStr;
use std::io;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use lattice_inventory::ThisNode;
use lattice_session::event::Stream;
use lattice_session::gpus::GpuBind;
use lattice_session::placed::{PlacedLaunch, RankPlace};
use lattice_session::random;
use lattice_session::request::{Assignment, Candidates, LaunchRequest, Ownership, PlacementRequest};
use lattice_session::settings::StdinTarget;
use lattice_session::spec::AppSpec;
use lattice_session::template::{Place, Template};
use nix::unistd::{AccessFlags, eaccess};
use pmi_core::job::Placement;
use rank_spawner::{BindError, BindHereError, CpuBind, CpuSet, MemBind, Program, plan_here, usable_cpus, usable_here};

use self::binding::check_devices;
pub use self::binding::{BindingError, NodeBindError};
pub use self::objects::ObjectsError;
pub(crate) use self::objects::placed_by_objects;
use crate::args::{Filling, PerObject};
use crate::cluster::KnownNode;
use crate::hostfile;
use crate::machine::Machine;
use crate::request::{Action, EXCLUDE, LaunchCommand, OutputRequest, RequestError, placed_in_groups};

/// A placed launch, and its presentation.
#[derive(Clone, Debug)]
pub struct PreparedLaunch {
    /// The launch.
    pub placed: PlacedLaunch,
    /// Its ranks, in order.
    pub ranks: Vec<RankRow>,
    /// Destinations of the ranks' output, and the parts of the launch that are shown.
    pub output: OutputRequest,
    /// Lines of node pictures with bound ranks. They are printed below the map.
    pub pictures: Vec<String>,
}

/// A rank as shown in maps and plans.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankRow {
    /// Its place.
    pub place: RankPlace,
    /// CPUs of the rank; `None` if it is not bound, or if only its node has this information.
    pub cpus: Option<CpuSet>,
    /// True if the rank is known to be unbound.
    pub is_free: bool,
    /// File to execute; the program as given, if only the node can find it.
    pub program: PathBuf,
}

impl PreparedLaunch {
    /// Places all ranks on this machine, checks that they can run on it, and gives the launch a new id.
    ///
    /// # Errors
    /// See the variants of [`RequestError`].
    pub fn on_this_machine(command: LaunchCommand, machine: &Machine) -> Result<Self, RequestError> {
        let LaunchCommand { mut request, per_object, open_hosts, node_groups, output, action, .. } = command;
        let node = ThisNode::default();
        let room = |_: &str| room_of(per_object.unwrap_or(PerObject::SLOTS), &node).map(Some);
        if let Some(hosts) = open_hosts {
            // Several names of this machine do not add cores.
            let hosts = hosts.renamed(|name| machine.is_called(name).then(|| machine.host.clone()));
            hosts.settle(&mut request.placement, room)?;
        }
        if !node_groups.is_empty() {
            placed_in_groups(&mut request.placement, &node_groups, std::slice::from_ref(&machine.host), room)?;
        }
        refuse_flags_for_nodes(&request, machine)?;
        let ranks = rank_counts(&request, per_object, &node)?;
        let size = ranks.iter().sum();
        let cpus = usable_cpus().get() as u32;
        request.placement.check_cpus(&machine.host, size, cpus)?;
        // Before memory for that many ranks is allocated.
        machine.limits.check(size, 0)?;
        let programs: Vec<PathBuf> =
            request.programs.iter().map(|program| resolve(&program.app, machine)).collect::<Result<_, _>>()?;
        let assignment = Assignment { hosts: vec![machine.host.clone()], ranks, placement: Placement::one_node(size) };
        let slots = |placement: &PlacementRequest, _: &Assignment| {
            let room = per_object.and_then(|per_object| room_of(per_object, &node).ok());
            slots_here(placement, room.map_or(cpus, NonZeroU32::get)).max(size)
        };
        let placed = request.place(random::id().map_err(RequestError::Random)?, None, assignment, slots)?;
        let mut ranks = rows(&placed, &programs);
        let cpus = plan_here(&node, &placed.settings.cpu_bind, size)?;
        let settings = &placed.settings;
        // Only these bindings need the inventory.
        if settings.mem_bind != MemBind::None || settings.gpu_bind != GpuBind::None {
            let template = &node.inventory().template;
            check_devices::<RequestError>(settings, template, &node.memory_nodes(), &cpus, &machine.environment)?;
        }
        ranks.iter_mut().zip(cpus).for_each(|(row, cpus)| (row.is_free, row.cpus) = (cpus.is_none(), cpus));
        let mut prepared = Self { placed, ranks, output, pictures: Vec::new() };
        if (action == Action::Plan || prepared.output.show_map) && prepared.ranks.iter().any(|row| row.cpus.is_some()) {
            let here =
                KnownNode { template: Arc::new(node.inventory().template.clone()), usable: usable_here(&node)?.cpus() };
            prepared.draw(|_| Some(here.clone()));
        }
        prepared.check_input()?;
        machine.limits.check(size, prepared.output_files().len())?;
        Ok(prepared)
    }

    /// Prepares a launch that the API server has placed.
    pub(crate) fn on_cluster(placed: PlacedLaunch, output: OutputRequest) -> Self {
        let programs: Vec<PathBuf> = placed.apps.iter().map(|app| PathBuf::from(&app.program)).collect();
        Self { ranks: rows(&placed, &programs), placed, output, pictures: Vec::new() }
    }

    /// File for a stream of a rank; `None` for the launcher's own stream.
    pub fn output_file(&self, row: &RankRow, stream: Stream) -> Option<PathBuf> {
        self.template(stream).map(|template| self.fill(template, row))
    }

    /// True if the directory of a stream's files has fields in its name. The user cannot create such directories in advance.
    pub(crate) fn makes_directory(&self, stream: Stream) -> bool {
        self.template(stream).is_some_and(Template::has_field_in_directory)
    }

    fn template(&self, stream: Stream) -> Option<&Template> {
        match stream {
            Stream::Stdout => self.output.stdout.as_ref(),
            Stream::Stderr => self.output.stderr.as_ref(),
        }
    }

    fn output_files(&self) -> HashSet<PathBuf> {
        let streams = [Stream::Stdout, Stream::Stderr];
        self.ranks.iter().flat_map(|row| streams.map(|stream| self.output_file(row, stream))).flatten().collect()
    }

    /// File name of a template for a rank.
    fn fill(&self, template: &Template, row: &RankRow) -> PathBuf {
        let RankPlace { rank, node, local_rank, .. } = row.place;
        let host = self.placed.host(node);
        let ranks = self.placed.job.size();
        template.expand(Place { rank, ranks, local_rank, node, host, launch_id: &self.placed.launch_id })
    }

    /// Refuses files for standard input that are not readable by the name that each rank opens.
    fn check_input(&self) -> Result<(), RequestError> {
        match &self.placed.settings.stdin {
            StdinTarget::None | StdinTarget::Rank(_) | StdinTarget::All | StdinTarget::Terminal(_) => Ok(()),
            StdinTarget::File(template) => {
                let names: HashSet<PathBuf> = self.ranks.iter().map(|row| self.fill(template, row)).collect();
                names.iter().try_for_each(|name| check_input_file(name))
            }
        }
    }
}

/// Refuses flags that need a choice of nodes, and nodes that are other machines.
fn refuse_flags_for_nodes(request: &LaunchRequest, machine: &Machine) -> Result<(), RequestError> {
    let placement = &request.placement;
    let needs_nodes = [
        ("--nodes", placement.nodes.is_some_and(|nodes| nodes > NonZeroU32::MIN)),
        (EXCLUDE, !placement.except.is_empty()),
        ("--relative", placement.relative > 0),
        ("--detach", request.ownership == Ownership::Detached),
    ];
    if let Some((flag, _)) = needs_nodes.into_iter().find(|&(_, given)| given) {
        return Err(RequestError::NoAllocation { flag });
    }
    let (flag, nodes): (_, Vec<&String>) = match &placement.candidates {
        Candidates::All => return Ok(()),
        Candidates::Listed(nodes) => ("--nodelist (mpiexec's -hosts)", nodes.iter().collect()),
        Candidates::Hostfile(hosts) => (HOSTS, hosts.iter().map(|host| &host.node).collect()),
    };
    match nodes.into_iter().find(|node| !machine.is_called(node)) {
        Some(node) => Err(RequestError::NotThisMachine { flag, node: node.clone(), here: machine.host.clone() }),
        None => Ok(()),
    }
}

/// Flags that give slots to nodes.
const HOSTS: &str = "--hostfile, --host or --rankfile";

/// Number of ranks of each program on one node.
fn rank_counts(
    request: &LaunchRequest,
    per_object: Option<PerObject>,
    node: &ThisNode,
) -> Result<Vec<u32>, RequestError> {
    let placement = &request.placement;
    let room = per_object.map(|per_object| room_of(per_object, node).map(|room| (per_object, room))).transpose()?;
    let is_again = per_object.is_some_and(|per_object| per_object.filling == Filling::Again);
    let slots: Option<u64> = match &placement.candidates {
        Candidates::Hostfile(hosts) if !is_again => Some(hostfile::slots_of(hosts)),
        _ => None,
    };
    // A launch with more slots than `u32::MAX` does not fit in any case.
    let all_slots =
        slots.map(|slots| NonZeroU32::new(u32::try_from(slots).unwrap_or(u32::MAX)).unwrap_or(NonZeroU32::MIN));
    let per_node = placement.tasks_per_node;
    let of_objects = room.map(|(_, room)| room);
    let usual = [per_node, of_objects, all_slots].into_iter().flatten().min().unwrap_or(NonZeroU32::MIN);
    let counts = request.programs.rank_counts(usual);
    let ranks: u64 = counts.iter().copied().map(u64::from).sum();
    if let Some((PerObject { ranks: per_object, object, filling }, room)) = room
        && filling != Filling::Again
        && ranks > u64::from(room.get())
    {
        let (per_object, object) = (per_object.get(), object.noun());
        return Err(RequestError::TooFewObjects { ranks, per_object, object, room: room.get() });
    }
    match (per_node.map(NonZeroU32::get), slots) {
        (Some(per_node), _) if ranks > u64::from(per_node) => Err(RequestError::NodeTooSmall { ranks, per_node }),
        (_, Some(slots)) if ranks > slots => Err(RequestError::TooFewSlots { flag: HOSTS, ranks, slots }),
        _ => Ok(counts),
    }
}

/// Number of slots of this machine, under any name in a hostfile. Without a hostfile and `--tasks-per-node`, it is `room`.
fn slots_here(placement: &PlacementRequest, room: u32) -> u32 {
    match &placement.candidates {
        Candidates::Hostfile(hosts) => u32::try_from(hostfile::slots_of(hosts)).unwrap_or(u32::MAX),
        Candidates::All | Candidates::Listed(_) => placement.tasks_per_node.map_or(room, NonZeroU32::get),
    }
}

/// Number of ranks that the objects of this machine take.
fn room_of(per_object: PerObject, node: &ThisNode) -> Result<NonZeroU32, RequestError> {
    let cores = usable_here(node)?;
    let nothing = || BindError::Nothing { asked: CpuBind::to(per_object.object) };
    Ok(per_object.room(&cores).ok_or_else(nothing).map_err(BindHereError::from)?)
}

/// File of a program on this machine. Refuses everything about the program that is wrong on this machine.
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

/// `PATH` in the ranks of `app`.
fn path_variable<'a>(app: &'a AppSpec, machine: &'a Machine) -> Option<&'a OsStr> {
    let set = app.set.iter().rev().find(|(name, _)| name == "PATH").map(|(_, value)| value.as_os_str());
    let removed = app.removes("PATH");
    set.or_else(|| if removed { None } else { machine.variable(OsStr::new("PATH")) })
}

/// Rows for the ranks of a launch, not bound yet. `programs` has the file of each program.
fn rows(placed: &PlacedLaunch, programs: &[PathBuf]) -> Vec<RankRow> {
    let row = |place: RankPlace| {
        let program = programs.get(place.app).cloned().unwrap_or_default();
        RankRow { place, cpus: None, is_free: placed.settings.cpu_bind == CpuBind::None, program }
    };
    placed.rank_places().into_iter().map(row).collect()
}

fn check_input_file(path: &Path) -> Result<(), RequestError> {
    let refused = |source| RequestError::InputFile { path: path.to_owned(), source };
    if std::fs::metadata(path).map_err(refused)?.is_dir() {
        return Err(refused(io::ErrorKind::IsADirectory.into()));
    }
    eaccess(path, AccessFlags::R_OK).map_err(|errno| refused(errno.into()))
}

#[cfg(test)]
pub(crate) mod tests;
