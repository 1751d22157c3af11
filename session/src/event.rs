//! Events of a session while it runs, and its report at the end.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use pmi_core::deaths::Death;
use pmi_core::ids::{JobId, NodeIndex, Rank};
use pmi_core::{DialoguePoint, Phase};
use rank_spawner::{CpuSet, LimitedResource, RankExit};
use serde::{Deserialize, Serialize};

use crate::call_stacks::RankStack;
use crate::cause::Cause;
use crate::map_hash::MapHash;

/// Event of a session. Events of one rank arrive in order; all output of a rank arrives before its exit.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Event {
    /// Hash of the launch's map on this node. Reported once, before the first start, if the launch has several nodes.
    Mapped(MapHash),
    /// The rank's process runs.
    Started {
        /// The rank.
        rank: Rank,
        /// Its process id on this node.
        pid: u32,
        /// Time of its start since 1970: the clock of this node at the start of the session, plus a monotonic clock.
        at: Duration,
    },
    /// Output of a rank.
    Output(Output),
    /// Warning for the user; the launch continues.
    Notice(Notice),
    /// The rank's process ended.
    Exited {
        /// The rank.
        rank: Rank,
        /// Exit status or signal of its process.
        exit: RankExit,
        /// Point that its PMI conversation reached; `None` without PMI.
        reached: Option<DialoguePoint>,
        /// Time from its start to the end of its process, by a monotonic clock.
        ran: Duration,
    },
    /// The ranks of a spawned job on this node were started, or failed to start.
    Spawned {
        /// The job.
        job: JobId,
        /// Reason why not all of its ranks run; `None` if all run.
        failure: Option<String>,
    },
    /// Progress of each rank; the answer to `Control::AskProgress`, `Control::AskUsage` and `Control::AskStacks`.
    Progress {
        /// The number of the question.
        question: u64,
        /// Every rank of this node.
        ranks: Vec<RankProgress>,
        /// Call stacks of the running ranks, if they were requested and no answer with a later number will contain them.
        stacks: Option<Vec<RankStack>>,
    },
    /// Ranks of this node have waited in a fence of all ranks for a while, and no rank of this node is missing. Reported once for each fence.
    /// The fence may have ended since: ask with `Control::AskProgress` before any conclusion.
    Waiting {
        /// The waiting ranks.
        ranks: Vec<Rank>,
    },
    /// Ranks of this node have waited at least this long in a fence of all ranks after their start-up. Reported at doubling times, and only if
    /// the launch has several nodes.
    LongWait {
        /// Shortest time that they have waited.
        since: Duration,
    },
    /// A rank of this node has died, and the other ranks of its job continue. Ranks of other nodes must be notified by `Control::Deaths`.
    /// Reported only if the launch has several nodes.
    Died(Death),
    /// First cause of this session: the launch ends before all ranks ended by themselves. Reported once.
    Ending(Cause),
}

/// Progress of one rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankProgress {
    /// The rank.
    pub rank: Rank,
    /// Its process id on this node; `None` before it was started.
    pub pid: Option<u32>,
    /// Phase of its PMI conversation; `None` without PMI.
    pub phase: Option<Phase>,
    /// Number of completed fences of all ranks of its job; `None` if unknown.
    pub fences: Option<u64>,
    /// The last PMI command that it sent, if any.
    pub last_command: Option<String>,
    /// True if it waits in a fence for other ranks.
    pub waiting: bool,
    /// True if it waits in a fence of all ranks of its job.
    pub waits_for_all: bool,
    /// Protocol that it has spoken. `None` if it has spoken none or both, or if its session has an older version.
    pub protocol: Option<SpokenProtocol>,
    /// True if it has contacted its PMI server and has not yet left a fence of all ranks. An MPI rank is then in `MPI_Init`.
    pub in_init: bool,
    /// Exit status or signal of its process, if it has ended.
    pub exit: Option<RankExit>,
    /// True if it was lost with its node or its session: its exit is unknown.
    pub lost: bool,
    /// Resources that its processes use, if requested and if it runs.
    pub usage: Option<RankUsage>,
    /// Its CPUs, if resources were requested and if it runs.
    pub affinity: Option<RankAffinity>,
}

impl RankProgress {
    /// Returns the progress of a rank about which nothing is known.
    pub fn unknown(rank: Rank) -> Self {
        Self {
            rank,
            pid: None,
            phase: None,
            protocol: None,
            fences: None,
            last_command: None,
            waiting: false,
            waits_for_all: false,
            in_init: false,
            exit: None,
            lost: false,
            usage: None,
            affinity: None,
        }
    }
}

