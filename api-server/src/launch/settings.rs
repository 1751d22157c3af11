//! Settings that apply to every launch.

use std::time::Duration;

/// Settings of every launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LaunchSettings {
    /// Number of nodes above which relays forward a launch.
    pub relay_above: u32,
    /// Number of nodes to which a relay forwards.
    pub relay_fan_out: u32,
    /// Fan-out of the fence tree for barriers, and for fences with data; 0 for the default of the agents.
    pub barrier_fan_out: u32,
    pub data_fan_out: u32,
    /// Time limit of ranks in a fence; `None` for the default of the launch.
    pub fence_timeout: Option<Duration>,
}

impl Default for LaunchSettings {
    fn default() -> Self {
        Self { relay_above: 64, relay_fan_out: 8, barrier_fan_out: 0, data_fan_out: 0, fence_timeout: None }
    }
}
