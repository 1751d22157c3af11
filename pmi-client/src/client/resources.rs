//! Calls about resources that outlive their process.

use super::{Client, Wire};
use crate::error::ClientError;
use crate::resources::{ResourceCall, check_name};

/// Resources that outlive their process.
///
/// What a rank has registered and not released is removed when its process has ended, however that was. A name is `shm:ID`, `sem:ID` or
/// `msg:ID` (System V), `pshm:NAME`, `psem:NAME` or `mq:NAME` (POSIX), `file:PATH` or `dir:PATH` (absolute), `pid:ID`. Under launchers
/// other than Lattice, and without one, each call is [`ClientError::Unsupported`], and sends nothing that they would not know: the program
/// must see to its resources itself.
impl Client {
    /// Tells that this rank is about to make a resource. If it is killed before it has told that it has, the launcher looks for what it has
    /// made. Where the id is known only later, it is left out: `shm:`.
    ///
    /// # Errors
    /// Refuses a name of no known kind; [`ClientError::Refused`] when the launcher cannot do it, or 256 are registered.
    pub fn intend_resource(&mut self, name: &str) -> Result<(), ClientError> {
        self.resource(ResourceCall::Intend, name)
    }

    /// Registers a resource that this rank has made; one with an id that was not known takes the place of its intent.
    ///
    /// # Errors
    /// As [`intend_resource`](Self::intend_resource); also when the resource is not there, or was not made by this launch.
    pub fn register_resource(&mut self, name: &str) -> Result<(), ClientError> {
        self.resource(ResourceCall::Register, name)
    }

    /// Tells that this rank is about to remove a resource, within so many seconds (0: no limit). If it takes longer, the user is told.
    ///
    /// # Errors
    /// As [`intend_resource`](Self::intend_resource); also when it is not registered.
    pub fn begin_release(&mut self, name: &str, seconds: u32) -> Result<(), ClientError> {
        self.resource(ResourceCall::BeginRelease { seconds }, name)
    }

    /// Tells that this rank has removed a resource, or gives up its intent.
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
