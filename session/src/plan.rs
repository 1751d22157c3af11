//! Converts a session spec to one command per rank: program, arguments, environment, CPUs, standard input.

mod absent_devices;
mod error;
mod input_file;
mod slurm;

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ffi::{OsStr, OsString};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;

use job_memory::NodeMemory;
use lattice_overlay::directory::Contact;
use pmi_core::claim::ClaimKeys;
use pmi_core::env::{Entrance, RankEnvironment, is_scrubbed};
use pmi_core::ids::{LocalRank, NodeIndex, Rank};
use pmix_core::env::{Cpus, Families};
use rank_spawner::{
    Arguments, BoundTo, CpuSet, Environment, JOB_MEMORY_FD, Limit, MemoryPolicy, NODE_MEMORY_FD, PMI_FD, Priority,
    Program, RankCommand, Stdio, usable_cpus,
};

pub use self::error::PlanError;
pub(crate) use self::input_file::InputFile;
use self::slurm::{SlurmVariables, slurm_variables};
use crate::fabric::NodeFabric;
use crate::limits::NODE_LIST_MAX;
use crate::rank_values::{self, RankFacts};
use crate::session_io::StdinSource;
use crate::settings::{RankOutput, StdinTarget, TerminalSize};
use crate::spec::{AppSpec, SessionSpec};
use crate::template::Place;

/// Facts that the commands of a job's ranks share.
pub(crate) struct LaunchContext<'a> {
    pub(crate) spec: &'a SessionSpec,
    /// The ranks of this node, by local rank.
    pub(crate) ranks: &'a [Rank],
    /// Addresses of the ranks' servers.
    pub(crate) entrances: Entrances,
    /// CPUs of each rank, by local rank.
    pub(crate) cpus: Vec<Option<CpuSet>>,
    /// Memory policy of each rank, by local rank.
    pub(crate) memory: Vec<Option<MemoryPolicy>>,
    /// Variables that select each rank's GPUs, by local rank.
    pub(crate) gpus: Vec<Vec<(&'static str, String)>>,
    /// Priority of ranks, if it is lower than the priority of this process.
    pub(crate) priority: Priority,
    /// Limits that ranks get instead of the limits of this process.
    pub(crate) limits: Arc<[Limit]>,
    /// The fabric of this cluster node.
    pub(crate) fabric: Option<&'a NodeFabric>,
    /// File with the topology of the node, for libraries that find it only by their environment.
    pub(crate) topology: Option<&'a str>,
    /// True if ranks may find a device here for which they register memory.
    pub(crate) registers_memory: bool,
}

/// Addresses of the ranks' servers, in addition to the socket that ranks inherit.
#[derive(Clone, Debug, Default)]
pub(crate) struct Entrances {
    /// The port of the PMI server, if ranks connect through a port.
    pub(crate) port: Option<PmiPort>,
    /// The PMIx server, if there is one.
    pub(crate) pmix: Option<PmixEntrance>,
    /// Memory from which ranks read data that they could also request from the PMI server.
    pub(crate) job_memory: Option<Arc<OwnedFd>>,
    /// Memory that the ranks share.
    pub(crate) node_memory: Option<Arc<OwnedFd>>,
    /// The set of the launch.
    pub(crate) set: Option<Contact>,
    /// Directory for shared memory segments of Open MPI 4.1, if it is not the default.
    pub(crate) segments: Option<PathBuf>,
}

/// Variable of Open MPI 4.1 with the directory for shared memory segments.
const SEGMENTS: &str = "OMPI_MCA_btl_vader_backing_directory";

/// Variable of a rank with the path of a socket of its PMI server.
pub const PMI_SOCKET: &str = "LATTICE_PMI_SOCKET";

/// The port of a PMI server: its address, and the keys by which ranks identify themselves there.
#[derive(Clone, Debug)]
pub(crate) struct PmiPort {
    pub(crate) address: String,
    /// Socket of the same server in the file system; `None` if it could not be made.
    pub(crate) file: Option<PathBuf>,
    pub(crate) keys: ClaimKeys,
}

