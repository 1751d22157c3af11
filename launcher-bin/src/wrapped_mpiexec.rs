//! `lattice mpiexec --wrap`: serves an `mpiexec` of Hydra under `HYDRA_LAUNCHER=manual`. That `mpiexec` prints a line for each node that needs a
//! proxy, and waits until the proxies are started.
//!
//! ```text
//! mpiexec ── "HYDRA_LAUNCH: /p/hydra_pmi_proxy ... --proxy-id 2" ──> this program ── lattice-mpi-launcher HOST ──> agent of the third host
//!         ── output of ranks ───────────────────────────────────────────────┴─> standard output
//! ```
//!
//! The lines contain no host: proxy N is for the host with that index in the host list of mpiexec (measured with MPICH 4.0 and 5.0).
//! `HYDRA_LAUNCHER_AUTOFORK=0` is removed, because every Hydra aborts on it.

mod lines;

use std::collections::HashSet;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use nix::sys::signal::Signal;
use tokio::io::AsyncReadExt;
use tokio::process::{Child, ChildStdout, Command};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use self::lines::Lines;
use crate::args::{NamedHosts, WrapArgs};
use crate::console::{OutputError, print};
use crate::exit;
use crate::foreground::{Arrival, Signals, pass_on};
use crate::hostfile::{self, HostfileError, HostsError};
use crate::mpirun_setup::OWN_NAME;
use crate::runtime;
use crate::signals::TELLING;

/// Variables of Hydra: the launcher of its proxies, a variable that makes it abort, and the file with its hosts.
const LAUNCHER: &str = "HYDRA_LAUNCHER";
const AUTOFORK: &str = "HYDRA_LAUNCHER_AUTOFORK";
const HOST_FILE: &str = "HYDRA_HOST_FILE";
/// Bytes of output in one read.
const ROOM: usize = 64 << 10;
/// Time limit for mpiexec to end after SIGTERM, and for its proxies to end after it.
const END_WITHIN: Duration = Duration::from_secs(3);

