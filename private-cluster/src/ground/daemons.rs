//! Daemons of a private cluster on the machine of its user, and programs that start daemons on other machines, from start to end.

use pmi_transport::task;
use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rank_spawner::{Keeper, LaunchTag, write_own_file};
use tokio::io::AsyncWriteExt;
use tokio::process::ChildStdin;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep, timeout};

use super::directory::Directory;
use super::log_end::{last_lines, said};

/// Time limit for the orderly stop of a daemon, which ends its launches first.
const STOP_WITHIN: Duration = Duration::from_secs(5);

/// Interval between checks for stopped daemons, in case a signal of their ends is missed.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Variable with the log filter of daemons.
const LOG: &str = "LATTICE_LOG";

/// Failure of a daemon.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DaemonError {
    /// The daemon was not started.
    #[error("cannot start {program} for {name}: {error}")]
    Start {
        /// Name of the daemon.
        name: String,
        /// Program of the daemon.
        program: PathBuf,
        /// System error.
        error: io::Error,
    },
    /// The daemon ended by itself.
    #[error("the daemon of {name} ended ({status}); {}", said(log))]
    Ended {
        /// Name of the daemon.
        name: String,
        /// Exit status of the daemon.
        status: ExitStatus,
        /// Last lines of its log.
        log: String,
    },
    /// Its files cannot be written.
    #[error("cannot write the files of {name}: {error}")]
    Files {
        /// Name of the daemon.
        name: String,
        /// System error.
        error: io::Error,
    },
}

/// Place of a daemon in the order of the stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// A daemon to which other daemons report. It is stopped after them, and after heads that were started later.
    Head,
    /// A node's agent, or a program that starts agents.
    Agent,
}

/// A started daemon.
#[derive(Debug)]
struct Daemon {
    name: String,
    role: Role,
    child: Child,
    log: PathBuf,
    /// Task that holds its standard input open, if it has one.
    feeding: Option<AbortHandle>,
}

/// All started daemons, in start order.
#[derive(Debug)]
pub(crate) struct Daemons<'k> {
    running: Vec<Daemon>,
    tag: LaunchTag,
    /// Kills the remaining daemons if this process is killed.
    keeper: Option<&'k Keeper>,
}

impl<'k> Daemons<'k> {
    /// No daemon yet. Later daemons get the tag, and the keeper guards them.
    pub(crate) fn new(tag: LaunchTag, keeper: Option<&'k Keeper>) -> Self {
        Self { running: Vec::new(), tag, keeper }
    }

    /// Starts a daemon by `spawn`. Its output goes to a log, and its process number to a file.
    ///
    /// # Errors
    /// Fails if it does not start. [`Daemons::check`] detects a later failure.
    pub(crate) fn start(
        &mut self,
        (name, role): (&str, Role),
        mut command: Command,
        directory: &Directory,
        spawn: impl FnOnce(&mut Command) -> io::Result<Child>,
    ) -> Result<(), DaemonError> {
        command.stdin(Stdio::null());
        self.start_with_input((name, role), command, directory, spawn)
    }

    /// Starts a program, and writes `input` to its standard input as soon as `input` is known. The end of the input requests the end of the
    /// program. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// As [`Daemons::start`].
    pub(crate) fn start_fed(
        &mut self,
        name: &str,
        mut command: Command,
        directory: &Directory,
        input: impl Future<Output = String> + Send + 'static,
    ) -> Result<(), DaemonError> {
        command.stdin(Stdio::piped());
        self.start_with_input((name, Role::Agent), command, directory, Command::spawn)?;
        let started = self.running.last_mut().and_then(|daemon| Some((daemon.child.stdin.take()?, daemon)));
        let Some((stdin, daemon)) = started else { return Ok(()) };
        let stdin = ChildStdin::from_std(stdin);
        let mut stdin = stdin.map_err(|error| DaemonError::Files { name: name.to_owned(), error })?;
        let feeding = task::spawn(async move {
            // If the program does not read its input, it is detected by its end, or by missing agents.
            let _ = stdin.write_all(input.await.as_bytes()).await;
            std::future::pending::<()>().await;
        });
        daemon.feeding = Some(feeding.abort_handle());
        Ok(())
    }

