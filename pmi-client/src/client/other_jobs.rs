//! Calls about other jobs.

use alloc::string::String;
use alloc::vec::Vec;

use super::{Client, Wire, on_wire};
use crate::error::ClientError;
use crate::spawn::SpawnRequest;

/// Exchange with other jobs.
impl Client {
    /// Publishes `port` as `service` to every job that uses the launcher's name service.
    ///
    /// # Errors
    /// Fails if the name is already published and the launcher does not allow this.
    pub fn publish(&mut self, service: &str, port: impl AsRef<[u8]>) -> Result<(), ClientError> {
        on_wire!(self, wire => wire.publish(service, port.as_ref()))
    }

    /// Returns the port that was published as `service`; `None` if it was not published.
    ///
    /// # Errors
    /// Fails if the name service is not available.
    pub fn lookup(&mut self, service: &str) -> Result<Option<Vec<u8>>, ClientError> {
        match &mut self.wire {
            Wire::Pmi1(wire) => wire.lookup(service),
            Wire::Pmi2(wire) => wire.lookup(service),
            Wire::Alone(wire) => Ok(wire.lookup(service)),
        }
    }

    /// Withdraws `service`.
    ///
    /// # Errors
    /// Fails if it was not published.
    pub fn unpublish(&mut self, service: &str) -> Result<(), ClientError> {
        on_wire!(self, wire => wire.unpublish(service))
    }

    /// Starts a new job. Returns its name, if the server provides it, once its ranks are starting.
    ///
    /// # Errors
    /// [`ClientError::Refused`] if the launcher cannot start it; the caller's job continues.
    /// [`ClientError::Unsupported`] without a launcher.
    pub fn spawn(&mut self, request: &SpawnRequest) -> Result<Option<String>, ClientError> {
        if request.apps.is_empty() {
            return Err(ClientError::NothingToSpawn);
        }
        match &mut self.wire {
            Wire::Pmi1(wire) => wire.spawn(request),
            Wire::Pmi2(wire) => wire.spawn(request),
            Wire::Alone(_) => Err(ClientError::Unsupported { call: "spawn", place: "without a launcher" }),
        }
    }
}
