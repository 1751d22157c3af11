//! Limits on the size of a launch. The command line, the API server and the session all check ranks and jobs against these constants, so
//! that their limits agree.

/// Maximum number of ranks of one launch, including ranks of spawned jobs. Every node stores the map of all ranks, and the API server stores
/// some hundred bytes for each rank.
pub const RANKS_MAX: u32 = 1 << 20;

/// Maximum number of ranks of one launch on one node, including ranks of spawned jobs. A kernel with its default limits on processes and
/// descriptors can hold several times this number. It is far more than a node has cores.
pub const NODE_RANKS_MAX: usize = 16 * 1024;

/// Maximum number of jobs of one launch at a time: the launched job, and the spawned jobs that have not ended.
pub const JOBS_MAX: usize = 4096;

/// Maximum number of windows of standard input that a node stores for ranks that do not read. Windows of clients that have left count too.
/// The API server sends no more.
pub const INPUT_WINDOWS_MAX: u64 = 16;

/// Maximum length in bytes of a variable with the full names of all nodes; a longer list is folded. The kernel accepts up to 128 KiB in one
/// variable.
pub const NODE_LIST_MAX: usize = 32 * 1024;