/// An `mpiexec` cannot be served.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WrapError {
    /// No command is given.
    #[error("--wrap needs the mpiexec to call\ntry: lattice mpiexec --wrap mpiexec -n 4 ./a.out")]
    Nothing,
    /// Neither a flag nor a variable names hosts.
    #[error(
        "neither the line nor {HOST_FILE} names hosts\ntry: -hosts node0,node1, or a shell of lattice alloc shell, which sets {HOST_FILE}"
    )]
    NoHosts,
    /// The list of hosts cannot be read.
    #[error("the hosts of mpiexec: {0}")]
    Hosts(#[from] HostsError),
    /// The file of hosts cannot be read.
    #[error(transparent)]
    Hostfile(#[from] HostfileError),
    /// The command cannot be executed.
    #[error("cannot run {}: {error}", program.display())]
    Program {
        /// The program.
        program: PathBuf,
        /// Error of the system.
        error: io::Error,
    },
    /// mpiexec starts more proxies than it has hosts.
    #[error("mpiexec starts proxy {proxy}, and was given {hosts} hosts")]
    NoSuchHost {
        /// Number of the proxy.
        proxy: usize,
        /// Number of hosts.
        hosts: usize,
    },
    /// A proxy did not start, and mpiexec would wait for it indefinitely.
    #[error("no proxy was started on {host}, so mpiexec is ended")]
    NotStarted {
        /// The host.
        host: String,
    },
    /// Standard output cannot be written to.
    #[error(transparent)]
    Output(#[from] OutputError),
    /// A system call failed.
    #[error("cannot serve mpiexec: {0}")]
    System(#[from] io::Error),
}

/// Runs the command line until its end. Returns the exit code of its mpiexec.
///
/// # Errors
/// Fails if the command cannot be executed, or if a proxy does not start.
pub(crate) fn run(args: &WrapArgs) -> Result<u8, WrapError> {
    let (program, words) = args.command.split_first().ok_or(WrapError::Nothing)?;
    let hosts = hosts(args.hosts.as_ref())?;
    runtime::block_on(async {
        let mut signals = Signals::listen()?;
        let mut command = Command::new(program);
        command.args(words).stdout(Stdio::piped()).env(LAUNCHER, "manual").env_remove(AUTOFORK).kill_on_drop(true);
        let mut mpiexec = command.spawn().map_err(|error| WrapError::Program { program: program.into(), error })?;
        let output = mpiexec.stdout.take();
        let mut wrapped = Wrapped { mpiexec, hosts, proxies: JoinSet::new() };
        let code = wrapped.serve(output, &mut signals).await;
        wrapped.end().await;
        code
    })?
}

/// Hosts in the order in which mpiexec numbers them, each once.
fn hosts(named: Option<&NamedHosts>) -> Result<Vec<String>, WrapError> {
    let hosts = match (named, std::env::var_os(HOST_FILE).filter(|file| !file.is_empty())) {
        (Some(NamedHosts::List(list)), _) => hostfile::parse_hosts(list)?,
        (Some(NamedHosts::File(file)), _) => hostfile::read(file)?,
        (None, Some(file)) => hostfile::read(file.as_ref())?,
        (None, None) => return Err(WrapError::NoHosts),
    };
    let mut seen = HashSet::new();
    Ok(hosts.names().into_iter().filter(|name| seen.insert(name.clone())).collect())
}

/// A running mpiexec, and its proxies.
struct Wrapped {
    mpiexec: Child,
    hosts: Vec<String>,
    /// Programs that start proxies, and run as long as their proxies. Each returns its host, and true if it has started a proxy.
    proxies: JoinSet<(String, bool)>,
}

impl Wrapped {
    /// Forwards the output of mpiexec, and starts the requested proxies, until mpiexec ends.
    async fn serve(&mut self, mut output: Option<ChildStdout>, signals: &mut Signals) -> Result<u8, WrapError> {
        let (mut lines, mut room) = (Lines::default(), vec![0; ROOM]);
        loop {
            let is_over = output.is_none();
            let read = async {
                match &mut output {
                    Some(output) => output.read(&mut room).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                length = read => match length? {
                    0 => output = None,
                    length => {
                        let asked = lines.take(&room[..length]);
                        if let code @ 1.. = print(&lines.passed())? {
                            // Standard output has no reader any more.
                            return Ok(code);
                        }
                        asked.iter().try_for_each(|line| self.start(line.proxy, &line.command))?;
                    }
                },
                status = self.mpiexec.wait(), if is_over => {
                    let code = print(&lines.rest())?;
                    return Ok(if code == 0 { exit::of_status(status?) } else { code });
                }
                Some(ended) = self.proxies.join_next() => if let Ok((host, false)) = ended {
                    return Err(WrapError::NotStarted { host });
                },
                arrival = signals.next() => match arrival {
                    Arrival::Everybody(_) => {}
                    Arrival::Us(signal) if TELLING.contains(&signal) => pass_on(&self.mpiexec, signal),
                    Arrival::Us(signal) => {
                        pass_on(&self.mpiexec, signal);
                        return Ok(exit::by_signal(signal as i32));
                    }
                },
            }
        }
    }

    /// Starts a proxy on its node.
    fn start(&mut self, proxy: usize, line: &str) -> Result<(), WrapError> {
        let count = self.hosts.len();
        let host = self.hosts.get(proxy).cloned().ok_or(WrapError::NoSuchHost { proxy, hosts: count })?;
        let mut command = std::process::Command::new(std::env::current_exe()?);
        // A signal of the terminal is for mpiexec alone, which ends its proxies.
        command.arg0(OWN_NAME).args(["-n", &host, line]).stdin(Stdio::null()).process_group(0);
        let mut shell = Command::from(command).kill_on_drop(true).spawn()?;
        self.proxies.spawn(async move {
            let started = shell.wait().await.is_ok_and(|status| status.success());
            (host, started)
        });
        Ok(())
    }

    /// Ends mpiexec and its proxies. A proxy without its mpiexec ends by itself.
    async fn end(&mut self) {
        pass_on(&self.mpiexec, Signal::SIGTERM);
        if timeout(END_WITHIN, self.mpiexec.wait()).await.is_err() {
            // mpiexec ignores all signals before its proxies are connected (measured).
            let _ = self.mpiexec.kill().await;
        }
        tokio::select! {
            () = async { while self.proxies.join_next().await.is_some() {} } => {}
            () = sleep(END_WITHIN) => self.proxies.shutdown().await,
        }
    }
}
