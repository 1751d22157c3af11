//! The status codes that a server answers with. Numbers as in `pmix_common.h`.

/// Done.
pub const SUCCESS: i32 = 0;
/// A rank has aborted, or was killed: an old name for either.
pub const PROC_ABORTED: i32 = -7;
/// The request cannot be read.
pub const UNPACK_FAILURE: i32 = -20;
/// Nothing came in time.
pub const TIMEOUT: i32 = -24;
/// Another process alone may do that.
pub const NO_PERMISSIONS: i32 = -23;
/// The request makes no sense.
pub const BAD_PARAM: i32 = -27;
/// A table is full.
pub const OUT_OF_RESOURCE: i32 = -29;
/// There is no such key, name or rank.
pub const NOT_FOUND: i32 = -46;
/// This server does not do that.
pub const NOT_SUPPORTED: i32 = -47;
/// The host could not be asked.
pub const COMM_FAILURE: i32 = -49;
/// Some of what was asked for is there.
pub const PARTIAL_SUCCESS: i32 = -52;
/// The name is published already.
pub const DUPLICATE_KEY: i32 = -53;
/// A connection broke without a word.
pub const LOST_CONNECTION: i32 = -61;
/// The input of the ranks is at its end.
pub const IOF_COMPLETE: i32 = -173;
/// The new ranks did not start.
pub const JOB_FAILED_TO_LAUNCH: i32 = -181;
/// A rank ended before it finalized.
pub const PROC_TERM_WO_SYNC: i32 = -200;
/// A node was lost.
pub const NODE_DOWN: i32 = -231;
/// A rank was killed by a signal.
pub const PROC_ABORTED_BY_SIG: i32 = -402;
/// A rank returned a status other than 0.
pub const EXIT_NONZERO_TERM: i32 = -404;
