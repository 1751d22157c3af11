//! The type codes of values, and the other codes of requests.
//!
//! Numbers as in `pmix_common.h`; they have not changed since PMIx 2.

#![allow(missing_docs, reason = "each constant is the standard's code for the type of that name")]

pub const UNDEFINED: u16 = 0;
pub const BOOL: u16 = 1;
pub const BYTE: u16 = 2;
pub const STRING: u16 = 3;
pub const SIZE: u16 = 4;
pub const PID: u16 = 5;
pub const INT: u16 = 6;
pub const INT8: u16 = 7;
pub const INT16: u16 = 8;
pub const INT32: u16 = 9;
pub const INT64: u16 = 10;
pub const UINT: u16 = 11;
pub const UINT8: u16 = 12;
pub const UINT16: u16 = 13;
pub const UINT32: u16 = 14;
pub const UINT64: u16 = 15;
pub const FLOAT: u16 = 16;
pub const DOUBLE: u16 = 17;
pub const TIMEVAL: u16 = 18;
pub const TIME: u16 = 19;
pub const STATUS: u16 = 20;
pub const VALUE: u16 = 21;
pub const PROC: u16 = 22;
pub const APP: u16 = 23;
pub const INFO: u16 = 24;
pub const PDATA: u16 = 25;
pub const BYTE_OBJECT: u16 = 27;
pub const KVAL: u16 = 28;
pub const PERSISTENCE: u16 = 30;
pub const POINTER: u16 = 31;
pub const SCOPE: u16 = 32;
pub const DATA_RANGE: u16 = 33;
pub const COMMAND: u16 = 34;
pub const INFO_DIRECTIVES: u16 = 35;
pub const DATA_TYPE: u16 = 36;
pub const PROC_STATE: u16 = 37;
pub const PROC_INFO: u16 = 38;
pub const DATA_ARRAY: u16 = 39;
pub const PROC_RANK: u16 = 40;
pub const QUERY: u16 = 41;
pub const COMPRESSED_STRING: u16 = 42;
pub const ALLOC_DIRECTIVE: u16 = 43;
pub const IOF_CHANNEL: u16 = 45;
pub const ENVAR: u16 = 46;
pub const COORD: u16 = 47;
pub const REGATTR: u16 = 48;
pub const JOB_STATE: u16 = 50;
pub const LINK_STATE: u16 = 51;
pub const GEOMETRY: u16 = 53;
pub const DEVICE_DISTANCE: u16 = 54;
pub const ENDPOINT: u16 = 55;
pub const DEVICE_TYPE: u16 = 57;
pub const LOCALITY: u16 = 58;
pub const COMPRESSED_BYTE_OBJECT: u16 = 59;
pub const NAMESPACE: u16 = 60;
pub const DATA_BUFFER: u16 = 65;

/// Means every rank of a namespace.
pub const RANK_WILDCARD: u32 = 0xffff_fffe;

/// The scopes of a commit.
pub const SCOPE_LOCAL: u8 = 1;
pub const SCOPE_REMOTE: u8 = 2;
pub const SCOPE_GLOBAL: u8 = 3;

/// A published value that ends with its first lookup.
pub const PERSIST_FIRST_READ: u8 = 1;
/// A published value that ends with its publisher.
pub const PERSIST_PROC: u8 = 2;
/// The last lifetime of the standard: until the session ends.
pub const PERSIST_SESSION: u8 = 4;

/// Ranges of published values and of events.
pub const RANGE_UNDEFINED: u8 = 0;
pub const RANGE_RM: u8 = 1;
pub const RANGE_LOCAL: u8 = 2;
pub const RANGE_NAMESPACE: u8 = 3;
pub const RANGE_SESSION: u8 = 4;
pub const RANGE_GLOBAL: u8 = 5;
pub const RANGE_CUSTOM: u8 = 6;
pub const RANGE_PROC_LOCAL: u8 = 7;

/// A directive that must not be skipped.
pub const INFO_REQUIRED: u32 = 1;

/// An info that qualifies the value before it.
pub const INFO_QUALIFIER: u32 = 8;

/// The states of a process.
pub const PROC_STATE_RUNNING: u8 = 5;
pub const PROC_STATE_CONNECTED: u8 = 6;
pub const PROC_STATE_TERMINATED: u8 = 20;
pub const PROC_STATE_ABORTED_BY_SIG: u8 = 54;
pub const PROC_STATE_TERM_NON_ZERO: u8 = 62;
