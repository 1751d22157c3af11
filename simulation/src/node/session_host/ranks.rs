//! The processes of a session's ranks: starts, writes, signals and ends.

use std::time::Duration;

use bytes::Bytes;
use lattice_session::cause::RankExit;
use lattice_session::session_process::simulation::InputRead;
use nix::sys::signal::Signal;
use pmi_core::ids::Rank;

use super::SessionHost;
use crate::event::SessionEvent;
use crate::rank::{Deed, RankProcess};
use crate::scenario::OnTerm;
use crate::surroundings::Surroundings;

/// Pause before a rank writes again, if its output is not read.
const UNREAD: Duration = Duration::from_millis(20);

/// First number for the processes of ranks.
const FIRST_PID: u32 = 1 << 24;

impl SessionHost {
    /// Returns the running ranks.
    pub(crate) fn alive(&self) -> Vec<Rank> {
        self.ranks.keys().copied().collect()
    }

    pub(crate) fn has_rank(&self, rank: Rank) -> bool {
        self.ranks.contains_key(&rank)
    }

    pub(super) fn start_rank(&mut self, rank: Rank, process: u64, around: &mut Surroundings) {
        if around.scenario.program(rank).is_missing {
            around.truth.has_erred |= rank.0 < around.scenario.size();
            return self.input(around, |session, now| session.rank_not_started(rank, "no such program", now));
        }
        self.ranks.insert(rank, RankProcess::new(rank, &around.scenario));
        self.input(around, |session, now| session.rank_started(rank, FIRST_PID + process as u32, now));
        self.rank_goes_on(rank, around);
    }

    /// Schedules the next step of a rank.
    fn rank_goes_on(&mut self, rank: Rank, around: &mut Surroundings) {
        let pace = around.scenario.program(rank).pace;
        let time = around.some_time(1, 2 * pace.as_micros() as u64);
        if let Some(known) = self.ranks.get_mut(&rank)
            && !std::mem::replace(&mut known.is_stepping, true)
        {
            around.after(time, SessionEvent::Step { node: self.node, session: self.process, rank });
        }
    }

    pub(super) fn step_rank(&mut self, rank: Rank, around: &mut Surroundings) {
        let Some(known) = self.ranks.get_mut(&rank) else { return };
        known.is_stepping = false;
        let Some(deed) = known.step(&mut around.truth) else { return };
        match deed {
            Deed::Ask(text) | Deed::Say(text) => {
                let (time, bytes) = (around.some_time(5, 100), known.words(text));
                around.after(time, SessionEvent::ToServer { node: self.node, session: self.process, rank, bytes });
                self.rank_goes_on(rank, around);
            }
            Deed::Print => {
                known.lines += 1;
                let (number, length) = (known.lines, around.scenario.program(rank).line);
                let line = format!("{number} {}\n", "x".repeat(length));
                self.print(rank, line.into(), around);
            }
            Deed::Read { most } => self.read_input(rank, most, around),
            Deed::Exit(exit) => self.rank_ends(rank, exit, around),
            Deed::Nothing => {}
        }
    }

    /// A rank reads its input. It waits while there is none.
    fn read_input(&mut self, rank: Rank, most: usize, around: &mut Surroundings) {
        let mut read = InputRead::Wait;
        // More input may be announced before the result of the read is processed.
        if let Some(known) = self.ranks.get_mut(&rank) {
            known.waits_for_input = true;
        }
        self.input(around, |session, now| read = session.rank_reads(rank, most, now));
        let Some(known) = self.ranks.get_mut(&rank) else { return };
        match &read {
            InputRead::Bytes(bytes) => around.truth.input_read(rank, bytes),
            InputRead::End => {
                known.has_read();
                around.truth.input_ended(rank);
            }
            InputRead::Wait => return,
        }
        known.waits_for_input = false;
        self.rank_goes_on(rank, around);
    }

    /// Handles more input for a rank.
    pub(super) fn input_ready(&mut self, rank: Rank, around: &mut Surroundings) {
        if let Some(known) = self.ranks.get_mut(&rank)
            && std::mem::take(&mut known.waits_for_input)
        {
            self.rank_goes_on(rank, around);
        }
    }

    /// A rank writes to its output. It waits while the session does not read.
    pub(super) fn print(&mut self, rank: Rank, line: Bytes, around: &mut Surroundings) {
        if !self.has_rank(rank) {
            return;
        }
        let mut is_read = false;
        let bytes = line.clone();
        self.input(around, |session, now| is_read = session.rank_printed(rank, bytes, now));
        if is_read {
            around.truth.printed(rank);
            self.rank_goes_on(rank, around);
        } else {
            around.after(UNREAD, SessionEvent::Print { node: self.node, session: self.process, rank, line });
        }
    }

    pub(super) fn rank_hears(&mut self, rank: Rank, bytes: &Bytes, around: &mut Surroundings) {
        if self.ranks.get_mut(&rank).is_some_and(|known| known.read(bytes, &mut around.truth)) {
            self.rank_goes_on(rank, around);
        }
    }

    /// Sends a signal to a rank. SIGKILL takes effect at once.
    pub(crate) fn strike_rank(&mut self, rank: Rank, signal: i32, around: &mut Surroundings) {
        match Signal::try_from(signal) {
            Ok(Signal::SIGKILL) | Err(_) => self.rank_dies(rank, signal, around),
            Ok(_) => self.signal_rank(rank, signal, around),
        }
    }

    pub(super) fn signal_rank(&mut self, rank: Rank, signal: i32, around: &mut Surroundings) {
        if !self.has_rank(rank) {
            return;
        }
        let time = match (signal, around.scenario.program(rank).on_term) {
            (9, _) => Duration::ZERO,
            (_, OnTerm::Ignores) => return,
            _ => around.some_time(10, 300_000),
        };
        around.after(time, SessionEvent::Dies { node: self.node, session: self.process, rank, signal });
    }

    pub(super) fn rank_dies(&mut self, rank: Rank, signal: i32, around: &mut Surroundings) {
        let exit = match (signal, around.scenario.program(rank).on_term) {
            (9, _) | (_, OnTerm::Dies | OnTerm::Ignores) => RankExit::Signal { signal, core_dumped: false },
            (_, OnTerm::Exits) => RankExit::Code(128 + signal),
        };
        self.rank_ends(rank, exit, around);
    }

    /// Ends the process of a rank. Its earlier output arrives before its end is reported.
    fn rank_ends(&mut self, rank: Rank, exit: RankExit, around: &mut Surroundings) {
        if self.ranks.remove(&rank).is_some() {
            around.note(format_args!("rank {rank} {exit}"));
            around.truth.exited(rank, exit);
            let time = around.some_time(150, 5_000);
            around.after(time, SessionEvent::Reaped { node: self.node, session: self.process, rank });
        }
    }

    pub(super) fn reaped(&mut self, rank: Rank, around: &mut Surroundings) {
        if let Some(&exit) = around.truth.exits.get(&rank) {
            self.input(around, |session, now| session.rank_exited(rank, exit, now));
        }
    }
}
