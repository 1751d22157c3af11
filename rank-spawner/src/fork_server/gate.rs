//! The gate of a fork server: what decides which children it starts, where its daemon is not to be believed.

/// Decides on the orders of a daemon, in the fork server's process. A daemon that has fewer privileges than its fork server may be taken over
/// by somebody else; a gate believes of it what others have signed.
///
/// Children are copies of that process: what a gate keeps, they have as well.
pub trait Gate {
    /// Decides if a child may be started with `order`. Returns what the child gets with the order at its door: up to
    /// [`PASSED_BYTES_MAX`](crate::PASSED_BYTES_MAX) bytes, and not none.
    ///
    /// # Errors
    /// Refuses it in words, for the daemon.
    fn admit(&mut self, order: Vec<u8>) -> Result<Vec<u8>, String>;

    /// Hears another word of the daemon, and answers it.
    fn hear(&mut self, word: Vec<u8>) -> Vec<u8>;
}

/// A gate for tests that let nobody in.
#[cfg(test)]
pub(super) struct Closed;

#[cfg(test)]
impl Gate for Closed {
    fn admit(&mut self, _: Vec<u8>) -> Result<Vec<u8>, String> {
        Err("nobody gets in".to_owned())
    }

    fn hear(&mut self, _: Vec<u8>) -> Vec<u8> {
        Vec::new()
    }
}
