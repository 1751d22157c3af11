//! Answers to the machine's questions, from the present state of servers and processes.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::thread;

use nix::sys::signal::Signal;
use pmi_core::Phase as Dialogue;
use pmi_core::ids::Rank;
use pmi_core::server::EndReason;
use pmi_core::services::{JobProcesses, ProcessState, RankProcess, SignalError};
use rank_spawner::{CpuSet, RankExit, call_stacks};
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::servers::JudgedEnd;
use super::{Runner, usage};
use crate::blocking;
use crate::event::{MpiLibrary, RankAffinity};
use crate::library;
use crate::machine::desertion::FenceSeen;
use crate::machine::effect::{Look, ProgressDetail, StackLook};
use crate::machine::jobs::JobNumber;
use crate::machine::ranks::{RankState, Slot, SlotId};
use crate::machine::reports::RankSeen;
use crate::machine::verdict::{ExitMeaning, UnreportedEnd, death_kind};
use crate::machine::watch::{SilentSeen, WatchLook};
use crate::session_io::RanksAnswer;

/// Data about a job's ranks here that is stored while they run.
#[derive(Debug, Default)]
pub(super) struct PreparedJob {
    /// Files of the programs that run here, by app index.
    pub(super) programs: BTreeMap<usize, PathBuf>,
    /// CPUs to which each rank is bound; `None` for an unbound rank.
    pub(super) cpus: Vec<Option<CpuSet>>,
}

/// Sessions that have asked for the progress of the ranks here, by their tickets.
#[derive(Default)]
pub(super) struct OpenTells {
    replies: HashMap<u64, oneshot::Sender<RanksAnswer>>,
    last: u64,
}

impl OpenTells {
    pub(super) fn add(&mut self, reply: oneshot::Sender<RanksAnswer>) -> u64 {
        self.last += 1;
        self.replies.insert(self.last, reply);
        self.last
    }

    pub(super) fn answer(&mut self, ticket: u64, told: RanksAnswer) {
        if let Some(reply) = self.replies.remove(&ticket) {
            // The session may have stopped waiting.
            let _ = reply.send(told);
        }
    }
}

impl Runner {
    pub(super) fn look(&mut self, look: Look) {
        let now = Instant::now().into_std();
        match look {
            Look::Silent(look) => self.look_at_silent(look),
            Look::Fences(look) => {
                let fences = self.fences();
                self.machine.on_fences_seen(look, &fences, now);
            }
            Look::Progress { asker, detail } => {
                let mut room = usage::THREADS_MAX;
                let running = |slot: &Slot| match (&detail, slot.state) {
                    (ProgressDetail::Usage, RankState::Running { .. }) => slot.state.pid(),
                    _ => None,
                };
                let seen = |(_, slot): (SlotId, &Slot)| RankSeen {
                    dialogue: self.servers.progress(slot.job, slot.local),
                    protocol: self.servers.protocol(slot.job, slot.local),
                    usage: running(slot).and_then(|pid| usage::of_process(pid, &mut room)),
                    affinity: running(slot).and_then(|pid| self.affinity(slot, pid)),
                };
                let seen = self.machine.ranks().iter().map(seen).collect();
                let fences = self.fences();
                self.machine.on_progress_seen(asker, detail, seen, &fences);
            }
        }
    }

    /// Returns the CPUs of a rank that runs as this process; `None` if it is gone.
    fn affinity(&self, slot: &Slot, pid: u32) -> Option<RankAffinity> {
        let job = self.prepared.get(&slot.job)?;
        let bound_to = job.cpus.get(slot.local.index()).cloned().flatten();
        Some(RankAffinity { bound_to, allowed: usage::allowed_cpus(pid)? })
    }

    fn fences(&self) -> Vec<FenceSeen> {
        let jobs = self.machine.jobs().iter().filter(|(_, job)| !job.is_disowned());
        jobs.flat_map(|(number, job)| self.servers.pending_fences(number, job)).collect()
    }

