//! A batch job on its node. The API server starts this program as a launch. The program writes the script to a file, and runs it with files
//! for its output.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use lattice_cluster_client::args::ServerArgs;
use lattice_cluster_client::{AllocatedNodes, Cluster};
use lattice_console::environment::Environment;
use lattice_console::foreground::Signals;
use lattice_console::{exit, formatting, message};
use lattice_session::template::{Place, Template};
use nix::unistd::gethostname;
use pmi_core::ids::{LocalRank, NodeIndex, Rank};
use pmi_transport::proto::v1 as proto;
use proto::AllocationState;
use tokio::time::{sleep, timeout};

use super::script::is_of_slurm;
use crate::args::{BatchScriptArgs, SCRIPT};
use crate::error::CommandError;
use crate::in_allocation::CommandFiles;
use crate::questions::{ask, environment};

/// Variables of the only process of the launch. They would mislead processes that the script starts. The launch id stays: leftovers of a
/// launch are found by it.
const OF_THE_RANK: [&str; 8] = [
    "LATTICE_RANK",
    "LATTICE_APPNUM",
    "LATTICE_NODE",
    "LATTICE_LOCAL_RANK",
    "LATTICE_LOCAL_SIZE",
    "LATTICE_NPROCS",
    "MPI_LOCALRANKID",
    "MPI_LOCALNRANKS",
];

/// Variable with the number of tasks of a job.
const TASKS: &str = "SLURM_NTASKS";
/// Variable with the id of the launch of this process.
const LAUNCH: &str = "LATTICE_LAUNCH_ID";
/// Time limit to report to the API server why a script does not run, or to query why it is ended.
const TELLING: Duration = Duration::from_secs(3);
/// Number of checks whether the allocation of an ended script ends, and the pause between two checks.
const LOOKS: u32 = 5;
const LOOK_PAUSE: Duration = Duration::from_millis(100);

/// Runs the script of a batch job to its end; returns its exit code. If a signal killed the script, this process ends by the same signal.
pub fn run_script(args: &BatchScriptArgs) -> Result<u8, CommandError> {
    let environment = environment();
    let script = lattice_console::environment::value(&environment, SCRIPT);
    let script = script.and_then(|text| STANDARD.decode(text.as_encoded_bytes()).ok());
    let script = script.ok_or(CommandError::NoScript)?;
    let id = lattice_cluster_client::allocation(None, &environment)?.ok_or(CommandError::NoAllocation)?;
    let end = ask(&ServerArgs::default(), async |cluster| {
        let allocation = cluster.allocated_nodes(&id).await?;
        let mut streams = match Streams::open(args, &allocation) {
            Ok(streams) => streams,
            Err(error) => {
                end_without_output(&cluster, &environment, &error).await;
                return Err(error);
            }
        };
        let run = Run { args, script: &script, cluster: &cluster, allocation: &allocation };
        match run.to_its_end(&environment, &streams).await {
            Ok(end) => Ok(end),
            Err(error) => {
                // The user looks in this file first.
                streams.stderr.write_all(&message(&error.to_string()))?;
                Err(error)
            }
        }
    })?;
    Ok(exit::like(end))
}

/// Aborts the launch of a script that has no output file, so that the cause of its end has the reason. No user reads the output of this
/// process.
async fn end_without_output(cluster: &Cluster, environment: &Environment, error: &CommandError) {
    // The exit code of this process is that of the job, and not the signal by which the launch ends it.
    let _heard = Signals::listen();
    let Some(launch) = lattice_console::environment::value(environment, LAUNCH) else { return };
    let launch = launch.to_string_lossy();
    // If the API server does not answer, the exit code is the only report.
    let _ = timeout(TELLING, cluster.abort_launch(&launch, &error.to_string())).await;
}

/// A script to run.
struct Run<'a> {
    args: &'a BatchScriptArgs,
    script: &'a [u8],
    cluster: &'a Cluster,
    allocation: &'a AllocatedNodes,
}

