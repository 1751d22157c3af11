//! Effects of a session's machine: all requests to the runner.

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
use crate::session_io::RanksAnswer;
use crate::spec::SessionSpec;

/// One effect. The runner must carry out effects in the order in which they are returned.
#[derive(Debug)]
pub(crate) enum Effect {
    /// Make a job's servers and commands, then call [`super::SessionMachine::on_job_prepared`].
    PrepareJob {
        job: JobNumber,
        /// The rank that spawned it.
        parent: Option<(JobNumber, Rank)>,
    },
    /// Start the ranks of a prepared job. They have slots now.
    StartRanks { job: JobNumber },
    /// Drop servers, memory and plan of a finished job with these slots. The machine has removed these slots.
    ReleaseJob { job: JobNumber, spec: Arc<SessionSpec>, slots: Vec<SlotId> },
    /// Start to feed standard input: all ranks that may read it were started.
    FeedStdin,
    /// Send a signal to the process groups of these ranks. None of them was reported as reaped.
    Signal { signal: Signal, slots: Vec<SlotId> },
    /// Change the size of the terminal that a rank here has or will have.
    ResizeTerminal(TerminalSize),
    /// Notify the servers of a job, and the ranks that they serve, of dead ranks. Rank numbers are numbers in the job.
    AnnounceDeaths { job: JobNumber, deaths: Vec<Death> },
    /// Send an event when there is room.
    Report(Event),
    /// Send the first cause at once, ahead of all events.
    Alarm(Cause),
    /// Answer a rank's request for a new job.
    AnswerSpawn { ticket: SpawnTicket, outcome: Result<JobId, SpawnError> },
    /// Answer a session that asks for the progress of ranks.
    Tell { ticket: u64, told: RanksAnswer },
    /// Inspect something, then call the method that the question names.
    Look(Look),
    /// Inspect the call stacks of these ranks until `until`, then call [`super::SessionMachine::on_stacks_seen`].
    LookAtStacks { look: StackLook, slots: Vec<SlotId>, until: Instant },
    /// Give way to other tasks: ranks here are being ended, and the notification of other nodes is more urgent than the
    /// next step.
    GiveWay,
    /// The last rank has ended: kill the processes that ranks left running, then call
    /// [`super::SessionMachine::on_swept`].
    Sweep,
    /// Read all output pipes to their end and close them, then call [`super::SessionMachine::on_drained`].
    DrainOutputs,
}

/// A question about state that only the runner has. It is answered at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Look {
    /// Ranks that have not contacted a server; answered by [`super::SessionMachine::on_silent_seen`].
    Silent(WatchLook),
    /// Fences in which ranks wait; answered by [`super::SessionMachine::on_fences_seen`].
    Fences(FenceLook),
    /// Progress of every rank; answered by [`super::SessionMachine::on_progress_seen`].
    Progress { asker: Asker, detail: ProgressDetail },
}

/// Source of a question about the progress of ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asker {
    /// The launch, with the number of its question. The answer is an event.
    Launch(u64),
    /// A session, with a ticket of the runner. The answer is [`Effect::Tell`].
    Session(u64),
}

/// Content of an answer about each rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ProgressDetail {
    /// State of its dialogue with its server.
    Dialogue,
    /// Also the resources that its processes use.
    Usage,
    /// Also the call stacks of the running ranks, which were read before.
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
    /// Other ranks wait for these ranks.
    Late,
    /// Ranks in `MPI_Finalize` wait for these ranks.
    Finalizing,
    /// Call stacks of all ranks were requested.
    Asked,
    /// The time limit is reached. The ranks are ended after this look.
    AtLimit,
}
