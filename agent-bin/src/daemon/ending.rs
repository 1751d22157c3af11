//! The ways in which the agent itself ends a launch on its node.

/// Order to end a launch here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    /// End the ranks because the launch failed elsewhere, and give no cause.
    GiveUp,
    /// End the ranks in order, because the user sent this signal.
    Signal(i32),
    /// Kill the ranks; counts as ended by this signal if nothing ended the launch before.
    Kill(i32),
}
