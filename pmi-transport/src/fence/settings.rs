//! What can be chosen about fences: the shape of the tree, and how much is kept.

use std::time::Duration;

/// Among how many nodes a node of the tree shares out what it sends. All nodes of a launch must use the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FanOut {
    /// On the way up, and on the way down when nobody brought anything: wide, because what counts is the number of hops.
    pub barrier: u32,
    /// On the way down when there is data: narrow, because a node sends all data once for each node below it.
    pub data: u32,
}

impl FanOut {
    /// The head of the fence serves all other nodes itself, whatever they bring.
    pub const STAR: Self = Self { barrier: u32::MAX, data: u32::MAX };

    /// What a `LaunchSpec` says; 0 leaves the choice to the default.
    pub fn from_spec(barrier: u32, data: u32) -> Self {
        let or = |given, default| if given == 0 { default } else { given };
        let default = Self::default();
        Self { barrier: or(barrier, default.barrier), data: or(data, default.data) }
    }
}

impl Default for FanOut {
    fn default() -> Self {
        Self { barrier: 8, data: 2 }
    }
}

/// How much a node carries for fences before it fails them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// What goes into one frame, in bytes. It must stay well below the longest message that links accept (4 MiB).
    pub chunk: usize,
    /// What all nodes may bring to one fence, in bytes; each piece counts for 64 bytes more than it has. Also what frames of
    /// one launch may take that wait for this node's ranks.
    pub fence_bytes: usize,
    /// The same of all launches together, of frames that wait.
    pub all_held_bytes: usize,
    /// How many frames of one launch may wait for this node's ranks.
    pub held_frames: usize,
    /// What may be kept of frames whose launch is not known here, in bytes: of one other node.
    pub stray_bytes: usize,
    /// The same of all other nodes together.
    pub all_stray_bytes: usize,
    /// How long they are kept.
    pub stray_time: Duration,
    /// What may wait in the queue of one link, in bytes. A node that does not read for that long is given up.
    pub link_bytes: usize,
    /// What may wait in the queues of all links together, in bytes. Data that goes to several nodes counts once for each.
    pub all_link_bytes: usize,
    /// How many questions of other nodes may be open in one launch.
    pub questions: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            chunk: 64 * 1024,
            fence_bytes: 1 << 30,
            all_held_bytes: 2 << 30,
            held_frames: 1 << 17,
            stray_bytes: 64 << 20,
            all_stray_bytes: 256 << 20,
            stray_time: Duration::from_secs(30),
            link_bytes: 2 << 30,
            all_link_bytes: 4 << 30,
            questions: 4096,
        }
    }
}
