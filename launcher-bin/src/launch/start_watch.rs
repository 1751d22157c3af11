//! Monitors the start of a launch after its ranks run: how many of them are still in `MPI_Init`, for the line on a terminal. If nothing is
//! shown, nothing is queried. A short launch has no cost.

use std::time::Duration;

use lattice_console::Verbosity;
use lattice_render::updates::{Update, UpdateSource};
use lattice_render::{PreparedLaunch, shows_progress};
use lattice_session::settings::StdinTarget;
use pmi_transport::proto::v1 as proto;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::sleep;

/// Time to the first query, and between queries.
const PAUSE: Duration = Duration::from_secs(1);
/// Maximum number of queries. `--stuck-after` reports more about a start that takes longer.
const QUESTIONS_MAX: u32 = 300;

/// Updates of a launch, merged with the updates of the watch.
pub(super) struct StartWatch<S> {
    source: S,
    seen: mpsc::Receiver<Update>,
    /// Ends when this value is dropped.
    _task: JoinSet<()>,
}

impl<S> StartWatch<S> {
    /// Watches `launch` by calls of `ask`, if the line is shown. Must be called within a tokio runtime.
    pub(super) fn new<F>(
        source: S,
        launch: &PreparedLaunch,
        verbosity: Verbosity,
        ask: impl Fn() -> F + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = Option<proto::LaunchStatus>> + Send + 'static,
    {
        let (tell, seen) = mpsc::channel(1);
        let mut task = JoinSet::new();
        let size = launch.placed.job.size();
        let has_terminal = matches!(launch.placed.settings.stdin, StdinTarget::Terminal(_));
        // A single rank waits for no other rank.
        if size > 1 && !has_terminal && shows_progress(verbosity) {
            task.spawn(watch(size, ask, tell));
        }
        Self { source, seen, _task: task }
    }
}

async fn watch<F>(size: u32, ask: impl Fn() -> F, tell: mpsc::Sender<Update>)
where
    F: Future<Output = Option<proto::LaunchStatus>>,
{
    for _ in 0..QUESTIONS_MAX {
        sleep(PAUSE).await;
        let Some(status) = ask().await else { break };
        let (ranks, is_over) = initializing(&status, size);
        if tell.send(Update::Initializing { ranks, of: size }).await.is_err() || is_over {
            return;
        }
    }
    // If the receiver is gone, no line is shown.
    let _ = tell.send(Update::Initializing { ranks: 0, of: size }).await;
}

/// Number of launched ranks in `MPI_Init`, and whether none will enter it any more: one has left it, or all have ended.
fn initializing(status: &proto::LaunchStatus, size: u32) -> (u32, bool) {
    let launched = || status.nodes.iter().flat_map(|node| &node.ranks).filter(|rank| rank.rank < size);
    let running = || launched().filter(|rank| rank.exit.is_none());
    let is_past = |rank: &proto::RankProgress| {
        matches!(rank.phase(), proto::RankPhase::Initialized | proto::RankPhase::Finalized) && !rank.in_init
    };
    let ranks = running().filter(|rank| rank.in_init).count() as u32;
    (ranks, ranks == 0 && (running().any(is_past) || running().next().is_none() && launched().next().is_some()))
}

impl<S: UpdateSource> UpdateSource for StartWatch<S> {
    async fn next(&mut self) -> Option<Update> {
        tokio::select! {
            update = self.source.next() => update,
            Some(update) = self.seen.recv() => Some(update),
        }
    }
}

#[cfg(test)]
mod tests {
    use proto::{LaunchStatus, NodeStatus, RankExitStatus, RankPhase, RankProgress};

    use super::*;

    fn check(ranks: &[(RankPhase, bool, bool)], expected: (u32, bool)) {
        let rank = |(number, &(phase, in_init, ended)): (u32, &(RankPhase, bool, bool))| RankProgress {
            rank: number,
            phase: phase.into(),
            in_init,
            exit: ended.then(RankExitStatus::default),
            ..RankProgress::default()
        };
        let ranks = (0..).zip(ranks).map(rank).collect();
        let status =
            LaunchStatus { nodes: vec![NodeStatus { ranks, ..NodeStatus::default() }], ..LaunchStatus::default() };
        assert_eq!(initializing(&status, 3), expected);
    }

    #[test]
    fn a_start_is_watched_until_a_rank_has_left_mpi_init() {
        let (silent, init) = ((RankPhase::Silent, false, false), (RankPhase::Initialized, true, false));
        let (past, ended) = ((RankPhase::Initialized, false, false), (RankPhase::Silent, false, true));
        check(&[], (0, false));
        check(&[silent, silent, silent], (0, false));
        check(&[init, silent, init], (2, false));
        check(&[init, past, past], (1, false));
        check(&[past, past, past], (0, true));
        check(&[ended, ended, ended], (0, true));
        check(&[past, past, past, init], (0, true));
    }
}
