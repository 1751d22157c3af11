//! Return codes, which have the same numbers in PMI-1 and PMI-2.

use core::ffi::c_int;

use pmi_client::ClientError;

/// A return code other than success, by the names of `pmi.h` and `pmi2.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Code(pub c_int);

/// Success.
pub const SUCCESS: c_int = 0;

impl Code {
    /// The call failed for a reason that is no fault of an argument.
    pub const FAIL: Self = Self(-1);
    /// `PMI_Init` was not called, or `PMI_Finalize` was.
    pub const INIT: Self = Self(1);
    /// A buffer is too small (`PMI_Get_options`), or there is no memory.
    pub const NO_MEMORY: Self = Self(2);
    /// Invalid argument.
    pub const ARGUMENT: Self = Self(3);
    /// Invalid key, or no value under it.
    pub const KEY: Self = Self(4);
    /// Invalid length of a buffer for a key.
    pub const KEY_LENGTH: Self = Self(5);
    /// Invalid value.
    pub const VALUE: Self = Self(6);
    /// Invalid length of a buffer for a value.
    pub const VALUE_LENGTH: Self = Self(7);
    /// Invalid length.
    pub const LENGTH: Self = Self(8);
    /// Invalid place for the number of parsed arguments.
    pub const NUMBER_OF_ARGUMENTS: Self = Self(9);
    /// Invalid list of arguments.
    pub const ARGUMENTS: Self = Self(10);
    /// Invalid place for the number of arguments that were parsed.
    pub const NUMBER_PARSED: Self = Self(11);
    /// Invalid place for pairs.
    pub const KEYVALP: Self = Self(12);
    /// Invalid place for a size.
    pub const SIZE: Self = Self(13);
    /// PMI-1: no key-value space of this name.
    pub const KVS: Self = Self(14);
    /// The launcher has no such service.
    pub const UNSUPPORTED: Self = Self(15);
    /// PMI-2: the call failed, or there is no value under a key.
    pub const OTHER: Self = Self(14);
}

/// Reason why a call failed.
#[derive(Debug)]
pub enum Failure {
    /// The caller receives this code.
    Code(Code),
    /// The caller receives its protocol's code for failures.
    Client(ClientError),
}

impl From<Code> for Failure {
    fn from(code: Code) -> Self {
        Self::Code(code)
    }
}

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Self {
        Self::Client(error)
    }
}
