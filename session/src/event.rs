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

/// Event of a session. Events of one rank arrive in order; all output of a rank comes before its exit.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Event {
    /// Hash of the launch's map as this node has it. Reported once, before the first start, where there are several nodes.
    Mapped(MapHash),
    /// The rank's process runs.
    Started {
        /// The rank.
        rank: Rank,
        /// Its process id on this node.
        pid: u32,
        /// Time of its start since 1970, by the clock of this node as the session began and a monotonic clock from then on.
        at: Duration,
    },
    /// Output of a rank.
    Output(Output),
    /// Warning for the user; the launch goes on.
    Notice(Notice),
    /// The rank's process ended.
    Exited {
        /// The rank.
        rank: Rank,
        /// Exit status or signal of its process.
        exit: RankExit,
        /// Point that its PMI conversation had reached; `None` without PMI.
        reached: Option<DialoguePoint>,
        /// Time from its start to the end of its process, by a monotonic clock.
        ran: Duration,
    },
    /// A spawned job's part on this node was started, or was not.
    Spawned {
        /// The job.
        job: JobId,
        /// Reason why not all of its ranks run; `None` if all do.
        failure: Option<String>,
    },
    /// Progress of each rank; the answer to `Control::AskProgress`, `Control::AskUsage` and `Control::AskStacks`.
    Progress {
        /// The number of the question.
        question: u64,
        /// Every rank of this node.
        ranks: Vec<RankProgress>,
        /// Call stacks of the ranks that run, if they were asked for and are not about to be told under a later number.
        stacks: Option<Vec<RankStack>>,
    },
    /// Ranks of this node have waited in a fence of all ranks for a while, and none of this node is missing; told once for each fence.
    /// The fence may have ended since: ask with `Control::AskProgress` before you conclude anything.
    Waiting {
        /// The ranks that wait.
        ranks: Vec<Rank>,
    },
    /// Ranks of this node have waited for so long, or longer, in a fence of all ranks after their start-up. Reported at doubling times, and only
    /// where there are other nodes.
    LongWait {
        /// Shortest time that they have waited.
        since: Duration,
    },
    /// A rank of this node has died, and the others of its job go on without it: those of other nodes are to be told by
    /// `Control::Deaths`. Reported only where there are other nodes.
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
    /// Number of fences of all ranks of its job that are over; `None` if it is not known.
    pub fences: Option<u64>,
    /// The last PMI command that it sent, if it sent any.
    pub last_command: Option<String>,
    /// True if it waits in a fence for others.
    pub waiting: bool,
    /// Protocol that it has spoken; `None` for none, for both, and of a session of an older version.
    pub protocol: Option<SpokenProtocol>,
    /// True if it has spoken to its PMI server and left no fence with all others yet: in MPI it is in `MPI_Init`.
    pub in_init: bool,
    /// Exit status or signal of its process, if it has ended.
    pub exit: Option<RankExit>,
    /// True if it was lost with its node or its session: how it ended is not known.
    pub lost: bool,
    /// Resources that its processes use, if they were asked for and it runs.
    pub usage: Option<RankUsage>,
    /// Its CPUs, if resources were asked for and it runs.
    pub affinity: Option<RankAffinity>,
}

impl RankProgress {
    /// A rank of which nothing is known.
    pub fn unknown(rank: Rank) -> Self {
        Self {
            rank,
            pid: None,
            phase: None,
            protocol: None,
            fences: None,
            last_command: None,
            waiting: false,
            in_init: false,
            exit: None,
            lost: false,
            usage: None,
            affinity: None,
        }
    }
}

/// Resources that a rank and all processes that descend from it use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RankUsage {
    /// Processor time, that of processes which they waited for included.
    pub cpu: Duration,
    /// Resident memory, in bytes; what several of them share is counted several times.
    pub memory: u64,
    /// Bytes that they read by system calls, from files, pipes and sockets alike.
    pub read: u64,
    /// Bytes that they wrote.
    pub written: u64,
}

/// CPUs of a rank: those that the plan gave it, and those that the kernel lets it run on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RankAffinity {
    /// CPUs to which it was bound; `None` if it was not.
    pub bound_to: Option<CpuSet>,
    /// CPUs on which its first thread may run at present.
    pub allowed: CpuSet,
}

/// A piece of a rank's output.
///
/// Pieces are cut at line ends, but for those of a terminal, which are passed on as they come. A piece ends without a line end where a line is
/// longer than a piece may be, and, with `settings::Timeouts::prompt`, behind a carriage return and where the line took longer than that; the
/// next piece of that rank and stream continues the line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Output {
    /// Rank that wrote it.
    pub rank: Rank,
    /// Stream that it was written to.
    pub stream: Stream,
    /// Whole lines, with their line ends; or a piece of one.
    pub bytes: Bytes,
}

impl Output {
    /// Largest number of bytes of a piece. A line that is longer is passed on in several.
    pub const PIECE_MAX: usize = 64 * 1024;

