//! The way in which the processes of a session's ranks are started, for hosts that have one of their own.

use rank_spawner::{RankCommand, RankProcess, Spawner, StartError};

/// Receiver of each start's result.
pub type Deliver = Box<dyn Fn(Result<RankProcess, StartError>) + Send + Sync>;

/// Starts the processes of a session's ranks. A session whose host brings none takes a [`Spawner`].
///
/// A host's own may hand changed commands to a [`Spawner`], or make children of this process by itself, such as by [`RankProcess::start`]. Then it
/// honours of a command what the host asked for in the spec: streams that are [`rank_spawner::Stdio::Pipe`] or `Terminal` must be that, and descriptors
/// ([`rank_spawner::PMI_FD`] and those of memory) are passed on, or switched off by `settings.pmi` and `settings.node_memory`. The environment
/// must reach the process: by its marks the session finds what a rank leaves behind.
pub trait RankSpawner: Send + Sync {
    /// Starts ranks in the order of `commands`, and returns at once. `deliver` is called once for each, on any thread, as soon as the rank
    /// runs or has failed to; after a failure the rest may be given up ([`StartError::GivenUp`]).
    ///
    /// The session drops its spawner at its end. Ranks that run then, as those of a session that is cancelled, are the spawner's to kill.
    fn start_all(&self, commands: Vec<RankCommand>, deliver: Deliver);
}

impl RankSpawner for Spawner {
    fn start_all(&self, commands: Vec<RankCommand>, deliver: Deliver) {
        Self::start_all(self, commands, deliver);
    }
}
