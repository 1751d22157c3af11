//! Calls about other jobs.

use alloc::string::String;
use alloc::vec::Vec;

use super::{Client, Wire, on_wire};
use crate::error::ClientError;
use crate::spawn::SpawnRequest;

/// Meeting other jobs.
impl Client {
    /// Makes `port` known as `service` to every job that the launcher's name service reaches.
    ///
    /// # Errors
    /// Fails when the name is taken, where the launcher refuses that.
    pub fn publish(&mut self, service: &str, port: impl AsRef<[u8]>) -> Result<(), ClientError> {
        on_wire!(self, wire => wire.publish(service, port.as_ref()))
    }

    /// The port published as `service`; `None` if nobody published it.
    ///
    /// # Errors
    /// Fails when the name service cannot be asked.
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
    /// Fails when nobody published it.
    pub fn unpublish(&mut self, service: &str) -> Result<(), ClientError> {
        on_wire!(self, wire => wire.unpublish(service))
    }

    /// Starts a new job and returns its name, if the server tells, once its ranks are starting.
    ///
    /// # Errors
    /// [`ClientError::Refused`] when the launcher cannot start it, and the caller's job goes on;
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
