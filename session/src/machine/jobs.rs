//! The jobs of a session: the launched job and the jobs that ranks spawned, and the admission of further jobs.
//!
//! ```text
//! Preparing ──> Starting { left, awaited } ──last rank runs──> Running
//!     │                  │ a rank does not start, or the launch disowns the job
//!     └──────────────────┴──> Disowned: its ranks are killed, and their exits do not count for the launch
//! ```
//! A spawned job is removed after its ranks have ended on all nodes; [`super::SessionMachine`] decides when.

use std::collections::BTreeMap;
use std::sync::Arc;

use pmi_core::ids::{JobId, Rank};
use pmi_core::server::EndReason;
use pmix_core::server::Need;
use rank_spawner::MemBind;

use crate::gpus::GpuBind;
use crate::limits::{JOBS_MAX, NODE_RANKS_MAX};
use crate::settings::{AtExec, LaunchSettings, StdinTarget};
use crate::spawn::{SpawnOrder, SpawnRefusal};
use crate::spec::SessionSpec;

/// Position of a job in its session; the launched job is 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct JobNumber(pub(crate) usize);

impl JobNumber {
    /// The job that the launch began with.
    pub(crate) const LAUNCHED: Self = Self(0);
}

/// Number that a runner assigns to a rank's request for a new job, until the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct SpawnTicket(pub(crate) u64);

/// Receiver of the notification that a spawned job's ranks on this node run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Awaited {
    /// The rank that requested the job. All of the job's ranks are on this node.
    Rank(SpawnTicket),
    /// The launch. Other nodes have ranks of the job too.
    Launch,
}

/// Progress of a job's start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum JobPhase {
    /// Its servers and commands are being made.
    Preparing { awaited: Option<Awaited> },
    /// Its ranks here are being started.
    Starting {
        /// Number of ranks with a start that has neither succeeded nor failed.
        left: usize,
        awaited: Option<Awaited>,
    },
    /// All of its ranks here were started.
    Running,
    /// It was not started as a whole.
    Disowned {
        /// Number of ranks with a start that has neither succeeded nor failed.
        left: usize,
    },
}

/// One job.
#[derive(Debug)]
pub(crate) struct JobState {
    pub(crate) spec: Arc<SessionSpec>,
    /// Displayed number of its rank 0.
    pub(crate) first_shown: Rank,
    pub(crate) phase: JobPhase,
    pub(crate) elsewhere: Elsewhere,
}

/// Ranks of a job on other nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Elsewhere {
    /// Ranks may run there.
    Runs,
    /// No rank is there, or all of them have ended.
    Over,
}

/// Jobs of a session that were not removed, in the order of their admission.
#[derive(Debug)]
pub(crate) struct Jobs {
    list: BTreeMap<JobNumber, JobState>,
    /// Number of the next job. No number is used twice, because ids of spawned jobs are derived from it.
    next: JobNumber,
    admission: Admission,
}

/// Numbers of ranks and jobs of a session that have not ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Alive {
    /// Ranks that start or run.
    pub(crate) ranks: usize,
    /// Jobs that have such ranks.
    pub(crate) jobs: usize,
}

/// Admission of spawned jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Admission {
    /// The session waits for spawned jobs even if it has no rank.
    Awaited,
    /// The session ends with its last rank, unless other nodes need it.
    WithRanks,
    /// No rank runs on any node, and no job will be spawned.
    Released,
}

impl Jobs {
    /// Creates the list with the launched job. A node without a rank of it waits for spawned jobs.
    pub(crate) fn new(launched: Arc<SessionSpec>) -> Self {
        let has_ranks = !launched.job.placement.ranks_on(launched.node).is_empty() || launched.job.size() == 0;
        let admission = if has_ranks { Admission::WithRanks } else { Admission::Awaited };
        let phase = JobPhase::Preparing { awaited: None };
        let launched = JobState { spec: launched, first_shown: Rank(0), phase, elsewhere: Elsewhere::Runs };
        Self { list: BTreeMap::from([(JobNumber::LAUNCHED, launched)]), next: JobNumber(1), admission }
    }

    /// Returns true if a session without ranks ends, given the need of other nodes.
    pub(crate) fn lets_end(&self, need: Need) -> bool {
        match self.admission {
            Admission::Awaited => false,
            Admission::WithRanks => need == Need::Over,
            Admission::Released => need != Need::UntilTold,
        }
    }

    /// Records that no rank is left on any node: no job will be spawned here.
    pub(crate) fn release(&mut self) {
        self.admission = Admission::Released;
    }

    /// Returns the number of the next job.
    pub(crate) fn next(&self) -> JobNumber {
        self.next
    }

    pub(crate) fn knows(&self, job: JobNumber) -> bool {
        self.list.contains_key(&job)
    }

    /// # Panics
    /// If the job was removed.
    pub(crate) fn get(&self, job: JobNumber) -> &JobState {
        &self.list[&job]
    }

    /// # Panics
    /// If the job was removed.
    pub(crate) fn get_mut(&mut self, job: JobNumber) -> &mut JobState {
        self.list.get_mut(&job).expect("the job is not forgotten")
    }

