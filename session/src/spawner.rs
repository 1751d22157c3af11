//! The method to start the processes of a session's ranks, for hosts with a method of their own.

use rank_spawner::{RankCommand, RankProcess, Spawner, StartError};

/// Receiver of the result of each start.
pub type Deliver = Box<dyn Fn(Result<RankProcess, StartError>) + Send + Sync>;

/// Starts the processes of a session's ranks. If the host provides no method, the session uses a [`Spawner`].
///
/// A host's method may pass changed commands to a [`Spawner`], or make children of this process itself, such as by [`RankProcess::start`]. In
/// the second case it must follow the parts of a command that the host requested in the spec. Streams that are [`rank_spawner::Stdio::Pipe`] or
/// `Terminal` must have this kind. Descriptors ([`rank_spawner::PMI_FD`] and the descriptors of memory) must be passed on, or be switched off by
/// `settings.pmi` and `settings.node_memory`. The environment must reach the process: the session finds leftover processes of a rank by its
/// marks.
pub trait RankSpawner: Send + Sync {
    /// Starts ranks in the order of `commands`, and returns at once. `deliver` is called once for each rank, on any thread, as soon as the rank
    /// runs or has failed to start. After a failure the remaining starts may be abandoned ([`StartError::GivenUp`]).
    ///
    /// The session drops its spawner at its end. The spawner must then kill ranks that still run, such as the ranks of a cancelled session.
    fn start_all(&self, commands: Vec<RankCommand>, deliver: Deliver);
}

impl RankSpawner for Spawner {
    fn start_all(&self, commands: Vec<RankCommand>, deliver: Deliver) {
        Self::start_all(self, commands, deliver);
    }
}
