//! Parts that the API server and the node agent share as daemons: settings files, and the page of their metrics.
#![forbid(unsafe_code)]

pub mod metrics_page;
pub mod settings_file;