/// Resources that a rank and all of its descendant processes use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RankUsage {
    /// Processor time, including that of child processes that they waited for.
    pub cpu: Duration,
    /// Resident memory, in bytes. Memory that several processes share is counted for each of them.
    pub memory: u64,
    /// Bytes that they read by system calls, from files, pipes and sockets alike.
    pub read: u64,
    /// Bytes that they wrote.
    pub written: u64,
}

/// CPUs of a rank, as planned and as allowed by the kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RankAffinity {
    /// CPUs that it was bound to; `None` if it was not bound.
    pub bound_to: Option<CpuSet>,
    /// CPUs on which its first thread may run at present.
    pub allowed: CpuSet,
}

/// A piece of a rank's output.
///
/// Pieces end at line ends. Output of a terminal is passed on as it arrives. A piece ends without a line end if a line is longer than the
/// maximum size of a piece. With `settings::Timeouts::prompt`, a piece also ends after a carriage return, and if the line takes longer than that
/// time. The next piece of the same rank and stream continues the line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Output {
    /// Rank that wrote it.
    pub rank: Rank,
    /// Stream that it was written to.
    pub stream: Stream,
    /// Whole lines with their line ends, or a part of one line.
    pub bytes: Bytes,
}

impl Output {
    /// Maximum number of bytes of a piece. A longer line is sent in several pieces.
    pub const PIECE_MAX: usize = 64 * 1024;

    /// Cuts output of a rank into pieces of at most [`Output::PIECE_MAX`] bytes, at line ends if possible. The pieces share its memory.
    pub(crate) fn pieces(rank: Rank, stream: Stream, mut bytes: Bytes) -> impl Iterator<Item = Self> {
        std::iter::from_fn(move || {
            let first = &bytes[..bytes.len().min(Self::PIECE_MAX)];
            let end = match memchr::memrchr(b'\n', first) {
                Some(line_end) if first.len() < bytes.len() => line_end + 1,
                _ => first.len(),
            };
            (end > 0).then(|| Self { rank, stream, bytes: bytes.split_to(end) })
        })
    }
}

/// One of a rank's two output streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Stream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// A warning about a launch that continues.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Notice {
    /// Ranks of a job of several ranks ran or ended without contact to their server. Most likely the job runs as N jobs of size 1.
    Silent {
        /// The ranks.
        ranks: Vec<Rank>,
        /// Number of ranks of the job.
        size: u32,
        /// True if they ended; false if they still run.
        ended: bool,
        /// Time that they ran.
        after: Duration,
        /// The MPI library of one of the ranks, if one was found.
        library: Option<MpiLibrary>,
    },
    /// The start-up is not complete: some ranks wait in a fence for other ranks.
    Stuck {
        /// Time that the launch has run.
        after: Duration,
        /// Number of waiting ranks.
        waiting: usize,
        /// The missing ranks, each with the last PMI command that it sent, if any.
        missing: Vec<(Rank, Option<String>)>,
    },
    /// Call stacks of the missing ranks in a start that takes long, or of all ranks at the time limit.
    Stacks {
        /// The stacks, ordered by their lowest rank.
        stacks: Vec<RankStack>,
    },
    /// A rank did not read its standard input for so long that it delayed the other readers. Its input was closed.
    StdinClosed {
        /// The rank.
        rank: Rank,
    },
    /// A limit of the user's shell exceeds the hard limit of a node. Ranks on that node have the hard limit.
    LimitTooHigh {
        /// Name of the node.
        node: String,
        /// The resource.
        resource: LimitedResource,
        /// Limit of the user's shell.
        asked: u64,
        /// Hard limit of the node.
        hard: u64,
    },
    /// Right after its start, a rank does not have its planned CPUs. Only the first such rank of a node is reported.
    BoundElsewhere {
        /// The rank.
        rank: Rank,
        /// Name of its node.
        node: String,
        /// CPUs of the plan.
        planned: CpuSet,
        /// CPUs that the kernel allows.
        seen: CpuSet,
    },
    /// A rank's request for new processes (`MPI_Comm_spawn`) failed.
    NotSpawned {
        /// The rank.
        rank: Rank,
        /// Reason of the failure.
        reason: String,
    },
    /// A request of a rank to publish, look up or withdraw a name failed.
    NameRefused {
        /// The rank.
        rank: Rank,
        /// The name and the reason.
        reason: String,
    },
    /// A rank has begun to release a registered resource, and has not finished in time.
    ReleaseOverdue {
        /// The rank.
        rank: Rank,
        /// Name of the resource.
        resource: String,
        /// Time limit that the rank set.
        within: Duration,
        /// True if the rank was killed because of this (`settings::OverdueRelease`).
        killed: bool,
    },
    /// A process that a rank left running still held the rank's output after `settings::Timeouts::output_end`. The process was killed. Output
    /// that it had not written yet is lost.
    OutputHeld {
        /// The rank.
        rank: Rank,
        /// Process id of this process.
        pid: u32,
        /// Name of its program, at most 15 bytes; empty if unknown.
        program: String,
        /// Time from the end of the last rank.
        after: Duration,
    },
    /// A use of a PMI server that can end in an endless wait. A process begins MPI in the place of a rank, or tries to. Or a rank is in
    /// `MPI_Finalize` while another rank, which may wait for it, is in MPI.
    PmiMisuse {
        /// The rank.
        rank: Rank,
        /// Description of the observation.
        observed: String,
    },
    /// Processes of the launch could not be ended.
    Leftover {
        /// Their process ids.
        pids: Vec<u32>,
    },
}

