//! Settings of fences: the shape of the tree, and the bounds of what is kept.

/// Most children of a node in the fence trees. All nodes of a launch must use the same.
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

    /// Fan-outs of a `LaunchSpec`; 0 leaves the choice to the default.
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

/// Bounds of what a node keeps for fences before it fails them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Payload of one frame, in bytes. It must stay well below the longest message that links accept (4 MiB).
    pub chunk_bytes: usize,
    /// Most bytes that all nodes may bring to one fence; each piece counts for 64 bytes more than it has. Also the most that
    /// frames of one launch may take that wait for this node's ranks.
    pub fence_bytes: usize,
    /// Most bytes of waiting frames of all launches together.
    pub all_held_bytes: usize,
    /// Most frames of one launch that may wait for this node's ranks.
    pub held_frames: usize,
    /// Most bytes kept of frames of one other node whose launch is not known here.
    pub unclaimed_bytes: usize,
    /// The same of all other nodes together.
    pub all_unclaimed_bytes: usize,
    /// Time for which they are kept, in ticks of a second.
    pub unclaimed_ticks: u32,
    /// Most bytes in the queue of one link. A node that lets more wait is given up.
    pub link_bytes: usize,
    /// Most bytes in the queues of all links together. Data that goes to several nodes counts once for each.
    pub all_link_bytes: usize,
    /// Most questions of other nodes that may be open in one launch.
    pub open_questions: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            chunk_bytes: 64 * 1024,
            fence_bytes: 1 << 30,
            all_held_bytes: 2 << 30,
            held_frames: 1 << 17,
            unclaimed_bytes: 64 << 20,
            all_unclaimed_bytes: 256 << 20,
            unclaimed_ticks: 30,
            link_bytes: 2 << 30,
            all_link_bytes: 4 << 30,
            open_questions: 4096,
        }
    }
}
