//! A launch and its progress, as messages and the store have them.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use lattice_session::wire::{self, cause};
use pmi_core::ids::{JobId, Rank};
use pmi_core::job::Placement;
use pmi_transport::proto::v1 as proto;
use proto::stdin_target::Target;

use super::node::{decode_end, encode_end};
use crate::launch::checkpoint::{Progressed, SpawnOutcome, SpawnedJob};
use crate::launch::event::{Activity, Overview};
use crate::launch::facts::{Facts, Origin, Ownership, Settler};
use crate::order::{Order, blocks};
use crate::store;

/// Returns the fixed part of an order's launch.
pub(crate) fn facts(order: &Order, settler: Settler, origin: Origin) -> Facts {
    let Order { launch, spec, nodes, detached } = order;
    let placement = &launch.job.placement;
    let timeouts = spec.patience.unwrap_or_default();
    let directory = spec.apps.first().map(|app| app.directory.clone()).unwrap_or_default();
    let job = spec.job.as_ref().map_or("", |job| &job.id);
    Facts {
        job: JobId::new(job).expect("an order's job was decoded when the order was made"),
        id: spec.launch_id.clone(),
        allocation_id: spec.allocation_id.clone(),
        nodes: nodes.iter().map(|node| node.name.clone()).collect(),
        placement: placement.clone(),
        output_window: u64::from(spec.output_window),
        input_window: u64::from(spec.stdin_window),
        input_readers: input_readers(spec, placement),
        grace: Duration::from_millis(timeouts.after_failure_ms.max(timeouts.after_interrupt_ms)),
        directory: OsStr::from_bytes(&directory).into(),
        universe_size: spec.job.as_ref().and_then(|job| job.universe_size),
        ownership: if *detached { Ownership::Detached } else { Ownership::Owned },
        settler,
        origin,
    }
}

/// The nodes whose ranks read the launch's input.
fn input_readers(spec: &proto::LaunchSpec, placement: &Placement) -> Vec<u32> {
    match spec.stdin.as_ref().and_then(|stdin| stdin.target.as_ref()) {
        Some(Target::Rank(rank)) => placement.node_of(Rank(*rank)).map(|node| node.0).into_iter().collect(),
        Some(Target::All(_)) => {
            let blocks = placement.blocks().iter();
            let mut nodes: Vec<u32> =
                blocks.flat_map(|block| block.first_node.0..block.first_node.0 + block.nodes).collect();
            nodes.sort_unstable();
            nodes.dedup();
            nodes
        }
        Some(Target::File(_)) | None => Vec::new(),
    }
}

/// Progress of a launch as it is kept.
pub(crate) fn encode_progressed(progressed: &Progressed) -> store::Checkpoint {
    let spawned = |job: &SpawnedJob| store::SpawnedJob {
        id: job.id.as_str().to_owned(),
        blocks: blocks(&job.placement),
        runs: job.outcome == SpawnOutcome::Runs,
    };
    store::Checkpoint {
        over: progressed.ended.clone(),
        lost: progressed.lost.clone(),
        exits: progressed.ends.iter().map(encode_end).collect(),
        cause: progressed.cause.as_ref().map(cause::encode),
        spawned: progressed.spawned.iter().map(spawned).collect(),
    }
}

/// Progress of a launch on `nodes` nodes as it was written down. What this version cannot read is left out.
pub(crate) fn decode_progressed(kept: &store::Checkpoint, nodes: usize) -> Progressed {
    let spawned = |job: &store::SpawnedJob| {
        Some(SpawnedJob {
            id: JobId::new(&job.id).ok()?,
            placement: wire::job::decode_blocks(&job.blocks, nodes).ok()?,
            outcome: if job.runs { SpawnOutcome::Runs } else { SpawnOutcome::Open },
        })
    };
    Progressed {
        ended: kept.over.clone(),
        lost: kept.lost.clone(),
        ends: kept.exits.iter().map(decode_end).collect(),
        cause: kept.cause.clone().and_then(|kept| cause::decode(kept).ok()),
        spawned: kept.spawned.iter().filter_map(spawned).collect(),
    }
}

/// Takes an overview over into a summary.
pub(crate) fn update_summary(summary: &mut proto::LaunchSummary, overview: Overview) {
    let state = match overview.activity {
        Activity::Starting => proto::LaunchState::Starting,
        Activity::Active => proto::LaunchState::Active,
        Activity::Ending => proto::LaunchState::Ending,
    };
    summary.state = state.into();
    summary.ranks = overview.ranks;
    summary.cause = overview.cause;
    summary.client_stopped_at = overview.client_stopped_at;
}
