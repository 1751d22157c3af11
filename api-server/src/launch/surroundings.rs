//! Parts of the server that the task of a launch works with, and the little that it tells the rest of the server.

use std::sync::Arc;

use parking_lot::Mutex;
use pmi_transport::connect::AgentChannels;

use super::event_log::AllKept;
use super::settings::LaunchSettings;
use super::spool::Spools;
use super::summary::{Course, Summary};
use crate::allocations::allocation::LaunchFailure;
use crate::clock::Clock;
use crate::metrics::Metrics;
use crate::nodes::Registry;
use crate::store::Store;
use crate::unclean_nodes::UncleanNodes;

/// Parts of the server that the task of a launch works with; shared with the server and all other launches.
#[derive(Clone)]
pub(crate) struct Surroundings {
    pub store: Arc<dyn Store>,
    pub channels: AgentChannels,
    pub nodes: Arc<Mutex<Registry>>,
    /// Nodes on which something of a launch that is over may be left.
    pub unclean: Arc<Mutex<UncleanNodes>>,
    pub metrics: Arc<Metrics>,
    /// The time by which others are judged.
    pub clock: Arc<Clock>,
    /// The place where launches that nobody owns keep what they say.
    pub spools: Arc<Spools>,
    /// Cost of what all launches keep for those who follow them.
    pub all_kept: AllKept,
    pub settings: LaunchSettings,
    pub listener: Arc<dyn EndListener>,
}

/// End of a launch, as it matters to its allocation.
#[derive(Debug)]
pub(crate) struct LaunchEnd {
    /// `None` if all went well.
    pub failure: Option<LaunchFailure>,
    /// The exit code of its first rank, as a shell has it, if it is known.
    pub exit_code: Option<u32>,
    pub course: Course,
}

/// Somebody who hears of the ends of launches.
pub(crate) trait EndListener: Send + Sync {
    /// A launch is over.
    fn launch_over(self: Arc<Self>, summary: &Summary, end: LaunchEnd);

    /// A launch's task has ended: nothing of it is in memory any more.
    fn forget(&self, launch_id: &str);
}
