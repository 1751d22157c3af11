//! The flags of `lattice launch` that place and bind its ranks.

use std::num::NonZeroU32;
use std::path::PathBuf;

use clap::Args;
use lattice_console::values::{node_list, positive, whole};
use lattice_dialects::hostfile::{self, Hosts};
use lattice_dialects::per_object::{self, Filling, PerObject, RankBy};
use lattice_session::gpus::GpuBind;
use rank_spawner::{MemBind, Object};

use super::cpu_bind::{self, BindRequest};
use super::distribution::{self, Distribution};
use super::hint::Hint;
use super::node_group::NodeGroupArgs;
use super::value::{NodeCount, rank_count};
use super::{gpu_bind, mem_bind};

/// Placement of the ranks.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Placement")]
pub struct PlacementArgs {
    /// Use N nodes of the allocation, without -n with one rank on each; of MIN-MAX, as many as are free and needed [default: as many as the
    /// ranks need]. With `all`, nodes without a rank take part as well, for jobs that ranks spawn. After a `:`, -N, -w, -H and
    /// --tasks-per-node apply to the program there; those before the first program apply to that program only.
    #[arg(short = 'N', long, value_name = "N|MIN-MAX|all", value_parser = NodeCount::parse, allow_negative_numbers = true)]
    pub nodes: Option<NodeCount>,
    /// Read the programs from the lines `RANKS PROGRAM [ARGS]` of a file, which replaces the program: RANKS is a list such as 0,4-7, or `*`
    /// for the rest; in ARGS, %t is the rank, and %o its number among the ranks of the line.
    #[arg(long)]
    pub multi_prog: bool,
    /// Put at most K ranks on a node; without -n, start K on each. Without this flag, more ranks than cores of a node are reported on a
    /// terminal and with -v only.
    #[arg(long, visible_alias = "ntasks-per-node", value_name = "K", value_parser = rank_count, allow_negative_numbers = true, conflicts_with = "hostfile")]
    pub tasks_per_node: Option<u32>,
    /// Start a rank in each slot of the nodes: the slots of --hostfile, --host or LATTICE_HOSTS (a job of Slurm, PBS, LSF, Grid Engine, Flux
    /// or pods), else one for each core.
    #[arg(long, conflicts_with_all = ["ranks", "tasks_per_node", "tasks_per", "tasks_per_core", "tasks_per_socket", "cpus_per_task", "multi_prog", "rankfile"])]
    pub fill: bool,
    /// Put at most K ranks on each OBJECT of a node: hwthread, core, l3cache, numa, socket, gpu or nic; without -n, start K on each. Bound
    /// ranks fill one object after the next. With K:OBJECT:again, further ranks begin again with the first node.
    #[arg(long, value_name = "K:OBJECT[:again]", value_parser = per_object::per_object, conflicts_with_all = ["tasks_per_core", "tasks_per_socket"])]
    pub tasks_per: Option<PerObject>,
    /// Put at most K ranks on each core as srun does: nodes have equal shares of the ranks, and bound ranks have the order of
    /// --distribution.
    #[arg(long, visible_alias = "ntasks-per-core", value_name = "K", value_parser = positive, conflicts_with = "tasks_per_socket")]
    pub tasks_per_core: Option<NonZeroU32>,
    /// The same for sockets.
    #[arg(long, visible_alias = "ntasks-per-socket", value_name = "K", value_parser = positive)]
    pub tasks_per_socket: Option<NonZeroU32>,
    /// Use only these nodes, in this order, such as node[0-3,7]. In all flags, a node is named with or without its domain, by an address,
    /// or by a name that resolves to one.
    #[arg(short = 'w', long, value_name = "NODES", value_parser = node_list, conflicts_with = "hostfile")]
    pub nodelist: Option<String>,
    /// Use these nodes, and further nodes of the allocation up to the number of -N, in the order of the allocation.
    #[arg(long, value_name = "NODES", value_parser = node_list, requires = "nodes", conflicts_with_all = ["nodelist", "hostfile", "host", "rankfile", "relative"])]
    pub include: Option<String>,
    /// Use none of these nodes.
    #[arg(short = 'x', long, value_name = "NODES", value_parser = node_list)]
    pub exclude: Option<String>,
    /// Use the nodes in FILE, in its order: lines `HOST slots=N`, `HOST:N` or `HOST`, with a slot for each core; if names are repeated,
    /// each line is a slot. Without -n, start a rank in each slot.
    #[arg(long, visible_alias = "machinefile", value_name = "FILE")]
    pub hostfile: Option<PathBuf>,
    /// The same, with the lines given here: HOST or HOST:N, separated by commas.
    #[arg(short = 'H', long, value_name = "HOSTS", value_parser = hostfile::parse_hosts, conflicts_with_all = ["hostfile", "nodelist", "tasks_per_node"])]
    pub host: Option<Hosts>,
    /// Place each rank by the lines `rank N=HOST slot=CORES` of FILE; CORES is like 0-2,5, or SOCKET:CORES, of the usable ones.
    #[arg(long, visible_alias = "rf", value_name = "FILE", conflicts_with_all = ["hostfile", "host", "nodelist", "tasks_per_node", "tasks_per", "tasks_per_core", "tasks_per_socket", "distribution", "cpu_bind", "cpus_per_task", "hint", "threads_per_core", "exclude", "nodes", "rank_by"])]
    pub rankfile: Option<PathBuf>,
    /// Begin with the N-th node of the allocation, counted from 0, so that concurrent launches do not share nodes.
    #[arg(short = 'r', long, value_name = "N", value_parser = whole(0..=u32::MAX), default_value_t = 0, hide_default_value = true, conflicts_with_all = ["nodelist", "exclude", "hostfile", "host", "rankfile"])]
    pub relative: u32,
    /// Distribution of ranks: `block` fills one node after the next, `cyclic` places one rank on each node in turn, `plane=N` N ranks. A
    /// second word after `:` distributes bound ranks among the sockets of a node in the same way, and a third one among the cores of a
    /// socket; there `fcyclic` distributes each CPU of a rank.
    #[arg(short = 'm', long, value_name = "block|cyclic|plane=N[:block|cyclic|fcyclic[:...]]", value_parser = distribution::parse)]
    pub distribution: Option<Distribution>,
    /// Order of rank numbers: by `slot` (node after node), by `node` (one on each in turn), or within a node by `fill` (neighbours have
    /// consecutive numbers), l3cache, numa, socket, gpu or nic (consecutive ranks are on different ones).
    #[arg(long, value_name = "ORDER", value_parser = per_object::rank_by)]
    pub rank_by: Option<RankBy>,
    /// Give each rank N CPUs (hardware threads) of its own, as whole cores, and set OMP_NUM_THREADS to N unless it is set.
    #[arg(short = 'c', long, value_name = "N", value_parser = positive, allow_negative_numbers = true)]
    pub cpus_per_task: Option<NonZeroU32>,
    /// Bind each rank to threads, cores, l3caches, numa (ldoms) or sockets, or to the cores next to its GPU or network interface (gpus,
    /// nics); map:LIST has a CPU or range for each; rank is the CPU of its number; none does not bind (the default without -c). srun's
    /// map_cpu, mask_cpu, map_ldom and mask_ldom are accepted. `verbose`, alone or with a comma before the rest, prints the CPUs, as
    /// --show-map does; `quiet` does not.
    #[arg(long, value_name = "BIND", value_parser = cpu_bind::parse)]
    pub cpu_bind: Option<BindRequest>,
    /// Bind ranks for programs that are compute_bound (cores, one thread of each), memory_bound (one core of each socket), multithread
    /// (hardware threads) or nomultithread (one thread of each core).
    #[arg(long, value_enum, value_name = "KIND", hide_possible_values = true, conflicts_with = "threads_per_core")]
    pub hint: Option<Hint>,
    /// Use N hardware threads of each core; without --cpu-bind, ranks are bound to threads.
    #[arg(long, value_name = "N", value_parser = positive, allow_negative_numbers = true)]
    pub threads_per_core: Option<NonZeroU32>,
    /// Let ranks share CPUs if there are fewer than -c needs.
    #[arg(short = 'O', long, overrides_with = "no_overcommit")]
    pub overcommit: bool,
    /// Refuse more ranks on a node than it has CPUs (-c for each), bound or not; srun does so in an allocation.
    #[arg(long, overrides_with = "overcommit")]
    pub no_overcommit: bool,
    /// Memory of each rank: from the NUMA nodes of its CPUs (local), from the one of its number (rank), or from map_mem:LIST or
    /// mask_mem:LIST; with `prefer,` before it, from another node if that one is full.
    #[arg(long, value_name = "BIND", value_parser = mem_bind::parse)]
    pub mem_bind: Option<MemBind>,
    /// N GPUs for each rank, used by no other rank on its node, in CUDA_VISIBLE_DEVICES, ROCR_VISIBLE_DEVICES or ZE_AFFINITY_MASK.
    #[arg(long, value_name = "N", value_parser = positive, allow_negative_numbers = true)]
    pub gpus_per_task: Option<NonZeroU32>,
    /// GPUs of each rank, in the same variables: none (all), closest (those next to its CPUs), single:K (one for K neighbouring ranks),
    /// per-task:N, or map:0,1+2 (by the rank on its node). It overrides --gpus-per-task.
    #[arg(long, value_name = "HOW", value_parser = gpu_bind::parse)]
    pub gpu_bind: Option<GpuBind>,
    /// Print the node and CPUs of each rank on standard error, then start the ranks.
    #[arg(long)]
    pub show_map: bool,
    /// Print the node of each rank, and start nothing. Programs, directories, input files, places and CPUs are checked, on a cluster as far
    /// as the API server has them; GPUs, memory and output files are checked at a start.
    #[arg(long)]
    pub dry_run: bool,
}

