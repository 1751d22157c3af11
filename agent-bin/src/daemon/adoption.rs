//! Adoption: a starting agent adopts the sessions that have outlived earlier agents on this node. It does so before it registers, so that its
//! registration lists their launches as running.

use std::path::Path;
use std::sync::Arc;

use rank_spawner::{ForkServer, RendezvousError, TakeUpError, TakenUp};
use tokio::sync::mpsc;

use super::Node;
use super::forks::{Forks, SurvivingSession};
use super::launch;
use super::launches::Handle;
use super::wire::label;

/// Processes of the fork servers of earlier agents. Each error is the reason why one fork server cannot be adopted.
pub(super) type Found = Vec<Result<TakenUp, TakeUpError>>;

/// Looks for fork servers of earlier agents in `directory`. Waits for a fork server that is busy, because the agent has no other work yet.
///
/// # Errors
/// Fails if another user can access the directory.
pub(super) fn find(directory: &Path, own: &ForkServer) -> Result<Found, RendezvousError> {
    ForkServer::take_up_all(directory, Some(own))
}

/// Adopts all sessions that were found; returns their number.
pub(super) async fn take_up(node: &Arc<Node>, found: Found) -> usize {
    let mut count = 0;
    for server in found {
        match server {
            Ok(taken_up) => {
                for kept in Forks::take_up(taken_up) {
                    count += usize::from(take_up_one(node, kept).await);
                }
            }
            Err(error) => {
                tracing::error!(%error, "sessions of an earlier agent are left alone; they end with its lease");
            }
        }
    }
    count
}

async fn take_up_one(node: &Arc<Node>, SurvivingSession { forked, label }: SurvivingSession) -> bool {
    let pid = forked.pid.as_raw();
    let decoded = label.read().map_err(|error| error.to_string());
    let decoded = decoded.and_then(|label| label::decode(label).map_err(|error| error.to_string()));
    let (assignment, uses) = match decoded {
        Ok(decoded) => decoded,
        Err(error) => {
            tracing::error!(pid, error, "a session of an earlier agent cannot be understood; it is killed");
            forked.discard();
            return false;
        }
    };
    let id = assignment.launch_id.clone();
    let (orders, ordered) = mpsc::unbounded_channel();
    let handle = Handle::new(&assignment, orders, None);
    if let Err(refusal) = node.launches.enter(&id, handle) {
        // A launch has at most one session on a node.
        tracing::error!(launch = id, pid, ?refusal, "a second session of the launch is killed");
        forked.discard();
        return false;
    }
    tracing::info!(launch = id, pid, "the launch is taken up from the agent before");
    let claimed = match uses {
        Some(uses) => Some(node.fabric.take_over(&id, uses).await),
        None => None,
    };
    launch::take_up(node, &assignment, forked, claimed, ordered);
    true
}
