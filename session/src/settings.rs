//! Settings for every rank of a launch, in each of the stages in [`crate::request`].

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

/// Settings for every rank of a launch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaunchSettings {
    /// The environment that every rank starts with. Variables of an outer launcher are removed from it.
    pub environment: Vec<(OsString, OsString)>,
    /// PMI protocols for the ranks, and the connection to their servers.
    pub pmi: PmiSpec,
    /// Reports every PMI message.
    pub pmi_trace: bool,
    /// Also sets `SLURM_PROCID` and other variables of Slurm for every rank.
    pub slurm_environment: bool,
    /// Sets `LATTICE_RANK` and other variables that only ranks have, as is usual. False for a process that starts other processes, which are
    /// no ranks of the launch.
    pub rank_variables: bool,
    /// Keeps the user's selection of Open MPI transports on nodes without a fabric device, where ranks otherwise do not look for one. The
    /// user has selected some (`btl`, `mtl`, `pml`) in a file that Open MPI reads.
    pub keeps_transports: bool,
    /// CPUs that each rank may use.
    pub cpu_bind: CpuBind,
    /// NUMA nodes for each rank's memory.
    pub mem_bind: MemBind,
    /// GPUs that each rank may use.
    pub gpu_bind: GpuBind,
    /// Ranks that read the launch's standard input.
    pub stdin: StdinTarget,
    /// Standard output of ranks.
    pub stdout: RankOutput,
    /// Effect of a rank's failure on the other ranks.
    pub failed_ranks: FailedRanks,
    /// Effect of the loss of a node on the other nodes.
    pub lost_nodes: LostNodes,
    /// Effect on a rank that does not release a resource in time.
    pub overdue_release: OverdueRelease,
    /// Time limits of the session.
    pub timeouts: Timeouts,
    /// Limits of the user's shell for ranks, including spawned ranks.
    pub shell_limits: ShellLimits,
    /// Bytes of memory that the ranks of each job share on each node. It is made before they start; `None` for no memory.
    pub node_memory: Option<NonZeroU64>,
    /// Directory of the launch on each node for ranks' temporary files.
    pub temporary: TemporaryFiles,
    /// Action of the launched ranks when they have executed their programs; spawned ranks run.
    pub at_exec: AtExec,
    /// Hashes of the processes from which the launcher descends, the nearest first: see [`names`](crate::names).
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
    /// The usual location of the user's environment and the node.
    #[default]
    AsUsual,
    /// A directory of the launch on each node. It is `TMPDIR` of its ranks, and is removed with the launch.
    OfLaunch {
        /// Directory in which it is made; `None` for `TMPDIR` of the user's environment, else `/tmp`.
        below: Option<PathBuf>,
    },
}

/// PMI protocols for the ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct PmiSpec {
    /// Protocols that are served.
    pub family: PmiFamily,
    /// Connection from a rank to its server.
    pub entrance: Entrance,
    /// Offers PMI-1.2 and its group barriers to clients that ask for 1.1.
    pub group_barriers: bool,
    /// Memory from which ranks read their job's map and pairs.
    #[serde(default)]
    pub job_memory: JobMemory,
    /// Distribution of the data of PMIx fences between nodes.
    #[serde(default)]
    pub exchange: DataExchange,
    /// Meaning of a repeated `init` of PMI-1 or PMI-2 of a rank.
    #[serde(default)]
    pub restarts: Restarts,
}

/// Distribution of the data of PMIx fences between nodes. Clients of PMI-1 and PMI-2 do not name the owner of the keys that they request. So
/// their fences always send the data to all nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DataExchange {
    /// Small data goes to all nodes at once. Large data goes to the nodes that request it, and to all nodes once so much was requested that
    /// this is cheaper.
    #[default]
    Auto,
    /// To all nodes at once.
    Full,
    /// To the nodes of ranks that request it, from the node that contributed it.
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

/// Memory from which ranks read their job's map and pairs without a request to their server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum JobMemory {
    /// On each node, for ranks that use it.
    #[default]
    Shared,
    /// No memory: ranks ask their server.
    Off,
}

