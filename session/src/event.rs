//! What a session tells its launch while it runs, and what it returns at the end.

use std::time::Duration;

use bytes::Bytes;
use pmi_core::Phase;
use pmi_core::ids::{JobId, Rank};
use rank_spawner::RankExit;
use serde::{Deserialize, Serialize};

use crate::cause::Cause;

/// Something that happened in a session. Events of one rank arrive in order; all output of a rank comes before its exit.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Event {
    /// The rank's process runs.
    Started {
        /// Which rank.
        rank: Rank,
        /// Its process id on this node.
        pid: u32,
    },
    /// The rank wrote something.
    Output(Output),
    /// Something that the user should know, and that does not end the launch.
    Notice(Notice),
    /// The rank's process ended.
    Exited {
        /// Which rank.
        rank: Rank,
        /// How it ended.
        exit: RankExit,
        /// How far its dialogue with its PMI server had come; `None` where it has none.
        phase: Option<Phase>,
    },
    /// A spawned job's part on this node was started, or was not.
    Spawned {
        /// The job.
        job: JobId,
        /// Why its ranks do not all run, if they do not.
        failure: Option<String>,
    },
    /// How far each rank has come; the answer to `Control::AskProgress`.
    Progress {
        /// The number of the question.
        question: u64,
        /// Every rank of this node.
        ranks: Vec<RankProgress>,
    },
    /// Ranks of this node have waited in a fence of all ranks for a while, and none of this node is missing; told once for each fence.
    /// It may have come to its end since: ask with `Control::AskProgress` before you conclude anything.
    Waiting {
        /// Which ranks.
        ranks: Vec<Rank>,
    },
    /// The launch is coming to its end before all ranks ended by themselves; reported once.
    Ending(Cause),
}

/// How far one rank has come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankProgress {
    /// Which rank.
    pub rank: Rank,
    /// Its process id on this node; `None` before it was started.
    pub pid: Option<u32>,
    /// How far its dialogue with its PMI server has come; `None` where it has none.
    pub phase: Option<Phase>,
    /// The last PMI command that it sent, if it sent any.
    pub last_command: Option<String>,
    /// It waits in a fence for others.
    pub waiting: bool,
    /// How it ended, if it has.
    pub exit: Option<RankExit>,
}

/// A piece of a rank's output.
///
/// Pieces are cut at line ends. Only where a line is longer than a piece may be, or where the rank paused in the middle of
/// a line that somebody may be waiting for (a prompt), a piece ends without a line end; the next piece of that rank and
/// stream continues the line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Output {
    /// Who wrote it.
    pub rank: Rank,
    /// On which stream.
    pub stream: Stream,
    /// Whole lines, with their line ends; or a piece of one.
    pub bytes: Bytes,
}

impl Output {
    /// Largest number of bytes of a piece. A line that is longer is passed on in several.
    pub const PIECE_MAX: usize = 64 * 1024;
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
        /// Which ranks.
        ranks: Vec<Rank>,
        /// How many ranks the job has.
        size: u32,
        /// Whether they ended; else they still run.
        ended: bool,
        /// How long they ran.
        after: Duration,
        /// The MPI library found in one of them, if one was.
        library: Option<MpiLibrary>,
    },
    /// The start-up is not complete: some ranks wait in a fence for others.
    Stuck {
        /// How long the launch has run.
        after: Duration,
        /// How many ranks wait.
        waiting: usize,
        /// The ranks that they wait for, each with the last PMI command it sent, if it sent any.
        missing: Vec<(Rank, Option<String>)>,
    },
    /// A rank has not read its standard input for so long that it held up the other readers: its input was closed.
    StdinClosed {
        /// The rank.
        rank: Rank,
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
    /// What it is, such as `MPICH` or `Open MPI`.
    pub name: String,
    /// The file, as mapped or as named by the program.
    pub file: String,
    /// Whether it can be served by this launch; if not, what to try is said by the launcher.
    pub family: MpiFamily,
}

/// What an MPI library speaks to its launcher.
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

/// How a session ended.
#[derive(Clone, Debug)]
pub struct Report {
    /// How each rank of this node ended, in rank order; ranks that never started are missing.
    pub exits: Vec<(Rank, RankExit)>,
    /// Why the launch ended early or failed; `None` when every rank ended well.
    pub cause: Option<Cause>,
    /// From the first start to the end of the last rank.
    pub duration: Duration,
}