/// Address of the PMIx server, with the namespace of the rank's job.
#[derive(Clone, Debug)]
pub(crate) struct PmixEntrance {
    pub(crate) namespace: String,
    pub(crate) server: SocketAddr,
}

/// A spec that is ready to run.
#[derive(Default)]
pub(crate) struct Plan {
    /// One command per rank, by local rank.
    pub(crate) commands: Vec<RankCommand>,
    /// Files to open as standard input: one for each rank, by local rank, or none.
    pub(crate) inputs: Vec<InputFile>,
    /// The file of each program that runs here, by app index.
    pub(crate) programs: BTreeMap<usize, PathBuf>,
}

/// Variables of Lattice that only ranks have.
const OF_A_RANK: [&str; 6] =
    ["LATTICE_NPROCS", "LATTICE_RANK", "LATTICE_LOCAL_RANK", "LATTICE_LOCAL_SIZE", "LATTICE_NODE", "LATTICE_APPNUM"];

impl LaunchContext<'_> {
    /// Returns the command of each rank of this node.
    pub(crate) fn plan(&self, stdin: &StdinSource) -> Result<Plan, PlanError> {
        let programs = self.programs()?;
        let nodes = node_list(&self.spec.hosts);
        // These variables are equal for all ranks here.
        let slurm = self.spec.settings.slurm_environment.then(|| slurm_variables(self.spec, self.ranks, &nodes));
        let direct = match stdin {
            StdinSource::Direct(fd) => Some(Arc::new(fd.try_clone().map_err(PlanError::Descriptor)?)),
            StdinSource::Empty | StdinSource::Stream(_) => None,
        };
        let mut commands = Vec::with_capacity(self.ranks.len());
        for (((local, &rank), cpus), memory) in (0..).map(LocalRank).zip(self.ranks).zip(&self.cpus).zip(&self.memory) {
            let index = self.app_index(rank)?;
            let prepared = &programs[&index];
            let filled = self.filled(prepared, rank, local, &nodes);
            let own = self.variables(rank, local, index, &nodes, slurm.as_ref());
            let own = own.iter().map(|(name, value)| (OsStr::new(name), OsStr::new(value)));
            let filled = filled.iter().map(|(name, value)| (*name, value.as_os_str()));
            let environment = prepared.environment.for_rank(filled.chain(own))?;
            let mut command = RankCommand::new(rank, prepared.program.clone(), prepared.arguments.clone(), environment);
            command.directory = Some(prepared.directory.clone());
            command.stdin = self.stdin(rank, stdin, direct.as_ref());
            command.terminal = self.terminal(rank);
            command.stdout = match self.spec.settings.stdout {
                RankOutput::Pipe => Stdio::Pipe,
                RankOutput::Terminal => Stdio::Terminal,
            };
            command.stderr = Stdio::Pipe;
            command.pmi = self.spec.settings.pmi.family.has_pmi() && self.entrances.port.is_none();
            command.job_memory = self.entrances.job_memory.clone();
            command.node_memory = self.entrances.node_memory.clone();
            command.bound_to = BoundTo { cpus: cpus.clone(), memory: memory.clone() };
            command.umask = self.spec.settings.shell_limits.umask;
            command.priority = self.priority;
            command.limits = Arc::clone(&self.limits);
            command.at_exec = self.spec.settings.at_exec;
            commands.push(command);
        }
        let mut files = BTreeMap::new();
        files.extend(programs.iter().map(|(&index, prepared)| (index, prepared.program.path().to_owned())));
        Ok(Plan { commands, inputs: self.inputs(), programs: files })
    }

    /// Returns the programs that ranks of this node run, by app index. Other programs need not exist here.
    fn programs(&self) -> Result<BTreeMap<usize, Prepared>, PlanError> {
        let mut programs = BTreeMap::new();
        for &rank in self.ranks {
            if let Entry::Vacant(vacant) = programs.entry(self.app_index(rank)?) {
                let index = *vacant.key();
                vacant.insert(self.prepare(&self.spec.apps[index])?);
            }
        }
        Ok(programs)
    }

    fn app_index(&self, rank: Rank) -> Result<usize, PlanError> {
        let apps = self.spec.apps.len();
        let index = self.spec.job.app_index(rank).filter(|&index| index < apps);
        index.ok_or(PlanError::NoProgram { rank, apps })
    }

    /// Returns `Shared` if there are more ranks than CPUs that this process may use.
    fn cpus(&self) -> Cpus {
        if self.ranks.len() > usable_cpus().get() { Cpus::Shared } else { Cpus::Enough }
    }

    fn prepare(&self, app: &AppSpec) -> Result<Prepared, PlanError> {
        let variables = self.program_variables(app);
        let path = variables.get(OsStr::new("PATH")).map(OsString::as_os_str);
        // A value that a later source has replaced is not filled in.
        let is_filled =
            |name: &OsString, value: &OsString| rank_values::has_names(value) && variables.get(name) == Some(value);
        Ok(Prepared {
            program: Program::resolve(&app.program, path, &app.directory)?,
            arguments: Arguments::new(std::iter::once(&app.program).chain(&app.args))?,
            environment: Environment::new(&variables)?,
            to_fill: app.set.iter().filter(|(name, value)| is_filled(name, value)).cloned().collect(),
            directory: app.directory.clone(),
        })
    }

    /// Returns variables that all ranks of a program share, by name. Their sources are, in order: inheritance, defaults of PMIx, absent
    /// devices, hwloc, the program, the fabric.
    fn program_variables(&self, app: &AppSpec) -> BTreeMap<OsString, OsString> {
        let settings = &self.spec.settings;
        let is_nested = settings.environment.iter().any(|(name, _)| name == "LATTICE_LAUNCH_ID");
        let is_inherited = |(name, value): &&(OsString, OsString)| {
            let is_outer = is_nested && absent_devices::is_told(name, value);
            let name = name.to_string_lossy();
            let is_replaced = self.fabric.is_some_and(|fabric| fabric.replaces(&name));
            !is_scrubbed(&name) && !is_outer && !is_replaced && !app.removes(&name)
        };
        let inherited = settings.environment.iter().filter(is_inherited);
        let mut variables = BTreeMap::new();
        variables.extend(inherited.cloned());
        if self.entrances.pmix.is_some() {
            let families = if settings.pmi.family.has_pmi() { Families::PmixAndPmi } else { Families::Pmix };
            for (name, value) in pmix_core::env::defaults(families, self.cpus()) {
                variables.entry(name.into()).or_insert(value.into());
            }
        }
        if let Some(directory) = &self.entrances.segments {
            variables.entry(SEGMENTS.into()).or_insert_with(|| directory.into());
        }
        if !self.registers_memory && self.starts_mpi() {
            let told: Vec<_> = absent_devices::variables(&variables, app, settings.keeps_transports).collect();
            variables.extend(told);
        }
        if let Some(file) = self.topology.filter(|_| !chooses_topology(&variables, app)) {
            variables.extend(hwloc_variables(file));
        }
        if let Some(directory) = self.spec.temporary_directory() {
            variables.insert("TMPDIR".into(), directory.into());
        }
        variables.extend(app.set.iter().cloned());
        let fabric = self.fabric.map(|fabric| fabric.variables(|name| variables.contains_key(OsStr::new(name))));
        // These override the user's variables: ranks with different VNIs cannot communicate.
        variables.extend(fabric.into_iter().flatten());
        variables
    }

    /// Returns true if the processes here are ranks with a PMI server, and not daemons of another launcher.
    fn starts_mpi(&self) -> bool {
        let settings = &self.spec.settings;
        settings.rank_variables && (self.entrances.pmix.is_some() || settings.pmi.family.has_pmi())
    }

    /// Returns the variables of the rank's program that have names in their values, filled in for the rank.
    fn filled<'a>(
        &self,
        prepared: &'a Prepared,
        rank: Rank,
        local_rank: LocalRank,
        node_list: &str,
    ) -> Vec<(&'a OsStr, OsString)> {
        let spec = self.spec;
        let facts = RankFacts {
            rank,
            size: spec.job.size(),
            local_rank,
            local_size: self.ranks.len() as u32,
            node: spec.node,
            nodes: spec.hosts.len(),
            host: spec.host(spec.node),
            head: spec.address_of(NodeIndex(0)).unwrap_or("127.0.0.1"),
            node_list,
            launch_id: &spec.launch_id,
        };
        prepared.to_fill.iter().map(|(name, value)| (name.as_os_str(), rank_values::fill(value, &facts))).collect()
    }

    /// Returns the rank's own variables. They come last and override all other variables.
    fn variables(
        &self,
        rank: Rank,
        local: LocalRank,
        app: usize,
        nodes: &str,
        slurm: Option<&SlurmVariables>,
    ) -> Vec<(&'static str, String)> {
        let spec = self.spec;
        let (size, local_size) = (spec.job.size(), self.ranks.len() as u32);
        let host = spec.host(spec.node);
        let mut variables = vec![
            ("LATTICE_LAUNCH_ID", spec.launch_id.clone()),
            // Without an allocation the value is `local`. An id would send a nested launch to a cluster.
            ("LATTICE_ALLOC_ID", spec.allocation_id.clone().unwrap_or_else(|| "local".to_owned())),
            ("LATTICE_NODELIST", nodes.to_owned()),
            ("LATTICE_NNODES", spec.hosts.len().to_string()),
            ("LATTICE_NPROCS", size.to_string()),
            ("LATTICE_RANK", rank.to_string()),
            ("LATTICE_LOCAL_RANK", local.to_string()),
            ("LATTICE_LOCAL_SIZE", local_size.to_string()),
            ("LATTICE_NODE", spec.node.to_string()),
            ("LATTICE_APPNUM", spec.job.apps[app].appnum.to_string()),
        ];
        if let Some(pmix) = &self.entrances.pmix {
            let PmixEntrance { namespace, server } = pmix;
            let pmix = pmix_core::env::RankEnvironment { namespace, rank, server: *server, host };
            variables.extend(pmix.variables());
        }
        if spec.settings.pmi.family.has_pmi() {
            let entrance = match &self.entrances.port {
                // Keys were generated for every rank here.
                Some(port) => {
                    Entrance::Port { address: &port.address, id: port.keys.key_of(local).unwrap_or_default() }
                }
                None => Entrance::Descriptor(PMI_FD),
            };
            let spawned = spec.job.spawner.is_some();
            // MPICH selects its network interface by this address.
            let host = spec.address().unwrap_or(host);
            let pmi = RankEnvironment { rank, size, local_rank: local, local_size, host, spawned, entrance };
            variables.extend(pmi.variables());
            let file = self.entrances.port.as_ref().and_then(|port| port.file.as_ref());
            variables.extend(file.map(|file| (PMI_SOCKET, file.to_string_lossy().into_owned())));
        }
        if self.entrances.job_memory.is_some() {
            variables.push((job_memory::VARIABLE, JOB_MEMORY_FD.to_string()));
        }
        if self.entrances.node_memory.is_some() {
            variables.push((NodeMemory::VARIABLE, NODE_MEMORY_FD.to_string()));
        }
        variables.extend(self.entrances.set.as_ref().map(|set| (Contact::VARIABLE, set.to_text())));
        variables.extend(self.gpus.get(local.index()).into_iter().flatten().cloned());
        if let Some(alike) = slurm {
            variables.extend(alike.iter().cloned());
            variables.extend([("SLURM_PROCID", rank.to_string()), ("SLURM_LOCALID", local.to_string())]);
        }
        if !spec.settings.rank_variables {
            variables.retain(|(name, _)| !OF_A_RANK.contains(name));
        }
        variables
    }

    /// Returns the size of the terminal that replaces the rank's three streams.
    fn terminal(&self, rank: Rank) -> Option<TerminalSize> {
        match self.spec.settings.stdin {
            StdinTarget::Terminal(size) if rank == Rank(0) => Some(size),
            _ => None,
        }
    }

    /// Returns the standard input of a rank, unless it is a file.
    fn stdin(&self, rank: Rank, source: &StdinSource, direct: Option<&Arc<OwnedFd>>) -> Stdio {
        let target = &self.spec.settings.stdin;
        let reads = *target == StdinTarget::All || target.one_reader() == Some(rank);
        match (source, direct) {
            (_, Some(fd)) if reads => Stdio::Fd(Arc::clone(fd)),
            (StdinSource::Stream(_), _) if reads => Stdio::Pipe,
            _ => Stdio::Null,
        }
    }

    /// Returns the files that ranks read as their standard input.
    fn inputs(&self) -> Vec<InputFile> {
        let StdinTarget::File(template) = &self.spec.settings.stdin else { return Vec::new() };
        let SessionSpec { node, launch_id, .. } = self.spec;
        let (host, ranks) = (self.spec.host(*node), self.spec.job.size());
        let file = |(local_rank, &rank)| {
            let path = template.expand(Place { rank, ranks, local_rank, node: *node, host, launch_id });
            InputFile { rank, path }
        };
        (0..).map(LocalRank).zip(self.ranks).map(file).collect()
    }
}

