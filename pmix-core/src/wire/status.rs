//! Status codes in a server's answers, with the numbers of `pmix_common.h`.

/// Success.
pub const SUCCESS: i32 = 0;
/// A rank has aborted, or was killed: the old code for both.
pub const PROC_ABORTED: i32 = -7;
/// The request cannot be decoded.
pub const UNPACK_FAILURE: i32 = -20;
/// No result arrived in time.
pub const TIMEOUT: i32 = -24;
/// Only another process may do that.
pub const NO_PERMISSIONS: i32 = -23;
/// The request is invalid.
pub const BAD_PARAM: i32 = -27;
/// A table is full.
pub const OUT_OF_RESOURCE: i32 = -29;
/// The key, name or rank does not exist.
pub const NOT_FOUND: i32 = -46;
/// This server does not support the request.
pub const NOT_SUPPORTED: i32 = -47;
/// The host could not be reached.
pub const COMM_FAILURE: i32 = -49;
/// Only some of the requested data exists.
pub const PARTIAL_SUCCESS: i32 = -52;
/// The name is already published.
pub const DUPLICATE_KEY: i32 = -53;
/// A connection broke without notice.
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