/// An MPI library, found in a rank's memory map or in the list of libraries that its program needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MpiLibrary {
    /// Name of the library, such as `MPICH` or `Open MPI`.
    pub name: String,
    /// The file, as mapped or as named by the program.
    pub file: String,
    /// Protocol between the library and its launcher. It decides whether this launch can serve the library.
    pub family: MpiFamily,
}

/// Protocol between ranks and their PMI server. Ranks that wait in a fence of one protocol never complete a fence of the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpokenProtocol {
    /// PMI-1 or PMI-2.
    Pmi,
    /// PMIx.
    Pmix,
}

impl SpokenProtocol {
    /// Returns the other protocol.
    pub(crate) fn other(self) -> Self {
        match self {
            Self::Pmi => Self::Pmix,
            Self::Pmix => Self::Pmi,
        }
    }
}

impl fmt::Display for SpokenProtocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Pmi => "PMI (MPICH and its kin)",
            Self::Pmix => "PMIx (Open MPI)",
        })
    }
}

/// Protocol between an MPI library and its launcher.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MpiFamily {
    /// PMI-1 or PMI-2: MPICH, Intel MPI, MVAPICH.
    Pmi,
    /// PMIx: Open MPI.
    Pmix,
    /// Its own protocol: Cray MPICH.
    Vendor,
}

/// End of a session. The default is the end of a session without ranks.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Report {
    /// Exit status or signal of each rank of this node, in rank order. Ranks that never started are omitted.
    pub exits: Vec<(Rank, RankExit)>,
    /// First cause of this session; `None` if every rank succeeded.
    pub cause: Option<Cause>,
    /// Time from the first start to the end of the last rank.
    pub duration: Duration,
    /// Resources that its ranks used; `None` if unknown.
    pub usage: Option<Usage>,
    /// The nodes with the least and the most usage, for a launch on several nodes that have reported it.
    pub by_node: Option<Box<UsageRange>>,
}

/// Nodes with the least and the most processor time of their ranks. Among equal nodes the first one counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UsageRange {
    /// The node with the least use.
    pub least: (NodeIndex, Usage),
    /// The node with the most use.
    pub most: (NodeIndex, Usage),
}

impl UsageRange {
    /// Returns the range with one more node.
    #[must_use]
    pub fn with(known: Option<Self>, node: NodeIndex, usage: Usage) -> Self {
        let new = (node, usage);
        let Some(Self { least, most }) = known else { return Self { least: new, most: new } };
        Self {
            least: if usage.time() < least.1.time() { new } else { least },
            most: if usage.time() > most.1.time() { new } else { most },
        }
    }
}

/// Resources that the ranks of a session used, including all processes that the ranks or the session waited for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Processor time outside of the kernel.
    pub user: Duration,
    /// Processor time in the kernel.
    pub system: Duration,
    /// Largest resident memory of one process, in bytes.
    pub peak_memory: u64,
}

impl Usage {
    /// Returns the processor time, in the kernel and outside.
    pub fn time(&self) -> Duration {
        self.user.saturating_add(self.system)
    }

    /// Returns the resources of both together.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            user: self.user.saturating_add(other.user),
            system: self.system.saturating_add(other.system),
            peak_memory: self.peak_memory.max(other.peak_memory),
        }
    }
}
