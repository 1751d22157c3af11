//! The command that runs in a private cluster: its environment, its signals, its end.

use std::ffi::{OsStr, OsString};
use std::io;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rank_spawner::{LaunchTag, Orphans, SweepScope, reap_adopted};
use tokio::process::{Child, Command};
use tokio::signal::unix::{Signal as Stream, SignalKind, signal};
use tokio::time::sleep;

use super::PrivateClusterError;
use crate::exit;
use crate::mpirun_setup::MpirunSetup;

/// Time limit for the end of the command after a signal.
const END_WITHIN: Duration = Duration::from_secs(3);

/// The signals by which somebody wants this program to end, and that of ended children.
#[derive(Debug)]
pub(crate) struct Signals {
    interrupt: Stream,
    quit: Stream,
    terminate: Stream,
    hang_up: Stream,
    child: Stream,
}

impl Signals {
    /// From here on these signals are heard, and end us by themselves no more.
    pub(super) fn listen() -> io::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            quit: signal(SignalKind::quit())?,
            terminate: signal(SignalKind::terminate())?,
            hang_up: signal(SignalKind::hangup())?,
            child: signal(SignalKind::child())?,
        })
    }

    /// Waits until somebody wants this program to end; returns by which signal.
    pub(crate) async fn any(&mut self) -> Signal {
        tokio::select! {
            number = terminal(&mut self.interrupt, &mut self.quit) => number,
            number = meant_for_us(&mut self.terminate, &mut self.hang_up) => number,
        }
    }
}

/// Signals that a terminal sends to the command as well.
async fn terminal(interrupt: &mut Stream, quit: &mut Stream) -> Signal {
    tokio::select! {
        _ = interrupt.recv() => Signal::SIGINT,
        _ = quit.recv() => Signal::SIGQUIT,
    }
}

/// Signals that reach this process alone.
async fn meant_for_us(terminate: &mut Stream, hang_up: &mut Stream) -> Signal {
    tokio::select! {
        _ = terminate.recv() => Signal::SIGTERM,
        _ = hang_up.recv() => Signal::SIGHUP,
    }
}

/// A command that somebody runs in a cluster.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Words<'a> {
    /// Program and arguments; none for the user's shell.
    Given(&'a [OsString]),
    /// This program again, called as these words say, the first of which is the name that it goes by.
    OfThisProgram(&'a [OsString]),
}

/// A command, as it is to run.
#[derive(Debug)]
pub(crate) struct ClusterCommand<'a> {
    pub(super) words: Words<'a>,
    pub(super) environment: Vec<(&'static str, OsString)>,
    /// What launchers of MPI need to reach the nodes.
    pub(super) mpirun: Option<MpirunSetup>,
    /// The daemons, which are nobody's orphans.
    pub(super) daemons: Vec<Pid>,
    pub(super) keeper: Pid,
    pub(super) tag: &'a LaunchTag,
}

impl ClusterCommand<'_> {
    /// Has `start` start the command, and returns its exit code at its end, as a shell does.
    ///
    /// A signal of the terminal reaches the command by itself, which decides what it means; we go on as a shell does. Any
    /// other is passed on, and ends the cluster soon thereafter whatever the command makes of it.
    ///
    /// # Errors
    /// Fails if the command cannot be started.
    pub(crate) async fn run(
        &self,
        signals: &mut Signals,
        start: impl FnOnce(&mut Command) -> io::Result<Child>,
    ) -> Result<u8, PrivateClusterError> {
        let run = async {
            let mut child = self.start(start)?;
            loop {
                tokio::select! {
                    status = child.wait() => return Ok(exit::of_status(status?)),
                    _ = terminal(&mut signals.interrupt, &mut signals.quit) => {}
                    number = meant_for_us(&mut signals.terminate, &mut signals.hang_up) => return end(&mut child, number).await,
                    _ = signals.child.recv() => self.reap(&child),
                }
            }
        };
        run.await.map_err(|error| PrivateClusterError::Command { command: self.name(), error })
    }

    fn name(&self) -> String {
        let (Words::Given(words) | Words::OfThisProgram(words)) = self.words;
        words.first().map_or("your shell".into(), |word| word.to_string_lossy().into_owned())
    }

    fn start(&self, start: impl FnOnce(&mut Command) -> io::Result<Child>) -> io::Result<Child> {
        let mut command = match self.words {
            Words::Given([]) => Command::new(std::env::var_os("SHELL").unwrap_or_else(|| "/bin/sh".into())),
            Words::Given([program, arguments @ ..]) => with(Command::new(program), arguments),
            Words::OfThisProgram(words) => {
                let (name, arguments) =
                    words.split_first().map_or((OsStr::new("lattice"), &[][..]), |(name, rest)| (name, rest));
                let mut command = with(Command::new(std::env::current_exe()?), arguments);
                command.arg0(name);
                command
            }
        };
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        let mut path = path_with_us()?;
        if let Some(mpirun) = &self.mpirun {
            command.envs(mpirun.variables());
            path = mpirun.path(&path)?;
        }
        start(command.env("PATH", path))
    }

    /// Reaps orphans of the command, which this process adopts and which would fill the table of processes.
    fn reap(&self, child: &Child) {
        let mut except = self.daemons.clone();
        except.push(self.keeper);
        except.extend(child.id().map(|pid| Pid::from_raw(pid.cast_signed())));
        let belongings = SweepScope { tag: self.tag, ranks: &[], orphans: Orphans::Claim { except: &except } };
        // What is not reaped now is reaped next time.
        let _ = reap_adopted(&belongings);
    }
}

fn with(mut command: Command, arguments: &[OsString]) -> Command {
    command.args(arguments);
    command
}

/// Passes the signal on, and waits for the end, but not for ever.
async fn end(child: &mut Child, number: Signal) -> io::Result<u8> {
    if let Some(pid) = child.id() {
        // It may end this very moment.
        let _ = kill(Pid::from_raw(pid.cast_signed()), number);
    }
    tokio::select! {
        status = child.wait() => Ok(exit::of_status(status?)),
        () = sleep(END_WITHIN) => Ok(exit::by_signal(number as i32)),
    }
}

/// `PATH` with the directory of this program in front, so that the command finds the `lattice` that made its cluster.
fn path_with_us() -> io::Result<OsString> {
    let program = std::env::current_exe()?;
    let ours = program.parent().map(OsStr::new).unwrap_or_default().to_owned();
    let theirs = std::env::var_os("PATH").unwrap_or_default();
    let all = std::iter::once(ours.into()).chain(std::env::split_paths(&theirs));
    std::env::join_paths(all).map_err(io::Error::other)
}
