//! Input for ranks from another source than the launcher.

/// Reason why ranks do not receive such input.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum InputError {
    /// No rank here reads input that the host forwards.
    #[error("no rank of this node reads input that its launcher passes on")]
    NotPassedOn,
    /// Other ranks than the intended ones read the input of the launch.
    #[error("other ranks than these read the input of the launch")]
    OtherReaders,
    /// The input is at its end, or no rank reads any more.
    #[error("the input of the launch is at its end")]
    Ended,
    /// The ranks have not read the earlier input.
    #[error("the ranks have not read what came before")]
    Full,
}
