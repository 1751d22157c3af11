//! Limits on the size of a launch. Whoever admits ranks or jobs (the command line, the API server, a session) checks against
//! these constants and no others, so that no two of them disagree.

/// Largest number of ranks of one launch, ranks of spawned jobs included. Every node keeps the map of all ranks, and the API server
/// keeps some hundred bytes of each.
pub const RANKS_MAX: u32 = 1 << 20;

/// Largest number of ranks of one launch on one node, ranks of spawned jobs included: what a kernel with its default limits on
/// processes and descriptors can hold several times over, and far more than a node has cores.
pub const NODE_RANKS_MAX: usize = 16 * 1024;

/// Largest number of jobs of one launch at a time: the launched one, and the spawned ones that have not ended.
pub const JOBS_MAX: usize = 4096;

/// Windows of standard input that a node keeps of ranks that do not read, of clients that have left too; the API server sends no more.
pub const INPUT_WINDOWS_MAX: u64 = 16;

/// Longest list of nodes by all their names in a variable, in bytes; a longer one is folded. The kernel takes up to 128 KiB in one variable.
pub const NODE_LIST_MAX: usize = 32 * 1024;
