//! Summaries of launches, in messages and in the store.

use std::time::Duration;

use lattice_overlay::address::SetId;
use lattice_session::wire::placed;
use pmi_transport::proto::v1 as proto;
use proto::LaunchState;

use super::completion::microseconds;
use crate::launch::event::Activity;
use crate::launch::summary::{Stage, Summary};

/// Encodes a summary.
pub(crate) fn encode(summary: &Summary) -> proto::LaunchSummary {
    proto::LaunchSummary {
        id: summary.id.to_string(),
        allocation_id: summary.allocation_id.clone(),
        uid: summary.uid,
        state: encode_stage(summary.stage).into(),
        nodes: summary.nodes.clone(),
        ranks: summary.ranks,
        command: summary.command.clone(),
        started_at: summary.started_at,
        started_nanos: summary.started_nanos,
        duration_us: microseconds(summary.duration),
        cause: summary.cause.clone(),
        client_stopped_at: summary.client_stopped_at,
        set_id: summary.set.map_or(0, SetId::bits),
    }
}

/// Decodes a summary. A launch in an unknown state is not over.
pub(crate) fn decode(summary: proto::LaunchSummary) -> Summary {
    Summary {
        stage: decode_stage(summary.state()),
        id: summary.id.into(),
        allocation_id: summary.allocation_id,
        uid: summary.uid,
        nodes: summary.nodes,
        ranks: summary.ranks,
        command: summary.command,
        started_at: summary.started_at,
        started_nanos: summary.started_nanos,
        duration: Duration::from_micros(summary.duration_us),
        cause: summary.cause,
        client_stopped_at: summary.client_stopped_at,
        set: placed::set(summary.set_id),
    }
}

fn encode_stage(stage: Stage) -> LaunchState {
    match stage {
        Stage::At(Activity::Starting) => LaunchState::Starting,
        Stage::At(Activity::Active) => LaunchState::Active,
        Stage::At(Activity::Ending) => LaunchState::Ending,
        Stage::Succeeded => LaunchState::Succeeded,
        Stage::Failed => LaunchState::LaunchFailed,
    }
}

fn decode_stage(state: LaunchState) -> Stage {
    match state {
        LaunchState::Starting => Stage::At(Activity::Starting),
        LaunchState::Active | LaunchState::Unspecified => Stage::At(Activity::Active),
        LaunchState::Ending => Stage::At(Activity::Ending),
        LaunchState::Succeeded => Stage::Succeeded,
        LaunchState::LaunchFailed => Stage::Failed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::launch::summary::tests::active;

    #[test]
    fn a_summary_comes_back_from_the_store_as_it_was() {
        let activities = [Activity::Starting, Activity::Active, Activity::Ending].map(Stage::At);
        for stage in activities.into_iter().chain([Stage::Succeeded, Stage::Failed]) {
            let summary = Summary { stage, cause: "why".to_owned(), ..active("l") };
            assert_eq!(decode(encode(&summary)), summary);
        }
    }

    #[test]
    fn a_launch_in_an_unknown_state_is_not_taken_for_over() {
        let summary = proto::LaunchSummary { state: 77, ..encode(&active("l")) };
        assert!(!decode(summary).is_over());
    }
}
