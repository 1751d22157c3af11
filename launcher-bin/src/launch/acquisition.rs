//! Acquisition of the ranks by a debugger. The ranks are published after all have started. Ranks that were started stopped continue when
//! the debugger continues. If a launch is ended early, the debugger gets the reason.

use lattice_console::{Verbosity, report};
use lattice_render::PreparedLaunch;
use lattice_render::updates::{Update, UpdateSource};
use lattice_session::event::Event;
use lattice_session::session_io::Control;
use lattice_session::settings::AtExec;
use nix::libc;
use pmi_core::ids::Rank;
use rank_spawner::mpir::{self, Acquired};
use tokio::sync::mpsc;

/// Updates of a launch, from which the start of its ranks is detected.
pub(super) struct Acquisition<'a, S> {
    source: S,
    launch: &'a PreparedLaunch,
    control: mpsc::Sender<Control>,
    verbosity: Verbosity,
    /// Pid of each rank, 0 before its start.
    pids: Vec<u32>,
    /// Number of ranks that have not started.
    missing: usize,
}

impl<'a, S> Acquisition<'a, S> {
    pub(super) fn new(
        source: S,
        launch: &'a PreparedLaunch,
        control: mpsc::Sender<Control>,
        verbosity: Verbosity,
    ) -> Self {
        let missing = launch.ranks.len();
        Self { source, launch, control, verbosity, pids: vec![0; missing], missing }
    }

    /// Returns true if this was the last rank to start.
    fn has_started(&mut self, rank: Rank, pid: u32) -> bool {
        match self.pids.get_mut(rank.0 as usize) {
            // A rank of a spawned job, or a repeated event.
            None => false,
            Some(known) if *known != 0 => false,
            Some(known) => {
                *known = pid;
                self.missing -= 1;
                self.missing == 0
            }
        }
    }

    fn publish(&self) {
        let ranks = self.launch.ranks.iter().zip(&self.pids).map(|(row, &pid)| Acquired {
            host: self.launch.placed.host(row.place.node),
            program: &row.program,
            pid,
        });
        mpir::publish(ranks);
    }

    /// Continues the ranks if a debugger has had the time to attach to them. Otherwise reports how to continue them.
    async fn let_go(&self) {
        if mpir::is_traced() {
            // A launch that accepts no more commands is over.
            drop(self.control.send(Control::Signal(libc::SIGCONT)).await);
        } else if self.verbosity != Verbosity::Quiet {
            let id = &self.launch.placed.launch_id;
            report(&format!(
                "note: all ranks are stopped before their first instruction\n\
                 try: lattice debug {id} for a debugger, and lattice signal {id} CONT to let them go"
            ));
        }
    }
}

impl<S: UpdateSource> UpdateSource for Acquisition<'_, S> {
    async fn next(&mut self) -> Option<Update> {
        let update = self.source.next().await;
        match &update {
            Some(Update::Event(_, Event::Started { rank, pid, .. })) if self.has_started(*rank, *pid) => {
                self.publish();
                if self.launch.placed.settings.at_exec == AtExec::Stop {
                    self.let_go().await;
                }
            }
            Some(Update::Event(_, Event::Ending(cause))) => mpir::publish_abort(&cause.to_string()),
            _ => {}
        }
        update
    }
}
