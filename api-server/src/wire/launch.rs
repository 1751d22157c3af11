//! A launch and its progress, in messages and in the store.

use lattice_session::cause::RankExit;
use lattice_session::ended_ranks::{EndMeaning, EndedRanks};
use lattice_session::wire::{self, cause, death, event};
use pmi_core::ids::{JobId, NodeIndex, Rank};
use pmi_core::job::{Block, Placement};
use pmi_transport::proto::v1 as proto;

use super::node::{decode_end, encode_end};
use crate::launch::checkpoint::{Progressed, SpawnOutcome, SpawnedJob};
use crate::launch::event::{RankEnd, SpawnAsked};
use crate::store;

/// Encodes the progress of a launch for the store.
pub(crate) fn encode_progressed(progressed: &Progressed) -> store::Checkpoint {
    let spawned = |job: &SpawnedJob| store::SpawnedJob {
        id: job.id.as_str().to_owned(),
        blocks: encode_blocks(&job.placement),
        runs: job.outcome == SpawnOutcome::Runs,
        node: job.asked.node.0,
        call: job.asked.call,
        first: job.first,
    };
    store::Checkpoint {
        over: node_numbers(&progressed.ended),
        lost: node_numbers(&progressed.lost),
        has_lost_a_node: progressed.has_lost_a_node,
        exits: progressed.ends.iter().map(encode_end).collect(),
        cause: progressed.cause.as_ref().map(cause::encode),
        spawned: progressed.spawned.iter().map(spawned).collect(),
        usage: progressed.usage.map(event::encode_usage),
        least_used: progressed.by_node.map(|range| event::encode_node_usage(range.least)),
        most_used: progressed.by_node.map(|range| event::encode_node_usage(range.most)),
        deaths: progressed.deaths.iter().map(death::encode).collect(),
        last_event: progressed.last_event,
        forgotten: progressed.forgotten.runs().map(encode_run).collect(),
        jobs_spawned: progressed.jobs_spawned,
        ranks_shown: progressed.ranks_shown,
    }
}

/// Decodes the stored progress of a launch on `nodes` nodes. Parts that this version cannot read are left out.
pub(crate) fn decode_progressed(kept: &store::Checkpoint, nodes: usize) -> Progressed {
    let spawned = |job: &store::SpawnedJob| {
        Some(SpawnedJob {
            id: JobId::new(&job.id).ok()?,
            first: job.first,
            placement: wire::job::decode_blocks(&job.blocks, nodes).ok()?,
            outcome: if job.runs { SpawnOutcome::Runs } else { SpawnOutcome::Open },
            asked: SpawnAsked { node: NodeIndex(job.node), call: job.call },
        })
    };
    Progressed {
        ended: node_indices(&kept.over),
        lost: node_indices(&kept.lost),
        has_lost_a_node: kept.has_lost_a_node,
        ends: kept.exits.iter().map(decode_end).collect(),
        cause: kept.cause.clone().and_then(|kept| cause::decode(kept).ok()),
        spawned: kept.spawned.iter().filter_map(spawned).collect(),
        usage: kept.usage.map(event::decode_usage),
        by_node: event::decode_usage_range(kept.least_used, kept.most_used),
        deaths: kept.deaths.iter().filter_map(|kept| death::decode(*kept).ok()).collect(),
        last_event: kept.last_event,
        forgotten: decode_runs(&kept.forgotten),
        jobs_spawned: kept.jobs_spawned,
        ranks_shown: kept.ranks_shown,
    }
}

fn encode_run((first, count, exit): (Rank, u32, RankExit)) -> store::ExitRun {
    store::ExitRun { first: Some(encode_end(&RankEnd { rank: first, exit, reached: None })), count }
}

fn decode_runs(runs: &[store::ExitRun]) -> EndedRanks {
    let mut ended = EndedRanks::default();
    for run in runs {
        let RankEnd { rank, exit, .. } = decode_end(&run.first.unwrap_or_default());
        for more in 0..run.count {
            ended.add(Rank(rank.0.saturating_add(more)), exit, EndMeaning::Counts);
        }
    }
    ended
}

fn encode_blocks(placement: &Placement) -> Vec<proto::Block> {
    let block = |block: &Block| proto::Block {
        first_node: block.first_node.0,
        nodes: block.nodes,
        ranks_per_node: block.ranks_per_node,
    };
    placement.blocks().iter().map(block).collect()
}
fn node_numbers(nodes: &[NodeIndex]) -> Vec<u32> {
    nodes.iter().map(|node| node.0).collect()
}

fn node_indices(numbers: &[u32]) -> Vec<NodeIndex> {
    numbers.iter().copied().map(NodeIndex).collect()
}