/// Protocols that a launch serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PmiFamily {
    /// All protocols; each rank uses its own.
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
    /// Returns true if PMI-1 or PMI-2 is served.
    pub fn has_pmi(self) -> bool {
        matches!(self, Self::Auto | Self::Pmi1 | Self::Pmi2)
    }

    /// Returns true if PMIx is served.
    pub fn has_pmix(self) -> bool {
        matches!(self, Self::Auto | Self::Pmix)
    }
}

/// Connection from a rank to its server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Entrance {
    /// An inherited socket (`PMI_FD`): the rank's identity is the socket itself.
    #[default]
    Socket,
    /// A loopback TCP port (`PMI_PORT`, `PMI_ID`), for container runtimes that close inherited descriptors.
    Port,
}

/// Standard output of a rank. A rank with its own terminal ([`StdinTarget::Terminal`]) writes to that terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum RankOutput {
    /// A pipe.
    #[default]
    Pipe,
    /// A pseudo-terminal, so that programs do not buffer their output.
    Terminal,
}

/// Ranks that read the launch's standard input. All other ranks read an empty file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StdinTarget {
    /// No rank.
    None,
    /// One rank.
    Rank(Rank),
    /// Every rank reads a copy.
    All,
    /// Every rank opens the file with this name itself.
    File(Template),
    /// Rank 0 reads it from a pseudo-terminal of this size. The terminal is also its standard output and error, and its controlling
    /// terminal.
    Terminal(TerminalSize),
}

impl StdinTarget {
    /// Returns the only rank that reads the input of the launch, if there is one.
    pub fn one_reader(&self) -> Option<Rank> {
        match self {
            Self::Rank(rank) => Some(*rank),
            Self::Terminal(_) => Some(Rank(0)),
            Self::None | Self::All | Self::File(_) => None,
        }
    }
}

/// Effect of the failure of a rank, a status other than 0 or a signal, on the other ranks.
///
/// A failure that makes MPI impossible for the other ranks always ends the launch. Such failures are an abort, and a rank for which other ranks
/// wait in a fence. So are a violation of the protocol, and an exit with status 0 without `MPI_Finalize`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum FailedRanks {
    /// The launch ends.
    #[default]
    EndLaunch,
    /// The other ranks continue. The launch ends with its last rank, and has then failed.
    AreBorne,
}

/// Effect of the loss of a node on the other nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum LostNodes {
    /// The launch ends.
    #[default]
    EndLaunch,
    /// The ranks of the node are dead, and the other ranks continue. The launch has failed at its end.
    AreBorne,
}

/// Effect on a rank that has begun to release a registered resource, and has exceeded the time limit that it set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum OverdueRelease {
    /// The user gets a notice.
    #[default]
    Warn,
    /// The rank is also killed, and so has failed.
    Fail,
}

/// Signal that ranks receive before the time limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitSignal {
    /// Number of the signal.
    pub signal: i32,
    /// Time from the signal to the limit.
    pub ahead: Duration,
}

/// Time limits of a launch, which its sessions apply. Limits between daemons are in [`crate::timeouts`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// Time after which a rank of a job of several ranks is reported if it has sent nothing to its server.
    pub silent: Duration,
    /// Time after which an incomplete start-up is reported, with the missing ranks.
    pub stuck: Duration,
    /// Grace, from SIGTERM to SIGKILL, after a rank failed or aborted.
    pub grace_after_failure: Duration,
    /// Grace, from SIGTERM to SIGKILL, when the user or the time limit ends the launch.
    pub grace_after_interrupt: Duration,
    /// Time after its first byte at which an incomplete line is passed on: it may be a prompt, or a progress bar. `None` waits for the line
    /// end, so that no line is ever cut.
    pub prompt: Option<Duration>,
    /// Time after the end of the last rank in which processes that hold a rank's output must write the rest. Then they are killed.
    pub output_end: Duration,
    /// Time that ranks may wait in a fence before the launch is ended; `None` for no limit.
    pub fence: Option<Duration>,
    /// Time that the launch may run before it is ended; `None` for no limit.
    pub time_limit: Option<Duration>,
    /// Signal that ranks receive before that limit; without a limit it has no effect.
    pub limit_signal: Option<LimitSignal>,
    /// Time from the end of the first rank of the launched job to the end of the launch; `None` for no limit.
    pub after_first_exit: Option<Duration>,
}

impl Timeouts {
    /// Returns the longer of the two graces.
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
