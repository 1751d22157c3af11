//! `lattice mpiexec --wrap`: serves an `mpiexec` of Hydra under `HYDRA_LAUNCHER=manual`, which prints a line for each node that a proxy is to be
//! started on, and waits until somebody has done that.
//!
//! ```text
//! mpiexec ── "HYDRA_LAUNCH: /p/hydra_pmi_proxy ... --proxy-id 2" ──> this program ── lattice-mpi-launcher HOST ──> agent of the third host
//!         ── what ranks print ──────────────────────────────────────────────┴─> standard output
//! ```
//!
//! The lines name no host: proxy N is for the host with that index in the list that mpiexec has been given (measured with MPICH 4.0 and 5.0).
//! `HYDRA_LAUNCHER_AUTOFORK=0` is taken out, for every Hydra aborts on it.

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

/// Variables of Hydra: who starts its proxies, one that makes it abort, and the file with its hosts.
const LAUNCHER: &str = "HYDRA_LAUNCHER";
const AUTOFORK: &str = "HYDRA_LAUNCHER_AUTOFORK";
const HOST_FILE: &str = "HYDRA_HOST_FILE";
/// Bytes of output that are read at once.
const ROOM: usize = 64 << 10;
/// Time for mpiexec to end on SIGTERM, and for its proxies to end with it.
const END_WITHIN: Duration = Duration::from_secs(3);

/// An `mpiexec` that cannot be served.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WrapError {
    /// Nothing is wrapped.
    #[error("--wrap needs the mpiexec to call\ntry: lattice mpiexec --wrap mpiexec -n 4 ./a.out")]
    Nothing,
    /// Nobody names hosts.
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
    /// It cannot be run.
    #[error("cannot run {}: {error}", program.display())]
    Program {
        /// The program.
        program: PathBuf,
        /// Error of the system.
        error: io::Error,
    },
    /// mpiexec wants more hosts than it has been given.
    #[error("mpiexec starts proxy {proxy}, and was given {hosts} hosts")]
    NoSuchHost {
        /// Number of the proxy.
        proxy: usize,
        /// Number of hosts.
        hosts: usize,
    },
    /// A proxy does not run, and mpiexec would wait for it for ever.
    #[error("no proxy was started on {host}, so mpiexec is ended")]
    NotStarted {
        /// The host.
        host: String,
    },
    /// Standard output cannot be written to.
    #[error(transparent)]
    Output(#[from] OutputError),
    /// The system refused something.
    #[error("cannot serve mpiexec: {0}")]
    System(#[from] io::Error),
}

/// Runs the line to its end; returns the exit code of its mpiexec.
///
/// # Errors
/// Fails if it cannot be run, or one of its proxies is not started.
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

/// The hosts in the order in which mpiexec numbers them, each once.
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

/// An mpiexec that runs, and its proxies.
struct Wrapped {
    mpiexec: Child,
    hosts: Vec<String>,
    /// Programs that start proxies, which live as long as those; each ends with its host, and true if it has started one.
    proxies: JoinSet<(String, bool)>,
}

impl Wrapped {
    /// Passes on what it prints, and starts what it asks for, until it ends.
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
                            // Nobody reads any more.
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
        // A signal of the terminal is for mpiexec, which ends its proxies.
        command.arg0(OWN_NAME).args(["-n", &host, line]).stdin(Stdio::null()).process_group(0);
        let mut shell = Command::from(command).kill_on_drop(true).spawn()?;
        self.proxies.spawn(async move {
            let started = shell.wait().await.is_ok_and(|status| status.success());
            (host, started)
        });
        Ok(())
    }

    /// Sees to it that mpiexec and its proxies end. A proxy that loses its mpiexec ends by itself.
    async fn end(&mut self) {
        pass_on(&self.mpiexec, Signal::SIGTERM);
        if timeout(END_WITHIN, self.mpiexec.wait()).await.is_err() {
            // It heeds no signal before its proxies are there (measured).
            let _ = self.mpiexec.kill().await;
        }
        tokio::select! {
            () = async { while self.proxies.join_next().await.is_some() {} } => {}
            () = sleep(END_WITHIN) => self.proxies.shutdown().await,
        }
    }
}
