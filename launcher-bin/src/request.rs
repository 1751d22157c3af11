//! Converts flags to one checked [`LaunchCommand`]: a [`LaunchRequest`], its purpose, and the destination of its output.
//!
//! Requests for this machine and for a cluster are the same. This module refuses errors that do not depend on the nodes. [`crate::prepared`]
//! refuses errors that depend on this machine, when the ranks get their places. No later module parses or checks again.

mod binding;
mod containers;
mod copies;
mod environment;
mod error;
mod multi_prog;
mod node_groups;
mod node_wish;
mod open_hosts;
mod open_mpi_files;
mod presets;
mod rankfile;
mod settings;
mod shared_libraries;
mod shell_descriptors;
mod slurm_variables;
mod task_scripts;
mod user_tables;

use std::num::NonZeroU32;
use std::path::Path;

use lattice_console::environment::{Environment, HOSTS};
use lattice_console::formatting;
use lattice_console::machine::Machine;
use lattice_dialects::hostfile::{self, Hosts};
use lattice_dialects::per_object::{PerObject, RankBy};
use lattice_render::{ExitMessages, LineLabel, OutputRequest};
use lattice_session::request::{Candidates, LaunchRequest, Ownership, PlacementRequest, ProgramRequest, Programs};
use lattice_session::spec::AppSpec;
use lattice_session::template::Template;
use nix::unistd::geteuid;
use rank_spawner::{CpuBind, ProgramError};

use self::containers::Container;
pub use self::containers::ContainerError;
pub(crate) use self::containers::runtimes_in_path as container_runtimes;
pub(crate) use self::copies::{Before, FileCopy, Thing};
pub use self::copies::{Copies, CopyError};
pub(crate) use self::error::EXCLUDE;
pub use self::error::RequestError;
pub(crate) use self::node_groups::placed_in_groups;
pub use self::node_groups::{NodeGroup, NodeGroupError};
pub use self::node_wish::NodeWish;
pub use self::open_hosts::OpenHosts;
use self::rankfile::Rankfile;
pub use self::rankfile::RankfileError;
use self::settings::Settled;
use self::shell_descriptors::is_inherited_descriptor;
use self::task_scripts::TaskScripts;
use crate::args::{self, LaunchArgs, Pmi, PmiArgs, ProgramArgs, ScriptArgs, StreamArgs};

/// A valid command line of `lattice launch`.
#[derive(Clone, Debug)]
pub struct LaunchCommand {
    /// The requested launch.
    pub request: LaunchRequest,
    /// Number of ranks for each object of a node. The objects are known when the ranks get their places.
    pub per_object: Option<PerObject>,
    /// Hosts with slots that are known only when the ranks get their places. Until then, the request is for all nodes.
    pub open_hosts: Option<OpenHosts>,
    /// Number and selection of the nodes, if they depend on the number of available nodes.
    pub node_wish: Option<NodeWish>,
    /// Nodes of each program, if programs have separate nodes. The programs get them when the ranks get their places.
    pub node_groups: Vec<NodeGroup>,
    /// Destinations of the ranks' output, and the parts of the launch that are shown.
    pub output: OutputRequest,
    /// Files that are copied to the nodes before the launch.
    pub copies: Copies,
    /// Origin of the number of its ranks.
    pub count: Count,
    /// Purpose of the request.
    pub action: Action,
}

/// Origin of the number of ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Count {
    /// A flag contains the number.
    Given,
    /// The number is 1, because no flag contains it.
    Usual,
}

impl Count {
    fn of(args: &LaunchArgs) -> Self {
        let is_given = args.first.ranks.is_some() || !args.more.is_empty() || args.placement.counts_ranks();
        if is_given { Self::Given } else { Self::Usual }
    }
}

/// Purpose of a launch request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Start the launch.
    Start,
    /// Print the plan of the launch, and start no process.
    Plan,
}

