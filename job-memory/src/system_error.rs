//! Errors of the system, with and without `std`.

/// Error of the system: the type of `std`, or a number if there is no `std`.
#[cfg(feature = "std")]
pub type SystemError = std::io::Error;

#[cfg(not(feature = "std"))]
pub use without_std::SystemError;

#[cfg(not(feature = "std"))]
mod without_std {
    use rustix::io::Errno;

    /// Error of the system, by its number.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
    #[error("{0}")]
    pub struct SystemError(Errno);

    impl From<Errno> for SystemError {
        fn from(error: Errno) -> Self {
            Self(error)
        }
    }
}
