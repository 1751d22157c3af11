//! `--bcast`: a program that is copied to each node of its launch before that starts, and removed when it has ended.
//!
//! ```text
//! the program ──pipe──> lattice launch -w NODES --stdin all ──> sh of broadcast.sh on each node ──> the copy
//!                   node and checksum of each copy <──┘
//! ```
//! The copies are made by a launch of their own, so that identity, limits, bounds and clean-up need no second way. Its ranks remove them
//! when their standard input ends, which is a pipe of this process: whatever ends this one ends that.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use lattice_session::random;
use lattice_session::request::Candidates;
use rank_spawner::{Program, ProgramError, ProgramFailure};
use ring::digest::{Context, SHA256};

use crate::args::LaunchArgs;
use crate::cluster::{ApiServer, ClusterError};
use crate::machine::Machine;
use crate::request::{Action, LaunchCommand, RequestError};
use crate::runtime;

/// What each node runs.
const SCRIPT: &str = include_str!("broadcast.sh");
/// Bytes that are read and sent at once.
const CHUNK: usize = 64 << 10;

/// A program that is not copied; nothing was started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BroadcastError {
    /// Programs that would need copies of their own.
    #[error("--bcast copies the one program of a launch; put several where all nodes find them")]
    Several,
    /// The place on the nodes is none that all of them have.
    #[error("--bcast={}: the copy needs an absolute path, such as /tmp/ or /tmp/a.out", path.display())]
    Relative {
        /// The path.
        path: PathBuf,
    },
    /// There is no such program here.
    #[error(transparent)]
    Program(#[from] ProgramError),
    /// The launch makes no sense.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// The cluster does not say which nodes it would have.
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    /// This machine does not let us.
    #[error("--bcast: cannot {step}: {source}")]
    System {
        /// What cannot be done; it follows the word "cannot".
        step: &'static str,
        /// Error of the system.
        source: io::Error,
    },
    /// Nodes have no copy; they have said why.
    #[error("--bcast: {} did not reach {missing} of {nodes} nodes; nothing was started", program.display())]
    Missing {
        /// The program.
        program: PathBuf,
        /// Number of nodes without a copy.
        missing: usize,
        /// Number of nodes.
        nodes: usize,
    },
    /// A copy is not what was sent.
    #[error("--bcast: the copy of {} on {node} is not what was sent; nothing was started", program.display())]
    Damaged {
        /// The program.
        program: PathBuf,
        /// The node.
        node: String,
    },
}

impl BroadcastError {
    /// Failure of the program, if that is it.
    pub(super) fn program_failure(&self) -> Option<ProgramFailure> {
        match self {
            Self::Program(error) => Some(error.failure()),
            Self::Request(error) => error.program_failure(),
            _ => None,
        }
    }
}

/// Copies of a program, which last as long as this value.
pub(super) struct Broadcast {
    /// The launch that keeps them.
    copier: Child,
}

impl Broadcast {
    /// Copies the program of a launch to the nodes that it will have. Returns the copies, and the launch of these on these nodes.
    ///
    /// # Errors
    /// See the variants of [`BroadcastError`].
    pub(super) fn of(
        args: &LaunchArgs,
        target: &Path,
        machine: &Machine,
        server: &ApiServer,
        allocation: &str,
    ) -> Result<(Self, LaunchArgs), BroadcastError> {
        if !args.more.is_empty() {
            return Err(BroadcastError::Several);
        }
        let source = source(args, machine)?;
        let place = Place::of(target, &source)?;
        let request = LaunchCommand::new(args, machine)?.request;
        let ask = async { server.connect()?.start_launch(&request, allocation.to_owned(), Action::Plan).await };
        let planned =
            runtime::block_on(ask).map_err(|source| BroadcastError::System { step: "ask the cluster", source })??;
        let hosts = planned.placed?.hosts;
        let copies = Self::begin(&source, &place, args, allocation, &hosts)?;
        let mut of_copies = args.clone();
        of_copies.first.command[0] = place.file.into();
        // A list of hosts with slots chooses the same nodes again.
        if !matches!(request.placement.candidates, Candidates::Hostfile(_)) {
            let placement = &mut of_copies.placement;
            (placement.nodelist, placement.relative) = (Some(hostlist::fold(&hosts)), 0);
        }
        Ok((copies, of_copies))
    }

