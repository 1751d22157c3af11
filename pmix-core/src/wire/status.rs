//! The status codes that a server answers with. Numbers as in `pmix_common.h`.

/// Done.
pub const SUCCESS: i32 = 0;
/// The request cannot be read.
pub const UNPACK_FAILURE: i32 = -20;
/// Nothing came in time.
pub const TIMEOUT: i32 = -24;
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
/// The name is published already.
pub const DUPLICATE_KEY: i32 = -53;
/// A connection broke without a word.
pub const LOST_CONNECTION: i32 = -61;
/// The new ranks did not start.
pub const JOB_FAILED_TO_LAUNCH: i32 = -181;
