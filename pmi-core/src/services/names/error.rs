//! Refusals of the name service.

/// Maximum length of a name and of a port, in bytes.
pub(super) const LENGTH_MAX: usize = 64 << 10;

/// Maximum number of bytes of all names and ports of a launch.
pub(super) const BYTES_MAX: usize = 16 << 20;

/// Reason why a name cannot be published, found or withdrawn.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NameError {
    /// The launch has already published this name in this range.
    #[error("the name is already published by {holder}")]
    AlreadyPublished {
        /// The publisher, with its launch.
        holder: String,
    },
    /// No launch in range has published this name.
    #[error("the name is not published")]
    NotFound,
    /// No launch in range published this name in time.
    #[error("the name was not published in time")]
    TimedOut,
    /// Several other launches have published this name, and none of them is nearer than another.
    #[error("the name is published by launches {}, and none of them is nearer than the others", .launches.join(" and "))]
    Ambiguous {
        /// The launches.
        launches: Vec<String>,
    },
    /// Another process has published it, and only that process may withdraw it.
    #[error("the name belongs to {holder}, which alone may withdraw it")]
    NotPublisher {
        /// The publisher, with its launch.
        holder: String,
    },
    /// The table is full.
    #[error("the launch has published {limit} names, which is the limit")]
    Full {
        /// Maximum number of names of a launch.
        limit: usize,
    },
    /// The service that holds the names cannot be reached, or refuses these bytes.
    #[error("the name service does not answer: {reason}")]
    Unavailable {
        /// Cause of the failure.
        reason: String,
    },
    /// The name, the port, or the sum of all names and ports is too long.
    #[error(
        "{bytes} bytes are too many: a name and a port have {} at most, and all of a launch {}",
        LENGTH_MAX,
        BYTES_MAX
    )]
    TooLong {
        /// Length of the name, of the port, or of all names and ports.
        bytes: usize,
    },
}
