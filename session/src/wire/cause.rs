//! Causes, and exits of ranks.

use pmi_core::ids::Rank;
use pmi_core::{DialoguePoint, Phase};
use pmi_transport::proto::v1 as proto;
use proto::cause::Kind;
use proto::not_started::Class;
use rank_spawner::RankExit;

use super::{WireError, milliseconds, time, wrong};
use crate::cause::{Cause, CauseKind, StartClass};

/// A rank for which other ranks wait, with its last PMI command, if it sent any.
type Missing = (Rank, Option<String>);

/// Encodes a cause.
pub fn encode(cause: &Cause) -> proto::Cause {
    proto::Cause { host: cause.host.clone(), kind: Some(encode_kind(&cause.kind)) }
}

fn encode_kind(kind: &CauseKind) -> Kind {
    match kind {
        CauseKind::Failed { rank, exit } => Kind::Failed(encode_exit(*rank, *exit, None)),
        CauseKind::LeftWithoutFinalize { rank } => Kind::LeftWithoutFinalize(rank.0),
        CauseKind::LeftBeforeInit { rank, exit, others } => Kind::LeftBeforeInit(proto::LeftBeforeInit {
            exit: Some(encode_exit(*rank, *exit, Some(DialoguePoint { phase: Phase::Silent, fences: 0 }))),
            others: encode_ranks(others),
        }),
        CauseKind::LeftFence { rank, waiting } => {
            Kind::LeftFence(proto::LeftFence { rank: rank.0, waiting: encode_ranks(waiting) })
        }
        CauseKind::Aborted { rank, code, message } => {
            Kind::Aborted(proto::Aborted { rank: rank.0, code: *code, message: message.clone() })
        }
        CauseKind::Offence { rank, offence } => Kind::Offence(proto::Offence { rank: rank.0, text: offence.clone() }),
        CauseKind::NotServed { rank, protocol } => {
            Kind::NotServed(proto::Offence { rank: rank.0, text: protocol.clone() })
        }
        CauseKind::Fence { reason } => Kind::Fence(reason.clone()),
        CauseKind::FenceTimeout { limit, waiting, missing } => Kind::FenceTimeout(proto::FenceTimeout {
            limit_ms: milliseconds(*limit),
            waiting: u32::try_from(*waiting).unwrap_or(u32::MAX),
            missing: encode_missing(missing),
        }),
        CauseKind::NodeLost { reason } => Kind::NodeLost(reason.clone()),
        CauseKind::NotStarted { reason, class } => {
            Kind::NotStarted(proto::NotStarted { reason: reason.clone(), class: encode_class(*class).into() })
        }
        CauseKind::Interrupted { signal } => Kind::InterruptedBy(*signal),
        CauseKind::Ended { who, reason } => Kind::Ended(proto::EndedBy { who: who.clone(), reason: reason.clone() }),
        CauseKind::TimedOut { limit } => Kind::TimedOutMs(milliseconds(*limit)),
        CauseKind::FirstExit { rank, wait } => {
            Kind::FirstExit(proto::FirstExit { rank: rank.0, wait_ms: milliseconds(*wait) })
        }
        CauseKind::FailedRanks { failed } => {
            let exits = failed.iter().map(|&(rank, exit)| encode_exit(rank, exit, None)).collect();
            Kind::FailedRanks(proto::FailedRanks { exits })
        }
        CauseKind::LostNodes { nodes, failed } => {
            let node =
                |(host, reason): &(String, String)| proto::LostNode { host: host.clone(), reason: reason.clone() };
            let exits = failed.iter().map(|&(rank, exit)| encode_exit(rank, exit, None)).collect();
            Kind::LostNodes(proto::LostNodes { nodes: nodes.iter().map(node).collect(), exits })
        }
    }
}

/// Decodes a cause.
///
/// # Errors
/// Fails for an unknown kind, and for time limits over the limit of a message.
pub fn decode(cause: proto::Cause) -> Result<Cause, WireError> {
    let kind = decode_kind(cause.kind.ok_or(WireError::Missing { what: "kind of cause" })?)?;
    Ok(Cause { host: cause.host, kind })
}

fn decode_kind(kind: Kind) -> Result<CauseKind, WireError> {
    Ok(match kind {
        Kind::Failed(exit) => CauseKind::Failed { rank: Rank(exit.rank), exit: decode_exit(&exit) },
        Kind::LeftWithoutFinalize(rank) => CauseKind::LeftWithoutFinalize { rank: Rank(rank) },
        Kind::LeftBeforeInit(left) => {
            let exit = left.exit.ok_or(WireError::Missing { what: "rank that left" })?;
            let (rank, others) = (Rank(exit.rank), decode_ranks(left.others));
            CauseKind::LeftBeforeInit { rank, exit: decode_exit(&exit), others }
        }
        Kind::LeftFence(left) => CauseKind::LeftFence { rank: Rank(left.rank), waiting: decode_ranks(left.waiting) },
        Kind::Aborted(abort) => CauseKind::Aborted { rank: Rank(abort.rank), code: abort.code, message: abort.message },
        Kind::Offence(offence) => CauseKind::Offence { rank: Rank(offence.rank), offence: offence.text },
        Kind::NotServed(offence) => CauseKind::NotServed { rank: Rank(offence.rank), protocol: offence.text },
        Kind::Fence(reason) => CauseKind::Fence { reason },
        Kind::FenceTimeout(timeout) => CauseKind::FenceTimeout {
            limit: time("the time limit of a fence", timeout.limit_ms)?,
            waiting: timeout.waiting as usize,
            missing: decode_missing(timeout.missing),
        },
        Kind::NodeLost(reason) => CauseKind::NodeLost { reason },
        Kind::NotStarted(failure) => {
            CauseKind::NotStarted { class: decode_class(failure.class)?, reason: failure.reason }
        }
        Kind::InterruptedBy(signal) => CauseKind::Interrupted { signal },
        Kind::Ended(ended) => CauseKind::Ended { who: ended.who, reason: ended.reason },
        Kind::TimedOutMs(limit) => CauseKind::TimedOut { limit: time("the time limit", limit)? },
        Kind::FirstExit(first) => {
            let wait = time("the time after the first exit", first.wait_ms)?;
            CauseKind::FirstExit { rank: Rank(first.rank), wait }
        }
        Kind::FailedRanks(ranks) => {
            let failed = ranks.exits.iter().map(|exit| (Rank(exit.rank), decode_exit(exit))).collect();
            CauseKind::FailedRanks { failed }
        }
        Kind::LostNodes(lost) => {
            let nodes = lost.nodes.into_iter().map(|node| (node.host, node.reason)).collect();
            let failed = lost.exits.iter().map(|exit| (Rank(exit.rank), decode_exit(exit))).collect();
            CauseKind::LostNodes { nodes, failed }
        }
    })
}

