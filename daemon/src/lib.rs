//! Parts that the API server and the node agent share as daemons: settings files, the settings of their identity, and the page of their
//! metrics.
#![forbid(unsafe_code)]

pub mod identity;
pub mod metrics_page;
pub mod settings_file;

/// The default of `min_uid`, the number of the first user who gets nodes and runs anything on them. Below are accounts of the system
/// itself, by the usual settings of login.defs(5).
pub const MIN_UID: u32 = 1000;
