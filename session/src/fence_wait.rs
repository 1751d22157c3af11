//! A long wait of ranks in a fence of a whole job, after their start-up or in `MPI_Finalize`. The call stacks of the missing ranks show the
//! reason.

use std::time::Duration;

use pmi_core::ids::Rank;

use crate::cause::RankList;
use crate::event::Notice;

/// Ranks that wait in a fence of a whole job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FenceWait {
    /// Waiting ranks, by their numbers in the launch.
    pub waiting: Vec<Rank>,
    /// Shortest time that they have waited.
    pub since: Duration,
    /// True if the job has completed no fence before. MPICH has no fence in `MPI_Init` on one node.
    pub at_start: bool,
}

impl FenceWait {
    /// Returns the notice about a rank that waits in `MPI_Finalize` while a missing rank is in another MPI function. It also returns a notice
    /// after the start if no call stack shows a function, as a missing rank may be in one. `seen` has the call stacks of missing ranks.
    pub fn misuse(&self, seen: &[(Rank, &str)]) -> Option<Notice> {
        let in_mpi = seen.iter().find_map(|(rank, text)| Some((*rank, Some(mpi_function(text)?))));
        let are_unknown = !self.at_start && seen.iter().all(|(_, text)| frames(text).next().is_none());
        let unknown = || seen.first().filter(|_| are_unknown).map(|(rank, _)| (*rank, None));
        let (missing, function) = in_mpi.or_else(unknown)?;
        let (&first, rest) = self.waiting.split_first()?;
        let place = function.map_or_else(|| "runs".to_owned(), |function| format!("is in {function}"));
        let with = if rest.is_empty() { String::new() } else { format!(" with {}", RankList(rest)) };
        let observed = format!(
            "waits in MPI_Finalize, or another fence of all ranks,{with} for {} s and more, while rank {missing} {place}: if that one waits for a rank in \
             MPI_Finalize, the launch does not end; after an exception in Python, 'python -m mpi4py PROGRAM' ends it",
            self.since.as_secs(),
        );
        Some(Notice::PmiMisuse { rank: first, observed })
    }
}

/// Returns the function names of a call stack, from its top.
fn frames(stack: &str) -> impl Iterator<Item = &str> {
    stack.lines().filter_map(|line| line.trim_start().strip_prefix('#')?.split_whitespace().nth(1))
}

/// Returns the MPI function that a program called: the last one from the top of its stack, unless that begins MPI. C names begin with `MPI_`,
/// or with `PMPI_` for the profiling interface. Fortran names have small letters and end with `_`.
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
