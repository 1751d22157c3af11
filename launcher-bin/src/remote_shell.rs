//! Remote shell for other launchers: `lattice-mpi-launcher`, and this program under the names `ssh` and `rsh`.
//!
//! ```text
//! mpirun ──"ssh node1 orted ..."──> this program ──launch of one process──> API server ──> agent of node1 ──> $SHELL -c "orted ..."
//!                                        │ a host outside of the allocation, a tunnel, ...
//!                                        └──exec──> the next `ssh` in PATH
//! ```
//!
//! The command is an ordinary launch of one process without PMI. It has the same identity, limits and clean-up, and `lattice launches`, `signal`
//! and `abort` apply to it. The exit code of the command is returned. As `lattice-mpi-launcher`, this program ends with the process of its
//! caller.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use lattice_cluster_client::{AllocatedNodes, ApiServer, Cluster, ClusterError};
use lattice_console::machine::{Machine, MachineError};
use lattice_console::{Verbosity, exit, report, runtime};
use lattice_dialects::remote_shell::{RemoteLine, RemoteShellArgs, RemoteShellError, RemoteShellName};
use lattice_render::ExitMessages;
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, User, close, getppid, getuid};
use rank_spawner::DescriptorPlan;

use crate::args;
use crate::launch::{self, LaunchError};
use crate::request::{LaunchCommand, RequestError};

/// Exit code for a command that was not started, as with `ssh`.
pub(crate) const NOT_STARTED: u8 = 255;

/// Program of Hydra that starts the ranks of a node, and the program of Intel MPI that starts it.
const HYDRA_PROXY: &str = "hydra_pmi_proxy";
const INTEL_PROXY: &str = "hydra_bstrap_proxy";

/// Interval of checks of the caller.
const CALLER_LOOK: Duration = Duration::from_millis(500);

