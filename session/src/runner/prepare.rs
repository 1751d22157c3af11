//! Everything that the ranks of a job need before the first one starts: their servers, their commands.

use std::sync::Arc;

use job_memory::NodeMemory;
use pmi_core::ids::Rank;
use rank_spawner::CpuSet;

use super::observe::PreparedJob;
use super::servers::RanksHere;
use super::start::Processes;
use super::temporary::TemporaryDirectory;
use super::{Runner, shared_memory};
use crate::cause::StartClass;
use crate::event::{Event, Notice};
use crate::machine::PrepareFailure;
use crate::machine::jobs::JobNumber;
use crate::plan::{InputFile, LaunchContext, Plan, PlanError};
use crate::session_io::StdinSource;
use crate::shell_limits::Lowered;
use crate::spec::SessionSpec;

impl Runner {
    /// Makes it; returns the files that are still to be opened for the ranks.
    pub(super) fn prepare(
        &mut self,
        job: JobNumber,
        parent: Option<(JobNumber, Rank)>,
    ) -> Result<Vec<InputFile>, PrepareFailure> {
        let system = |reason| PrepareFailure { class: StartClass::System, reason };
        if job == JobNumber::LAUNCHED {
            let keeper = self.io.keeper.take();
            if let Some(keeper) = &keeper {
                let guarded = keeper.guard(&self.io.tag);
                guarded.map_err(|errno| system(format!("cannot reach the keeper: {errno}")))?;
            }
            let shell = &self.spec.settings.shell_limits;
            let (spawner, news) = (self.io.spawner.take(), self.news.clone());
            let (processes, lowered) = Processes::new(spawner, keeper, news, shell).map_err(system)?;
            self.processes = Some(processes);
            self.outbox.extend(lowered.into_iter().map(|lowered| too_high(&self.spec, &lowered)));
        }
        let state = self.machine.jobs().get(job);
        let ranks = state.ranks_here();
        if let Some(processes) = self.processes.as_ref().filter(|_| !ranks.is_empty()) {
            processes.guard_files(&shared_memory::of_mpich(&state.spec));
        }
        let unplanned = |error: PlanError| PrepareFailure { class: error.class(), reason: error.to_string() };
        let cpus = match ranks.as_slice() {
            [] => Vec::new(),
            ranks => {
                let earlier = self.prepared.iter().flat_map(|job| job.cpus.iter().flatten());
                let taken = earlier.flat_map(CpuSet::iter).collect();
                let planned = self.node.plan(&state.spec.settings.cpu_bind, ranks, &taken);
                planned.map_err(|error| unplanned(error.into()))?
            }
        };
        let memory = self.node.memory(&state.spec.settings.mem_bind, &cpus).map_err(|error| unplanned(error.into()))?;
        let gpus = self.node.gpus(&state.spec.settings, &cpus).map_err(|error| unplanned(error.into()))?;
        let served = self.servers.add(job, state, parent, RanksHere { cpus: &cpus, node: &self.node });
        let mut entrances = served.map_err(|error| system(format!("cannot serve PMI: {error}")))?;
        if entrances.port.as_ref().is_some_and(|port| port.file.is_some()) {
            self.has_rank_files = true;
            self.processes.iter().for_each(|processes| processes.guard_directory(&self.spec.rank_files()));
        }
        if let Some(bytes) = state.spec.settings.node_memory.filter(|_| !ranks.is_empty()) {
            let made = NodeMemory::make(bytes).map_err(|error| system(error.to_string()))?;
            entrances.node_memory = Some(Arc::new(made));
        }
        if job == JobNumber::LAUNCHED {
            entrances.set = self.io.set.take();
        }
        let mut plan = Plan::default();
        if let Some(processes) = self.processes.as_ref().filter(|_| !ranks.is_empty()) {
            let (spec, limits, fabric) = (&*state.spec, Arc::clone(&processes.limits), self.io.fabric.as_ref());
            let (cpus, priority) = (cpus.clone(), processes.priority);
            let context =
                LaunchContext { spec, ranks: &ranks, entrances, cpus, memory, gpus, priority, limits, fabric };
            let planned = context.plan(if job == JobNumber::LAUNCHED { &self.io.stdin } else { &StdinSource::Empty });
            plan = planned.map_err(unplanned)?;
            if let Some(directory) = self.spec.temporary_directory() {
                processes.guard_directory(&directory);
                if self.temporary.is_none() {
                    let made = TemporaryDirectory::make(directory.clone());
                    let refused = |error| {
                        format!("cannot make the directory of temporary files {}: {error}", directory.display())
                    };
                    self.temporary = Some(made.map_err(|error| system(refused(error)))?);
                }
            }
        }
        for command in &mut plan.commands {
            // The number that is shown of a rank tells it from those of other jobs.
            command.rank = state.shown(command.rank);
        }
        self.prepared.resize_with(job.0 + 1, Default::default);
        self.prepared[job.0] = PreparedJob { programs: plan.programs, cpus };
        self.commands.insert(job, plan.commands);
        // The ranks have what they need of it; a pipe must not stay open on our side.
        if job == JobNumber::LAUNCHED && matches!(self.io.stdin, StdinSource::Direct(_)) {
            self.io.stdin = StdinSource::Empty;
        }
        Ok(plan.inputs)
    }
}

/// Warning about a limit of the user's shell.
fn too_high(spec: &SessionSpec, lowered: &Lowered) -> Event {
    let Lowered { asked, hard } = *lowered;
    let node = spec.host(spec.node).to_owned();
    Event::Notice(Notice::LimitTooHigh { node, resource: asked.resource, asked: asked.value, hard })
}
