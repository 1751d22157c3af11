//! The end of a session after its last rank. The session removes all remains of the launch from this node, and sends the last events and the
//! report.

use rank_spawner::{Keeper, RankExit};
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::pump::{Extent, HeldStream};
use super::start::Processes;
use super::sweep::{Leftovers, Removals};
use super::tap::LastQuestions;
use super::{ControlState, Runner, shared_memory, sweep, usage};
use crate::event::{Event, Notice, Report};
use crate::machine::watch::SilentSeen;
use crate::session_io::Control;
use crate::timeouts;

impl Runner {
    /// Ends the session after its last rank. It waits for the ends of the outputs, kills leftover processes, reads the pipes to their end,
    /// sends the remaining events, and returns the report.
    pub(super) async fn finish(mut self) -> Report {
        self.take_deaths();
        let held = self.await_output_ends().await;
        let last_questions = self.hear_last_orders();
        self.carry_out();
        // The cause is sent to the other nodes before any clean-up here.
        tokio::task::yield_now().await;
        let mut processes = self.processes.take();
        let all_ended_well = processes.as_ref().is_none_or(|processes| self.all_ended_well(processes));
        let keeper = self.kill_leftovers(processes.as_mut(), held).await;
        self.drain_outputs().await;
        self.remove_files(all_ended_well, keeper).await;
        self.hear_last_words();
        self.hand_over(last_questions).await
    }

    /// Handles control messages that arrived before the end of the last rank. Questions of other nodes' servers are answered in parallel.
    fn hear_last_orders(&mut self) -> LastQuestions {
        let control = std::mem::replace(&mut self.io.control, mpsc::channel(1).1);
        let (last_questions, orders) = self.servers.last_questions(control);
        for order in orders {
            self.machine.on_control(order, Instant::now().into_std());
        }
        last_questions
    }

    fn all_ended_well(&self, processes: &Processes) -> bool {
        let mut exits = self.machine.ranks().iter().map(|(slot, _)| processes.exit_of(slot));
        exits.all(|exit| exit == Some(RankExit::Code(0))) && self.machine.ranks().forgotten().are_all_successes()
    }

    /// Waits until no process holds an output stream of a rank. The limit is the launch's time for such processes, and an order to kill ends
    /// the wait. Returns the streams that are still held. The end of a pipe shows that no process holds it, so usually there is no wait.
    async fn await_output_ends(&mut self) -> Vec<HeldStream> {
        let (since, limit) = (Instant::now(), self.outputs.limit);
        self.outputs.extent.send_replace(Extent::Within { since, limit });
        let mut held = Vec::new();
        while self.outputs.pumps.len() > held.len() {
            tokio::select! {
                biased;
                Some(ended) = self.outputs.pumps.join_next() => if let Ok(slot) = ended {
                    self.machine.on_output_end(slot);
                },
                Some(stream) = self.outputs.held.recv() => held.push(stream),
                control = self.io.control.recv(), if self.control == ControlState::Open => match control {
                    None => self.control = ControlState::Lost,
                    Some(Control::Kill(_)) => break,
                    Some(Control::Question { question, reply }) => self.servers.answer(&question, reply),
                    Some(order) => self.machine.on_control(order, Instant::now().into_std()),
                },
                Ok(_) = self.io.events.reserve(), if !self.outbox.is_empty() => {}
            }
            self.carry_out();
            self.send_events();
        }
        held
    }

    /// Kills the processes that ranks left running, and reports processes that held an output. Returns the keeper, which stays until all
    /// files are removed.
    async fn kill_leftovers(&mut self, mut processes: Option<&mut Processes>, held: Vec<HeldStream>) -> Option<Keeper> {
        let ranks = processes.as_deref().map(Processes::pids).unwrap_or_default();
        let keeper = match &mut processes {
            Some(processes) => processes.take_keeper(),
            None => self.io.keeper.take(),
        };
        let (tag, cgroup) = (self.io.tag.clone(), self.io.cgroup.take());
        let leftovers = Leftovers { tag, ranks, process: self.io.process, cgroup, keeper, held };
        let killed = leftovers.kill().await;
        self.machine.on_swept(killed.survivors);
        let after = self.outputs.limit;
        for (rank, holder) in killed.holders {
            let (pid, program) = (holder.pid().as_raw().unsigned_abs(), holder.name);
            self.outbox.push_back(Event::Notice(Notice::OutputHeld { rank, pid, program, after }));
        }
        killed.keeper
    }