    fn start_with_input(
        &mut self,
        (name, role): (&str, Role),
        mut command: Command,
        directory: &Directory,
        spawn: impl FnOnce(&mut Command) -> io::Result<Child>,
    ) -> Result<(), DaemonError> {
        let files = |error| DaemonError::Files { name: name.to_owned(), error };
        let output = directory.open_log(name).map_err(files)?;
        command.stdout(output.try_clone().map_err(files)?).stderr(output);
        clean(&mut command);
        if std::env::var_os(LOG).is_none() {
            command.env(LOG, "info");
        }
        command.env(LaunchTag::VARIABLE, self.tag.value());
        // A Ctrl-C at the terminal is for the command. Daemons are stopped in order.
        command.process_group(0);
        let child = spawn(&mut command).map_err(|error| DaemonError::Start {
            name: name.to_owned(),
            program: command.get_program().into(),
            error,
        })?;
        let pid = child.id();
        // From here on, the daemon is stopped with the other daemons, whatever fails.
        self.running.push(Daemon { name: name.to_owned(), role, child, log: directory.log(name), feeding: None });
        // The keeper needs the pid: only root can read the environment of daemons, and the tag in it.
        if let Some(keeper) = self.keeper {
            keeper.guard_leader(Pid::from_raw(pid as i32)).map_err(|errno| files(errno.into()))?;
        }
        write_own_file(&directory.pid(name), 0o644, format!("{pid}\n").as_bytes()).map_err(files)
    }

    /// Process numbers of all daemons.
    pub(crate) fn pids(&self) -> impl Iterator<Item = Pid> {
        self.running.iter().map(Daemon::pid)
    }

    /// Checks that all daemons run.
    ///
    /// # Errors
    /// Returns the first daemon that does not run.
    pub(crate) fn check(&mut self) -> Result<(), DaemonError> {
        Self::check_all(self.running.iter_mut())
    }

    /// Checks that all [heads](Role::Head) run.
    ///
    /// # Errors
    /// Returns the first one that does not run.
    pub(crate) fn check_heads(&mut self) -> Result<(), DaemonError> {
        Self::check_all(self.running.iter_mut().filter(|daemon| daemon.role == Role::Head))
    }

    fn check_all<'a>(daemons: impl Iterator<Item = &'a mut Daemon>) -> Result<(), DaemonError> {
        for daemon in daemons {
            if let Ok(Some(status)) = daemon.child.try_wait() {
                let log = last_lines(&daemon.log);
                return Err(DaemonError::Ended { name: daemon.name.clone(), status, log });
            }
        }
        Ok(())
    }

    /// Exit status of a daemon that has ended.
    pub(crate) fn end_of(&mut self, name: &str) -> Option<ExitStatus> {
        self.running.iter_mut().find(|daemon| daemon.name == name)?.child.try_wait().ok().flatten()
    }

    /// Last lines of the log of a daemon; empty for a daemon that was not started.
    pub(crate) fn last_lines_of(&self, name: &str) -> String {
        let daemon = self.running.iter().find(|daemon| daemon.name == name);
        daemon.map_or_else(String::new, |daemon| last_lines(&daemon.log))
    }

    /// Stops all daemons in order: first the agents, then the heads.
    pub(crate) async fn stop(self) {
        let (heads, agents): (Vec<_>, Vec<_>) = self.running.into_iter().partition(|daemon| daemon.role == Role::Head);
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
        // A process for which no wait is possible does not exist.
        !matches!(self.child.try_wait(), Ok(None))
    }
}

/// Asks all daemons to stop, waits, and kills the remaining ones. For a program with an input, the end of the input is the first request: a
/// signal may end a program before the daemons that it started.
async fn stop_together(daemons: Vec<Daemon>) {
    daemons.iter().filter_map(|daemon| daemon.feeding.as_ref()).for_each(AbortHandle::abort);
    let (mut fed, mut others): (Vec<_>, Vec<_>) = daemons.into_iter().partition(|daemon| daemon.feeding.is_some());
    wait_for(&mut fed).await;
    others.append(&mut fed);
    let mut daemons = others;
    daemons.retain_mut(|daemon| !daemon.has_ended());
    for daemon in &daemons {
        // A stopped process handles no other signal. The pid is still valid, as this process has not reaped the child.
        let _ = kill(daemon.pid(), Signal::SIGTERM);
        let _ = kill(daemon.pid(), Signal::SIGCONT);
    }
    wait_for(&mut daemons).await;
    for daemon in &mut daemons {
        let _ = daemon.child.kill();
        let _ = daemon.child.wait();
    }
}

