//! Call of a session that waits for a fence, and receives its result without a task.

use pmi_core::ids::Epoch;

use super::FenceError;
use super::effects::FenceResult;

/// Receives the result of a fence.
pub(super) type FenceEnd = Box<dyn FnOnce(FenceResult) + Send>;

/// Call of the session that waits for the result of a fence. Dropping it reports that the launch has ended here.
pub(super) struct FenceCall {
    epoch: Epoch,
    end: Option<FenceEnd>,
}

impl FenceCall {
    pub(super) fn new(epoch: Epoch, end: FenceEnd) -> Self {
        Self { epoch, end: Some(end) }
    }

    /// Its result if the launch has ended here.
    pub(super) fn launch_ended(&self) -> FenceResult {
        Err(launch_ended(self.epoch))
    }

    pub(super) fn end(mut self, result: FenceResult) {
        if let Some(end) = self.end.take() {
            end(result);
        }
    }

    /// Drops the call without a result, because the caller has ended.
    pub(super) fn forget(mut self) {
        self.end = None;
    }
}

impl Drop for FenceCall {
    fn drop(&mut self) {
        if let Some(end) = self.end.take() {
            let result = self.launch_ended();
            end(result);
        }
    }
}

/// Error of a fence that cannot begin because the launch was left.
pub(super) fn launch_ended(epoch: Epoch) -> FenceError {
    FenceError::LaunchEnded { epoch }
}
