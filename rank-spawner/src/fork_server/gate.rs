//! Gate of a fork server: decides which children the server starts for a daemon that it does not trust.

/// Decides on the orders of a daemon, in the fork server's process. A daemon that has fewer privileges than its fork server may be under the
/// control of an attacker. A gate therefore trusts only data that other parties have signed.
///
/// Children are copies of that process, and have a copy of the gate's state.
pub trait Gate {
    /// Decides if a child may be started for `order`. Returns the bytes that the child receives with the order at its door: 1 to
    /// [`PASSED_BYTES_MAX`](crate::PASSED_BYTES_MAX) bytes.
    ///
    /// # Errors
    /// Refuses the order; the error is the reason as text, for the daemon.
    fn admit(&mut self, order: Vec<u8>) -> Result<Vec<u8>, String>;

    /// Handles another message from the daemon, and returns the answer.
    fn hear(&mut self, word: Vec<u8>) -> Vec<u8>;
}

/// Gate for tests; it refuses all orders.
#[cfg(test)]
pub(super) struct Closed;

#[cfg(test)]
impl Gate for Closed {
    fn admit(&mut self, _: Vec<u8>) -> Result<Vec<u8>, String> {
        Err("it must be closed".to_owned())
    }

    fn hear(&mut self, _: Vec<u8>) -> Vec<u8> {
        Vec::new()
    }
}
