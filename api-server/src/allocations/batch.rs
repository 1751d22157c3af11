//! Batch jobs: scripts that run when an allocation begins, and with whose end it ends. Pure. The launch request of a script is in the
//! store alone.

use lattice_session::request::LaunchRequest;

/// A batch job, as it is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BatchRequest {
    pub name: String,
    /// The launch that its script is.
    pub launch: Box<LaunchRequest>,
    /// Size of that in a message, in bytes.
    pub bytes: u64,
}

/// A batch job of an allocation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BatchJob {
    pub name: String,
    /// Size of its launch request, in bytes.
    pub bytes: u64,
    /// The launch that its script is; `None` before it is started.
    pub launch: Option<String>,
    /// The script has ended.
    pub end: Option<BatchEnd>,
}

/// End of a script.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct BatchEnd {
    /// As a shell has it: 128 and the signal for one that was killed. `None` if it was not started, or its end is not known.
    pub exit_code: Option<u32>,
    /// The cause of a failure in words; empty if all went well.
    pub cause: String,
}

impl BatchRequest {
    /// The job that it becomes.
    pub(super) fn job(&self) -> BatchJob {
        BatchJob { name: self.name.clone(), bytes: self.bytes, launch: None, end: None }
    }
}

impl BatchJob {
    /// The job whose script is this launch.
    pub(crate) fn started(&self, launch: &str) -> Self {
        Self { launch: Some(launch.to_owned()), ..self.clone() }
    }

    /// The job before its script is started again.
    pub(crate) fn anew(&self) -> Self {
        Self { launch: None, end: None, ..self.clone() }
    }

    /// The job whose script has ended.
    pub(crate) fn ended(&self, end: BatchEnd) -> Self {
        Self { end: Some(end), ..self.clone() }
    }
}