    /// Inspects running ranks that have not called a server, in parallel with everything else. If a rank maps a file of a file system
    /// that hangs, neither its memory map nor its program can be read.
    fn look_at_silent(&self, look: WatchLook) {
        let slots: Vec<SlotId> = self.silent_slots(is_running).collect();
        let first = slots.first().and_then(|&slot| self.machine.ranks().get(slot).state.pid());
        let programs = if look == WatchLook::Silence { self.programs_of_jobs(&slots) } else { Vec::new() };
        let seen = self.news.silent.clone();
        if slots.is_empty() {
            // A thread would start and end in parallel with the starts of ranks. Its end interrupts every CPU that runs another thread.
            let _ = seen.send((look, SilentSeen::default()));
            return;
        }
        // The thread is separate, because the runtime waits for its own threads at the end. Without a thread, nothing is observed.
        let _ = thread::Builder::new().name("silent ranks".to_owned()).spawn(move || {
            let mapped = first.and_then(library::in_process);
            let family = mapped.as_ref().map(|library| library.family);
            let may_still_call = first.is_some_and(|pid| library::may_still_call(pid, family));
            let needed = libraries_needed(programs);
            // The session may have ended.
            let _ = seen.send((look, SilentSeen { slots, mapped, may_still_call, needed }));
        });
    }

    /// Handles observations of ranks that were silent at that time.
    pub(super) fn on_silent_seen(&mut self, look: WatchLook, mut seen: SilentSeen) {
        let still: HashSet<SlotId> = self.silent_slots(is_running).collect();
        // The library was found in the first rank.
        seen.mapped.take_if(|_| seen.slots.first().is_none_or(|slot| !still.contains(slot)));
        seen.slots.retain(|slot| still.contains(slot));
        self.machine.on_silent_seen(look, &seen, Instant::now().into_std());
    }

    /// Returns ranks that ended without a message to any server.
    pub(super) fn silent_ends(&self) -> SilentSeen {
        let slots: Vec<SlotId> = self.silent_slots(|state| state.exit().is_some()).collect();
        let needed = libraries_needed(self.programs_of_jobs(&slots));
        SilentSeen { slots, needed, ..SilentSeen::default() }
    }

    fn silent_slots(&self, counts: impl Fn(RankState) -> bool) -> impl Iterator<Item = SlotId> {
        // A tool loads libpmix, and is intentionally a job by itself.
        let silent = |slot: &Slot| {
            self.servers.phase(slot.job, slot.local) == Some(Dialogue::Silent)
                && !self.servers.has_tool(slot.job, slot.local)
        };
        let slots = self.machine.ranks().iter();
        slots.filter(move |(_, slot)| counts(slot.state) && silent(slot)).map(|(id, _)| id)
    }

    /// Returns the programs of some ranks, for one rank of each job.
    fn programs_of_jobs(&self, slots: &[SlotId]) -> Vec<(SlotId, PathBuf)> {
        let mut seen = HashSet::new();
        let first_of_job = slots.iter().filter(|&&slot| seen.insert(self.machine.ranks().get(slot).job));
        first_of_job.filter_map(|&slot| Some((slot, self.program_of(slot)?))).collect()
    }

    /// Returns the processes of a job's ranks here, for ranks that ask.
    pub(super) fn processes_of(&self, job: JobNumber) -> JobProcesses {
        let mut room = usage::THREADS_MAX;
        let known = self.machine.jobs().get(job).ranks_here();
        let process = |(id, slot): (SlotId, &Slot)| {
            let rank = *known.get(slot.local.index())?;
            let (state, memory) = match slot.state {
                RankState::Running { pid, .. } => {
                    (ProcessState::Running, usage::of_process(pid, &mut room).map_or(0, |usage| usage.memory))
                }
                RankState::Ended { exit, .. } => (ended(exit), 0),
                RankState::Starting | RankState::NeverStarted => return None,
            };
            let program = self.program_of(id).unwrap_or_default().into_os_string().into_vec().into();
            Some(RankProcess { rank, pid: slot.state.pid()?, program, state, memory })
        };
        let slots = self.machine.ranks().iter().filter(|(_, slot)| slot.job == job);
        let ranks = slots.filter_map(process).collect();
        let left = self.machine.time_left(Instant::now().into_std());
        JobProcesses {
            node_memory: usage::node_memory(),
            server_memory: usage::own_memory(),
            seconds_left: left.map(|left| u32::try_from(left.as_secs()).unwrap_or(u32::MAX)),
            ranks,
        }
    }

