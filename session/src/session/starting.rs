//! How ranks come into a session: started by the spawner's threads, taken in one by one.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use nix::errno::Errno;
use pmi_core::ids::LocalRank;
use rank_spawner::{RankCommand, RankProcess, StartError, Step};

use super::Session;
use crate::cause::{CauseKind, StartClass};
use crate::event::{Event, Stream};
use crate::pump::Pump;

impl Session {
    /// Has ranks started, on the spawner's threads.
    pub(super) fn start_all(&mut self, commands: Vec<RankCommand>) {
        self.starting += commands.len();
        let results = self.starts.0.clone();
        if let Some(spawner) = &self.spawner {
            // Nobody is there to hear it when the session is dropped in the middle; then the spawner kills the ranks.
            spawner.start_all(commands, move |result| drop(results.send(result)));
        }
    }

    pub(super) fn on_start(&mut self, result: Result<RankProcess, StartError>, stdin_readers: &mut Vec<OwnedFd>) {
        self.starting -= 1;
        let rank = match &result {
            Ok(process) => process.rank,
            Err(error) => error.rank(),
        };
        let job = self.ranks.iter().find(|slot| slot.rank == rank).map_or(0, |slot| slot.job);
        let failure = match result {
            Ok(process) => self.welcome(process, stdin_readers).err().map(|reason| (StartClass::System, reason)),
            // Another rank's start failed, and its error tells why.
            Err(StartError::GivenUp { .. }) => None,
            Err(error) => Some((start_class(&error), error.to_string())),
        };
        match failure {
            failure if job > 0 => self.count_start(job, failure.map(|(_, reason)| reason)),
            Some((class, reason)) => self.fail(CauseKind::NotStarted { reason, class }),
            None => {}
        }
        if self.starting == 0 && self.ending.has_begun() {
            // Those that started after the end had begun know nothing of it.
            self.signal_ranks(self.ending.last_signal());
        }
    }

    /// Takes a started rank in: its PMI socket, its output, its end.
    fn welcome(&mut self, mut process: RankProcess, stdin_readers: &mut Vec<OwnedFd>) -> Result<(), String> {
        let rank = process.rank;
        let Some(index) = self.ranks.iter().position(|slot| slot.rank == rank) else {
            return Err(format!("rank {rank} does not belong here"));
        };
        let local = LocalRank(index as u32);
        self.running += 1;
        self.outbox.push_back(Event::Started { rank, pid: process.pid().as_raw().unsigned_abs() });
        stdin_readers.extend(process.stdin.take());
        if let Some(socket) = process.pmi.take() {
            let (serving, own) = self.serving(local);
            let watched = serving.connect(own, UnixStream::from(socket));
            watched.map_err(|error| format!("rank {rank}: cannot watch its PMI socket: {error}"))?;
        }
        for (stream, pipe) in [(Stream::Stdout, process.stdout.take()), (Stream::Stderr, process.stderr.take())] {
            let Some(pipe) = pipe else { continue };
            let events = self.surroundings.events.clone();
            let pump = Pump { rank, stream, prompt_after: self.spec.patience.prompt, events };
            let stop = self.stop_pumps.subscribe();
            self.ranks[index].pumps += 1;
            self.pumps.spawn(async move {
                pump.run(pipe, stop).await;
                local
            });
        }
        if let Some(keeper) = &self.surroundings.keeper {
            // Its group is known to the keeper by the tag too, should this fail.
            let _ = keeper.guard_rank(&process);
        }
        let process = Arc::new(process);
        self.ranks[index].process = Some(Arc::clone(&process));
        let exits = self.exits.0.clone();
        self.helpers.spawn(async move {
            // What cannot be watched is taken for ended, and then waited for.
            let _ = process.ended().await;
            // The session outlives its helpers.
            let _ = exits.send(local);
        });
        Ok(())
    }
}

/// As a shell would classify it.
fn start_class(error: &StartError) -> StartClass {
    match error {
        StartError::Step { step: Step::Exec, errno: Errno::ENOENT, .. } => StartClass::NotFound,
        StartError::Step { step: Step::Exec, errno: Errno::EACCES | Errno::ENOEXEC, .. } => StartClass::CannotExecute,
        _ => StartClass::System,
    }
}
