//! Ranks that wait in `MPI_Finalize` for ranks that are in another MPI function, and so wait for them.
//!
//! A rank that raises an exception reaches `MPI_Finalize` while other ranks are in a barrier, which calls no server. Ranks in
//! `MPI_Finalize` may also wait for one that writes its results, so the call stacks of the missing ranks decide.

use std::mem;
use std::time::{Duration, Instant};

use pmi_core::ids::Rank;

use super::desertion::FenceSeen;
use super::effect::StackLook;
use super::{SessionMachine, SlotId};
use crate::cause::RankList;
use crate::event::{Event, Notice};

/// State of the search.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Finalizing {
    #[default]
    Unseen,
    /// The call stacks of the missing ranks are being read.
    Looking(Wait),
    /// A wait was reported.
    Reported,
}

/// A wait in a fence of a whole job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Wait {
    /// Ranks of this node that wait, by their numbers in the launch.
    waiting: Vec<Rank>,
    /// Shortest time that they have waited.
    since: Duration,
    /// True if no fence of the job was over before: MPICH has none in `MPI_Init` on one node.
    at_start: bool,
}

impl SessionMachine {
    /// Has the missing ranks of a fence looked at, unless that is under way, or a wait was reported.
    pub(super) fn look_for_mpi_calls(&mut self, fence: &FenceSeen, since: Duration, now: Instant) {
        let slots = fence.missing.iter().filter_map(|(rank, _)| self.ranks.slot_of(*rank));
        let slots: Vec<SlotId> =
            slots.filter(|&slot| self.ranks.find(slot).is_some_and(|slot| slot.state.exit().is_none())).collect();
        let is_free = match &self.finalizing {
            Finalizing::Unseen => true,
            Finalizing::Looking(wait) => wait.at_start,
            Finalizing::Reported => false,
        };
        if is_free && !slots.is_empty() {
            let waiting = self.shown_ranks(fence.job, &fence.waiting);
            self.finalizing = Finalizing::Looking(Wait { waiting, since, at_start: fence.at_start });
            // A look at the ranks of a late start is under way, or the launch asks for it.
            if !fence.at_start {
                self.look_at_stacks(StackLook::Finalizing, slots, now);
            }
        }
    }

    /// Reports the wait if one of the missing ranks is in MPI, or may be, where this node has no debugger.
    pub(super) fn judge_finalizing(&mut self, seen: &[(SlotId, String)]) {
        if self.finalizing == Finalizing::Reported {
            return;
        }
        let Finalizing::Looking(Wait { waiting, since, at_start }) = mem::take(&mut self.finalizing) else { return };
        // The jobs of some may be over.
        let seen = seen.iter().filter_map(|(slot, text)| Some((self.ranks.find(*slot)?.rank, text)));
        let seen: Vec<_> = seen.collect();
        let in_mpi = seen.iter().find_map(|(rank, text)| Some((*rank, Some(mpi_function(text)?))));
        let are_unknown = !at_start && seen.iter().all(|(_, text)| frames(text).next().is_none());
        let unknown = || seen.first().filter(|_| are_unknown).map(|(rank, _)| (*rank, None));
        let (Some((missing, function)), Some(&first)) = (in_mpi.or_else(unknown), waiting.first()) else { return };
        self.finalizing = Finalizing::Reported;
        let place = function.map_or_else(|| "runs".to_owned(), |function| format!("is in {function}"));
        let with = if waiting.len() > 1 { format!(" with {}", RankList(&waiting[1..])) } else { String::new() };
        let observed = format!(
            "waits in MPI_Finalize, or another fence of all ranks,{with} for {} s and more, while rank {missing} {place}: if that one waits for a rank in \
             MPI_Finalize, the launch does not end; after an exception in Python, 'python -m mpi4py PROGRAM' ends it",
            since.as_secs(),
        );
        self.report_event(Event::Notice(Notice::PmiMisuse { rank: first, observed }));
    }
}

/// Names of the functions of a call stack, from its top.
fn frames(stack: &str) -> impl Iterator<Item = &str> {
    stack.lines().filter_map(|line| line.trim_start().strip_prefix('#')?.split_whitespace().nth(1))
}

/// Returns the MPI function that a program called: the last one from the top of its stack, unless that begins MPI. Names begin with `MPI_`,
/// those of the profiling interface with `PMPI_`; Fortran's are of small letters and end with `_`.
fn mpi_function(stack: &str) -> Option<&str> {
    let of_mpi = |name: &'_ str| {
        let of_c =
            name.strip_prefix("MPI_").is_some_and(|rest| rest.starts_with(|letter: char| letter.is_ascii_uppercase()));
        of_c || (name.starts_with("mpi_") && name.ends_with('_'))
    };
    let begins =
        |name: &str| ["mpi_init", "mpi_session_init"].iter().any(|begin| name.to_ascii_lowercase().starts_with(begin));
    let names = frames(stack).map(|name| name.strip_prefix(['P', 'p']).unwrap_or(name));
    names.filter(|name| of_mpi(name)).last().filter(|name| !begins(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_of_mpi_are_found_in_c_and_in_fortran() {
        let check = |stack: &str, expected| assert_eq!(mpi_function(stack), expected, "{stack}");
        check(
            "thread 1\n  #0 poll (fds=...) at poll.c:1\n  #1 PMPI_Barrier () from libmpi.so\n  #2 main ()\n",
            Some("MPI_Barrier"),
        );
        check("#0 MPIR_Wait ()\n#1 MPI_Recv ()\n#2 MPI_Bcast ()\n#3 main ()", Some("MPI_Bcast"));
        check("#0 mpi_allreduce_ ()\n#1 main ()", Some("mpi_allreduce_"));
        check("#0 PMPI_Send ()\n#1 pmpi_send__ ()", Some("mpi_send__"));
        check("#0 MPIDI_progress ()\n#1 MPI_callback ()\n#2 mpi_main ()\n#3 write_results ()", None);
        check("#0 PMPI_Barrier ()\n#1 PMPI_Init_thread ()\n#2 main ()", None);
        check("the kernel shows nothing", None);
    }
}