/// Returns the variables that give hwloc the topology of this system. Without the second one, hwloc takes the file for another machine's, and
/// binds nothing.
fn hwloc_variables(file: &str) -> [(OsString, OsString); 2] {
    [("HWLOC_XMLFILE", file), ("HWLOC_THISSYSTEM", "1")].map(|(name, value)| (name.into(), value.into()))
}

/// Returns true if the user selects the topology by a variable of hwloc, or removes such a variable.
fn chooses_topology(inherited: &BTreeMap<OsString, OsString>, app: &AppSpec) -> bool {
    // hwloc(7), "Environment Variables".
    let sources = ["HWLOC_XMLFILE", "HWLOC_THISSYSTEM", "HWLOC_SYNTHETIC", "HWLOC_FSROOT", "HWLOC_COMPONENTS"];
    let is_set = |name: &str| inherited.contains_key(OsStr::new(name)) || app.set.iter().any(|(set, _)| set == name);
    sources.into_iter().any(|name| is_set(name) || app.removes(name))
}

/// Returns the names of a launch's nodes for its ranks: a comma list, or a hostlist if the comma list is too large for every process.
fn node_list(hosts: &[String]) -> String {
    let plain = hosts.join(",");
    if plain.len() <= NODE_LIST_MAX { plain } else { hostlist::fold(hosts) }
}

/// Data that the ranks of one program share.
struct Prepared {
    program: Program,
    arguments: Arguments,
    environment: Environment,
    /// Variables with a separate value for each rank.
    to_fill: Vec<(OsString, OsString)>,
    directory: PathBuf,
}

impl AppSpec {
    /// Returns true if the inherited variable `name` does not reach this program's ranks.
    pub fn removes(&self, name: &str) -> bool {
        self.remove.iter().any(|pattern| match pattern.strip_suffix('*') {
            Some(prefix) => name.starts_with(prefix),
            None => name == pattern,
        })
    }
}

/// Returns the environment of this process in the form of a session spec.
pub fn inherited_environment() -> Vec<(OsString, OsString)> {
    std::env::vars_os().collect()
}

#[cfg(test)]
mod tests;
