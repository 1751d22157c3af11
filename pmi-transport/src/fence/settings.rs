//! Settings of fences: the shape of the tree, and the limits of stored data.

/// Maximum children of a node in the fence trees. All nodes of a launch must use the same values.
///
/// Measured on 16 cores with one rank per node, in microseconds:
///
/// ```text
/// nodes   barrier: fan-out 2    4    8   16   32     128 bytes each: 2    4    8   16   32
///     8                  122  102   89                             123  109   93
///    16                  235  189  202  173                        290  240  238  221
///    32                  379  346  326  377  363                   491  448  424  466  442
/// ```
/// A hop costs about 30 us there, so small data uses the tree of a barrier. A node sends large data once for each child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FanOut {
    /// On the way up, and on the way down for small data and barriers.
    pub barrier: u32,
    /// On the way down for large data.
    pub data: u32,
}

/// Maximum nodes of a launch with a star.
const STAR_MAX: usize = 16;

/// Maximum bytes of all nodes that count as small data.
const SMALL_DATA: usize = 8 * 1024;

impl FanOut {
    /// The head of the fence serves all other nodes itself, for any size of data.
    pub const STAR: Self = Self { barrier: u32::MAX, data: u32::MAX };

    /// Fan-outs of a launch on this many nodes.
    pub fn of_launch(nodes: usize) -> Self {
        let barrier = if nodes <= STAR_MAX { STAR_MAX as u32 } else { 8 };
        Self { barrier, data: 2 }
    }

    /// Fan-outs of a `LaunchSpec` for this many nodes; 0 selects the value of [`FanOut::of_launch`].
    pub fn from_spec(barrier: u32, data: u32, nodes: usize) -> Self {
        let or = |given, default| if given == 0 { default } else { given };
        let default = Self::of_launch(nodes);
        Self { barrier: or(barrier, default.barrier), data: or(data, default.data) }
    }

    /// Fan-out on the way down for this many bytes in this many frames.
    pub(super) fn down(self, frames: usize, bytes: usize) -> u32 {
        if frames <= 1 && bytes <= SMALL_DATA { self.barrier } else { self.data }
    }
}

impl Default for FanOut {
    /// The fan-out of a launch on many nodes.
    fn default() -> Self {
        Self::of_launch(usize::MAX)
    }
}

/// Limits of the data that a node stores for fences before it fails them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Payload of one frame, in bytes. It must stay well below the longest message that links accept (4 MiB).
    pub chunk_bytes: usize,
    /// Maximum bytes that all nodes may contribute to one fence. Each piece counts as 64 bytes more than its length. It also
    /// limits the stored early frames of one launch.
    pub fence_bytes: usize,
    /// Maximum bytes of stored early frames of all launches together.
    pub all_held_bytes: usize,
    /// Maximum number of stored early frames of one launch.
    pub held_frames: usize,
    /// Maximum bytes of stored frames of unknown launches, per sending node.
    pub unclaimed_bytes: usize,
    /// The same for all sending nodes together.
    pub all_unclaimed_bytes: usize,
    /// Time for which they are stored, in ticks of a second.
    pub unclaimed_ticks: u32,
    /// Maximum bytes in the queue of one link. Beyond it the other node is treated as lost.
    pub link_bytes: usize,
    /// Maximum bytes in the queues of all links together. Data for several nodes counts once per node.
    pub all_link_bytes: usize,
    /// Maximum open questions of other nodes in one launch.
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
