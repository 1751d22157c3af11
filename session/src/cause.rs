//! The first cause: the one reason why a launch ended early or failed; its words, and which causes can follow from which.

mod origin;

use std::fmt;
use std::time::Duration;

use nix::sys::signal::Signal;
use pmi_core::ids::Rank;

pub use rank_spawner::RankExit;

pub use self::origin::Origin;

/// Why a launch failed, and where. The first one counts; what follows from it is never reported as a cause.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cause {
    /// The node on which it happened.
    pub host: String,
    /// What happened.
    pub kind: CauseKind,
}

/// What ended a launch.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CauseKind {
    /// A rank's process failed: it returned a status other than 0, or was killed.
    Failed {
        /// Which rank.
        rank: Rank,
        /// How it ended.
        exit: RankExit,
    },
    /// A rank left with status 0, but without `MPI_Finalize`.
    LeftWithoutFinalize {
        /// Which rank.
        rank: Rank,
    },
    /// A rank left before `MPI_Init` while others are in it and wait for it.
    LeftBeforeInit {
        /// Which rank.
        rank: Rank,
        /// How it ended.
        exit: RankExit,
        /// The ranks that spoke to their server already.
        others: Vec<Rank>,
    },
    /// A rank finalized while others wait for it in a fence.
    LeftFence {
        /// Which rank.
        rank: Rank,
        /// The ranks that wait.
        waiting: Vec<Rank>,
    },
    /// A rank called `MPI_Abort`.
    Aborted {
        /// Which rank.
        rank: Rank,
        /// The code it gave, whole.
        code: i32,
        /// The text it gave, if any.
        message: String,
    },
    /// A rank sent its server something that is not PMI.
    Offence {
        /// Which rank.
        rank: Rank,
        /// What it sent, in words.
        offence: String,
    },
    /// A rank speaks a protocol that this launch does not serve.
    NotServed {
        /// Which rank.
        rank: Rank,
        /// What it speaks, such as `PMI-1`.
        protocol: String,
    },
    /// The exchange of keys between the nodes failed.
    Fence {
        /// What happened, in words.
        reason: String,
    },
    /// A fence was not complete within the time that the launch gives it.
    FenceTimeout {
        /// The limit.
        limit: Duration,
        /// How many ranks waited.
        waiting: usize,
        /// The ranks that they waited for, each with the last PMI command it sent, if it sent any.
        missing: Vec<(Rank, Option<String>)>,
    },
    /// The node itself was lost.
    NodeLost {
        /// What was seen of it, in words.
        reason: String,
    },
    /// A rank's process could not be started.
    NotStarted {
        /// What happened, in words; names rank and path.
        reason: String,
        /// As a shell would classify it.
        class: StartClass,
    },
    /// The user ended the launch with a signal.
    Interrupted {
        /// The signal's number.
        signal: i32,
    },
    /// Somebody had the launch ended, other than by a signal of the client that follows it.
    Ended {
        /// Who, such as `user 1000`.
        who: String,
        /// Why, in words; may be empty.
        reason: String,
    },
    /// The launch ran for its whole time limit.
    TimedOut {
        /// The limit.
        limit: Duration,
    },
}

/// How a failed start is classified; the classes of a shell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartClass {
    /// There is no such program.
    NotFound,
    /// There is one, but it cannot be executed.
    CannotExecute,
    /// The machine could not start it: out of processes, memory or descriptors, or a directory is missing.
    System,
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let host = &self.host;
        match &self.kind {
            CauseKind::Failed { rank, exit } => write!(f, "rank {rank} on {host} {exit}"),
            CauseKind::LeftWithoutFinalize { rank } => {
                write!(f, "rank {rank} on {host} exited with status 0 without calling MPI_Finalize")
            }
            CauseKind::LeftBeforeInit { rank, exit, others } => {
                write!(f, "rank {rank} on {host} {exit} before MPI_Init, while {} in it", RankList(others).are())
            }
            CauseKind::LeftFence { rank, waiting } => {
                let waits = if waiting.len() == 1 { "waits" } else { "wait" };
                write!(
                    f,
                    "rank {rank} on {host} called MPI_Finalize, while {} {waits} for it in a barrier",
                    RankList(waiting)
                )
            }
            CauseKind::Aborted { rank, code, message } => {
                write!(f, "rank {rank} on {host} called MPI_Abort with code {code}")?;
                // MPICH 4.3 and later send the word `abort` for a text.
                if message.is_empty() || message == "abort" { Ok(()) } else { write!(f, ": {message}") }
            }
            CauseKind::Offence { rank, offence } => {
                write!(f, "rank {rank} on {host} broke the PMI protocol: {offence}")
            }
            CauseKind::NotServed { rank, protocol } => {
                write!(f, "rank {rank} on {host} speaks {protocol}, which --pmi switched off for this launch")
            }
            CauseKind::Fence { reason } | CauseKind::NotStarted { reason, .. } => write!(f, "{host}: {reason}"),
            CauseKind::FenceTimeout { limit, missing, .. } => {
                write!(f, "PMI fence timeout: after {limit:?}, {host} still waits")?;
                let mut separator = " for ";
                for (rank, last) in missing {
                    let last = last.as_deref().unwrap_or("none");
                    write!(f, "{separator}rank {rank} (last PMI command: {last})")?;
                    separator = ", ";
                }
                Ok(())
            }
            CauseKind::NodeLost { reason } => write!(f, "node {host} was lost: {reason}"),
            CauseKind::Interrupted { signal } => match Signal::try_from(*signal) {
                Ok(name) => write!(f, "interrupted by {name}"),
                Err(_) => write!(f, "interrupted by signal {signal}"),
            },
            CauseKind::Ended { who, reason } if reason.is_empty() => write!(f, "ended by {who}"),
            CauseKind::Ended { who, reason } => write!(f, "ended by {who}: {reason}"),
            CauseKind::TimedOut { limit } => write!(f, "the time limit of {limit:?} is over"),
        }
    }
}

/// A list of ranks in words: `rank 3`, `ranks 0-2,5`.
pub struct RankList<'a>(pub &'a [Rank]);

impl RankList<'_> {
    fn are(&self) -> String {
        let verb = if self.0.len() == 1 { "is" } else { "are" };
        format!("{self} {verb}")
    }
}

impl fmt::Display for RankList<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.len() == 1 { "rank " } else { "ranks " })?;
        let mut rest = self.0;
        let mut separator = "";
        while let Some(first) = rest.first() {
            let run = (0..).zip(rest).take_while(|(ahead, rank)| first.0 + ahead == rank.0).count();
            write!(f, "{separator}{first}")?;
            if run > 1 {
                write!(f, "-{}", rest[run - 1])?;
            }
            separator = ",";
            rest = &rest[run..];
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rank_lists_are_short() {
        let check = |ranks: &[u32], expected: &str| {
            let ranks: Vec<Rank> = ranks.iter().copied().map(Rank).collect();
            assert_eq!(RankList(&ranks).to_string(), expected);
        };
        check(&[3], "rank 3");
        check(&[0, 1, 2, 5], "ranks 0-2,5");
        check(&[0, 2, 3], "ranks 0,2-3");
    }
}