    fn begin(
        source: &Path,
        place: &Place,
        args: &LaunchArgs,
        allocation: &str,
        hosts: &[String],
    ) -> Result<Self, BroadcastError> {
        let system = |step| move |source| BroadcastError::System { step, source };
        let mut file = File::open(source).map_err(system("read the program"))?;
        let size = file.metadata().map_err(system("read the program"))?.len();
        let mut copier = Command::new(std::env::current_exe().map_err(system("find this program"))?);
        copier.args(["launch", "-q", "--pmi=none", "--stdin=all", "--label=node", "--no-kill", "--propagate=NONE"]);
        copier.args(args.cluster.api.api.iter().map(|url| format!("--api={url}")));
        copier.arg(format!("--alloc={allocation}")).arg(format!("--ntasks={}", hosts.len())).arg("--tasks-per-node=1");
        copier.arg(format!("--nodelist={}", hostlist::fold(hosts))).args(["--chdir=/", "--", "sh", "-c", SCRIPT, "sh"]);
        copier.arg(&place.file).arg(place.own_directory.as_deref().unwrap_or(Path::new(""))).arg(size.to_string());
        // What is typed at our terminal is for the launch.
        copier.process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped());
        let copier = copier.spawn().map_err(system("start the launch that copies"))?;
        let mut copies = Self { copier };
        let sent = copies.send(&mut file, size).map_err(system("read the program"))?;
        let sums = copies.sums(hosts.len());
        if let Some((node, _)) = sums.iter().find(|(_, sum)| **sum != sent) {
            return Err(BroadcastError::Damaged { program: source.to_owned(), node: node.clone() });
        }
        match hosts.len().saturating_sub(sums.len()) {
            0 => Ok(copies),
            missing => Err(BroadcastError::Missing { program: source.to_owned(), missing, nodes: hosts.len() }),
        }
    }

    /// Sends a file of so many bytes, as long as there is somebody to take it; returns the checksum of what it holds.
    fn send(&mut self, file: &mut File, size: u64) -> io::Result<String> {
        let mut chunk = vec![0; CHUNK];
        let (mut digest, mut left) = (Context::new(&SHA256), size);
        while left > 0 {
            let wanted = CHUNK.min(usize::try_from(left).unwrap_or(CHUNK));
            file.read_exact(&mut chunk[..wanted])?;
            digest.update(&chunk[..wanted]);
            // A launch that failed takes no more; then checksums are missing.
            if self.copier.stdin.as_mut().is_none_or(|pipe| pipe.write_all(&chunk[..wanted]).is_err()) {
                break;
            }
            left -= wanted as u64;
        }
        Ok(digest.finish().as_ref().iter().map(|byte| format!("{byte:02x}")).collect())
    }

    /// Nodes that have a copy, each with its checksum: all of so many, or those that there are when the launch has ended.
    fn sums(&mut self, nodes: usize) -> HashMap<String, String> {
        let lines = self.copier.stdout.take().into_iter().flat_map(|pipe| BufReader::new(pipe).lines());
        let sum = |line: String| line.split_once(": ").map(|(node, sum)| (node.to_owned(), sum.to_owned()));
        lines.map_while(Result::ok).filter_map(sum).take(nodes).collect()
    }
}

impl Drop for Broadcast {
    fn drop(&mut self) {
        // The end of their input is what the copiers wait for. How they end has been told by themselves.
        drop(self.copier.stdin.take());
        let _ = self.copier.wait();
    }
}

/// Place of the copies, the same on all nodes.
#[derive(Debug, PartialEq, Eq)]
struct Place {
    file: PathBuf,
    /// Directory that is made for the copy.
    own_directory: Option<PathBuf>,
}

impl Place {
    /// `target` is a directory if it ends with a slash, and may be empty for a directory of the launch's own.
    fn of(target: &Path, source: &Path) -> Result<Self, BroadcastError> {
        let name = source.file_name().unwrap_or_default();
        if target.as_os_str().is_empty() {
            let id = random::id().map_err(|source| BroadcastError::System { step: "draw a name", source })?;
            let directory = Path::new("/tmp").join(format!("lattice-bcast-{id}"));
            return Ok(Self { file: directory.join(name), own_directory: Some(directory) });
        }
        if !target.is_absolute() {
            return Err(BroadcastError::Relative { path: target.to_owned() });
        }
        let is_directory = target.as_os_str().as_encoded_bytes().ends_with(b"/");
        Ok(Self { file: if is_directory { target.join(name) } else { target.to_owned() }, own_directory: None })
    }
}

/// File of the program, as a shell would find it here.
fn source(args: &LaunchArgs, machine: &Machine) -> Result<PathBuf, BroadcastError> {
    let directory =
        args.first.chdir.as_ref().map_or_else(|| machine.directory.clone(), |path| machine.directory.join(path));
    let program: OsString = args.first.command.first().cloned().unwrap_or_default();
    Ok(Program::resolve(&program, machine.variable("PATH".as_ref()), &directory)?.path().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_is_where_it_was_asked_for() {
        let check = |target: &str, expected: &str| {
            let place = Place::of(Path::new(target), Path::new("/home/me/a.out")).unwrap();
            assert_eq!(place, Place { file: expected.into(), own_directory: None }, "{target}");
        };
        check("/scratch/x", "/scratch/x");
        check("/scratch/", "/scratch/a.out");
        let own = Place::of(Path::new(""), Path::new("/home/me/a.out")).unwrap();
        assert_eq!(own.file.parent(), own.own_directory.as_deref());
        assert!(own.file.starts_with("/tmp") && own.file.ends_with("a.out"), "{own:?}");
        assert!(matches!(Place::of(Path::new("x/"), Path::new("/a")), Err(BroadcastError::Relative { .. })));
    }
}