impl PlacementArgs {
    /// True if the place of each rank is printed.
    pub(crate) fn shows_map(&self) -> bool {
        self.show_map || self.cpu_bind.as_ref().is_some_and(|request| request.is_shown)
    }

    /// Nodes of the first program, if programs have nodes of their own.
    pub(crate) fn of_first_program(&self) -> NodeGroupArgs {
        let Self { nodes, tasks_per_node, nodelist, host, .. } = self;
        // Programs with their own nodes do not wait for nodes that other programs leave free: of MIN-MAX, they use MIN.
        let nodes = nodes.map(|nodes| nodes.least);
        NodeGroupArgs { nodes, tasks_per_node: *tasks_per_node, nodelist: nodelist.clone(), host: host.clone() }
    }

    /// True if a flag other than -n determines the number of ranks.
    pub(crate) fn counts_ranks(&self) -> bool {
        let by_nodes = self.nodes.is_some() || self.tasks_per_node.is_some() || self.per_object().is_some();
        let by_hosts = self.hostfile.is_some() || self.host.is_some() || self.rankfile.is_some();
        self.fill || self.multi_prog || by_nodes || by_hosts
    }

    /// Ranks on objects of a node, from any of the flags.
    pub(crate) fn per_object(&self) -> Option<PerObject> {
        let of = |ranks: Option<NonZeroU32>, object| {
            ranks.map(|ranks| PerObject { ranks, object, filling: Filling::Evenly })
        };
        self.tasks_per.or(of(self.tasks_per_core, Object::Core)).or(of(self.tasks_per_socket, Object::Socket))
    }
}
