//! Resource usage of ranks, as text and as JSON.

use lattice_console::formatting::{short_duration, size};
use lattice_session::event::Usage;
use serde::Serialize;

/// Resource usage in JSON documents.
#[derive(Debug, Serialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub struct UsageLine {
    user_s: f64,
    system_s: f64,
    /// Peak memory of one process.
    peak_memory_bytes: u64,
}

impl From<Usage> for UsageLine {
    fn from(Usage { user, system, peak_memory }: Usage) -> Self {
        Self { user_s: user.as_secs_f64(), system_s: system.as_secs_f64(), peak_memory_bytes: peak_memory }
    }
}

/// Resource usage as a line without its end.
pub fn words(usage: Usage) -> String {
    let Usage { user, system, peak_memory } = usage;
    format!(
        "used: {} of processor time for programs, {} in the kernel; at most {} of memory in one process",
        short_duration(user),
        short_duration(system),
        size(peak_memory)
    )
}
