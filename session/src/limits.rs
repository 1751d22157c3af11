//! Limits on the size of a launch. Whoever admits ranks or jobs (the command line, the API server, a session) checks against
//! these constants and no others, so that no two of them disagree.

/// Largest number of ranks of one launch, ranks of spawned jobs included. Every node keeps the map of all ranks, and the API server
/// keeps some hundred bytes of each.
pub const RANKS_MAX: u32 = 1 << 20;

/// Largest number of ranks of one launch on one node, ranks of spawned jobs included: what a kernel with its default limits on
/// processes and descriptors can hold several times over, and far more than a node has cores.
pub const NODE_RANKS_MAX: usize = 16 * 1024;

/// Largest number of jobs of one launch: the launched one, and the spawned ones whether or not they started. Each takes servers on
/// every node of the launch until the launch ends.
pub const JOBS_MAX: usize = 4096;
