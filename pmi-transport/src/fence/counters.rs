//! Counters of one node's fences, for its metrics.

use std::ops::AddAssign;

/// Number of fences and frames so far, with frames that were unexpected but harmless.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Fences that this node completed.
    pub completed: u64,
    /// Fences that failed here.
    pub failed: u64,
    /// Frames received on links.
    pub frames: u64,
    /// Frames that arrived before this node began their fence, and were stored for it.
    pub early: u64,
    /// Frames of fences that had ended here.
    pub late: u64,
    /// Frames that were received before.
    pub duplicate: u64,
    /// Frames of a sender that is not a neighbour of this node in the tree.
    pub misdirected: u64,
    /// Frames of a sender outside the launch or the fence, and frames that name no fence.
    pub foreign: u64,
    /// Frames without free space, and frames that waited too long for their launch.
    pub dropped: u64,
}

impl AddAssign for Counters {
    fn add_assign(&mut self, more: Self) {
        self.completed += more.completed;
        self.failed += more.failed;
        self.frames += more.frames;
        self.early += more.early;
        self.late += more.late;
        self.duplicate += more.duplicate;
        self.misdirected += more.misdirected;
        self.foreign += more.foreign;
        self.dropped += more.dropped;
    }
}
