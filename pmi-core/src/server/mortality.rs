//! Ranks that die while other ranks of their job continue. The server notifies the other ranks, and their fences proceed without the
//! dead.
//!
//! ```text
//!       no put                          first fence of all ranks complete
//! dies ───────────────> dead, reported ────────────────────────────────> dead, reported, dispensable
//!   │                     │ a put, and a rank waits                          ^
//!   │ a put               v                                                  │
//!   └─────────────────> dead, needed ────────────────────────────────────────┘
//! ```
//! From the first put to the end of the first fence of all ranks, MPI is being initialized, and all ranks need each other's data. The job
//! then ends if ranks wait for a dead rank. If only dead ranks are missing in a fence, the puts so far decide: other ranks may put after
//! a rank has died. MPICH 5 puts nothing where all ranks share a node, and has no such fence.

use std::sync::Arc;

use crate::fence::FenceError;
use crate::ids::{Epoch, NodeIndex};
use crate::report::EndReason;
use crate::roster::Roster;

/// Returns true while all ranks need each other's data: ranks of this node have put pairs, and no fence of all ranks is complete.
pub(super) fn misses_the_dead(ranks: &Roster, fences: u64) -> bool {
    fences == 0 && ranks.iter().any(|(_, state)| state.quota.bytes() > 0)
}

/// Reason to end a job: its ranks wait in their first fence for the data of a node on which all ranks are dead.
pub fn missed(node: NodeIndex) -> EndReason {
    let reason = "its ranks died while others were in MPI_Init, which need what they were to put".to_owned();
    EndReason::Fence(Arc::new(FenceError::NodeLost { node, epoch: Epoch(0), reason }))
}
