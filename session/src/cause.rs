//! The first cause: the one reason why a launch ended early or failed. The module also has its text, and
//! the order of causes that can follow from other causes.

mod failed_ranks;
mod first;
mod origin;
pub(crate) mod two_protocols;

use std::fmt;
use std::time::Duration;

use nix::sys::signal::Signal;
use pmi_core::ids::Rank;

pub use rank_spawner::RankExit;

use self::failed_ranks::FailedRanksText;
pub use self::first::{FirstCause, HOLD, HOLD_GIVEN_UP, Reported, Subject};
pub use self::origin::Origin;
pub use self::two_protocols::in_two_protocols;

/// Reason why a launch failed or ended early. Only the first cause counts. Failures that follow from it are never reported as causes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cause {
    /// Name of the node of the event. If ranks failed in a launch that tolerates failures, it can be a list such as `node[0-1]`.
    pub host: String,
    /// Kind of the cause, with its details.
    pub kind: CauseKind,
}

/// Kind of a cause.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CauseKind {
    /// A rank's process failed: it returned a status other than 0, or was killed.
    Failed {
        /// The rank.
        rank: Rank,
        /// Exit status or signal of its process.
        exit: RankExit,
    },
    /// A rank exited with status 0, but without `MPI_Finalize`.
    LeftWithoutFinalize {
        /// The rank.
        rank: Rank,
    },
    /// A rank exited before `MPI_Init` while other ranks wait for it there.
    LeftBeforeInit {
        /// The rank.
        rank: Rank,
        /// Exit status or signal of its process.
        exit: RankExit,
        /// The ranks that have already contacted their server.
        others: Vec<Rank>,
    },
    /// A rank finalized while other ranks wait for it in a fence.
    LeftFence {
        /// The rank.
        rank: Rank,
        /// The waiting ranks.
        waiting: Vec<Rank>,
    },
    /// A rank called `MPI_Abort`.
    Aborted {
        /// The rank.
        rank: Rank,
        /// The code that the rank passed, unabridged.
        code: i32,
        /// The text that the rank passed; may be empty.
        message: String,
    },
    /// A rank sent bytes to its server that are not PMI.
    Offence {
        /// The rank.
        rank: Rank,
        /// Description of the bytes.
        offence: String,
    },
    /// A rank speaks a protocol that this launch does not serve.
    NotServed {
        /// The rank.
        rank: Rank,
        /// Protocol that it speaks, such as `PMI-1`.
        protocol: String,
    },
    /// Ranks cannot exchange their keys: the exchange between nodes failed, or the ranks speak different protocols.
    Fence {
        /// Description of the failure.
        reason: String,
    },
    /// A fence did not complete within the time limit of the launch.
    FenceTimeout {
        /// The limit.
        limit: Duration,
        /// Number of waiting ranks.
        waiting: usize,
        /// The missing ranks, each with the last PMI command that it sent, if any.
        missing: Vec<(Rank, Option<String>)>,
    },
    /// The node itself was lost.
    NodeLost {
        /// Description of the observation, such as missing heartbeats.
        reason: String,
    },
    /// A rank's process could not be started.
    NotStarted {
        /// Description of the failure; names rank and path.
        reason: String,
        /// Class of the failure, by the rules of a shell.
        class: StartClass,
    },
    /// The user ended the launch with a signal.
    Interrupted {
        /// The signal's number.
        signal: i32,
    },
    /// A caller ended the launch by other means than a signal of the client that follows it.
    Ended {
        /// Caller that ended it, such as `user 1000`.
        who: String,
        /// Reason that the caller gave; may be empty.
        reason: String,
    },
    /// The launch ran for its whole time limit.
    TimedOut {
        /// The limit.
        limit: Duration,
    },
    /// Other ranks still ran at this time after the end of the first rank.
    FirstExit {
        /// The rank that ended first.
        rank: Rank,
        /// Time limit of the other ranks.
        wait: Duration,
    },
    /// Ranks failed in a launch that tolerates failures (`settings::FailedRanks`), and every rank has ended.
    FailedRanks {
        /// The ranks in order, each with its exit status or signal.
        failed: Vec<(Rank, RankExit)>,
    },
    /// Nodes were lost in a launch that tolerates lost nodes (`settings::LostNodes`), and every rank has ended.
    LostNodes {
        /// The nodes, each with a description of the observation.
        nodes: Vec<(String, String)>,
        /// Ranks of other nodes that failed, in order, each with its exit status or signal.
        failed: Vec<(Rank, RankExit)>,
    },
}

