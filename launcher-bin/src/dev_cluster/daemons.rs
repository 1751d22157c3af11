//! The daemons of a cluster on this machine, from their start to their end.

use std::fs::{self, File};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rank_spawner::LaunchTag;
use tokio::time::{Instant, sleep};

use super::directory::Directory;
use super::isolation::Confinement;
use super::{API, FABRIC};

/// Time limit for the orderly stop of a daemon, which ends its launches first.
const STOP_WITHIN: Duration = Duration::from_secs(5);

/// Interval between checks for stopped daemons.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// Log filter of daemons.
const LOG: &str = "LATTICE_LOG";

/// Lines of a failed daemon's log that are shown.
const LOG_LINES: usize = 10;

/// Failure of a daemon.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DaemonError {
    /// Not started.
    #[error("cannot start {program} for {name}: {error}")]
    Start {
        /// Name of the daemon.
        name: String,
        /// Program of the daemon.
        program: PathBuf,
        /// Error of the system.
        error: io::Error,
    },
    /// Ended by itself.
    #[error("the daemon of {name} ended ({status}); it said:\n{log}")]
    Ended {
        /// Name of the daemon.
        name: String,
        /// How.
        status: ExitStatus,
        /// The last lines of its log.
        log: String,
    },
    /// Its files cannot be written.
    #[error("cannot write the files of {name}: {error}")]
    Files {
        /// Name of the daemon.
        name: String,
        /// Error of the system.
        error: io::Error,
    },
}

/// One daemon that was started.
#[derive(Debug)]
struct Daemon {
    name: String,
    child: Child,
    log: PathBuf,
}

/// All daemons that were started, in this order.
#[derive(Debug)]
pub(super) struct Daemons {
    running: Vec<Daemon>,
    tag: LaunchTag,
}

impl Daemons {
    /// No daemon yet; all of them will carry the tag.
    pub(super) fn new(tag: LaunchTag) -> Self {
        Self { running: Vec::new(), tag }
    }

    /// Starts a daemon, with its output in a log and its process number in a file.
    ///
    /// # Errors
    /// Fails if it does not start; that it works is another matter (see [`Daemons::check`]).
    pub(super) fn start(
        &mut self,
        name: &str,
        mut command: Command,
        directory: &Directory,
        birthplace: &Confinement<'_>,
    ) -> Result<(), DaemonError> {
        let files = |error| DaemonError::Files { name: name.to_owned(), error };
        let log = directory.log(name);
        Directory::write_private(&log, "").map_err(files)?;
        let output = File::options().append(true).open(&log).map_err(files)?;
        command.stdin(Stdio::null());
        command.stdout(output.try_clone().map_err(files)?).stderr(output);
        clean(&mut command);
        if std::env::var_os(LOG).is_none() {
            command.env(LOG, "info");
        }
        command.env(LaunchTag::VARIABLE, self.tag.value());
        // A Ctrl-C at the terminal is for the command; daemons are stopped in order.
        command.process_group(0);
        let child = birthplace.start(&mut command).map_err(|error| DaemonError::Start {
            name: name.to_owned(),
            program: command.get_program().into(),
            error,
        })?;
        fs::write(directory.pid(name), format!("{}\n", child.id())).map_err(files)?;
        self.running.push(Daemon { name: name.to_owned(), child, log });
        Ok(())
    }

    /// The process numbers of all daemons.
    pub(super) fn pids(&self) -> impl Iterator<Item = Pid> {
        self.running.iter().map(Daemon::pid)
    }

    /// Checks that all daemons run.
    ///
    /// # Errors
    /// Tells of the first one that does not.
    pub(super) fn check(&mut self) -> Result<(), DaemonError> {
        for daemon in &mut self.running {
            if let Ok(Some(status)) = daemon.child.try_wait() {
                let log = last_lines(&daemon.log);
                return Err(DaemonError::Ended { name: daemon.name.clone(), status, log });
            }
        }
        Ok(())
    }

    /// Stops all daemons in order: the agents first, then the API server they report to, then the fabric manager it asks.
    pub(super) async fn stop(self) {
        let (heads, agents): (Vec<_>, Vec<_>) =
            self.running.into_iter().partition(|daemon| [API, FABRIC].contains(&daemon.name.as_str()));
        stop_together(agents).await;
        for head in heads.into_iter().rev() {
            stop_together(vec![head]).await;
        }
    }
}

impl Daemon {
    fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id().cast_signed())
    }

    fn has_ended(&mut self) -> bool {
        // Whatever cannot be waited for is not there.
        !matches!(self.child.try_wait(), Ok(None))
    }
}

/// Asks all of them to stop, waits, and kills those that do not.
async fn stop_together(mut daemons: Vec<Daemon>) {
    daemons.retain_mut(|daemon| !daemon.has_ended());
    for daemon in &daemons {
        // A stopped process acts on no other signal; it is our child and not reaped, so the number is its own.
        let _ = kill(daemon.pid(), Signal::SIGTERM);
        let _ = kill(daemon.pid(), Signal::SIGCONT);
    }
    let deadline = Instant::now() + STOP_WITHIN;
    while !daemons.is_empty() && Instant::now() < deadline {
        sleep(LOOK_EVERY).await;
        daemons.retain_mut(|daemon| !daemon.has_ended());
    }
    for daemon in &mut daemons {
        let _ = daemon.child.kill();
        let _ = daemon.child.wait();
    }
}

/// Takes out what an outer cluster, an outer launch or a service would tell a daemon.
fn clean(command: &mut Command) {
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if (text.starts_with("LATTICE_") && text != LOG) || text == "NOTIFY_SOCKET" {
            command.env_remove(&name);
        }
    }
}

fn last_lines(log: &Path) -> String {
    let text = fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(LOG_LINES)..].join("\n")
}
