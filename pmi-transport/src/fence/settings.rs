//! Settings of fences: the shape of the tree, and the bounds of what is kept.

/// Most children of a node in the fence trees. All nodes of a launch must use the same.
///
/// Measured on 16 cores, one rank a node, microseconds:
///
/// ```text
/// nodes   barrier: fan-out 2    4    8   16   32     128 bytes each: 2    4    8   16   32
///     8                  122  102   89                             123  109   93
///    16                  235  189  202  173                        290  240  238  221
///    32                  379  346  326  377  363                   491  448  424  466  442
/// ```
/// A hop costs about 30 us there, so small data goes the way of a barrier; a node sends large data once for each node below it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FanOut {
    /// On the way up, and on the way down of small data and of none.
    pub barrier: u32,
    /// On the way down of large data.
    pub data: u32,
}

/// Most nodes of a launch that are a star.
const STAR_MAX: usize = 16;

/// Most bytes of all nodes that are small data.
const SMALL_DATA: usize = 8 * 1024;

impl FanOut {
    /// The head of the fence serves all other nodes itself, whatever they bring.
    pub const STAR: Self = Self { barrier: u32::MAX, data: u32::MAX };

    /// Fan-outs of a launch on so many nodes.
    pub fn of_launch(nodes: usize) -> Self {
        let barrier = if nodes <= STAR_MAX { STAR_MAX as u32 } else { 8 };
        Self { barrier, data: 2 }
    }

    /// Fan-outs of a `LaunchSpec` of so many nodes; 0 leaves the choice to [`FanOut::of_launch`].
    pub fn from_spec(barrier: u32, data: u32, nodes: usize) -> Self {
        let or = |given, default| if given == 0 { default } else { given };
        let default = Self::of_launch(nodes);
        Self { barrier: or(barrier, default.barrier), data: or(data, default.data) }
    }

    /// Fan-out on the way down of so many bytes in so many frames.
    pub(super) fn down(self, frames: usize, bytes: usize) -> u32 {
        if frames <= 1 && bytes <= SMALL_DATA { self.barrier } else { self.data }
    }
}

impl Default for FanOut {
    /// That of a launch on many nodes.
    fn default() -> Self {
        Self::of_launch(usize::MAX)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_launches_are_stars_and_large_data_goes_down_a_narrow_tree() {
        for (nodes, barrier) in [(2, 16), (16, 16), (17, 8), (4096, 8)] {
            let fan_out = FanOut::of_launch(nodes);
            assert_eq!(fan_out, FanOut { barrier, data: 2 }, "{nodes} nodes");
            for (frames, bytes, down) in
                [(0, 0, barrier), (1, SMALL_DATA, barrier), (1, SMALL_DATA + 1, 2), (2, 100, 2)]
            {
                assert_eq!(fan_out.down(frames, bytes), down, "{frames} frames, {bytes} bytes");
            }
        }
        assert_eq!(FanOut::from_spec(0, 3, 17), FanOut { barrier: 8, data: 3 });
        assert_eq!(FanOut::from_spec(5, 0, 2), FanOut { barrier: 5, data: 2 });
    }
}
