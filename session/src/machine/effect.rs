//! Effects of a session's machine: all that it asks of the runner.

use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use pmi_core::deaths::Death;
use pmi_core::ids::{JobId, Rank};
use pmi_core::services::SpawnError;
use rank_spawner::TerminalSize;

use super::jobs::{JobNumber, SpawnTicket};
use super::ranks::SlotId;
use super::watch::WatchLook;
use crate::call_stacks::RankStack;
use crate::cause::Cause;
use crate::event::Event;
use crate::session_io::Told;
use crate::spec::SessionSpec;

/// One effect. Effects are to be carried out in the order in which they come.
#[derive(Debug)]
pub(crate) enum Effect {
    /// Make a job's servers and commands, then call [`super::SessionMachine::on_job_prepared`].
    PrepareJob {
        job: JobNumber,
        /// The rank that spawned it.
        parent: Option<(JobNumber, Rank)>,
    },
    /// Start the ranks of a job that was prepared; they have slots now.
    StartRanks { job: JobNumber },
    /// Drop servers, memory and plan of a job that is over and has these slots, none of which is known any more.
    ReleaseJob { job: JobNumber, spec: Arc<SessionSpec>, slots: Vec<SlotId> },
    /// Begin to feed standard input: all ranks that may read it were started.
    FeedStdin,
    /// Send a signal to the process groups of these ranks, none of which was reported as reaped.
    Signal { signal: Signal, slots: Vec<SlotId> },
    /// Change the size of the terminal that a rank here has, or will have.
    ResizeTerminal(TerminalSize),
    /// Tell the servers of a job, and the ranks that they serve, who has died; ranks as their job counts them.
    AnnounceDeaths { job: JobNumber, deaths: Vec<Death> },
    /// Pass on an event, when there is room.
    Report(Event),
    /// Pass on the first cause at once, ahead of all events.
    Alarm(Cause),
    /// Answer a rank's request for a new job.
    AnswerSpawn { ticket: SpawnTicket, outcome: Result<JobId, SpawnError> },
    /// Answer a session that asks for the progress of ranks.
    Tell { ticket: u64, told: Told },
    /// Look at something, then call the method that the question names.
    Look(Look),
    /// Look at the call stacks of these ranks until then, then call [`super::SessionMachine::on_stacks_seen`].
    LookAtStacks { look: StackLook, slots: Vec<SlotId>, until: Instant },
    /// Let others go first: ranks here are being ended, and what follows is less urgent than that other nodes hear of it.
    GiveWay,
    /// The last rank has ended: kill what the ranks left behind, then call [`super::SessionMachine::on_swept`].
    Sweep,
    /// Read all output pipes empty and close them, then call [`super::SessionMachine::on_drained`].
    DrainOutputs,
}

/// A question about what only the runner can see. It is answered at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Look {
    /// Ranks that have not spoken; answered by [`super::SessionMachine::on_silent_seen`].
    Silent(WatchLook),
    /// Fences that ranks wait in; answered by [`super::SessionMachine::on_fences_seen`].
    Fences(FenceLook),
    /// Progress of every rank; answered by [`super::SessionMachine::on_progress_seen`].
    Progress { asker: Asker, detail: ProgressDetail },
}

/// Who asks for the progress of ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asker {
    /// The launch, by the number of its question; answered by an event.
    Launch(u64),
    /// A session, by a ticket of the runner's; answered by [`Effect::Tell`].
    Session(u64),
}

/// What is told of each rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ProgressDetail {
    /// What its server knows.
    Dialogue,
    /// Also what its processes use.
    Usage,
    /// Also the call stacks of those that run, which were looked at before.
    Stacks(Vec<RankStack>),
}

/// Purpose of a look at fences.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FenceLook {
    /// Find waits that have lasted too long.
    Waits,
    /// Report a start-up that is not complete after this time.
    Stuck { after: Duration },
}

/// Purpose of a look at call stacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StackLook {
    /// Others wait for these ranks.
    Late,
    /// Ranks in `MPI_Finalize` wait for these.
    Finalizing,
    /// Somebody asks for those of all ranks.
    Asked,
    /// The time limit is reached, and the ranks are ended once they were looked at.
    AtLimit,
}