/// Reason for which a command is not started on a node.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RemoteShellRefusal {
    /// The line is not valid here.
    #[error(transparent)]
    Line(#[from] RemoteShellError),
    /// No allocation is named, so there are no nodes.
    #[error(
        "LATTICE_ALLOC_ID names no allocation, so {host} cannot be one of its nodes\ntry: lattice alloc shell, which sets it"
    )]
    NoAllocation {
        /// The host.
        host: String,
    },
    /// The allocation has ended.
    #[error(
        "the allocation {id} in LATTICE_ALLOC_ID is over: it is {state}\ntry: unset what its shell has set, or a new one by lattice alloc shell -N NODES"
    )]
    Over {
        /// Id of the allocation.
        id: String,
        /// Its state.
        state: &'static str,
    },
    /// The host is not a node of the allocation.
    #[error("{host} is no node of allocation {id}, which has {nodes}")]
    NotANode {
        /// The host.
        host: String,
        /// Id of the allocation.
        id: String,
        /// Its nodes.
        nodes: String,
    },
    /// Commands run only as the user of this process.
    #[error("a command for user {user} cannot be started: only one's own are")]
    OtherUser {
        /// The user.
        user: String,
    },
    /// A request to the cluster failed.
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    /// Data about this machine cannot be read.
    #[error(transparent)]
    Machine(#[from] MachineError),
    /// The launch did not start, or the connection to it was lost.
    #[error(transparent)]
    Launch(#[from] LaunchError),
    /// The program that replaces this one cannot be executed.
    #[error("cannot run {}: {error}", program.display())]
    Next {
        /// The program.
        program: PathBuf,
        /// Error of the system.
        error: io::Error,
    },
    /// The launch cannot be set up.
    #[error("cannot set up the launch: {0}")]
    Setup(#[from] io::Error),
}

impl RemoteShellRefusal {
    /// True if the next program of this name may be able to run the line.
    fn is_for_the_next(&self) -> bool {
        match self {
            Self::Line(_) | Self::NoAllocation { .. } | Self::NotANode { .. } | Self::OtherUser { .. } => true,
            // `git push` works while the API server is not available.
            Self::Cluster(error) => error.is_passing(),
            Self::Over { .. } | Self::Machine(_) | Self::Launch(_) => false,
            Self::Next { .. } | Self::Setup(_) => false,
        }
    }
}

/// Runs the command on its node until its end, or runs the next program of this name. Returns the exit code.
///
/// Must be called while this process has one thread, and before any file is opened.
///
/// # Errors
/// Fails if the command was not started.
pub(crate) fn run(args: &RemoteShellArgs) -> Result<u8, RemoteShellRefusal> {
    close_inherited()?;
    DescriptorPlan::default().reserve();
    let machine = Machine::this()?;
    let refusal = match served(args, &machine) {
        Ok(code) => return Ok(code),
        Err(refusal) => refusal,
    };
    match &args.name {
        RemoteShellName::Standard(name) if refusal.is_for_the_next() => match next_in_path(name, &machine) {
            Some(program) => {
                if let RemoteShellRefusal::Cluster(_) = refusal {
                    report(&format!("{refusal}\n{} is run instead", program.display()));
                }
                let error = Command::new(&program).args(&args.words).exec();
                Err(RemoteShellRefusal::Next { program, error })
            }
            None => Err(refusal),
        },
        _ => Err(refusal),
    }
}

/// Closes descriptors that the caller left open. Hydra leaves open the other ends of the standard streams, and the socket for its proxies. If
/// this process kept them, no process would detect their end (measured).
fn close_inherited() -> io::Result<()> {
    let open = fs::read_dir("/proc/self/fd")?.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok());
    let open: Vec<i32> = open.filter(|&descriptor| descriptor > 2).collect();
    for descriptor in open {
        // The descriptor of the directory itself is already closed.
        let _ = close(descriptor);
    }
    Ok(())
}

fn served(args: &RemoteShellArgs, machine: &Machine) -> Result<u8, RemoteShellRefusal> {
    let line = args.line.as_ref().map_err(Clone::clone)?;
    let me = User::from_uid(getuid()).ok().flatten();
    if let Some(user) = &line.user
        && me.as_ref().is_none_or(|me| me.name != *user)
    {
        return Err(RemoteShellRefusal::OtherUser { user: user.clone() });
    }
    let allocation = lattice_cluster_client::allocation(None, &machine.environment)?;
    let allocation = allocation.ok_or_else(|| RemoteShellRefusal::NoAllocation { host: line.host.clone() })?;
    let server = ApiServer::find(None, &machine.environment)?;
    let node = runtime::block_on(async { node(&server.connect()?, &allocation, &line.host).await })
        .map_err(LaunchError::from)??;
    let command = launch_command(line, &node, me.as_ref(), machine)?;
    if args.name == RemoteShellName::Own {
        end_with(getppid());
    }
    let code = launch::run_on_cluster(command, &server, allocation, Verbosity::Quiet)?;
    Ok(code_for_caller(line, code))
}

/// Ends this process after the end of its caller, as if the caller had sent SIGTERM. Launchers end their child processes. But a `prted` of Open
/// MPI 5 waits indefinitely if its `mpirun` ended after an abort, with `ssh` as well (measured).
///
/// A thread checks the caller periodically. The kernel sends a signal of `PR_SET_PDEATHSIG` when the thread that created this process ends,
/// which can be before the end of the caller.
fn end_with(caller: Pid) {
    let look = move || {
        while getppid() == caller {
            std::thread::sleep(CALLER_LOOK);
        }
        let _ = kill(Pid::this(), Signal::SIGTERM);
    };
    // Without a thread, this process ends with its command.
    let _ = std::thread::Builder::new().name("caller".to_owned()).stack_size(64 << 10).spawn(look);
}

/// Name of the node of the allocation with the name or address `host`.
async fn node(cluster: &Cluster, id: &str, host: &str) -> Result<String, RemoteShellRefusal> {
    let AllocatedNodes { id, list, names, over, .. } = cluster.allocated_nodes(id).await?;
    let found = cluster.node_called(host, &names).await?;
    match (found, over) {
        (None, _) => Err(RemoteShellRefusal::NotANode { host: host.to_owned(), id, nodes: list }),
        (Some(_), Some(state)) => Err(RemoteShellRefusal::Over { id, state }),
        (Some(node), None) => Ok(node),
    }
}

/// Launch of one process for the line.
fn launch_command(
    line: &RemoteLine,
    node: &str,
    me: Option<&User>,
    machine: &Machine,
) -> Result<LaunchCommand, RemoteShellRefusal> {
    // An empty shell in passwd(5) means that of sh.
    let shell = me.map(|me| me.shell.clone()).filter(|shell| !shell.as_os_str().is_empty());
    let shell = shell.unwrap_or_else(|| PathBuf::from("/bin/sh"));
    let home = machine.variable(OsStr::new("HOME")).filter(|home| Path::new(home).is_absolute());
    let home =
        home.map_or_else(|| me.map_or_else(|| "/".into(), |me| me.dir.clone().into_os_string()), OsStr::to_owned);
    let stdin = if line.reads_nothing { "--stdin=none" } else { "--stdin=0" };
    let mut words: Vec<OsString> = vec!["--nodelist".into(), node.into(), "--ntasks=1".into(), "--pmi=none".into()];
    words.extend([
        stdin.into(),
        "--unbuffered=pipe".into(),
        "--chdir".into(),
        home,
        "--".into(),
        shell.into_os_string(),
    ]);
    match &line.command {
        Some(command) => words.extend(["-c".into(), command.clone()]),
        None => words.push("-l".into()),
    }
    let args = args::launch_of_one_program(words).map_err(|error| io::Error::other(error.to_string()))?;
    let mut command = LaunchCommand::new(&args, machine).map_err(|error: RequestError| LaunchError::from(error))?;
    command.output.exit_messages = ExitMessages::LeftToCaller(getppid());
    // Child processes of the command are not ranks of this launch.
    command.request.settings.rank_variables = false;
    Ok(command)
}

/// Exit code for the caller of a command that ended with `code`.
///
/// After the crash of a rank, a signal ends a proxy of Hydra, or the proxy ends with its own code because mpiexec is unreachable. mpiexec
/// already has the report of the crash, but would return 255 instead of the code of the rank. Hydra detects by itself whether a proxy ever
/// connected. Intel MPI does not (all measured).
fn code_for_caller(line: &RemoteLine, code: u8) -> u8 {
    let is_signal = (exit::by_signal(1)..=exit::by_signal(64)).contains(&code);
    let is_not_run = [exit::CANNOT_EXECUTE, exit::NOT_FOUND].contains(&code);
    match program(line).as_str() {
        HYDRA_PROXY if !is_not_run => 0,
        INTEL_PROXY if is_signal => 0,
        _ => code,
    }
}

/// Name of the program at the start of the line. Hydra quotes it.
fn program(line: &RemoteLine) -> String {
    let command = line.command.as_deref().unwrap_or_default().to_string_lossy();
    let program = command.split_whitespace().next().unwrap_or_default().trim_matches('"');
    Path::new(program).file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// Next program of this name in `PATH` after this program, except programs that also precede it. Another installation of Lattice searches in the
/// same way, and the two must not call each other indefinitely.
fn next_in_path(name: &OsStr, machine: &Machine) -> Option<PathBuf> {
    let ours = std::env::current_exe().ok()?;
    let path = machine.variable(OsStr::new("PATH"))?;
    let in_path = std::env::split_paths(path).map(|directory| directory.join(name));
    let programs: Vec<(PathBuf, PathBuf)> = in_path
        .filter_map(|candidate| Some((fs::canonicalize(&candidate).ok().filter(|real| real.is_file())?, candidate)))
        .collect();
    let behind_us = programs.iter().position(|(real, _)| *real == ours).map_or(0, |ours| ours + 1);
    let (before, behind) = programs.split_at(behind_us);
    let next = behind.iter().find(|(real, _)| before.iter().all(|(earlier, _)| earlier != real));
    next.map(|(_, candidate)| candidate.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(command: &str) -> RemoteLine {
        RemoteLine { host: "node1".to_owned(), user: None, command: Some(command.into()), reads_nothing: false }
    }

    #[test]
    fn a_proxy_that_was_ended_is_no_failure_of_its_start() {
        for (command, code, expected) in [
            (r#""/p/hydra_pmi_proxy" --pgid 0"#, 137, 0),
            (r#""/p/hydra_pmi_proxy" --pgid 0"#, 7, 0),
            ("hydra_pmi_proxy", 127, 127),
            ("/p//hydra_bstrap_proxy --pgid 0", 143, 0),
            ("/p//hydra_bstrap_proxy --pgid 0", 7, 7),
            ("orted hydra_pmi_proxy", 137, 137),
            ("prted", 1, 1),
        ] {
            assert_eq!(code_for_caller(&line(command), code), expected, "{command} {code}");
        }
    }

    #[test]
    fn only_what_the_standard_program_may_know_is_left_to_it() {
        let over = RemoteShellRefusal::Over { id: "a".to_owned(), state: "released" };
        assert!(!over.is_for_the_next(), "a stale environment is told");
        assert!(over.to_string().starts_with("the allocation a in LATTICE_ALLOC_ID is over: it is released\ntry: "));
        assert!(RemoteShellRefusal::NoAllocation { host: "x".to_owned() }.is_for_the_next());
        assert!(RemoteShellRefusal::OtherUser { user: "x".to_owned() }.is_for_the_next());
        assert!(RemoteShellRefusal::Cluster(ClusterError::Unavailable(String::new())).is_for_the_next());
        assert!(!RemoteShellRefusal::Cluster(ClusterError::Refused(String::new())).is_for_the_next());
    }

    #[test]
    fn the_next_program_of_the_name_is_another_one() {
        let directory = tempfile::tempdir().unwrap();
        let places = ["before", "ours", "behind"].map(|name| directory.path().join(name));
        places.iter().for_each(|place| fs::create_dir(place).unwrap());
        let [before, ours, behind] = places.each_ref().map(|place| place.join("ssh"));
        let next = |order: &[&PathBuf]| {
            let path = std::env::join_paths(order.iter().filter_map(|program| program.parent())).unwrap();
            let mut machine = Machine::this().unwrap();
            machine.environment = vec![("PATH".into(), path)];
            next_in_path(OsStr::new("ssh"), &machine)
        };
        std::os::unix::fs::symlink(std::env::current_exe().unwrap(), &ours).unwrap();
        assert_eq!(next(&[&ours, &behind]), None);
        [&before, &behind].into_iter().for_each(|program| fs::write(program, "").unwrap());
        assert_eq!(next(&[&ours, &behind]), Some(behind.clone()));
        // A program of another installation that has called this program.
        assert_eq!(next(&[&before, &ours, &behind]), Some(behind.clone()));
        assert_eq!(next(&[&before, &ours, &before, &ours, &behind]), Some(behind));
        assert_eq!(next(&[&before]), Some(before), "we were called by our path");
    }
}