impl Run<'_> {
    async fn to_its_end(&self, environment: &Environment, streams: &Streams) -> Result<ExitStatus, CommandError> {
        let files = CommandFiles::make(self.cluster, self.allocation, environment).await?;
        let end = self.with(&files, streams).await;
        let removed = files.remove();
        let end = end?;
        removed?;
        Ok(end)
    }

    /// Variables of sbatch for Slurm scripts. Variables that would make an `mpirun` start its ranks by srun are not set.
    fn slurm_variables(&self) -> Vec<(&'static str, String)> {
        let AllocatedNodes { id, names, list, .. } = self.allocation;
        let nodes = names.len().to_string();
        let mut variables = vec![
            ("SLURM_JOB_ID", id.clone()),
            ("SLURM_JOB_NAME", self.args.job_name.clone()),
            ("SLURM_NNODES", nodes.clone()),
            ("SLURM_JOB_NUM_NODES", nodes),
            ("SLURM_NODELIST", list.clone()),
        ];
        let own = |name: &str| std::env::var(name).ok();
        if let Some(tasks) = tasks_of_all_nodes(names.len(), own) {
            variables.push((TASKS, tasks));
        }
        variables
    }

    async fn with(&self, files: &CommandFiles, streams: &Streams) -> Result<ExitStatus, CommandError> {
        let program = files.directory().join("script");
        write_program(&program, self.script)?;
        let mut command = files.command(program.as_os_str())?;
        for name in OF_THE_RANK {
            command.env_remove(name);
        }
        command.args(&self.args.args).env_remove(SCRIPT).stdin(Stdio::null());
        command
            .env("LATTICE_JOB_NAME", &self.args.job_name)
            .env("LATTICE_REQUEUES", self.allocation.requeues.to_string());
        if is_of_slurm(self.script) {
            command.envs(self.slurm_variables());
        }
        command.env("PATH", path_with_us(files)?);
        command.stdout(streams.stdout.try_clone()?).stderr(streams.stderr.try_clone()?);
        // Signals of the launch reach the whole process group, including the script, which decides how to react.
        let mut heard = Signals::listen()?;
        let mut child =
            command.spawn().map_err(|error| CommandError::Shell { command: interpreter(self.script), error })?;
        let mut told = false;
        loop {
            tokio::select! {
                biased;
                _ = heard.end(), if !told => told = self.tell_end(streams).await,
                end = child.wait() => {
                    let end = end?;
                    // The signal that ended the script may not have arrived here yet.
                    if !told && !end.success() {
                        self.tell_end(streams).await;
                    }
                    return Ok(end);
                }
            }
        }
    }

    /// Appends to the output why the job is ended from outside, as sbatch does. Returns false if its allocation does not end.
    async fn tell_end(&self, streams: &Streams) -> bool {
        // Without an answer there is no reason to write. A failed write, for example to a full file system, must not delay the end.
        let Ok(Some(words)) = timeout(TELLING, self.reason_of_end()).await else { return false };
        let _ = (&streams.stderr).write_all(&message(&words));
        true
    }

    /// Reason why the allocation ends; `None` if it does not. At the time limit, the API server ends the launch before it reports the end
    /// of the allocation.
    async fn reason_of_end(&self) -> Option<String> {
        for _ in 0..LOOKS {
            let request = proto::GetAllocationRequest { id: self.allocation.id.clone() };
            let allocation = self.cluster.ask(self.cluster.allocations().get_allocation(request)).await.ok()?;
            if let Some(words) = end_in_words(&allocation) {
                return Some(words);
            }
            sleep(LOOK_PAUSE).await;
        }
        None
    }
}

/// Reason why the script of an allocation is ended; `None` while the allocation continues.
fn end_in_words(allocation: &proto::Allocation) -> Option<String> {
    let proto::Allocation { id, reason, .. } = allocation;
    match (allocation.state(), reason.as_str()) {
        (AllocationState::Releasing | AllocationState::Released, "") => {
            Some(format!("job {id} ends: it was cancelled"))
        }
        (AllocationState::Releasing | AllocationState::Released | AllocationState::Failed, reason) => {
            Some(format!("job {id} ends: {reason}"))
        }
        _ => None,
    }
}

