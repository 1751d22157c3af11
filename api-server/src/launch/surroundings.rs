//! Parts of the server that the task of a launch uses, and its notifications to the rest of the server.

use std::sync::Arc;

use parking_lot::Mutex;
use pmi_transport::connect::AgentChannels;

use super::event_log::AllKept;
use super::settings::LaunchSettings;
use super::spool::Spools;
use super::summary::{Course, Summary};
use crate::allocations::allocation::LaunchFailure;
use crate::clock::Clock;
use crate::launch_id::LaunchId;
use crate::metrics::Metrics;
use crate::nodes::Registry;
use crate::store::Store;
use crate::unclean_nodes::UncleanNodes;

/// Parts of the server that the task of a launch uses. They are shared with the server and all other launches.
#[derive(Clone)]
pub(crate) struct Surroundings {
    pub store: Arc<dyn Store>,
    pub channels: AgentChannels,
    pub nodes: Arc<Mutex<Registry>>,
    /// Nodes on which processes of a launch that is over may be left.
    pub unclean: Arc<Mutex<UncleanNodes>>,
    pub metrics: Arc<Metrics>,
    /// The clock for time limits of nodes and clients.
    pub clock: Arc<Clock>,
    /// Spools for the output of launches without an owner.
    pub spools: Arc<Spools>,
    /// Memory cost of the events that all launches keep for their clients.
    pub all_kept: AllKept,
    pub settings: LaunchSettings,
    pub listener: Arc<dyn EndListener>,
}

/// End of a launch, as far as its allocation needs it.
#[derive(Debug)]
pub(crate) struct LaunchEnd {
    /// `None` if the launch succeeded.
    pub failure: Option<LaunchFailure>,
    /// The exit code of its first rank, in the convention of a shell, if known.
    pub exit_code: Option<u32>,
    pub course: Course,
}

/// Receiver of the ends of launches.
pub(crate) trait EndListener: Send + Sync {
    /// A launch is over.
    fn launch_over(self: Arc<Self>, summary: &Summary, end: LaunchEnd);

    /// The task of a launch has ended: its state is no longer in memory.
    fn forget(&self, launch_id: &LaunchId);
}