/// Waits for the end of all daemons, with a time limit. Keeps only the daemons that have not ended.
async fn wait_for(daemons: &mut Vec<Daemon>) {
    let deadline = Instant::now() + STOP_WITHIN;
    // Before the first check, so that no end falls between check and wait.
    let mut ended_children = signal(SignalKind::child()).ok();
    daemons.retain_mut(|daemon| !daemon.has_ended());
    while !daemons.is_empty() && Instant::now() < deadline {
        match &mut ended_children {
            Some(ended) => drop(timeout(LOOK_EVERY, ended.recv()).await),
            None => sleep(LOOK_EVERY).await,
        }
        daemons.retain_mut(|daemon| !daemon.has_ended());
    }
}

/// Removes variables of an outer cluster, an outer launch or a service manager that would influence a daemon.
fn clean(command: &mut Command) {
    let set: Vec<OsString> = command.get_envs().map(|(name, _)| name.to_owned()).collect();
    for (name, _) in std::env::vars_os().filter(|(name, _)| !set.contains(name)) {
        let text = name.to_string_lossy();
        if (text.starts_with("LATTICE_") && text != LOG) || text == "NOTIFY_SOCKET" {
            command.env_remove(&name);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use pmi_core::ids::JobId;

    use super::super::directory::Access;
    use super::*;

    const API: &str = "api";
    const FABRIC: &str = "fabric";

    fn role(name: &str) -> Role {
        if [API, FABRIC].contains(&name) { Role::Head } else { Role::Agent }
    }

    /// Daemons that are shell scripts, with their own directory.
    struct Scripts {
        directory: Directory,
        daemons: Daemons<'static>,
    }

    impl Scripts {
        fn new() -> Self {
            let tag = LaunchTag::new(JobId::new("lattice-dev-test").unwrap());
            Self { directory: Directory::create(Access::Owner).unwrap(), daemons: Daemons::new(tag, None) }
        }

        fn start(&mut self, name: &str, script: &str) -> Result<(), DaemonError> {
            let mut command = Command::new("sh");
            command.arg("-c").arg(script).current_dir(self.directory.path());
            self.daemons.start((name, role(name)), command, &self.directory, Command::spawn)
        }

        /// Starts a daemon that writes its name on SIGTERM; returns when it handles the signal.
        fn start_faithful(&mut self, name: &str) {
            let script = format!("trap 'echo {name} >> stopped; exit' TERM; echo up; while :; do sleep 0.01; done");
            self.start(name, &script).unwrap();
            while fs::read_to_string(self.directory.log(name)).unwrap().is_empty() {
                std::thread::yield_now();
            }
        }
    }

    #[test]
    fn a_daemon_that_ended_is_told_with_the_last_lines_of_its_log() {
        let mut scripts = Scripts::new();
        scripts.start("node3", "for i in 1 2 3 4 5 6 7 8 9 10 11 12; do echo line $i; done; exit 7").unwrap();
        let error = loop {
            match scripts.daemons.check() {
                Ok(()) => std::thread::yield_now(),
                Err(error) => break error.to_string(),
            }
        };
        let lines: Vec<String> = (3..=12).map(|number| format!("line {number}")).collect();
        assert_eq!(error, format!("the daemon of node3 ended (exit status: 7); its log ends:\n{}", lines.join("\n")));
        scripts.directory.remove().unwrap();
    }

    #[test]
    fn a_program_that_is_missing_is_named_with_its_daemon() {
        let mut scripts = Scripts::new();
        let command = Command::new("/nonexistent/lattice-agent");
        let error =
            scripts.daemons.start(("node3", Role::Agent), command, &scripts.directory, Command::spawn).unwrap_err();
        let expected = "cannot start /nonexistent/lattice-agent for node3: No such file or directory (os error 2)";
        assert_eq!(error.to_string(), expected);
        assert_eq!(scripts.daemons.pids().count(), 0);
        scripts.directory.remove().unwrap();
    }

    /// An agent reports the end of its launches to the API server, which returns resources to the fabric manager.
    #[tokio::test]
    async fn agents_stop_before_the_api_server_and_that_before_the_fabric_manager() {
        let mut scripts = Scripts::new();
        for name in [FABRIC, API, "node0", "node1"] {
            scripts.start_faithful(name);
        }
        assert!(scripts.daemons.check().is_ok());
        let Scripts { directory, daemons } = scripts;
        daemons.stop().await;
        let stopped = fs::read_to_string(directory.path().join("stopped")).unwrap();
        let mut stopped: Vec<&str> = stopped.lines().collect();
        stopped[..2].sort_unstable();
        assert_eq!(stopped, ["node0", "node1", API, FABRIC]);
        directory.remove().unwrap();
    }

    /// Programs that start agents elsewhere pass the end of input on. A signal might leave the agents running.
    #[tokio::test]
    async fn a_program_with_input_is_asked_to_end_by_its_end() {
        let mut scripts = Scripts::new();
        let mut command = Command::new("sh");
        command.args([
            "-c",
            "trap 'echo signal >> stopped' TERM; read line; echo $line > heard; cat; echo left >> stopped",
        ]);
        command.current_dir(scripts.directory.path());
        scripts.daemons.start_fed("node0", command, &scripts.directory, async { "told\n".to_owned() }).unwrap();
        let Scripts { directory, daemons } = scripts;
        let heard = directory.path().join("heard");
        while !fs::read_to_string(&heard).is_ok_and(|text| text == "told\n") {
            tokio::task::yield_now().await;
        }
        daemons.stop().await;
        assert_eq!(fs::read_to_string(directory.path().join("stopped")).unwrap(), "left\n");
        directory.remove().unwrap();
    }

    #[tokio::test]
    async fn a_daemon_leaves_its_number_and_a_log_that_is_its_owners() {
        let mut scripts = Scripts::new();
        scripts.start_faithful("node0");
        let pid = scripts.daemons.pids().next().unwrap();
        assert_eq!(fs::read_to_string(scripts.directory.pid("node0")).unwrap(), format!("{pid}\n"));
        let mode = fs::metadata(scripts.directory.log("node0")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let Scripts { directory, daemons } = scripts;
        daemons.stop().await;
        directory.remove().unwrap();
    }

    #[tokio::test]
    async fn a_daemon_whose_number_cannot_be_written_is_stopped_with_the_others() {
        let mut scripts = Scripts::new();
        // As on a full disk.
        fs::create_dir(scripts.directory.pid("node0")).unwrap();
        let failed = scripts.start("node0", "exec sleep 1000").unwrap_err();
        assert!(matches!(failed, DaemonError::Files { .. }), "{failed}");
        let pid = scripts.daemons.pids().next().expect("it runs");
        let Scripts { directory, daemons } = scripts;
        daemons.stop().await;
        assert_eq!(kill(pid, None), Err(nix::errno::Errno::ESRCH));
        directory.remove().unwrap();
    }

    #[tokio::test]
    async fn a_daemon_carries_the_mark_of_its_cluster_and_nothing_of_an_outer_one() {
        let mut scripts = Scripts::new();
        let mut command = Command::new("sh");
        command.args(["-c", "echo $LATTICE_LAUNCH_ID; exec sleep 1000"]);
        scripts.daemons.start(("node0", Role::Agent), command, &scripts.directory, Command::spawn).unwrap();
        let log = scripts.directory.log("node0");
        while fs::read_to_string(&log).unwrap().is_empty() {
            std::thread::yield_now();
        }
        assert_eq!(fs::read_to_string(&log).unwrap(), "lattice-dev-test\n");
        let Scripts { directory, daemons } = scripts;
        daemons.stop().await;
        directory.remove().unwrap();
    }
}