/// Number of tasks that sbatch sets for a script with only a number of tasks per node. `None` if the script has its own number of tasks, or
/// neither.
fn tasks_of_all_nodes(nodes: usize, variable: impl Fn(&str) -> Option<String>) -> Option<String> {
    let per_node: usize = variable("SLURM_NTASKS_PER_NODE")?.parse().ok()?;
    variable(TASKS).is_none().then(|| nodes.saturating_mul(per_node).to_string())
}

/// `PATH` of the script. The directory of this `lattice` is last, for a `PATH` without one.
fn path_with_us(files: &CommandFiles) -> io::Result<OsString> {
    let path = files.path()?;
    let ours = std::env::current_exe()?.parent().map(Path::to_owned);
    std::env::join_paths(std::env::split_paths(&path).chain(ours)).map_err(io::Error::other)
}

/// Creates an executable file.
fn write_program(path: &Path, text: &[u8]) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o700).open(path)?;
    file.write_all(text)
}

/// The program that the first line of the script names, for an error message. The script file itself exists.
fn interpreter(script: &[u8]) -> OsString {
    let line = script.split(|&byte| byte == b'\n').next().unwrap_or_default();
    String::from_utf8_lossy(line.strip_prefix(b"#!").unwrap_or(line)).trim().to_owned().into()
}

/// Files for the output of the script.
struct Streams {
    stdout: File,
    stderr: File,
}

impl Streams {
    /// Opens the files in the working directory. A job that runs again appends to its earlier output.
    fn open(args: &BatchScriptArgs, allocation: &AllocatedNodes) -> Result<Self, CommandError> {
        let node = gethostname().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let node = allocation.names.first().unwrap_or(&node);
        // A script is one process, on the first node.
        let place = Place {
            rank: Rank(0),
            ranks: 1,
            local_rank: LocalRank(0),
            node: NodeIndex(0),
            host: node,
            launch_id: &allocation.id,
        };
        let path_of = |file: &Template| {
            let user = || formatting::user(nix::unistd::getuid().as_raw());
            file.clone().of(args.job_name.as_ref(), user).expand(place)
        };
        let open = |file: &Template| {
            let path = path_of(file);
            // Append mode: two streams in one file do not overwrite each other.
            let opened = File::options().create(true).append(true).open(&path).and_then(|file| {
                if allocation.requeues == 0 && file.metadata()?.is_file() {
                    file.set_len(0)?;
                }
                Ok(file)
            });
            opened.map_err(|error| CommandError::BatchOutput { path, error })
        };
        let stdout = open(&args.output)?;
        let stderr = match &args.error {
            Some(file) if path_of(file) != path_of(&args.output) => open(file)?,
            _ => stdout.try_clone()?,
        };
        Ok(Self { stdout, stderr })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_is_told_the_tasks_of_all_its_nodes() {
        let tasks = |variables: &'static [(&str, &str)]| {
            let value = move |name: &str| {
                variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
            };
            tasks_of_all_nodes(3, value)
        };
        assert_eq!(tasks(&[("SLURM_NTASKS_PER_NODE", "2")]).as_deref(), Some("6"));
        assert_eq!(tasks(&[("SLURM_NTASKS_PER_NODE", "2"), ("SLURM_NTASKS", "5")]), None);
        assert_eq!(tasks(&[]), None);
    }

    #[test]
    fn the_output_of_a_script_says_why_the_job_is_ended_from_outside() {
        let words = |state: AllocationState, reason: &str| {
            let (id, reason) = ("7f3k".to_owned(), reason.to_owned());
            end_in_words(&proto::Allocation { id, reason, state: state.into(), ..proto::Allocation::default() })
        };
        let limit = "its time limit of 60 seconds is over";
        assert_eq!(
            words(AllocationState::Releasing, limit).as_deref(),
            Some("job 7f3k ends: its time limit of 60 seconds is over")
        );
        assert_eq!(words(AllocationState::Releasing, "").as_deref(), Some("job 7f3k ends: it was cancelled"));
        assert_eq!(words(AllocationState::Running, ""), None, "a signal of `lattice signal`");
        assert_eq!(words(AllocationState::Pending, "queued again: node1 was lost"), None);
    }
}
