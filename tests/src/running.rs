//! A running command. Its output is collected while it runs, so that it never waits for the test.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::process::{Child, ChildStdout, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;

use crate::command::Command;
use crate::outcome::Outcome;
use crate::peer_faults;
use crate::processes::{self, MARK};
use crate::terminal::Terminal;

/// Time limit for processes other than ranks after the end of the launcher. The process that watches the launcher must detect its end.
const KEEPER_LEAVES_WITHIN: Duration = Duration::from_secs(10);
/// Interval between checks of a state that sends no event.
pub const LOOK_EVERY: Duration = Duration::from_millis(5);

/// Flag of `env`, which starts every command. A test runner in the background of a script ignores SIGINT, and one under `nohup` ignores
/// SIGHUP. A launch would inherit this.
const DEFAULT_SIGNALS: &str = "--default-signal";

/// A started command. The test must call [`Self::finish`].
#[derive(Debug)]
pub struct Running {
    command: Command,
    child: Child,
    /// Standard input, if the test writes to it while the command runs.
    typing: Option<File>,
    /// Its terminal, if it has one.
    terminal: Option<Arc<Terminal>>,
    started: Instant,
    stdout: Arc<Stream>,
    stderr: Arc<Stream>,
    helpers: Vec<JoinHandle<()>>,
    killed: bool,
    /// Removed together with the command. It hides launches of other tests.
    _runtime: TempDir,
}

/// Output of a command on one of its streams so far.
#[derive(Debug, Default)]
struct Stream {
    bytes: Mutex<Vec<u8>>,
    grown: Condvar,
}

impl Command {
    /// Starts the command.
    #[track_caller]
    pub fn start(self) -> Running {
        Running::new(self)
    }

    /// Runs the command to its end, and checks that no process or file of it is left. A command that shows a [fault of a peer](peer_faults) is
    /// repeated.
    ///
    /// # Panics
    /// Panics if the deadline passes, or if anything is left.
    #[track_caller]
    pub fn run(self) -> Outcome {
        peer_faults::run(&self)
    }
}

impl Running {
    #[track_caller]
    pub(crate) fn new(command: Command) -> Self {
        let terminal = command.terminal.map(|(rows, columns)| Arc::new(Terminal::open(rows, columns)));
        let mut process = std::process::Command::new("env");
        process.arg(DEFAULT_SIGNALS).args(terminal.iter().flat_map(|_| Terminal::FIRST_PROCESS));
        process.arg(&command.program).args(&command.arguments).env(MARK, &command.mark);
        // The test itself may run under a launcher.
        for (name, _) in std::env::vars_os() {
            let text = name.to_string_lossy();
            if ["LATTICE_", "PMI_", "PMIX_"].iter().any(|prefix| text.starts_with(prefix)) {
                process.env_remove(&name);
            }
        }
        // All launches of a user find the names that ranks publish. A separate directory isolates the tests.
        process.env("LATTICE_SETS", command.sets());
        for (name, value) in &command.environment {
            match value {
                Some(value) => process.env(name, value),
                None => process.env_remove(name),
            };
        }
        if let Some(directory) = &command.directory {
            process.current_dir(directory);
        }
        let runtime = tempfile::tempdir().expect("the directory for temporary files can be written to");
        process.env("XDG_RUNTIME_DIR", runtime.path());
        let has_input = command.is_typed_to || !command.input.is_empty();
        match &terminal {
            Some(terminal) => terminal.give_to(&mut process),
            None => {
                process.stdin(if has_input { Stdio::piped() } else { Stdio::null() });
                process.stdout(Stdio::piped()).stderr(Stdio::piped());
            }
        }
        let started = Instant::now();
        let mut child = process.spawn().unwrap_or_else(|error| panic!("cannot start {command}: {error}"));
        let (stdout, stderr) = (Arc::<Stream>::default(), Arc::<Stream>::default());
        let mut helpers = Vec::new();
        if command.reads_output {
            helpers.extend(child.stdout.take().map(|pipe| stdout.collect(pipe)));
        }
        helpers.extend(child.stderr.take().map(|pipe| stderr.collect(pipe)));
        let typing = match &terminal {
            Some(terminal) => {
                helpers.push(stdout.collect(terminal.screen()));
                Some(terminal.keyboard())
            }
            None if command.is_typed_to => child.stdin.take().map(|pipe| File::from(OwnedFd::from(pipe))),
            None => None,
        };
        // Only the command has the descriptors, so that its end is detected.
        drop(process);
        if let Some(mut pipe) = child.stdin.take() {
            let input = command.input.clone();
            // A command may end before it has read all input; this is a case to test.
            helpers.push(thread::spawn(move || drop(pipe.write_all(&input))));
        }
        Self { command, child, typing, terminal, started, stdout, stderr, helpers, killed: false, _runtime: runtime }
    }

    /// Returns the process id of the command.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal to the command. After SIGKILL its ranks have some time to end.
    pub fn signal(&mut self, signal: Signal) {
        self.killed |= signal == Signal::SIGKILL;
        kill(Pid::from_raw(self.child.id().cast_signed()), signal).expect("the command still runs");
    }

