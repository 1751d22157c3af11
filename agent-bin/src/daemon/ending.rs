//! Ways in which the agent ends a launch on its node.

/// Order to end a launch here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    /// Ends the ranks because the launch failed on another node, and gives no cause.
    GiveUp,
    /// Ends the ranks in order, because the user sent this signal.
    Signal(i32),
    /// Kills the ranks. The launch counts as ended by this signal if nothing ended it before.
    Kill(i32),
}
