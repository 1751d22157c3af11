//! The command that runs in a private cluster: its environment, signals and end.

use std::ffi::{OsStr, OsString};
use std::io;
use std::time::Duration;

use lattice_console::exit;
use lattice_console::foreground::{Arrival, Signals, code_of, pass_on};
use lattice_dialects::mpirun_setup::MpirunSetup;
use nix::sys::signal::Signal;
use nix::unistd::Pid;
use rank_spawner::{LaunchTag, Orphans, SweepScope, reap_adopted};
use tokio::process::{Child, Command};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::sleep;

use super::PrivateClusterError;

/// Time limit for the end of the command after a signal.
const END_WITHIN: Duration = Duration::from_secs(3);

/// Words of a command in a cluster.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Words<'a> {
    /// Program and arguments; empty for the user's shell.
    Given(&'a [OsString]),
    /// This program again, with these words. The first word is the name under which it is called.
    OfThisProgram(&'a [OsString]),
}

/// A command that is ready to run.
#[derive(Debug)]
pub(crate) struct ClusterCommand<'a> {
    pub(super) words: Words<'a>,
    pub(super) environment: Vec<(&'static str, OsString)>,
    /// Variables and files with which MPI launchers reach the nodes.
    pub(super) mpirun: Option<MpirunSetup>,
    /// The daemons, which are not orphans to reap.
    pub(super) daemons: Vec<Pid>,
    pub(super) keeper: Pid,
    pub(super) tag: &'a LaunchTag,
}

impl ClusterCommand<'_> {
    /// Starts the command by `start`. Returns its exit code at its end, as a shell does.
    ///
    /// A signal of the terminal reaches the command directly, and the command decides how to react. This process continues, as a shell
    /// does. Any other signal is passed on. A signal to end also ends the cluster soon after, whatever the command does. The exception is a
    /// command that is this program: it ends its launch within the `--kill-wait` of the ranks, and at once on a second signal.
    ///
    /// # Errors
    /// Fails if the command cannot be started.
    pub(crate) async fn run(
        &self,
        signals: &mut Signals,
        start: impl FnOnce(&mut Command) -> io::Result<Child>,
    ) -> Result<u8, PrivateClusterError> {
        let run = async {
            let mut ended_children = signal(SignalKind::child())?;
            let mut child = self.start(start)?;
            loop {
                tokio::select! {
                    status = child.wait() => return Ok(code_of(status?, signals).await),
                    arrival = signals.next() => match arrival {
                        Arrival::Everybody(_) => {}
                        Arrival::Us(number) if self.decides(number) => pass_on(&child, number),
                        Arrival::Us(number) => return end(&mut child, number, signals).await,
                    },
                    _ = ended_children.recv() => self.reap(&child),
                }
            }
        };
        run.await.map_err(|error| PrivateClusterError::Command { command: self.name(), error })
    }

    /// True if the command decides how to react to this signal, which a process sent to this process.
    fn decides(&self, signal: Signal) -> bool {
        matches!(self.words, Words::OfThisProgram(_)) || !matches!(signal, Signal::SIGTERM | Signal::SIGHUP)
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

    /// Reaps orphans of the command. This process adopts them, and they would fill the process table.
    fn reap(&self, child: &Child) {
        let mut except = self.daemons.clone();
        except.push(self.keeper);
        except.extend(child.id().map(|pid| Pid::from_raw(pid.cast_signed())));
        let belongings = SweepScope { tag: self.tag, ranks: &[], orphans: Orphans::Claim { except: &except } };
        // A later call reaps the remaining orphans.
        let _ = reap_adopted(&belongings);
    }
}

fn with(mut command: Command, arguments: &[OsString]) -> Command {
    command.args(arguments);
    command
}

/// Passes the signal on, and waits for the end of the command, with a time limit.
async fn end(child: &mut Child, number: Signal, signals: &mut Signals) -> io::Result<u8> {
    pass_on(child, number);
    tokio::select! {
        status = child.wait() => Ok(code_of(status?, signals).await),
        () = sleep(END_WITHIN) => Ok(exit::by_signal(number as i32)),
    }
}

/// `PATH` with the directory of this program first, so that the command finds the `lattice` that created its cluster.
fn path_with_us() -> io::Result<OsString> {
    let program = std::env::current_exe()?;
    let ours = program.parent().map(OsStr::new).unwrap_or_default().to_owned();
    let theirs = std::env::var_os("PATH").unwrap_or_default();
    let all = std::iter::once(ours.into()).chain(std::env::split_paths(&theirs));
    std::env::join_paths(all).map_err(io::Error::other)
}
