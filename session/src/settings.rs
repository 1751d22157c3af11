//! Settings that hold for every rank of a launch, in each of the stages that [`crate::request`] draws.

use std::ffi::OsString;
use std::num::NonZeroU64;
use std::path::PathBuf;
use std::time::Duration;

use pmi_core::fence::Exchange;
use pmi_core::ids::Rank;
pub use pmi_core::server::Restarts;
pub use rank_spawner::{AtExec, TerminalSize};
use rank_spawner::{CpuBind, MemBind};
use serde::{Deserialize, Serialize};

use crate::gpus::GpuBind;
use crate::shell_limits::ShellLimits;
use crate::template::Template;

/// Settings that hold for every rank of a launch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaunchSettings {
    /// The environment that every rank starts from; an outer launcher's variables are scrubbed from it.
    pub environment: Vec<(OsString, OsString)>,
    /// The PMI that ranks are served, and how they reach it.
    pub pmi: PmiSpec,
    /// Reports every PMI message.
    pub pmi_trace: bool,
    /// Also sets `SLURM_PROCID` and other variables of Slurm for every rank.
    pub slurm_environment: bool,
    /// Sets `LATTICE_RANK` and other variables that only ranks have, as is usual; false for a process that starts others which are no ranks
    /// of the launch.
    pub rank_variables: bool,
    /// Leaves Open MPI's transports alone on nodes without a device of a fabric, where its ranks otherwise do not look for one: its user has
    /// chosen some (`btl`, `mtl`, `pml`) in a file that Open MPI reads.
    pub keeps_transports: bool,
    /// CPUs that each rank may use.
    pub cpu_bind: CpuBind,
    /// NUMA nodes that each rank's memory comes from.
    pub mem_bind: MemBind,
    /// GPUs that each rank may use.
    pub gpu_bind: GpuBind,
    /// Ranks that read the launch's standard input.
    pub stdin: StdinTarget,
    /// What ranks write their standard output to.
    pub stdout: RankOutput,
    /// Consequence of a rank's failure for the others.
    pub failed_ranks: FailedRanks,
    /// Consequence of the loss of a node for the others.
    pub lost_nodes: LostNodes,
    /// Consequence for a rank that does not release a resource in time.
    pub overdue_release: OverdueRelease,
    /// Time limits of the session.
    pub timeouts: Timeouts,
    /// Limits of the user's shell that ranks have, spawned ones as well.
    pub shell_limits: ShellLimits,
    /// Bytes of memory that the ranks of each job share on each node, made before they start; `None` for none.
    pub node_memory: Option<NonZeroU64>,
    /// Directory of the launch on each node for ranks' temporary files.
    pub temporary: TemporaryFiles,
    /// What the launched ranks do when they have executed their programs; spawned ones run.
    pub at_exec: AtExec,
    /// Hashes of the processes that the launcher descends from, the nearest first: see [`names`](crate::names).
    pub ancestors: Vec<u64>,
}

impl Default for LaunchSettings {
    fn default() -> Self {
        Self {
            environment: Vec::new(),
            pmi: PmiSpec::default(),
            pmi_trace: false,
            slurm_environment: false,
            rank_variables: true,
            keeps_transports: false,
            cpu_bind: CpuBind::None,
            mem_bind: MemBind::None,
            gpu_bind: GpuBind::None,
            stdin: StdinTarget::None,
            stdout: RankOutput::default(),
            failed_ranks: FailedRanks::default(),
            lost_nodes: LostNodes::default(),
            overdue_release: OverdueRelease::default(),
            timeouts: Timeouts::default(),
            shell_limits: ShellLimits::default(),
            node_memory: None,
            temporary: TemporaryFiles::default(),
            at_exec: AtExec::Run,
            ancestors: Vec::new(),
        }
    }
}

/// Place of ranks' temporary files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum TemporaryFiles {
    /// Where the user's environment and the node have it.
    #[default]
    AsUsual,
    /// A directory of the launch on each node, which is `TMPDIR` of its ranks and goes with it.
    OfLaunch {
        /// Directory in which it is made; `None` for `TMPDIR` of the user's environment, else `/tmp`.
        below: Option<PathBuf>,
    },
}

/// PMI that ranks are served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct PmiSpec {
    /// Protocols that are served.
    pub family: PmiFamily,
    /// Way from a rank to its server.
    pub entrance: Entrance,
    /// Offers PMI-1.2 and its group barriers to clients that ask for 1.1.
    pub group_barriers: bool,
    /// Memory in which ranks read their job's map and pairs.
    #[serde(default)]
    pub job_memory: JobMemory,
    /// Way of the data of PMIx fences between nodes.
    #[serde(default)]
    pub exchange: DataExchange,
    /// Meaning of an `init` of PMI-1 or PMI-2 of a rank that has said it before.
    #[serde(default)]
    pub restarts: Restarts,
}

/// Way of the data of PMIx fences between nodes. Clients of PMI-1 and PMI-2 do not name the owner of what they ask for, so their
/// fences always bring it to all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DataExchange {
    /// Small data to all nodes at once; large data to those that ask, and to all once so much was asked for that this is cheaper.
    #[default]
    Auto,
    /// To all nodes at once.
    Full,
    /// To the nodes whose ranks ask, from the node that brought it.
    Lazy,
}

