//! Makes a placed launch with all data that the launcher needs to show it. This machine or the API server has placed it.
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

use lattice_cluster_client::KnownNode;
use lattice_console::machine::Machine;
use lattice_dialects::hostfile;
use lattice_dialects::per_object::{Filling, PerObject};
use lattice_inventory::ThisNode;
use lattice_render::PreparedLaunch;
use lattice_session::gpus::GpuBind;
use lattice_session::random;
use lattice_session::request::{Assignment, Candidates, LaunchRequest, Ownership, PlacementRequest};
use lattice_session::settings::StdinTarget;
use lattice_session::spec::AppSpec;
use nix::unistd::{AccessFlags, eaccess};
use pmi_core::job::Placement;
use rank_spawner::{BindError, BindHereError, CpuBind, MemBind, Program, plan_here, usable_cpus, usable_here};

pub(crate) use self::binding::bind;
use self::binding::check_devices;
pub use self::binding::{BindingError, NodeBindError};
pub use self::objects::ObjectsError;
pub(crate) use self::objects::placed_by_objects;
use crate::request::{Action, EXCLUDE, LaunchCommand, RequestError, placed_in_groups};

/// Places all ranks on this machine, checks that they can run on it, and gives the launch a new id.
///
/// # Errors
/// See the variants of [`RequestError`].
pub fn on_this_machine(command: LaunchCommand, machine: &Machine) -> Result<PreparedLaunch, RequestError> {
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
    let mut prepared = PreparedLaunch::new(placed, &programs, output);
    let cpus = plan_here(&node, &prepared.placed.settings.cpu_bind, size)?;
    let settings = &prepared.placed.settings;
    // Only these bindings need the inventory.
    if settings.mem_bind != MemBind::None || settings.gpu_bind != GpuBind::None {
        let template = &node.inventory().template;
        check_devices::<RequestError>(settings, template, &node.memory_nodes(), &cpus, &machine.environment)?;
    }
    prepared.ranks.iter_mut().zip(cpus).for_each(|(row, cpus)| (row.is_free, row.cpus) = (cpus.is_none(), cpus));
    if (action == Action::Plan || prepared.output.show_map) && prepared.ranks.iter().any(|row| row.cpus.is_some()) {
        let here =
            KnownNode { template: Arc::new(node.inventory().template.clone()), usable: usable_here(&node)?.cpus() };
        pictures::draw(&mut prepared, |_| Some(here.clone()));
    }
    check_input(&prepared)?;
    machine.limits.check(size, prepared.output_files().len())?;
    Ok(prepared)
}

/// Refuses files for standard input that are not readable by the name that each rank opens.
fn check_input(launch: &PreparedLaunch) -> Result<(), RequestError> {
    match &launch.placed.settings.stdin {
        StdinTarget::None | StdinTarget::Rank(_) | StdinTarget::All | StdinTarget::Terminal(_) => Ok(()),
        StdinTarget::File(template) => {
            let names: HashSet<PathBuf> = launch.ranks.iter().map(|row| launch.fill(template, row)).collect();
            names.iter().try_for_each(|name| check_input_file(name))
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

fn check_input_file(path: &Path) -> Result<(), RequestError> {
    let refused = |source| RequestError::InputFile { path: path.to_owned(), source };
    if std::fs::metadata(path).map_err(refused)?.is_dir() {
        return Err(refused(io::ErrorKind::IsADirectory.into()));
    }
    eaccess(path, AccessFlags::R_OK).map_err(|errno| refused(errno.into()))
}

#[cfg(test)]
pub(crate) mod tests;