    /// Sends a signal to ranks of a job here.
    pub(super) fn signal_ranks(&self, job: JobNumber, ranks: &[Rank], signal: i32) -> Result<(), SignalError> {
        let number = Signal::try_from(signal).map_err(|_| SignalError::NoSuchSignal { signal })?;
        let state = self.machine.jobs().get(job);
        let slots = ranks.iter().filter_map(|&rank| self.machine.ranks().slot_of(state.shown(rank)));
        let slots: Vec<SlotId> = slots.collect();
        if let Some(processes) = &self.processes {
            processes.signal(number, &slots);
        }
        Ok(())
    }

    fn program_of(&self, slot: SlotId) -> Option<PathBuf> {
        let slot = self.machine.ranks().get(slot);
        let job = self.machine.jobs().get(slot.job);
        let rank = *job.ranks_here().get(slot.local.index())?;
        self.prepared.get(&slot.job)?.programs.get(&job.spec.job.app_index(rank)?).cloned()
    }

    /// Reads the call stacks of these ranks, in parallel with everything else.
    pub(super) fn look_at_stacks(&mut self, look: StackLook, slots: Vec<SlotId>, until: std::time::Instant) {
        let ranks = self.processes.as_ref().map(|processes| processes.of_slots(&slots)).unwrap_or_default();
        blocking::begin_in(&mut self.looks, move || {
            let running: Vec<_> = ranks.iter().map(|(_, rank)| &**rank).collect();
            let texts = call_stacks(&running, until);
            (look, ranks.iter().zip(texts).filter_map(|((slot, _), text)| Some((*slot, text?))).collect())
        });
    }

    /// Returns exits that the machine has not received yet. They matter only to an abort. Ranks abort when sockets of their peers close,
    /// and the kernel closes the sockets before the peers can be reaped.
    pub(super) fn unreported_ends<'a>(&self, reasons: impl IntoIterator<Item = &'a EndReason>) -> Vec<UnreportedEnd> {
        if !reasons.into_iter().any(|reason| matches!(reason, EndReason::Abort { .. })) {
            return Vec::new();
        }
        let end = |(slot, known): (SlotId, &Slot)| {
            let exit = self.processes.as_ref()?.certain_exit_of(slot)?;
            Some(UnreportedEnd { slot, exit, reached: self.servers.reached(known.job, known.local) })
        };
        self.machine.ranks().alive().filter_map(end).collect()
    }

    /// Returns the reasons to end that follow from the last messages and the end of a rank.
    pub(super) fn last_messages(&mut self, slot: SlotId, exit: RankExit) -> Vec<(JobNumber, EndReason)> {
        let judge = match self.machine.meaning_of(slot, exit) {
            ExitMeaning::LeftInOrder => JudgedEnd::ByServer,
            ExitMeaning::Borne => JudgedEnd::Borne(death_kind(exit)),
            ExitMeaning::Failed | ExitMeaning::Nothing => JudgedEnd::ByItself,
        };
        let known = self.machine.ranks().get(slot);
        self.servers.end_dialogue(known.job, known.local, judge)
    }
}

fn is_running(state: RankState) -> bool {
    matches!(state, RankState::Running { .. })
}

/// Returns the MPI libraries that programs list as needed.
fn libraries_needed(programs: Vec<(SlotId, PathBuf)>) -> Vec<(SlotId, MpiLibrary)> {
    programs.into_iter().filter_map(|(slot, program)| Some((slot, library::needed_by(&program)?))).collect()
}

fn ended(exit: RankExit) -> ProcessState {
    match exit {
        RankExit::Code(0) => ProcessState::Ended,
        RankExit::Code(_) => ProcessState::Failed,
        RankExit::Signal { .. } => ProcessState::Killed,
    }
}