    /// Cuts what a rank wrote into pieces of at most [`Output::PIECE_MAX`] bytes, at line ends where there are any. They share its memory.
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

/// A warning about a launch that goes on.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Notice {
    /// Ranks of a job of several ranks ran or ended without a word to their server: most likely N jobs of size 1.
    Silent {
        /// The ranks.
        ranks: Vec<Rank>,
        /// Number of ranks of the job.
        size: u32,
        /// True if they ended; else they still run.
        ended: bool,
        /// Time that they ran.
        after: Duration,
        /// The MPI library found in one of them, if one was.
        library: Option<MpiLibrary>,
    },
    /// The start-up is not complete: some ranks wait in a fence for others.
    Stuck {
        /// Time that the launch has run.
        after: Duration,
        /// Number of ranks that wait.
        waiting: usize,
        /// The ranks that they wait for, each with the last PMI command it sent, if it sent any.
        missing: Vec<(Rank, Option<String>)>,
    },
    /// Call stacks of ranks that others wait for in a start that takes long, or of all ranks when the time limit is reached.
    Stacks {
        /// The stacks, those of the lowest ranks first.
        stacks: Vec<RankStack>,
    },
    /// A rank has not read its standard input for so long that it held up the other readers: its input was closed.
    StdinClosed {
        /// The rank.
        rank: Rank,
    },
    /// A limit of the user's shell is above the hard one of a node: ranks have the hard one there.
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
    /// A rank does not have the CPUs that were planned for it, right after its start; only the first one of a node is told.
    BoundElsewhere {
        /// The rank.
        rank: Rank,
        /// Name of its node.
        node: String,
        /// CPUs of the plan.
        planned: CpuSet,
        /// CPUs that the kernel lets it use.
        seen: CpuSet,
    },
    /// A rank asked for new processes (`MPI_Comm_spawn`), and got none.
    NotSpawned {
        /// The rank.
        rank: Rank,
        /// Why, in words.
        reason: String,
    },
    /// A name of a rank was not published, found or withdrawn.
    NameRefused {
        /// The rank.
        rank: Rank,
        /// The name and the reason, in words.
        reason: String,
    },
    /// A rank has begun to release a resource that it has registered, and has not ended that in time.
    ReleaseOverdue {
        /// The rank.
        rank: Rank,
        /// Name of the resource.
        resource: String,
        /// Time that the rank gave itself.
        within: Duration,
        /// True if the rank was killed for it (`settings::OverdueRelease`).
        killed: bool,
    },
    /// A process that a rank left behind still held the rank's output when its time was over (`settings::Timeouts::output_end`), and was
    /// killed. What it had not written yet is lost.
    OutputHeld {
        /// The rank.
        rank: Rank,
        /// Process id of the holder.
        pid: u32,
        /// Name of its program, of at most 15 bytes; empty if it is not known.
        program: String,
        /// Time from the end of the last rank.
        after: Duration,
    },
    /// A use of a PMI server that can end in an endless wait: a process begins MPI in the place of a rank, or tries to; or a rank is in
    /// `MPI_Finalize` while another one, which may wait for it, is in MPI.
    PmiMisuse {
        /// The rank.
        rank: Rank,
        /// Observation, in words.
        observed: String,
    },
    /// Processes of the launch that could not be ended.
    Leftover {
        /// Their process ids.
        pids: Vec<u32>,
    },
}

/// An MPI library as seen in a rank's memory map, or in the list of libraries that its program needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MpiLibrary {
    /// Name of the library, such as `MPICH` or `Open MPI`.
    pub name: String,
    /// The file, as mapped or as named by the program.
    pub file: String,
    /// Protocol that it speaks to its launcher, which decides whether this launch can serve it.
    pub family: MpiFamily,
}

/// Protocol that ranks speak to their PMI server. Fences of one are never complete by ranks that wait in the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpokenProtocol {
    /// PMI-1 or PMI-2.
    Pmi,
    /// PMIx.
    Pmix,
}

impl SpokenProtocol {
    /// The other one.
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

/// Protocol that an MPI library speaks to its launcher.
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

/// End of a session; the default is that of one without ranks.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Exit status or signal of each rank of this node, in rank order; ranks that never started are missing.
    pub exits: Vec<(Rank, RankExit)>,
    /// First cause of this session; `None` when every rank ended well.
    pub cause: Option<Cause>,
    /// From the first start to the end of the last rank.
    pub duration: Duration,
    /// Resources that its ranks used; `None` where that is not known.
    pub usage: Option<Usage>,
    /// The nodes whose ranks used the least and the most, of a launch on several that have told.
    pub by_node: Option<Box<UsageRange>>,
}

/// Nodes whose ranks used the least and the most processor time, the first ones of equal ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UsageRange {
    /// The node whose ranks used the least.
    pub least: (NodeIndex, Usage),
    /// The node whose ranks used the most.
    pub most: (NodeIndex, Usage),
}

impl UsageRange {
    /// The range with one more node.
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

/// Resources that the ranks of a session used, with all processes that they or the session waited for.
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
    /// Processor time, in the kernel and outside.
    pub fn time(&self) -> Duration {
        self.user.saturating_add(self.system)
    }

    /// Resources of both together.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            user: self.user.saturating_add(other.user),
            system: self.system.saturating_add(other.system),
            peak_memory: self.peak_memory.max(other.peak_memory),
        }
    }
}