fn encode_class(class: StartClass) -> Class {
    match class {
        StartClass::System => Class::System,
        StartClass::NotFound => Class::NotFound,
        StartClass::CannotExecute => Class::CannotExecute,
        StartClass::NotPermitted => Class::NotPermitted,
        StartClass::IsDirectory => Class::IsDirectory,
        StartClass::Busy => Class::Busy,
        StartClass::TooLong => Class::TooLong,
        StartClass::OtherMachine => Class::OtherMachine,
        StartClass::NoInterpreter => Class::NoInterpreter,
        StartClass::WorkingDirectory => Class::WorkingDirectory,
        StartClass::TemporaryDirectory => Class::TemporaryDirectory,
        StartClass::Gpus => Class::Gpus,
    }
}

fn decode_class(number: i32) -> Result<StartClass, WireError> {
    let class = Class::try_from(number).map_err(|_| wrong("the class of a failed start", number, "0 to 11"))?;
    Ok(match class {
        Class::System => StartClass::System,
        Class::NotFound => StartClass::NotFound,
        Class::CannotExecute => StartClass::CannotExecute,
        Class::NotPermitted => StartClass::NotPermitted,
        Class::IsDirectory => StartClass::IsDirectory,
        Class::Busy => StartClass::Busy,
        Class::TooLong => StartClass::TooLong,
        Class::OtherMachine => StartClass::OtherMachine,
        Class::NoInterpreter => StartClass::NoInterpreter,
        Class::WorkingDirectory => StartClass::WorkingDirectory,
        Class::TemporaryDirectory => StartClass::TemporaryDirectory,
        Class::Gpus => StartClass::Gpus,
    })
}

/// Encodes the exit of a rank, with the point that its PMI conversation had reached.
pub fn encode_exit(rank: Rank, exit: RankExit, reached: Option<DialoguePoint>) -> proto::RankExitStatus {
    let phase = encode_phase(reached.map(|reached| reached.phase)).into();
    let fences = reached.map_or(0, |reached| reached.fences);
    let common = proto::RankExitStatus { rank: rank.0, phase, fences, ..Default::default() };
    match exit {
        RankExit::Code(exit_code) => proto::RankExitStatus { exit_code, ..common },
        RankExit::Signal { signal, core_dumped } => {
            proto::RankExitStatus { signaled: true, signal, core_dumped, ..common }
        }
    }
}

/// Decodes the exit of a rank.
pub fn decode_exit(exit: &proto::RankExitStatus) -> RankExit {
    if exit.signaled {
        RankExit::Signal { signal: exit.signal, core_dumped: exit.core_dumped }
    } else {
        RankExit::Code(exit.exit_code)
    }
}

pub(super) fn encode_phase(phase: Option<Phase>) -> proto::RankPhase {
    match phase {
        None => proto::RankPhase::Unspecified,
        Some(Phase::Silent) => proto::RankPhase::Silent,
        Some(Phase::Open) => proto::RankPhase::Initialized,
        Some(Phase::Finalized) => proto::RankPhase::Finalized,
    }
}

/// Decodes the point that a rank's PMI conversation had reached at its exit; `None` without PMI.
pub fn decode_reached(exit: &proto::RankExitStatus) -> Option<DialoguePoint> {
    decode_phase(exit.phase).map(|phase| DialoguePoint { phase, fences: exit.fences })
}

/// Decodes the phase of a rank's PMI conversation; `None` without PMI, and for an unknown phase.
pub fn decode_phase(number: i32) -> Option<Phase> {
    match proto::RankPhase::try_from(number) {
        Err(_) | Ok(proto::RankPhase::Unspecified) => None,
        Ok(proto::RankPhase::Silent) => Some(Phase::Silent),
        Ok(proto::RankPhase::Initialized) => Some(Phase::Open),
        Ok(proto::RankPhase::Finalized) => Some(Phase::Finalized),
    }
}

pub(super) fn encode_ranks(ranks: &[Rank]) -> Vec<u32> {
    ranks.iter().map(|rank| rank.0).collect()
}

pub(super) fn decode_ranks(ranks: Vec<u32>) -> Vec<Rank> {
    ranks.into_iter().map(Rank).collect()
}

pub(super) fn encode_missing(missing: &[Missing]) -> Vec<proto::MissingRank> {
    let rank = |(rank, last_command): &Missing| proto::MissingRank { rank: rank.0, last_command: last_command.clone() };
    missing.iter().map(rank).collect()
}

pub(super) fn decode_missing(missing: Vec<proto::MissingRank>) -> Vec<Missing> {
    missing.into_iter().map(|missing| (Rank(missing.rank), missing.last_command)).collect()
}
