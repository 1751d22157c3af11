//! Parts that the API server and the node agent share as daemons: settings files, the settings of their identity, and the page of their
//! metrics.
#![forbid(unsafe_code)]

pub mod identity;
pub mod metrics_page;
pub mod settings_file;