    /// Reads outputs to the end of their present contents. No process of the launch holds a pipe any more. The session does not wait for
    /// other processes.
    async fn drain_outputs(&mut self) {
        self.outputs.extent.send_replace(Extent::Present);
        while let Some(ended) = self.outputs.pumps.join_next().await {
            if let Ok(slot) = ended {
                self.machine.on_output_end(slot);
            }
        }
    }

    /// Removes files and memory of the ranks and of the session, and then dismisses the keeper. A file system that does not answer delays a
    /// session by at most [`timeouts::REMOVAL`].
    async fn remove_files(&mut self, all_ended_well: bool, keeper: Option<Keeper>) {
        let removals = self.removals(all_ended_well);
        if tokio::time::timeout(timeouts::REMOVAL, self.carry_out_removals(removals)).await.is_ok() {
            sweep::dismiss(keeper);
        } else {
            let launch = &self.spec.launch_id;
            tracing::warn!(launch, "files of ranks take long to remove, or their file system does not answer");
            // The keeper continues with the files that were announced to it.
            drop(keeper);
        }
    }

    /// Returns the files and memory that remain of ranks. It removes at once all that needs no thread: a thread would take as long as the
    /// start of a rank.
    fn removals(&mut self, all_ended_well: bool) -> Removals {
        for (_, job) in self.machine.jobs().iter().filter(|(_, job)| !job.ranks_here().is_empty()) {
            shared_memory::remove_mpich(&job.spec);
        }
        let mut directories = std::mem::take(&mut self.directories);
        if self.contact.is_closed() {
            directories.remove_empty();
        }
        Removals { orphaned_since: (!all_ended_well).then(|| self.resources.began()), directories }
    }

    /// Carries out all removals. They include files that are still being written, and resources that are being inspected.
    async fn carry_out_removals(&mut self, removals: Removals) {
        self.contact.close().await;
        removals.begin(&mut self.removals);
        self.end_resources().await;
        while self.removals.join_next().await.is_some() {}
    }

    /// Handles silent ends, and texts that ranks wrote through their server.
    fn hear_last_words(&mut self) {
        self.take_texts();
        let silent = if self.machine.minds_silent_ends() { self.silent_ends() } else { SilentSeen::default() };
        self.machine.on_drained(&silent, Instant::now().into_std());
        self.carry_out();
    }

    /// Sends all remaining events, and returns the report.
    async fn hand_over(self, last_questions: LastQuestions) -> Report {
        let report = Report { usage: usage::of_ranks(self.io.process), ..self.machine.report() };
        self.servers.let_output_be_taken().await;
        last_questions.end().await;
        drop(self.servers);
        for event in self.outbox {
            if self.io.events.send(event).await.is_err() {
                break;
            }
        }
        report
    }
}

#[cfg(test)]
mod tests {
    use tokio::task::JoinSet;

    use super::*;
    use crate::sample;
    use crate::session_io::SessionIo;

    /// Ends a session that has started nothing, while `what_waits` waits indefinitely for a file system.
    async fn end_beside(what_waits: impl FnOnce(&mut Runner)) {
        let ((events, _happened), (_orders, control)) = (mpsc::channel(64), mpsc::channel(1));
        let spec = sample::spec(1);
        let io = SessionIo::on_one_node(&spec, events, control).unwrap();
        let mut runner = Runner::new(spec, io);
        runner.carry_out();
        what_waits(&mut runner);
        let began = Instant::now();
        let report = tokio::time::timeout(2 * timeouts::REMOVAL, runner.finish()).await.expect("it ends");
        assert!(report.cause.is_some(), "its program does not exist");
        assert_eq!(began.elapsed().as_secs(), timeouts::REMOVAL.as_secs());
    }

    fn wait<T: Send + 'static>(tasks: &mut JoinSet<T>) {
        tasks.spawn(std::future::pending());
    }

    #[tokio::test(start_paused = true)]
    async fn a_file_system_that_does_not_answer_keeps_no_session() {
        end_beside(|runner| wait(&mut runner.contact.writing)).await;
        end_beside(|runner| wait(&mut runner.resources.threads)).await;
        end_beside(|runner| wait(&mut runner.removals)).await;
    }
}