/// Class of a failed start, by the rules of a shell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartClass {
    /// The program does not exist.
    NotFound,
    /// The mode of the program, or its mount, does not allow this user to execute it.
    NotPermitted,
    /// The program is a directory.
    IsDirectory,
    /// A process writes the program (ETXTBSY).
    Busy,
    /// Arguments and variables are too long (E2BIG).
    TooLong,
    /// The program is for another machine.
    OtherMachine,
    /// The interpreter or the dynamic loader of the program is missing.
    NoInterpreter,
    /// The program cannot be executed for another reason.
    CannotExecute,
    /// The working directory is missing, or may not be entered.
    WorkingDirectory,
    /// The directory of temporary files cannot be made.
    TemporaryDirectory,
    /// The node does not have the GPUs that ranks are bound to.
    Gpus,
    /// The machine could not start the program: it has no processes, memory or descriptors left.
    System,
}

impl StartClass {
    /// True if the program exists and cannot be executed: a shell exits with 126.
    pub fn is_of_program(self) -> bool {
        match self {
            Self::NotPermitted
            | Self::IsDirectory
            | Self::Busy
            | Self::TooLong
            | Self::OtherMachine
            | Self::NoInterpreter
            | Self::CannotExecute => true,
            Self::NotFound | Self::WorkingDirectory | Self::TemporaryDirectory | Self::Gpus | Self::System => false,
        }
    }
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
                // MPICH 4.3 and later send the word `abort` as the text.
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
            CauseKind::FirstExit { rank, wait } => {
                write!(f, "rank {rank} on {host} ended first, and the time of the others, {wait:?}, is over")
            }
            CauseKind::FailedRanks { failed } => FailedRanksText { failed, hosts: host }.fmt(f),
            CauseKind::LostNodes { nodes, failed } => {
                let mut separator = "";
                for (host, reason) in nodes {
                    write!(f, "{separator}node {host} was lost: {reason}")?;
                    separator = "; ";
                }
                if failed.is_empty() {
                    Ok(())
                } else {
                    write!(f, "{separator}{}", FailedRanksText { failed, hosts: "" })
                }
            }
        }
    }
}

/// Formats a list of ranks as `rank 3` or `ranks 0-2,5`.
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
        RankNumbers(self.0).fmt(f)
    }
}

/// Formats sorted rank numbers as ranges: `0-62,64`.
pub struct RankNumbers<'a>(pub &'a [Rank]);