impl LaunchCommand {
    /// Checks `args`, as far as possible without knowledge of the nodes.
    ///
    /// # Errors
    /// See the variants of [`RequestError`]. Each message contains the request and possible alternatives.
    pub fn new(args: &LaunchArgs, machine: &Machine) -> Result<Self, RequestError> {
        refuse_idle_flags(args)?;
        let rankfile = args.placement.rankfile.as_deref().map(Rankfile::read).transpose()?;
        let count = Count::of(args);
        let (placement, hosts) = placement(args, rankfile.as_ref(), &machine.environment)?;
        let container = Container::of(&args.container, machine)?;
        let mut programs = programs(args, machine)?;
        if let (Count::Usual, [only]) = (count, programs.as_mut_slice()) {
            only.ranks = Some(NonZeroU32::MIN);
        }
        let node_wish = NodeWish::of(&args.placement, &placement);
        let asked: Vec<_> = programs.iter().map(|program| program.ranks).collect();
        let node_groups = node_groups::node_groups(args, &asked)?;
        programs.iter_mut().zip(&node_groups).for_each(|(program, group)| program.ranks = Some(group.ranks()));
        let mut environment = environment::exported(args, machine)?;
        // Before the programs are wrapped.
        let copies = Copies::of(&args.copies, &mut programs, &environment, machine)?;
        let mut pmi = settings::pmi_spec(&args.pmi);
        if let Some(container) = &container {
            programs.iter_mut().for_each(|program| container.wrap(&mut program.app));
            container.adapt(&mut pmi, args.pmi.node_memory.is_some())?;
        }
        let scripts = &args.scripts;
        let tasks =
            TaskScripts::new(scripts.task_prolog.as_deref(), scripts.task_epilog.as_deref(), &machine.directory);
        programs.iter_mut().for_each(|program| tasks.wrap(&mut program.app));
        let cpu_bind = rankfile.map_or_else(|| binding::binding(&args.placement), |rankfile| Ok(rankfile.binding()))?;
        if cpu_bind != CpuBind::None {
            environment::leave_binding_to_us(&mut environment);
        }
        let ownership = if args.cluster.detach { Ownership::Detached } else { Ownership::Client };
        let programs = Programs::new(programs)?;
        let settled = Settled { environment, pmi, cpu_bind, size: programs.size() };
        let settings = settings::settings(args, machine, ownership, settled)?;
        let shared_by = programs.size().filter(|_| args.placement.overcommit);
        let open_hosts = hosts.map(|hosts| OpenHosts::new(hosts, shared_by));
        let request = LaunchRequest { programs, placement, universe_size: args.pmi.universe_size, settings, ownership };
        if let Some(size) = request.programs.size() {
            request.check_reader(size)?;
        }
        let action = if args.placement.dry_run { Action::Plan } else { Action::Start };
        // Ranks that may share slots fit on any nodes.
        let is_bounded = !args.placement.overcommit || request.programs.size().is_none();
        let is_counted = open_hosts.is_some() || matches!(request.placement.candidates, Candidates::Hostfile(_));
        let fill = (args.placement.fill && !is_counted).then_some(PerObject::SLOTS);
        let per_object = args.placement.per_object().or(fill).filter(|_| is_bounded);
        let output = output_request(args);
        let mut command =
            Self { request, per_object, open_hosts, node_wish, node_groups, output, copies, action, count };
        if let Some(hosts) = command.open_hosts.take_if(|hosts| hosts.is_counted()) {
            hosts.settle(&mut command.request.placement, |_| Ok::<_, RequestError>(None))?;
        }
        Ok(command)
    }
}

impl LaunchCommand {
    /// All host names in the request, for any purpose.
    pub(crate) fn hosts_mut(&mut self) -> impl Iterator<Item = &mut String> {
        let placement = &mut self.request.placement;
        let (listed, slots) = match &mut placement.candidates {
            Candidates::All => (None, None),
            Candidates::Listed(nodes) => (Some(nodes), None),
            Candidates::Hostfile(hosts) => (None, Some(hosts)),
        };
        let of_slots = slots.into_iter().flatten().map(|host| &mut host.node);
        let of_groups = self.node_groups.iter_mut().flat_map(NodeGroup::named_mut);
        let of_open = self.open_hosts.iter_mut().flat_map(OpenHosts::names_mut);
        listed.into_iter().flatten().chain(of_slots).chain(&mut placement.except).chain(of_groups).chain(of_open)
    }

