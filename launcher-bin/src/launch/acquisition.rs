//! Acquisition of the ranks by a debugger: once all have started they are published, and those that were started stopped are let go when
//! the debugger continues. A launch that is ended early tells it why.

use lattice_session::event::Event;
use lattice_session::session_io::Control;
use lattice_session::settings::AtExec;
use nix::libc;
use pmi_core::ids::Rank;
use rank_spawner::mpir::{self, Acquired};
use tokio::sync::mpsc;

use crate::console::{Verbosity, report};
use crate::prepared::PreparedLaunch;
use crate::updates::{Update, UpdateSource};

/// The updates of a launch, with an eye on the start of its ranks.
pub(super) struct Acquisition<'a, S> {
    source: S,
    launch: &'a PreparedLaunch,
    control: mpsc::Sender<Control>,
    verbosity: Verbosity,
    /// Number of the process of each rank, 0 before its start.
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
            // Of a spawned job, or told again.
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

    /// Lets the ranks go if a debugger has had the time to attach to them; otherwise says how to do so.
    async fn let_go(&self) {
        if mpir::is_traced() {
            // A launch that takes no more commands is over.
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
