//! The words for the states of an allocation, the same in messages of the server and in tables of the commands.

use pmi_transport::proto::v1::AllocationState;

/// The state as a word.
pub fn word(state: AllocationState) -> &'static str {
    match state {
        AllocationState::Unspecified => "unknown",
        AllocationState::Pending => "pending",
        AllocationState::Running => "running",
        AllocationState::Releasing => "releasing",
        AllocationState::Released => "released",
        AllocationState::Failed => "failed",
    }
}