    /// Writes to standard input.
    pub fn type_in(&mut self, text: &str) {
        let input = self.typing.as_mut().expect("only a command with `typed_to` can be typed to");
        input.write_all(text.as_bytes()).expect("the command still reads");
    }

    /// Returns the terminal of the command.
    pub fn terminal(&self) -> Arc<Terminal> {
        Arc::clone(self.terminal.as_ref().expect("only a command with `on_terminal` has a terminal"))
    }

    /// Returns the read end of standard output, if the test reads it directly.
    pub fn output(&mut self) -> ChildStdout {
        self.child.stdout.take().expect("only a command with `leave_output` has its output left, and once")
    }

    /// Returns the standard output so far.
    pub fn said(&self) -> String {
        String::from_utf8_lossy(&self.stdout.lock()).into_owned()
    }

    /// Waits until standard output contains `text`. Returns the time of its detection.
    #[track_caller]
    pub fn wait_for_stdout(&mut self, text: &str) -> Instant {
        self.wait_for_stdout_times(text, 1)
    }

    /// Waits until standard output contains `text` this number of times.
    #[track_caller]
    pub fn wait_for_stdout_times(&mut self, text: &str, times: usize) -> Instant {
        let stream = Arc::clone(&self.stdout);
        self.wait_for(&stream, text, times)
    }

    /// Waits until standard error contains `text`. Returns the time of its detection.
    #[track_caller]
    pub fn wait_for_stderr(&mut self, text: &str) -> Instant {
        let stream = Arc::clone(&self.stderr);
        self.wait_for(&stream, text, 1)
    }

    #[track_caller]
    fn wait_for(&mut self, stream: &Stream, text: &str, times: usize) -> Instant {
        let end = self.started + self.command.deadline;
        let mut bytes = stream.lock();
        while String::from_utf8_lossy(&bytes).matches(text).count() < times {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                drop(bytes);
                self.give_up(&format!("did not say {text:?} {times} times"));
            }
            let woken = stream.grown.wait_timeout(bytes, left);
            bytes = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
        Instant::now()
    }

    /// Waits until `condition` holds.
    #[track_caller]
    pub fn wait_until(&mut self, what: &str, mut condition: impl FnMut() -> bool) {
        let end = self.started + self.command.deadline;
        while !condition() {
            if Instant::now() >= end {
                self.give_up(&format!("waited in vain until {what}"));
            }
            thread::sleep(LOOK_EVERY);
        }
    }

    /// Waits for the end of the command, and checks that no process or file of it is left.
    ///
    /// # Panics
    /// Panics if the deadline passes, or if anything is left.
    #[track_caller]
    pub fn finish(mut self) -> Outcome {
        let status = self.wait();
        let wall = self.started.elapsed();
        if !self.killed {
            let ranks = processes::ranks_of(&self.command.mark);
            if !ranks.is_empty() {
                self.give_up(&format!("left these ranks behind: {ranks:?}"));
            }
        }
        let end = Instant::now() + KEEPER_LEAVES_WITHIN;
        loop {
            let left = processes::of(&self.command.mark);
            if left.is_empty() {
                break;
            }
            if Instant::now() > end {
                self.give_up(&format!("left these processes behind: {left:?}"));
            }
            thread::sleep(LOOK_EVERY);
        }
        for helper in self.helpers.drain(..) {
            helper.join().expect("reading a pipe does not panic");
        }
        // Most commands are not a set, or have removed the file of their set.
        let _ = std::fs::remove_dir_all(self.command.sets());
        let (stdout, stderr) = (self.stdout.lock().clone(), self.stderr.lock().clone());
        Outcome { command: self.command.to_string(), status, stdout, stderr, wall }
    }

    #[track_caller]
    fn wait(&mut self) -> ExitStatus {
        let end = self.started + self.command.deadline;
        loop {
            if let Some(status) = self.child.try_wait().expect("the command is our child") {
                return status;
            }
            if Instant::now() > end {
                self.give_up("did not end");
            }
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Kills all processes of the command, and fails the test with all available information.
    #[track_caller]
    fn give_up(&mut self, what: &str) -> ! {
        let after = self.started.elapsed();
        let tree = processes::describe(&self.command.mark);
        processes::kill_all(&self.command.mark);
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
        panic!(
            "after {after:?} {} {what}\n--- processes\n{tree}--- stdout\n{}\n--- stderr\n{}",
            self.command,
            String::from_utf8_lossy(&self.stdout.lock()),
            String::from_utf8_lossy(&self.stderr.lock()),
        );
    }
}

impl Stream {
    fn lock(&self) -> MutexGuard<'_, Vec<u8>> {
        self.bytes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn collect(self: &Arc<Self>, mut pipe: impl Read + Send + 'static) -> JoinHandle<()> {
        let stream = Arc::clone(self);
        thread::spawn(move || {
            let mut piece = vec![0; 64 << 10];
            while let Ok(len @ 1..) = pipe.read(&mut piece) {
                stream.lock().extend_from_slice(&piece[..len]);
                stream.grown.notify_all();
            }
        })
    }
}