    /// Removes a job that is over.
    pub(crate) fn forget(&mut self, job: JobNumber) -> Option<JobState> {
        self.list.remove(&job)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (JobNumber, &JobState)> {
        self.list.iter().map(|(&number, job)| (number, job))
    }

    pub(crate) fn by_id(&self, id: &JobId) -> Option<JobNumber> {
        self.iter().find(|(_, job)| job.spec.job.id == *id).map(|(number, _)| number)
    }

    /// Admits a spawned job to a session with these live ranks and jobs. Returns the number of the job and of its
    /// parent.
    ///
    /// # Errors
    /// Refuses a known job, a job with an unknown parent, and a job that exceeds [`NODE_RANKS_MAX`] or [`JOBS_MAX`].
    pub(crate) fn admit(
        &mut self,
        order: SpawnOrder,
        alive: Alive,
        awaited: Awaited,
    ) -> Result<(JobNumber, JobNumber), SpawnRefusal> {
        let SpawnOrder { job, apps, cpu_bind, parent_rank, first_shown } = order;
        if self.by_id(&job.id).is_some() {
            return Err(SpawnRefusal::Known { job: job.id });
        }
        let parent = job.spawner.as_ref().and_then(|spawner| self.by_id(spawner));
        let parent = parent.ok_or_else(|| SpawnRefusal::NoParent { job: job.id.clone() })?;
        let launched = &self.get(JobNumber::LAUNCHED).spec;
        let (asked, there) = (job.placement.ranks_on(launched.node).len(), alive.ranks);
        if there.saturating_add(asked) > NODE_RANKS_MAX {
            return Err(SpawnRefusal::NodeRanks { asked, there });
        }
        if alive.jobs >= JOBS_MAX {
            return Err(SpawnRefusal::Jobs);
        }
        let apps = match self.get(parent).spec.app_of(parent_rank) {
            Some(parent) => apps.into_iter().map(|app| app.inheriting(parent)).collect(),
            None => apps,
        };
        // There is no default binding: the launched job has the CPUs that a binding would use first.
        let (mem_bind, gpu_bind) = (MemBind::None, GpuBind::None);
        let (stdin, at_exec) = (StdinTarget::None, AtExec::Run);
        let settings = LaunchSettings { cpu_bind, mem_bind, gpu_bind, stdin, at_exec, ..launched.settings.clone() };
        let spec = Arc::new(SessionSpec { job, apps, settings, ..SessionSpec::clone(launched) });
        let phase = JobPhase::Preparing { awaited: Some(awaited) };
        let is_whole = asked == spec.job.size() as usize;
        let elsewhere = if is_whole { Elsewhere::Over } else { Elsewhere::Runs };
        let number = self.next;
        self.next = JobNumber(number.0 + 1);
        self.list.insert(number, JobState { spec, first_shown, phase, elsewhere });
        Ok((number, parent))
    }
}

impl JobState {
    /// Returns the displayed number of a rank of this job.
    pub(crate) fn shown(&self, rank: Rank) -> Rank {
        Rank(self.first_shown.0.saturating_add(rank.0))
    }

    /// Returns the ranks of this job on this node, by local rank.
    pub(crate) fn ranks_here(&self) -> Vec<Rank> {
        self.spec.job.placement.ranks_on(self.spec.node)
    }

    pub(crate) fn is_disowned(&self) -> bool {
        matches!(self.phase, JobPhase::Disowned { .. })
    }

    /// Returns true if no rank is starting here, and no rank runs on another node.
    pub(crate) fn waits_for_ranks_here_alone(&self) -> bool {
        let has_started = matches!(self.phase, JobPhase::Running | JobPhase::Disowned { left: 0 });
        has_started && self.elsewhere == Elsewhere::Over
    }

    /// Starts the phase in which `ranks` ranks start.
    pub(crate) fn begin_start(&mut self, ranks: usize) {
        if let JobPhase::Preparing { awaited } = self.phase {
            self.phase = JobPhase::Starting { left: ranks, awaited };
        }
    }

    /// Records that one rank has started or failed to start.
    pub(crate) fn count_start(&mut self) {
        if let JobPhase::Starting { left, .. } | JobPhase::Disowned { left } = &mut self.phase {
            *left = left.saturating_sub(1);
        }
    }

    /// Completes the start of a job if its last rank here runs. Returns the receiver of that notification.
    pub(crate) fn settle(&mut self) -> Option<Awaited> {
        let JobPhase::Starting { left: 0, awaited } = self.phase else { return None };
        self.phase = JobPhase::Running;
        awaited
    }

    /// Disowns the job. Returns the receiver that waits for its start.
    pub(crate) fn disown(&mut self) -> Option<Awaited> {
        let (left, awaited) = match self.phase {
            JobPhase::Preparing { awaited } => (0, awaited),
            JobPhase::Starting { left, awaited } => (left, awaited),
            JobPhase::Running => (0, None),
            JobPhase::Disowned { left } => (left, None),
        };
        self.phase = JobPhase::Disowned { left };
        awaited
    }

    /// Returns a reason to end with displayed rank numbers.
    pub(crate) fn show(&self, reason: EndReason) -> EndReason {
        let all = |ranks: Vec<Rank>| ranks.into_iter().map(|rank| self.shown(rank)).collect();
        match reason {
            EndReason::Abort { rank, code, whole_job, message } => {
                EndReason::Abort { rank: self.shown(rank), code, whole_job, message }
            }
            EndReason::Offence { rank, offence } => EndReason::Offence { rank: self.shown(rank), offence },
            EndReason::NotOffered { rank, version } => EndReason::NotOffered { rank: self.shown(rank), version },
            EndReason::LeftWithoutFinalize { rank } => EndReason::LeftWithoutFinalize { rank: self.shown(rank) },
            EndReason::LeftBeforeInit { rank, others } => {
                EndReason::LeftBeforeInit { rank: self.shown(rank), others: all(others) }
            }
            EndReason::LeftFence { rank, waiting } => {
                EndReason::LeftFence { rank: self.shown(rank), waiting: all(waiting) }
            }
            other => other,
        }
    }
}
