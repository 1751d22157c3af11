//! Batch jobs: scripts that run when an allocation begins. The allocation ends with its script. This module is pure. Only the store holds
//! the launch request of a script.

use crate::launch_id::LaunchId;
use lattice_session::request::LaunchRequest;

/// A requested batch job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BatchRequest {
    pub name: String,
    /// The launch that executes the script.
    pub launch: Box<LaunchRequest>,
    /// Encoded size of the launch request, in bytes.
    pub bytes: u64,
}

/// A batch job of an allocation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BatchJob {
    pub name: String,
    /// Size of its launch request, in bytes.
    pub bytes: u64,
    /// Id of the launch that executes the script; `None` before its start.
    pub launch: Option<LaunchId>,
    /// End of the script; `None` until it has ended.
    pub end: Option<BatchEnd>,
}

/// End of a script.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct BatchEnd {
    /// Exit code as in a shell: 128 plus the signal for a killed script. `None` if it was not started, or if its end is unknown.
    pub exit_code: Option<u32>,
    /// The cause of a failure in words; empty on success.
    pub cause: String,
}

impl BatchRequest {
    /// The job for this request.
    pub(super) fn job(&self) -> BatchJob {
        BatchJob { name: self.name.clone(), bytes: self.bytes, launch: None, end: None }
    }
}

impl BatchJob {
    /// The job after its script was started as this launch.
    pub(crate) fn started(&self, launch: &LaunchId) -> Self {
        Self { launch: Some(launch.to_owned()), ..self.clone() }
    }

    /// The job before its script is started again.
    pub(crate) fn anew(&self) -> Self {
        Self { launch: None, end: None, ..self.clone() }
    }

    /// The job after its script has ended.
    pub(crate) fn ended(&self, end: BatchEnd) -> Self {
        Self { end: Some(end), ..self.clone() }
    }
}
