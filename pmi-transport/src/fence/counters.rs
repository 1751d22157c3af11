//! Counters of one node's fences, for its metrics.

use std::ops::AddAssign;

/// Number of fences and frames so far: those that went well, and those that were harmless but should not have come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Fences that this node took part in to their end.
    pub completed: u64,
    /// Fences that failed here.
    pub failed: u64,
    /// Frames received on links.
    pub frames: u64,
    /// Frames that came before this node reached their fence, and were held for it.
    pub early: u64,
    /// Frames of fences that had ended here.
    pub late: u64,
    /// Frames that were received before.
    pub duplicate: u64,
    /// Frames whose sender is no neighbour of this node in the tree.
    pub misdirected: u64,
    /// Frames whose sender takes no part in the launch or in the fence, or which name no fence.
    pub foreign: u64,
    /// Frames for which there was no room, and those that waited too long for their launch.
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
