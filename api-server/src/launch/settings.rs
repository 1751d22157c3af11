//! Settings that hold for every launch.

use std::time::Duration;

/// Settings of every launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LaunchSettings {
    /// A launch on more nodes is forwarded by some of them.
    pub relay_above: u32,
    /// Number of nodes among which a relay shares out the others.
    pub relay_fan_out: u32,
    /// Among how many nodes a node of the fence tree shares out a barrier, and data; 0 leaves it to the agents.
    pub barrier_fan_out: u32,
    pub data_fan_out: u32,
    /// The longest time that ranks may wait in a fence; `None` leaves it to the launch.
    pub fence_timeout: Option<Duration>,
}

impl Default for LaunchSettings {
    fn default() -> Self {
        Self { relay_above: 64, relay_fan_out: 8, barrier_fan_out: 0, data_fan_out: 0, fence_timeout: None }
    }
}
