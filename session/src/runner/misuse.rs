//! Processes that call a PMI server in the place of a rank, or try to: observations, as text for the user.
//!
//! The servers detect a process that shares a rank's connection (`pmi_core::server::Action::SecondProcess`). A process that did not
//! inherit the rank's descriptor reaches no server. Only the output of its library shows it.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use memchr::memmem;
use pmi_core::ids::Rank;
use tokio::sync::mpsc;

use super::servers::Servers;
use super::services::SessionCall;
use crate::event::Stream;
use crate::machine::jobs::JobNumber;

/// Line that clients of PMI-1 and PMI-2 write when their descriptor is closed; measured with MPICH 3.4.3, 4.0.2 and 5.0.2 and Intel MPI
/// 2021.18.
const NO_DESCRIPTOR: &[u8] = b"system msg for write_line failure : Bad file descriptor";

/// Remedy for both.
const START: &str = "start MPI programs by MPI_Comm_spawn or 'lattice launch -n 1 PROGRAM'";

/// Finds the messages of MPI libraries that cannot call their server in the standard error of a rank.
pub(super) struct LibraryErrors {
    finder: memmem::Finder<'static>,
    job: JobNumber,
    rank: Rank,
    is_reported: Arc<AtomicBool>,
    calls: mpsc::Sender<SessionCall>,
}

impl LibraryErrors {
    /// Searches whole lines. The first match of a session is reported. If the session is overloaded, the next match is reported
    /// instead.
    pub(super) fn look_at(&self, lines: &[u8]) {
        if !self.is_reported.load(Ordering::Relaxed) && self.finder.find(lines).is_some() {
            let call = SessionCall::NoDescriptor { job: self.job, rank: self.rank };
            self.is_reported.fetch_or(self.calls.try_send(call).is_ok(), Ordering::Relaxed);
        }
    }
}

impl Servers {
    /// Returns the search for errors in a stream of a rank; `None` for a stream to which libraries do not write errors.
    pub(super) fn library_errors(&self, job: JobNumber, rank: Rank, stream: Stream) -> Option<LibraryErrors> {
        let is_searched = self.serves_pmi(job) && stream != Stream::Stdout;
        let (is_reported, calls) = (Arc::clone(&self.is_no_descriptor_reported), self.session_calls());
        let finder = memmem::Finder::new(NO_DESCRIPTOR);
        is_searched.then_some(LibraryErrors { finder, job, rank, is_reported, calls })
    }
}

/// Returns the text about a second process that acts as a rank in MPI.
pub(super) fn second_process(pid: Option<u32>) -> String {
    let name = pid.and_then(|pid| fs::read_to_string(format!("/proc/{pid}/comm")).ok());
    let process = match (pid, name) {
        (Some(pid), Some(name)) => format!("process {pid} ({})", name.trim_end()),
        (Some(pid), None) => format!("process {pid}"),
        (None, _) => "a second process".to_owned(),
    };
    format!("{process} begins MPI as this rank, which is in MPI already: either of them may fail or never end; {START}")
}

/// Returns the text about a process of a rank that has no connection to the rank's server.
pub(super) fn no_descriptor() -> String {
    format!(
        "a process that it started begins MPI as this rank and cannot: PMI_FD names a descriptor that was not passed on to it, as by Python's \
         multiprocessing and subprocess. Where it only imports a module, import mpi4py below 'if __name__ == \"__main__\":'; else {START}"
    )
}