impl fmt::Display for RankNumbers<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
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

    fn on_n1(kind: CauseKind) -> String {
        Cause { host: "n1".to_owned(), kind }.to_string()
    }

    #[test]
    fn every_cause_names_who_failed_and_how() {
        let rank = Rank(3);
        let check = |kind: CauseKind, expected: &str| assert_eq!(on_n1(kind), expected);
        let killed = RankExit::Signal { signal: 11, core_dumped: false };
        check(CauseKind::Failed { rank, exit: killed }, &format!("rank 3 on n1 {killed}"));
        check(
            CauseKind::LeftWithoutFinalize { rank },
            "rank 3 on n1 exited with status 0 without calling MPI_Finalize",
        );
        let exit = RankExit::Code(0);
        let left = |others: &[u32]| CauseKind::LeftBeforeInit {
            rank,
            exit,
            others: others.iter().map(|&rank| Rank(rank)).collect(),
        };
        check(left(&[0]), &format!("rank 3 on n1 {exit} before MPI_Init, while rank 0 is in it"));
        check(left(&[0, 1, 5]), &format!("rank 3 on n1 {exit} before MPI_Init, while ranks 0-1,5 are in it"));
        let fence =
            |waiting: &[u32]| CauseKind::LeftFence { rank, waiting: waiting.iter().map(|&rank| Rank(rank)).collect() };
        check(fence(&[0]), "rank 3 on n1 called MPI_Finalize, while rank 0 waits for it in a barrier");
        check(fence(&[0, 1]), "rank 3 on n1 called MPI_Finalize, while ranks 0-1 wait for it in a barrier");
        let offence = "a line without an end".to_owned();
        check(CauseKind::Offence { rank, offence }, "rank 3 on n1 broke the PMI protocol: a line without an end");
        let protocol = "PMI-1".to_owned();
        check(
            CauseKind::NotServed { rank, protocol },
            "rank 3 on n1 speaks PMI-1, which --pmi switched off for this launch",
        );
        check(CauseKind::Fence { reason: "n2 left".to_owned() }, "n1: n2 left");
        check(CauseKind::NodeLost { reason: "no heartbeat".to_owned() }, "node n1 was lost: no heartbeat");
        let reason = "cannot find program x".to_owned();
        check(CauseKind::NotStarted { reason, class: StartClass::NotFound }, "n1: cannot find program x");
        check(CauseKind::TimedOut { limit: Duration::from_secs(90) }, "the time limit of 90s is over");
        let nodes = ["n1", "n2"].map(|host| (host.to_owned(), "no heartbeat".to_owned())).to_vec();
        let lost = "node n1 was lost: no heartbeat; node n2 was lost: no heartbeat";
        check(CauseKind::LostNodes { nodes: nodes.clone(), failed: Vec::new() }, lost);
        let failed = vec![(rank, RankExit::Code(7))];
        check(CauseKind::LostNodes { nodes, failed }, &format!("{lost}; rank 3 exited with status 7"));
        check(
            CauseKind::FirstExit { rank, wait: Duration::from_secs(5) },
            "rank 3 on n1 ended first, and the time of the others, 5s, is over",
        );
    }

    #[test]
    fn an_abort_shows_its_text_unless_a_library_made_it_up() {
        let aborted = |message: &str| on_n1(CauseKind::Aborted { rank: Rank(3), code: 7, message: message.to_owned() });
        assert_eq!(aborted(""), "rank 3 on n1 called MPI_Abort with code 7");
        assert_eq!(aborted("abort"), "rank 3 on n1 called MPI_Abort with code 7");
        assert_eq!(aborted("no input"), "rank 3 on n1 called MPI_Abort with code 7: no input");
    }

    #[test]
    fn a_fence_that_timed_out_names_each_rank_that_is_missing_and_its_last_command() {
        let missing = vec![(Rank(1), Some("put".to_owned())), (Rank(4), None)];
        let timeout = CauseKind::FenceTimeout { limit: Duration::from_secs(3), waiting: 2, missing };
        let expected = "PMI fence timeout: after 3s, n1 still waits for rank 1 (last PMI command: put), \
                        rank 4 (last PMI command: none)";
        assert_eq!(on_n1(timeout), expected);
    }

    #[test]
    fn an_end_that_somebody_asked_for_names_the_signal_or_the_caller() {
        assert_eq!(on_n1(CauseKind::Interrupted { signal: 2 }), "interrupted by SIGINT");
        assert_eq!(on_n1(CauseKind::Interrupted { signal: 99 }), "interrupted by signal 99");
        let ended = |reason: &str| on_n1(CauseKind::Ended { who: "user 7".to_owned(), reason: reason.to_owned() });
        assert_eq!((ended(""), ended("enough")), ("ended by user 7".to_owned(), "ended by user 7: enough".to_owned()));
    }

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
