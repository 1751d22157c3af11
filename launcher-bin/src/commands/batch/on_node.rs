//! A batch job on its node: this program is the launch that the API server has started, makes a file of the script, and runs it with
//! files for its output.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::Stdio;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use lattice_session::template::{Place, Template};
use nix::unistd::gethostname;
use pmi_core::ids::{LocalRank, NodeIndex, Rank};

use super::script::is_of_slurm;
use crate::args::{BatchScriptArgs, SCRIPT, ServerArgs};
use crate::cluster::{self, AllocatedNodes, Cluster};
use crate::commands::in_allocation::CommandFiles;
use crate::commands::{CommandError, ask, environment};
use crate::console::message;
use crate::exit;
use crate::foreground::Signals;
use crate::formatting;

/// Variables of the one process of the launch, which would mislead those that the script starts. The launch's id stays: what is left of
/// a launch is found by it.
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

/// Runs the script of a batch job to its end; returns its exit code.
pub(crate) fn run_script(args: &BatchScriptArgs) -> Result<u8, CommandError> {
    let environment = environment();
    let script = crate::environment::value(&environment, SCRIPT);
    let script = script.and_then(|text| STANDARD.decode(text.as_encoded_bytes()).ok());
    let script = script.ok_or(CommandError::NoScript)?;
    let id = cluster::allocation(None, &environment)?.ok_or(CommandError::NoAllocation)?;
    ask(&ServerArgs::default(), async |cluster| {
        let allocation = cluster.allocated_nodes(&id).await?;
        let mut streams = Streams::open(args, &allocation)?;
        let run = Run { args, script: &script, cluster: &cluster, allocation: &allocation };
        match run.to_its_end(&environment, &streams).await {
            Ok(code) => Ok(code),
            Err(error) => {
                // There, its user looks first.
                streams.stderr.write_all(&message(&error.to_string()))?;
                Err(error)
            }
        }
    })
}

/// A script that is to run.
struct Run<'a> {
    args: &'a BatchScriptArgs,
    script: &'a [u8],
    cluster: &'a Cluster,
    allocation: &'a AllocatedNodes,
}

impl Run<'_> {
    async fn to_its_end(
        &self,
        environment: &crate::environment::Environment,
        streams: &Streams,
    ) -> Result<u8, CommandError> {
        let files = CommandFiles::make(self.cluster, self.allocation, environment).await?;
        let code = self.with(&files, streams).await;
        let removed = files.remove();
        let code = code?;
        removed?;
        Ok(code)
    }

    /// Variables of sbatch that a script of Slurm's reads. Others, by which an `mpirun` would start its ranks by srun, are not set.
    fn slurm_variables(&self) -> [(&'static str, String); 5] {
        let AllocatedNodes { id, names, list, .. } = self.allocation;
        let nodes = names.len().to_string();
        [
            ("SLURM_JOB_ID", id.clone()),
            ("SLURM_JOB_NAME", self.args.job_name.clone()),
            ("SLURM_NNODES", nodes.clone()),
            ("SLURM_JOB_NUM_NODES", nodes),
            ("SLURM_NODELIST", list.clone()),
        ]
    }

    async fn with(&self, files: &CommandFiles, streams: &Streams) -> Result<u8, CommandError> {
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
        command.env("LATTICE_NODELIST", self.allocation.names.join(","));
        command.env("LATTICE_NNODES", self.allocation.names.len().to_string());
        if is_of_slurm(self.script) {
            command.envs(self.slurm_variables());
        }
        command.env("PATH", path_with_us(files)?);
        command.stdout(streams.stdout.try_clone()?).stderr(streams.stderr.try_clone()?);
        // The launch's signals reach the whole process group, the script too, which decides what they mean.
        let _heard = Signals::listen()?;
        let mut child =
            command.spawn().map_err(|error| CommandError::Shell { command: interpreter(self.script), error })?;
        Ok(exit::of_status(child.wait().await?))
    }
}

/// `PATH` of the script: a `lattice` that is not in it is found behind all others.
fn path_with_us(files: &CommandFiles) -> io::Result<OsString> {
    let path = files.path()?;
    let ours = std::env::current_exe()?.parent().map(Path::to_owned);
    std::env::join_paths(std::env::split_paths(&path).chain(ours)).map_err(io::Error::other)
}

/// Makes a file that can be executed.
fn write_program(path: &Path, text: &[u8]) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o700).open(path)?;
    file.write_all(text)
}

/// The program that the script names in its first line, for a message: the file itself is there.
fn interpreter(script: &[u8]) -> OsString {
    let line = script.split(|&byte| byte == b'\n').next().unwrap_or_default();
    String::from_utf8_lossy(line.strip_prefix(b"#!").unwrap_or(line)).trim().to_owned().into()
}

/// The files for its output.
struct Streams {
    stdout: File,
    stderr: File,
}

impl Streams {
    /// Opens them in the working directory. A job that runs again goes on behind what it wrote before.
    fn open(args: &BatchScriptArgs, allocation: &AllocatedNodes) -> Result<Self, CommandError> {
        let node = gethostname().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let node = allocation.names.first().unwrap_or(&node);
        // A script is one process, on the first node.
        let place = Place {
            rank: Rank(0),
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
            // Appended to, so that two streams in one file do not overwrite each other.
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
