//! Preparation of a job before its first rank starts: its servers and its commands.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use job_memory::NodeMemory;
use pmi_core::ids::Rank;
use rank_spawner::{CpuSet, MemoryPolicy, OwnDirectory, Records};

use super::observe::PreparedJob;
use super::servers::RanksHere;
use super::start::Processes;
use super::{Runner, shared_memory};
use crate::blocking;
use crate::cause::StartClass;
use crate::event::{Event, Notice};
use crate::machine::PrepareFailure;
use crate::machine::jobs::JobNumber;
use crate::machine::ranks::SlotId;
use crate::plan::{Entrances, InputFile, LaunchContext, Plan, PlanError};
use crate::session_io::StdinSource;
use crate::shell_limits::Lowered;
use crate::spec::SessionSpec;

/// Parts of the node to which the ranks of a job are bound, by local rank.
struct Bindings {
    cpus: Vec<Option<CpuSet>>,
    memory: Vec<Option<MemoryPolicy>>,
    gpus: Vec<Vec<(&'static str, String)>>,
}

impl Runner {
    /// Prepares a job. Returns the files that must still be opened for its ranks.
    pub(super) fn prepare(
        &mut self,
        job: JobNumber,
        parent: Option<(JobNumber, Rank)>,
    ) -> Result<Vec<InputFile>, PrepareFailure> {
        if job == JobNumber::LAUNCHED {
            self.prepare_processes()?;
        }
        self.servers.begin(job);
        let state = self.machine.jobs().get(job);
        let (spec, ranks) = (Arc::clone(&state.spec), state.ranks_here());
        if let Some(processes) = self.processes.as_ref().filter(|_| !ranks.is_empty()) {
            processes.guard_files(&shared_memory::of_mpich(&spec));
        }
        if job == JobNumber::LAUNCHED {
            self.make_session_directory();
        }
        let bindings = self.bindings(&spec, &ranks)?;
        let cpus = bindings.cpus.clone();
        let entrances = self.serve_job(job, parent, &cpus)?;
        let plan = if ranks.is_empty() { Plan::default() } else { self.plan(job, &spec, &ranks, entrances, bindings)? };
        Ok(self.keep_plan(job, plan, cpus))
    }

    /// Drops all data of a spawned job that is over.
    pub(super) fn release_job(&mut self, job: JobNumber, spec: Arc<SessionSpec>, slots: &[SlotId]) {
        self.servers.release(job);
        self.io.nodes.job_over(&spec.job);
        self.prepared.remove(&job);
        self.commands.remove(&job);
        if let Some(processes) = &mut self.processes {
            processes.forget(slots);
        }
        while self.removals.try_join_next().is_some() {}
        if !slots.is_empty() {
            blocking::begin_in(&mut self.removals, move || shared_memory::remove_mpich(&spec));
        }
    }

    /// Makes the spawner of ranks. From now on the keeper guards the ranks.
    fn prepare_processes(&mut self) -> Result<(), PrepareFailure> {
        let keeper = self.io.keeper.take();
        if let Some(keeper) = &keeper {
            keeper.guard(&self.io.tag).map_err(|errno| system(format!("cannot reach the keeper: {errno}")))?;
        }
        let shell = &self.spec.settings.shell_limits;
        let (spawner, news) = (self.io.spawner.take(), self.news.clone());
        let (processes, lowered) = Processes::new(spawner, keeper, news, shell).map_err(system)?;
        self.processes = Some(processes);
        self.outbox.extend(lowered.into_iter().map(|lowered| too_high(&self.spec, &lowered)));
        Ok(())
    }

    /// Selects CPUs, memory and GPUs of the ranks. Ranks of earlier jobs keep their CPUs.
    fn bindings(&self, spec: &SessionSpec, ranks: &[Rank]) -> Result<Bindings, PrepareFailure> {
        let settings = &spec.settings;
        let cpus = if ranks.is_empty() {
            Vec::new()
        } else {
            let earlier = self.prepared.values().flat_map(|job| job.cpus.iter().flatten());
            let taken = earlier.flat_map(CpuSet::iter).collect();
            self.node.plan(&settings.cpu_bind, ranks, &taken).map_err(unplanned)?
        };
        let memory = self.node.memory(&settings.mem_bind, &cpus).map_err(unplanned)?;
        let gpus = self.node.gpus(settings, &cpus).map_err(unplanned)?;
        Ok(Bindings { cpus, memory, gpus })
    }

