//! Input for ranks that does not come from the launcher.

/// Reason why ranks do not get input that somebody has for them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum InputError {
    /// No rank here reads input that the host passes on.
    #[error("no rank of this node reads input that its launcher passes on")]
    NotPassedOn,
    /// Others than those that are meant read the input of the launch.
    #[error("other ranks than these read the input of the launch")]
    OtherReaders,
    /// The input is at its end, or nobody reads any more.
    #[error("the input of the launch is at its end")]
    Ended,
    /// The ranks have not read what came before.
    #[error("the ranks have not read what came before")]
    Full,
}