    /// Refuses task prologs and epilogs that are missing on this machine, for launches that run on this machine.
    pub(crate) fn check_task_scripts(&self, args: &ScriptArgs, machine: &Machine) -> Result<(), RequestError> {
        let path = lattice_console::environment::value(&self.request.settings.environment, "PATH");
        let scripts = TaskScripts::new(args.task_prolog.as_deref(), args.task_epilog.as_deref(), &machine.directory);
        scripts.check(path).map_err(|(flag, error)| RequestError::TaskScript { flag, error })
    }
}

/// Refuses flags that have no effect together with the other flags.
fn refuse_idle_flags(args: &LaunchArgs) -> Result<(), RequestError> {
    let PmiArgs {
        pmi,
        pmi_port,
        restartable,
        pmi_group_barriers,
        no_job_memory,
        exchange,
        universe_size,
        pmi_trace,
        ..
    } = &args.pmi;
    let needs_pmi = [
        ("--pmi-trace", pmi_trace.is_some()),
        ("--pmi-port", *pmi_port),
        ("--restartable", restartable.is_some()),
        ("--pmi-group-barriers", *pmi_group_barriers),
        ("--no-job-memory", *no_job_memory),
        ("--exchange", *exchange != args::Exchange::Auto),
        ("--universe-size", universe_size.is_some()),
        ("--fence-timeout", args.time.fence_timeout.is_some()),
    ];
    match needs_pmi.into_iter().find(|&(_, given)| given && *pmi == Pmi::None) {
        Some((flag, _)) => return Err(RequestError::NoPmi { flag }),
        None if *pmi == Pmi::Pmi2 && *pmi_group_barriers => return Err(RequestError::NoPmi1),
        None => {}
    }
    let StreamArgs { output, error, append, tee, .. } = &args.streams;
    let idle = [("--append", *append), ("--tee", *tee)].into_iter().find(|&(_, given)| given);
    match idle {
        Some((flag, _)) if output.is_none() && error.is_none() => Err(RequestError::NoFiles { flag }),
        _ => Ok(()),
    }
}

/// Hosts of the environment. They apply if no flag gives the number of ranks of a node, or the nodes.
fn usual_hosts(args: &LaunchArgs, environment: &Environment) -> Result<Option<Hosts>, RequestError> {
    let LaunchArgs { first, placement: args, .. } = args;
    if args.nodes.is_some() && first.ranks.is_none() && !args.fill {
        // The default is one rank on each of these nodes.
        return Ok(None);
    }
    let set = environment.iter().find(|(name, value)| name == HOSTS && !value.is_empty());
    match set.and_then(|(_, value)| value.to_str()) {
        Some(hosts) if args.tasks_per_node.is_none() && args.cpus_per_task.is_none() && args.per_object().is_none() => {
            hostfile::parse_hosts(hosts).map(Some).map_err(RequestError::UsualHosts)
        }
        _ => Ok(None),
    }
}

/// The placement, and its hosts if their slots are still unknown.
fn placement(
    launch: &LaunchArgs,
    rankfile: Option<&Rankfile>,
    environment: &Environment,
) -> Result<(PlacementRequest, Option<Hosts>), RequestError> {
    let args = &launch.placement;
    if args.fill && !launch.more.is_empty() {
        return Err(RequestError::FillsForSeveral);
    }
    let expanded = |flag, list: &str| {
        hostlist::expand(list).map_err(|source| RequestError::NodeList { flag, list: list.to_owned(), source })
    };
    if let Some(list) = &args.exclude
        && (list.contains('=') || environment.iter().any(|(name, _)| name.to_str() == Some(list)))
    {
        return Err(RequestError::ExcludedVariable { list: list.clone() });
    }
    let (flag, listed) = match &args.include {
        Some(_) => ("--include", &args.include),
        None => ("--nodelist", &args.nodelist),
    };
    let (candidates, hosts) = match (listed, &args.hostfile, &args.host) {
        (Some(list), ..) => (Candidates::Listed(expanded(flag, list)?), None),
        (None, Some(path), _) => (Candidates::All, Some(hostfile::read(path)?)),
        (None, None, Some(hosts)) => (Candidates::All, Some(hosts.clone())),
        (None, None, None) => match rankfile {
            Some(rankfile) => (rankfile.candidates(), None),
            None => (Candidates::All, usual_hosts(launch, environment)?),
        },
    };
    let request = PlacementRequest {
        nodes: args.nodes.and_then(|nodes| NonZeroU32::new(nodes.least)),
        tasks_per_node: args.tasks_per_node.and_then(NonZeroU32::new),
        candidates,
        except: args.exclude.as_deref().map(|list| expanded("--exclude", list)).transpose()?.unwrap_or_default(),
        relative: args.relative,
        distribution: args.distribution.and_then(|distribution| distribution.nodes),
        numbering: args.rank_by.map(RankBy::among_nodes),
        cpus_per_rank: args.no_overcommit.then(|| args.cpus_per_task.unwrap_or(NonZeroU32::MIN)),
    };
    Ok((request, hosts))
}