    /// Makes the job's servers, and the memory that its ranks share. Returns the addresses for the ranks.
    fn serve_job(
        &mut self,
        job: JobNumber,
        parent: Option<(JobNumber, Rank)>,
        cpus: &[Option<CpuSet>],
    ) -> Result<Entrances, PrepareFailure> {
        let state = self.machine.jobs().get(job);
        let served = self.servers.add(job, state, parent, RanksHere { cpus, node: &self.node });
        let mut entrances = served.map_err(|error| system(format!("cannot serve PMI: {error}")))?;
        if let Some(bytes) = state.spec.settings.node_memory.filter(|_| !state.ranks_here().is_empty()) {
            let made = NodeMemory::make(bytes).map_err(|error| system(error.to_string()))?;
            entrances.node_memory = Some(Arc::new(made));
        }
        if job == JobNumber::LAUNCHED {
            entrances.set = self.io.set.take();
        }
        if entrances.pmix.is_some() {
            entrances.segments = self.directory_of_segments();
        }
        Ok(entrances)
    }

    /// Makes the directory of the session before any rank can make it: its contents are never another user's.
    fn make_session_directory(&mut self) {
        let path = self.spec.session_directory();
        let made = self.make_directory(path.clone());
        let refused =
            |error: &io::Error| tracing::warn!("ranks have no directory for their files: {}: {error}", path.display());
        self.directories.own = made.inspect_err(refused).ok();
    }

    fn make_directory(&mut self, path: PathBuf) -> io::Result<OwnDirectory> {
        let keeper = self.processes.as_ref().and_then(Processes::keeper);
        self.directories.make(path, keeper, &self.spec.directory_name())
    }

    /// Returns the directory for shared memory of Open MPI 4.1, if this node needs a separate one.
    fn directory_of_segments(&mut self) -> Option<PathBuf> {
        if self.directories.segments.is_none() {
            let directory = shared_memory::of_open_mpi(&self.spec)?;
            // Without it, ranks use the default directory.
            self.directories.segments = self.make_directory(directory).ok();
        }
        self.directories.segments().map(Path::to_owned)
    }

    /// Plans the commands of the ranks, and makes the directory for their temporary files.
    fn plan(
        &mut self,
        job: JobNumber,
        spec: &SessionSpec,
        ranks: &[Rank],
        entrances: Entrances,
        bindings: Bindings,
    ) -> Result<Plan, PrepareFailure> {
        let Some(processes) = &self.processes else { return Ok(Plan::default()) };
        let Bindings { cpus, memory, gpus } = bindings;
        let (limits, priority) = (Arc::clone(&processes.limits), processes.priority);
        let fabric = self.io.fabric.as_ref();
        let topology = self.io.topology_in_environment.then(|| self.node.topology_file(&self.spec)).flatten();
        let registers_memory = self.node.registers_memory();
        let context = LaunchContext {
            spec,
            ranks,
            entrances,
            cpus,
            memory,
            gpus,
            priority,
            limits,
            fabric,
            topology,
            registers_memory,
        };
        let stdin = if job == JobNumber::LAUNCHED { &self.io.stdin } else { &StdinSource::Empty };
        let plan = context.plan(stdin).map_err(unplanned)?;
        if let Some(directory) = self.spec.temporary_directory().filter(|_| self.directories.temporary.is_none()) {
            let refused =
                |error| format!("cannot make the directory of temporary files {}: {error}", directory.display());
            let made = self.make_directory(directory.clone());
            let failure = |error| PrepareFailure { class: StartClass::TemporaryDirectory, reason: refused(error) };
            self.directories.temporary = Some(made.map_err(failure)?);
            // A launch on this machine also removes the directories of killed node sessions.
            blocking::begin_in(&mut self.removals, Records::remove_those_of_killed_processes);
        }
        Ok(plan)
    }

    /// Stores the plan until the job's ranks are started. Returns the files that must still be opened.
    fn keep_plan(&mut self, job: JobNumber, mut plan: Plan, cpus: Vec<Option<CpuSet>>) -> Vec<InputFile> {
        let state = self.machine.jobs().get(job);
        for command in &mut plan.commands {
            // The displayed number distinguishes the rank from ranks of other jobs.
            command.rank = state.shown(command.rank);
        }
        self.prepared.insert(job, PreparedJob { programs: plan.programs, cpus });
        self.commands.insert(job, plan.commands);
        // The ranks have their copies. A pipe must not stay open in this process.
        if job == JobNumber::LAUNCHED && matches!(self.io.stdin, StdinSource::Direct(_)) {
            self.io.stdin = StdinSource::Empty;
        }
        plan.inputs
    }
}

fn system(reason: String) -> PrepareFailure {
    PrepareFailure { class: StartClass::System, reason }
}

pub(super) fn unplanned(error: impl Into<PlanError>) -> PrepareFailure {
    let error = error.into();
    PrepareFailure { class: error.class(), reason: error.to_string() }
}

/// Warning about a limit of the user's shell.
fn too_high(spec: &SessionSpec, lowered: &Lowered) -> Event {
    let Lowered { asked, hard } = *lowered;
    let node = spec.host(spec.node).to_owned();
    Event::Notice(Notice::LimitTooHigh { node, resource: asked.resource, asked: asked.value, hard })
}
