//! Fields of an event line that is a notice, by the kind of the notice.

use lattice_session::event::{MpiFamily, MpiLibrary, Notice};
use pmi_core::ids::Rank;
use rank_spawner::{Limit, LimitedResource};
use serde::Serialize;

#[derive(Debug, Serialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
#[serde(tag = "notice", rename_all = "snake_case")]
pub(super) enum NoticeLine<'a> {
    /// Ranks that never called PMI.
    Silent {
        #[cfg_attr(any(test, feature = "schema"), schemars(with = "Vec<u32>"))]
        ranks: &'a [Rank],
        /// True if they have ended.
        ended: bool,
        after_s: f64,
        /// MPI library of one of them.
        library: Option<Library<'a>>,
    },
    /// The start-up is slow.
    Stuck {
        after_s: f64,
        /// Number of ranks that wait.
        waiting: usize,
        /// Ranks for which they wait.
        missing: Vec<Missing<'a>>,
    },
    /// Call stacks of ranks.
    Stacks { stacks: Vec<Stack<'a>> },
    /// Processes that cannot be ended.
    Leftover { pids: &'a [u32] },
    /// A process held the output of an ended rank, and was killed.
    OutputHeld {
        #[cfg_attr(any(test, feature = "schema"), schemars(with = "u32"))]
        rank: Rank,
        pid: u32,
        program: &'a str,
        /// Time since the last rank of the node ended.
        after_s: f64,
    },
    /// The program uses MPI or PMI in a wrong way.
    PmiMisuse {
        #[cfg_attr(any(test, feature = "schema"), schemars(with = "u32"))]
        rank: Rank,
        observed: &'a str,
    },
    /// A rank that does not read lost its standard input.
    StdinClosed {
        #[cfg_attr(any(test, feature = "schema"), schemars(with = "u32"))]
        rank: Rank,
    },
    /// A spawn failed.
    NotSpawned {
        #[cfg_attr(any(test, feature = "schema"), schemars(with = "u32"))]
        rank: Rank,
        reason: &'a str,
    },
    /// A name was not published, found or withdrawn.
    NameRefused {
        #[cfg_attr(any(test, feature = "schema"), schemars(with = "u32"))]
        rank: Rank,
        reason: &'a str,
    },
    /// A rank did not release a resource in time.
    ReleaseOverdue {
        #[cfg_attr(any(test, feature = "schema"), schemars(with = "u32"))]
        rank: Rank,
        /// The resource, as the rank registered it.
        registered: &'a str,
        /// Time limit that the rank registered.
        within_s: f64,
        /// True if the rank is killed.
        killed: bool,
    },
    /// A rank has other CPUs than planned.
    BoundElsewhere {
        #[cfg_attr(any(test, feature = "schema"), schemars(with = "u32"))]
        rank: Rank,
        node: &'a str,
        planned: String,
        seen: String,
    },
    /// A soft limit of the user's shell exceeds the hard limit of a node.
    LimitTooHigh {
        node: &'a str,
        /// Resource, as `prlimit` calls it.
        #[cfg_attr(any(test, feature = "schema"), schemars(with = "String"))]
        resource: LimitedResource,
        /// Soft limit of the shell; null for none.
        asked: Option<u64>,
        /// Hard limit of the node; null for none.
        hard: Option<u64>,
    },
    /// Output is missing.
    Dropped {
        /// Number of missing bytes; null if unknown.
        bytes: Option<u64>,
    },
    /// A kind without fields.
    Other,
}

#[derive(Debug, Serialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub(super) struct Stack<'a> {
    /// Ranks in the same functions.
    #[cfg_attr(any(test, feature = "schema"), schemars(with = "Vec<u32>"))]
    ranks: &'a [Rank],
    /// Functions of the threads of one of them, in lines.
    text: &'a str,
}

#[derive(Debug, Serialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub(super) struct Library<'a> {
    name: &'a str,
    file: &'a str,
    /// Interface: pmi, pmix, vendor or other.
    speaks: &'static str,
}

#[derive(Debug, Serialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub(super) struct Missing<'a> {
    #[cfg_attr(any(test, feature = "schema"), schemars(with = "u32"))]
    rank: Rank,
    /// Last PMI command of the rank.
    last_command: Option<&'a str>,
}

impl<'a> NoticeLine<'a> {
    pub(super) fn of(notice: &'a Notice) -> Self {
        match notice {
            Notice::Silent { ranks, ended, after, library, .. } => Self::Silent {
                ranks,
                ended: *ended,
                after_s: after.as_secs_f64(),
                library: library.as_ref().map(Library::of),
            },
            Notice::Stuck { after, waiting, missing } => Self::Stuck {
                after_s: after.as_secs_f64(),
                waiting: *waiting,
                missing: missing
                    .iter()
                    .map(|(rank, last)| Missing { rank: *rank, last_command: last.as_deref() })
                    .collect(),
            },
            Notice::Stacks { stacks } => {
                let stacks = stacks.iter().map(|stack| Stack { ranks: &stack.ranks, text: &stack.text });
                Self::Stacks { stacks: stacks.collect() }
            }
            Notice::Leftover { pids } => Self::Leftover { pids },
            Notice::OutputHeld { rank, pid, program, after } => {
                Self::OutputHeld { rank: *rank, pid: *pid, program, after_s: after.as_secs_f64() }
            }
            Notice::PmiMisuse { rank, observed } => Self::PmiMisuse { rank: *rank, observed },
            Notice::StdinClosed { rank } => Self::StdinClosed { rank: *rank },
            Notice::NotSpawned { rank, reason } => Self::NotSpawned { rank: *rank, reason },
            Notice::NameRefused { rank, reason } => Self::NameRefused { rank: *rank, reason },
            Notice::ReleaseOverdue { rank, resource, within, killed } => Self::ReleaseOverdue {
                rank: *rank,
                registered: resource,
                within_s: within.as_secs_f64(),
                killed: *killed,
            },
            Notice::BoundElsewhere { rank, node, planned, seen } => {
                Self::BoundElsewhere { rank: *rank, node, planned: planned.to_string(), seen: seen.to_string() }
            }
            Notice::LimitTooHigh { node, resource, asked, hard } => {
                let value = |limit: u64| (limit != Limit::UNLIMITED).then_some(limit);
                Self::LimitTooHigh { node, resource: *resource, asked: value(*asked), hard: value(*hard) }
            }
            _ => Self::Other,
        }
    }
}

impl<'a> Library<'a> {
    fn of(library: &'a MpiLibrary) -> Self {
        let speaks = match library.family {
            MpiFamily::Pmi => "pmi",
            MpiFamily::Pmix => "pmix",
            MpiFamily::Vendor => "vendor",
            _ => "other",
        };
        Self { name: &library.name, file: &library.file, speaks }
    }
}