/// Programs of the command line, or of the files in it.
fn programs(args: &LaunchArgs, machine: &Machine) -> Result<Vec<ProgramRequest>, RequestError> {
    let mut programs: Vec<ProgramRequest> = Vec::new();
    for program in std::iter::once(&args.first).chain(args.more.iter().map(|next| &next.program)) {
        let number = programs.iter().map(|program| program.number + 1).max().unwrap_or(0);
        let request = program_request(program, number, machine)?;
        match args.placement.multi_prog {
            true => programs.extend(multi_prog::read(request)?),
            false => programs.push(request),
        }
    }
    Ok(programs)
}

/// One program with the ranks of its `-n`.
fn program_request(program: &ProgramArgs, number: u32, machine: &Machine) -> Result<ProgramRequest, RequestError> {
    let set = environment::set(program, machine)?;
    let mut command = program.command.iter();
    let name = command.next().ok_or(RequestError::NoProgram)?.clone();
    if name.is_empty() {
        return Err(ProgramError::NotFound { name, searched: Vec::new() }.into());
    }
    if let Some(word) = program.command.iter().find(|word| is_inherited_descriptor(word)) {
        return Err(RequestError::ShellDescriptor { word: word.clone() });
    }
    let app = AppSpec {
        program: name,
        args: command.cloned().collect(),
        set,
        remove: program.env_remove.clone(),
        process_set: program.pset.as_ref().or(program.pset_literal.as_ref()).cloned(),
        directory: program
            .chdir
            .as_ref()
            .map_or_else(|| machine.directory.clone(), |path| machine.directory.join(path)),
    };
    Ok(ProgramRequest { app, ranks: program.ranks.and_then(NonZeroU32::new), number })
}

/// Template of a file name, with all fields filled in that are equal for all ranks of the launch.
fn file_of(template: &Template, args: &LaunchArgs) -> Template {
    let program = args.first.command.first().map(Path::new).and_then(Path::file_name);
    let name = args.streams.job_name.as_deref().or(program).unwrap_or_default();
    template.clone().of(name, || formatting::user(geteuid().as_raw()))
}

fn output_request(args: &LaunchArgs) -> OutputRequest {
    OutputRequest {
        stdout: args.streams.output.as_ref().map(|file| file_of(file, args)),
        stderr: args.streams.error.as_ref().map(|file| file_of(file, args)),
        append: args.streams.append,
        tee: args.streams.tee,
        collapse: args.streams.collapse,
        label: match args.streams.label {
            None => LineLabel::None,
            Some(args::Label::Rank) => LineLabel::Rank,
            Some(args::Label::Node) => LineLabel::Node,
        },
        timestamp: args.streams.timestamp,
        json: args.streams.json,
        pmi_trace: args.pmi.pmi_trace.clone(),
        show_map: args.placement.shows_map(),
        summary: args.streams.summary,
        recovers: args.failures.kill_on_bad_exit == args::KillOnBadExit::Recover,
        exit_messages: ExitMessages::default(),
    }
}

#[cfg(test)]
mod tests;