impl From<DataExchange> for Exchange {
    fn from(exchange: DataExchange) -> Self {
        match exchange {
            DataExchange::Auto => Self::Auto,
            DataExchange::Full => Self::Full,
            DataExchange::Lazy => Self::Lazy,
        }
    }
}

/// Memory in which ranks read their job's map and pairs without asking their server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum JobMemory {
    /// On each node, for ranks that want it.
    #[default]
    Shared,
    /// None: ranks ask.
    Off,
}

/// Protocols that a launch serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PmiFamily {
    /// Any protocol, as each rank speaks it.
    #[default]
    Auto,
    /// PMI-1 only.
    Pmi1,
    /// PMI-2 only.
    Pmi2,
    /// PMIx only.
    Pmix,
    /// No PMI at all: the ranks are independent programs.
    None,
}

impl PmiFamily {
    /// True if PMI-1 or PMI-2 is served.
    pub fn has_pmi(self) -> bool {
        matches!(self, Self::Auto | Self::Pmi1 | Self::Pmi2)
    }

    /// True if PMIx is served.
    pub fn has_pmix(self) -> bool {
        matches!(self, Self::Auto | Self::Pmix)
    }
}

/// Way from a rank to its server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Entrance {
    /// An inherited socket (`PMI_FD`): the rank's identity is the socket itself.
    #[default]
    Socket,
    /// A loopback TCP port (`PMI_PORT`, `PMI_ID`), for container runtimes that close inherited descriptors.
    Port,
}

/// Standard output of a rank; one that has a terminal of its own ([`StdinTarget::Terminal`]) writes to that.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum RankOutput {
    /// A pipe.
    #[default]
    Pipe,
    /// A pseudo-terminal, so that programs do not hold back what they write.
    Terminal,
}

/// Ranks that read the launch's standard input; all others read an empty file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StdinTarget {
    /// No rank.
    None,
    /// One rank.
    Rank(Rank),
    /// Every rank reads a copy.
    All,
    /// Every rank opens the file of this name by itself.
    File(Template),
    /// Rank 0 reads it from a pseudo-terminal of this size, which is its standard output and error as well, and controls it.
    Terminal(TerminalSize),
}

impl StdinTarget {
    /// The rank that alone reads the input of the launch, if there is one.
    pub fn one_reader(&self) -> Option<Rank> {
        match self {
            Self::Rank(rank) => Some(*rank),
            Self::Terminal(_) => Some(Rank(0)),
            Self::None | Self::All | Self::File(_) => None,
        }
    }
}

/// Consequence of the failure of a rank, a status other than 0 or a signal, for the others.
///
/// What makes MPI impossible for the others ends the launch in any case: an abort, a rank that others wait for in a fence, one that
/// breaks the protocol, or leaves with status 0 and without `MPI_Finalize`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum FailedRanks {
    /// The launch ends.
    #[default]
    EndLaunch,
    /// The others go on; the launch ends with its last rank, and has failed then.
    AreBorne,
}

/// Consequence of the loss of a node for the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum LostNodes {
    /// The launch ends.
    #[default]
    EndLaunch,
    /// The ranks of the node are dead, and the others go on; the launch has failed at its end.
    AreBorne,
}

/// Consequence for a rank that has begun to release a registered resource, and has not ended that in the time that it gave itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum OverdueRelease {
    /// The user is told.
    #[default]
    Warn,
    /// The rank is killed, too, and so has failed.
    Fail,
}

/// Signal that ranks are sent before the time limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitSignal {
    /// Number of the signal.
    pub signal: i32,
    /// Time from the signal to the limit.
    pub ahead: Duration,
}

/// Time limits of a launch, which its sessions hold. Those between daemons are in [`crate::timeouts`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// Time after which a rank of a job of several ranks that has sent its server nothing is reported.
    pub silent: Duration,
    /// Time after which a start-up that is not complete is reported, with the ranks that are missing.
    pub stuck: Duration,
    /// Grace, from SIGTERM to SIGKILL, after a rank failed or aborted.
    pub grace_after_failure: Duration,
    /// Grace, from SIGTERM to SIGKILL, when the user ends the launch or its time limit does.
    pub grace_after_interrupt: Duration,
    /// Time after its first byte at which the beginning of a line is passed on: it may be a prompt, or a progress bar. `None` waits for the
    /// line end, so that no line is ever cut.
    pub prompt: Option<Duration>,
    /// Time that processes which hold a rank's output have, after the last rank has ended, to pass on the rest. Then they are killed.
    pub output_end: Duration,
    /// Time that ranks may wait in a fence before the launch is ended; `None` for no limit.
    pub fence: Option<Duration>,
    /// Time that the launch may run before it is ended; `None` for no limit.
    pub time_limit: Option<Duration>,
    /// Signal that ranks are sent before that limit; it means nothing without one.
    pub limit_signal: Option<LimitSignal>,
    /// Time from the end of the first rank of the launched job to that of the launch; `None` for no limit.
    pub after_first_exit: Option<Duration>,
}

impl Timeouts {
    /// The longer of the two graces.
    pub fn grace_max(&self) -> Duration {
        self.grace_after_failure.max(self.grace_after_interrupt)
    }
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            silent: Duration::from_secs(5),
            stuck: Duration::from_secs(30),
            grace_after_failure: Duration::from_millis(400),
            grace_after_interrupt: Duration::from_secs(5),
            prompt: None,
            output_end: Duration::from_secs(1),
            fence: None,
            time_limit: None,
            limit_signal: None,
            after_first_exit: None,
        }
    }
}
