//! Progress of ranks, and the resource usage of their processes.

use std::time::Duration;

use bytes::Bytes;
use pmi_core::DialoguePoint;
use pmi_core::ids::Rank;
use pmi_transport::proto::v1 as proto;
use rank_spawner::CpuSet;

use super::cause::{decode_exit, decode_phase, encode_exit, encode_phase};
use crate::event::{RankAffinity, RankProgress, RankUsage, SpokenProtocol};

/// Encodes the progress of one rank.
pub fn encode(progress: &RankProgress) -> proto::RankProgress {
    let reached = progress.phase.map(|phase| DialoguePoint { phase, fences: progress.fences.unwrap_or_default() });
    proto::RankProgress {
        rank: progress.rank.0,
        pid: progress.pid.unwrap_or_default(),
        phase: encode_phase(progress.phase).into(),
        last_command: progress.last_command.clone(),
        exit: progress.exit.map(|exit| encode_exit(progress.rank, exit, reached)),
        fences: progress.fences,
        waiting: progress.waiting,
        waits_for_all: progress.waits_for_all,
        in_init: progress.in_init,
        protocol: encode_protocol(progress.protocol).into(),
        lost: progress.lost,
        program: Bytes::new(),
        usage: progress.usage.map(encode_rank_usage),
        affinity: progress.affinity.as_ref().map(encode_affinity),
    }
}

fn encode_rank_usage(usage: RankUsage) -> proto::RankUsage {
    let RankUsage { cpu, memory, read, written } = usage;
    proto::RankUsage {
        cpu_us: u64::try_from(cpu.as_micros()).unwrap_or(u64::MAX),
        memory_bytes: memory,
        read_bytes: read,
        written_bytes: written,
    }
}

fn decode_rank_usage(usage: proto::RankUsage) -> RankUsage {
    RankUsage {
        cpu: Duration::from_micros(usage.cpu_us),
        memory: usage.memory_bytes,
        read: usage.read_bytes,
        written: usage.written_bytes,
    }
}

fn encode_affinity(affinity: &RankAffinity) -> proto::RankAffinity {
    let bound_to = affinity.bound_to.as_ref().map(CpuSet::to_string).unwrap_or_default();
    proto::RankAffinity { bound_to, allowed: affinity.allowed.to_string() }
}

/// An unreadable list counts as empty.
fn decode_affinity(affinity: proto::RankAffinity) -> RankAffinity {
    let cpus = |list: &str| list.parse::<CpuSet>().unwrap_or_default();
    RankAffinity {
        bound_to: Some(cpus(&affinity.bound_to)).filter(|cpus| !cpus.is_empty()),
        allowed: cpus(&affinity.allowed),
    }
}

fn encode_protocol(protocol: Option<SpokenProtocol>) -> proto::SpokenProtocol {
    match protocol {
        None => proto::SpokenProtocol::NoProtocol,
        Some(SpokenProtocol::Pmi) => proto::SpokenProtocol::SpokePmi,
        Some(SpokenProtocol::Pmix) => proto::SpokenProtocol::SpokePmix,
    }
}

/// An unknown protocol counts as none.
fn decode_protocol(protocol: i32) -> Option<SpokenProtocol> {
    match proto::SpokenProtocol::try_from(protocol) {
        Ok(proto::SpokenProtocol::SpokePmi) => Some(SpokenProtocol::Pmi),
        Ok(proto::SpokenProtocol::SpokePmix) => Some(SpokenProtocol::Pmix),
        Ok(proto::SpokenProtocol::NoProtocol) | Err(_) => None,
    }
}

/// Decodes the progress of one rank.
pub fn decode(progress: proto::RankProgress) -> RankProgress {
    // The exit of a rank that has ended also contains the phase.
    let phase_at_end = progress.exit.as_ref().and_then(|exit| decode_phase(exit.phase));
    RankProgress {
        rank: Rank(progress.rank),
        pid: Some(progress.pid).filter(|&pid| pid != 0),
        phase: decode_phase(progress.phase).or(phase_at_end),
        fences: progress.fences,
        last_command: progress.last_command,
        waiting: progress.waiting,
        waits_for_all: progress.waits_for_all,
        in_init: progress.in_init,
        protocol: decode_protocol(progress.protocol),
        exit: progress.exit.as_ref().map(decode_exit),
        lost: progress.lost,
        usage: progress.usage.map(decode_rank_usage),
        affinity: progress.affinity.map(decode_affinity),
    }
}
