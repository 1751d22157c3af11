//! Calls about resources that outlive their process.

use super::{Client, Wire};
use crate::error::ClientError;
use crate::resources::{ResourceCall, check_name};

/// Resources that outlive their process.
///
/// The launcher removes the resources that a rank has registered and not released, after the rank's process has ended in any way. A name is
/// `shm:ID`, `sem:ID` or `msg:ID` (System V), `pshm:NAME`, `psem:NAME` or `mq:NAME` (POSIX), `file:PATH` or `dir:PATH` (absolute),
/// `pid:ID`. Under launchers other than Lattice, and without one, each call is [`ClientError::Unsupported`] and sends no request. Then the
/// program must remove its resources itself.
impl Client {
    /// Announces that this rank is about to create a resource. If the rank is killed before it registers the resource, the launcher
    /// searches for the created resource. An id that is not available yet is left out: `shm:`.
    ///
    /// # Errors
    /// Fails for a name of an unknown kind; [`ClientError::Refused`] if the launcher cannot do it, or if 256 resources are registered.
    pub fn intend_resource(&mut self, name: &str) -> Result<(), ClientError> {
        self.resource(ResourceCall::Intend, name)
    }

    /// Registers a resource that this rank has created. A resource with a new id replaces its announcement.
    ///
    /// # Errors
    /// As [`intend_resource`](Self::intend_resource); also if the resource does not exist, or was not created by this launch.
    pub fn register_resource(&mut self, name: &str) -> Result<(), ClientError> {
        self.resource(ResourceCall::Register, name)
    }

    /// Announces that this rank is about to remove a resource, within `seconds` seconds (0: no limit). If the removal takes longer, the
    /// launcher reports it to the user.
    ///
    /// # Errors
    /// As [`intend_resource`](Self::intend_resource); also if it is not registered.
    pub fn begin_release(&mut self, name: &str, seconds: u32) -> Result<(), ClientError> {
        self.resource(ResourceCall::BeginRelease { seconds }, name)
    }

    /// Reports that this rank has removed a resource, or that it withdraws its announcement.
    ///
    /// # Errors
    /// As [`begin_release`](Self::begin_release).
    pub fn end_release(&mut self, name: &str) -> Result<(), ClientError> {
        self.resource(ResourceCall::EndRelease, name)
    }

    fn resource(&mut self, call: ResourceCall, name: &str) -> Result<(), ClientError> {
        check_name(name)?;
        match &mut self.wire {
            Wire::Pmi1(wire) => wire.resource(call, name),
            Wire::Pmi2(wire) => wire.resource(call, name),
            Wire::Alone(_) => Err(ClientError::Unsupported { call: call.name(), place: "without a launcher" }),
        }
    }
}
