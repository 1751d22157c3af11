//! Output of a launch: converts events to bytes, in the order and the form that the user requested.
//!
//! ```text
//!            Update                        Piece                Step           Bytes
//! launch ──(bounded)──> Renderer ──────> Targets: LineHold ──> Decoration ──(bounded)──> Writer threads
//!                        text or JSON       one for each place
//! ```
//!
//! Every arrow applies back pressure: a slow terminal slows the ranks, and a flood of output does not fill memory. The bytes of ranks are not
//! copied on this way, unless each line has a prefix. With `--collapse` a line first waits for equal lines (`collapse.rs`). Output of
//! other ranks does not split a line of a rank: see `hold.rs`.

mod collapse;
mod decoration;
mod files;
mod hold;
mod json;
pub mod map;
mod prepared;
mod summary;
mod targets;
pub mod trace;
pub mod updates;
pub mod usage;
mod words;
mod writer;

use std::io;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use lattice_console::exit::{self, Losses};
use lattice_console::{Verbosity, message, obeys_escapes};
use lattice_session::cause::{Cause, CauseKind};
use lattice_session::deadline::until;
use lattice_session::event::{Event, Output, Report, Stream};
use nix::sys::signal::Signal;
use nix::unistd::getppid;
use pmi_core::ids::NodeIndex;
use tokio::sync::{Notify, mpsc, watch};

use self::collapse::{Collapse, Collapsed};
use self::decoration::Decoration;
pub use self::files::FileError;
use self::files::Files;
pub use self::json::{CauseLine, Line as EventLine, RankEnd};
pub use self::prepared::{ExitMessages, LineLabel, OutputRequest, PreparedLaunch, RankRow};
use self::summary::Summary;
use self::targets::{Targets, WriterName};
use self::updates::{StartProgress, Update, UpdateSource};
pub use self::words::settings;
pub use self::writer::{Fault, PlaceName};

/// Open output files of a launch that has not started yet.
#[derive(Debug)]
pub struct OpenFiles(Files);

impl OpenFiles {
    /// Opens every file for output of ranks; see [`FileError`].
    ///
    /// # Errors
    /// Fails at the first file that cannot be opened.
    pub fn open(launch: &PreparedLaunch) -> Result<Self, FileError> {
        Files::open(launch).map(Self)
    }
}

/// Map of the launch, as text or as JSON.
pub fn plan(launch: &PreparedLaunch) -> Bytes {
    if launch.output.json { json::plan(launch) } else { map::table(launch).into() }
}

/// Id of the started launch, as text or as JSON.
pub fn name(launch: &PreparedLaunch) -> Bytes {
    if launch.output.json { json::launch(launch) } else { format!("{}\n", launch.placed.launch_id).into() }
}

/// Converts the events of one launch to output.
#[derive(Debug)]
pub struct Renderer {
    form: Form,
    verbosity: Verbosity,
    /// Names of the nodes of the launch, by node index.
    hosts: Vec<String>,
    launch_id: String,
    /// True after the first end event of the launch. Several nodes may report the end.
    ending: bool,
    /// True if the progress of the start is shown: standard error is a terminal, and no other output explains a wait.
    shows_progress: bool,
    /// Counters for the summary; `None` if neither `--summary` nor `--json` is given.
    summary: Option<Summary>,
    /// True if the summary is printed as text.
    says_summary: bool,
    exit_messages: ExitMessages,
    /// True if a rank that a signal kills is no failure while other ranks end well.
    recovers: bool,
    targets: Targets,
    /// True if output that goes to files also goes to standard output and standard error.
    tee: bool,
    /// Lines that wait for equal lines; `None` without `--collapse`.
    collapse: Option<Collapse>,
    faults: mpsc::UnboundedReceiver<Fault>,
    interrupts: mpsc::UnboundedReceiver<Signal>,
    hung_up: Arc<Notify>,
    losses: Losses,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    /// Output of ranks unchanged, and messages of Lattice as text.
    Text,
    /// Everything as JSON events, one on each line.
    Json,
}

/// Channels between a renderer, the signals of the process and the source of updates.
#[derive(Debug)]
pub struct RendererChannels {
    /// Notified when standard output or standard error has no reader any more.
    pub hung_up: Arc<Notify>,
    /// Signals by which the user ends the launch.
    pub interrupts: mpsc::UnboundedReceiver<Signal>,
    /// True when no writer waits for its reader any more.
    pub abandoned: watch::Receiver<bool>,
    /// Faults of writers. The sender is for writers outside of the renderer.
    pub faults: (mpsc::UnboundedSender<Fault>, mpsc::UnboundedReceiver<Fault>),
}

impl Renderer {
    /// Starts the writers.
    ///
    /// # Errors
    /// Fails if standard output or standard error cannot be used.
    pub fn start(
        launch: &PreparedLaunch,
        verbosity: Verbosity,
        OpenFiles(files): OpenFiles,
        wires: RendererChannels,
    ) -> io::Result<Self> {
        let output = &launch.output;
        let decoration = Decoration::of(output, &launch.placed);
        let (report, faults) = wires.faults;
        Ok(Self {
            form: if output.json { Form::Json } else { Form::Text },
            verbosity,
            hosts: launch.placed.hosts.clone(),
            launch_id: launch.placed.launch_id.clone(),
            ending: false,
            shows_progress: shows_progress(verbosity),
            summary: (output.summary || output.json).then(|| Summary::new(launch.placed.hosts.len())),
            says_summary: output.summary,
            exit_messages: output.exit_messages,
            recovers: output.recovers,
            targets: Targets::start(files, decoration, &report, wires.abandoned)?,
            tee: output.tee,
            collapse: output.collapse.then(|| Collapse::new(launch.ranks.len())),
            faults,
            interrupts: wires.interrupts,
            hung_up: wires.hung_up,
            losses: Losses::default(),
        })
    }

    /// Ignores signals of the user from now on: they no longer end the launch.
    pub fn ignore_interrupts(&mut self) {
        self.interrupts.close();
        while self.interrupts.try_recv().is_ok() {}
    }

    /// Writes to a raw terminal from now on. It shows all bytes unchanged, because the terminal of a rank has already processed them.
    pub fn write_to_raw_terminal(&mut self) {
        self.targets.write_to_raw_terminal();
    }

    /// Writes the description of the launch before the launch starts.
    pub async fn open(&mut self, launch: &PreparedLaunch) {
        let now = Instant::now();
        if self.form == Form::Json {
            self.targets.print(json::launch(launch), now).await;
        }
        if self.verbosity == Verbosity::Verbose {
            self.targets.say(message(&settings(launch)), now).await;
        }
        if launch.output.show_map {
            self.targets.say(map::table(launch).into(), now).await;
        }
    }

    /// Renders updates until the source ends.
    pub async fn run(&mut self, mut source: impl UpdateSource) {
        loop {
            let deadline = self.collapse.as_ref().and_then(Collapse::deadline);
            let tick = [self.targets.next_tick(), deadline].into_iter().flatten().min();
            tokio::select! {
                update = source.next() => match update {
                    Some(Update::Event(node, event)) => self.event(node, event).await,
                    Some(Update::Starting(progress)) => self.starting(progress).await,
                    Some(Update::Initializing { ranks, of }) => {
                        self.targets.show_progress(&words::initializing(ranks, of)).await;
                    }
                    Some(Update::Remark(text)) => self.remark(&text).await,
                    Some(Update::Dropped(bytes)) => self.dropped(bytes).await,
                    None => return,
                },
                Some(fault) = self.faults.recv() => self.fault(fault).await,
                Some(signal) = self.interrupts.recv() => self.interrupted(signal).await,
                () = until(tick.map(Into::into)) => self.tick(Instant::now()).await,
            }
        }
    }

    /// Writes all remaining output and the reason of a failure. Returns the exit code of the launch.
    pub async fn finish(mut self, report: &Report) -> u8 {
        let now = Instant::now();
        self.write_the_rest(now).await;
        let cause = if self.recovers { exit::after_recovery(report) } else { report.cause.clone() };
        let report = &Report { cause, ..report.clone() };
        if self.form == Form::Json {
            let code = exit::code(report.cause.as_ref(), self.losses);
            let took = self.summary.as_ref().map(|summary| summary.line(&self.hosts, report));
            self.targets.print(json::complete(&self.launch_id, code, report, took), now).await;
        }
        // The final message comes after all output, so standard output is written first. A single target for both streams keeps the order
        // anyway.
        if self.targets.has_own_stderr() {
            self.targets.close(WriterName::Stdout).await;
            self.drain_faults().await;
        }
        let told = self.summary.iter().filter(|_| self.says_summary);
        for line in told.flat_map(|summary| summary.lines(&self.hosts, report)) {
            self.targets.say(message(&line), now).await;
        }
        if let Some(cause) = &report.cause
            && (self.is_told(cause) || self.verbosity == Verbosity::Verbose)
        {
            self.targets.say(message(&words::cause(cause)), now).await;
        }
        self.targets.close(WriterName::Stdout).await;
        self.targets.close(WriterName::Stderr).await;
        self.drain_faults().await;
        exit::code(report.cause.as_ref(), self.losses)
    }

    /// True if the launcher reports the first cause: not for output without a reader, and not if the calling process reports the cause.
    fn is_told(&self, cause: &Cause) -> bool {
        let is_callers = match self.exit_messages {
            ExitMessages::Reported => false,
            ExitMessages::LeftToCaller(caller) => matches!(cause.kind, CauseKind::Failed { .. }) || getppid() != caller,
        };
        !is_hang_up(cause) && !is_callers
    }

    /// Writes all remaining output of a launch that has no known end.
    pub async fn abandon(mut self) {
        self.write_the_rest(Instant::now()).await;
        self.targets.close(WriterName::Stdout).await;
        self.targets.close(WriterName::Stderr).await;
    }

    async fn write_the_rest(&mut self, now: Instant) {
        self.targets.show_progress("").await;
        if let Some(collapse) = &mut self.collapse {
            let mut lines = Vec::new();
            collapse.finish(&mut lines);
            self.write_collapsed(lines, now).await;
        }
        self.targets.release_all(now).await;
        self.targets.close(WriterName::Files).await;
        self.drain_faults().await;
    }

    async fn event(&mut self, node: NodeIndex, event: Event) {
        let now = Instant::now();
        if let Some(summary) = &mut self.summary {
            summary.event(node, &event);
        }
        match event {
            Event::Ending(_) if self.ending => return,
            Event::Ending(_) => self.ending = true,
            Event::Output(output) if self.form == Form::Text || self.targets.is_file(output.rank, output.stream) => {
                return self.output(output, now).await;
            }
            Event::Exited { rank, .. } => self.targets.rank_ended(rank, now).await,
            _ => {}
        }
        if self.form == Form::Json
            && let Some(line) = json::event(&event, self.hosts.get(node.index()).map_or("", String::as_str))
        {
            self.targets.print(line, now).await;
        }
        if let Some(text) = words::event(&event, self.verbosity) {
            self.targets.say(message(&text), now).await;
        }
    }

    async fn output(&mut self, output: Output, now: Instant) {
        if self.targets.is_file(output.rank, output.stream) {
            self.targets.write_to_file(output.clone(), now).await;
            if !self.tee {
                return;
            }
        }
        let Some(collapse) = &mut self.collapse else { return self.targets.write_to_stream(output, now).await };
        let mut lines = Vec::new();
        collapse.push(output.rank, output.stream, &output.bytes, now, &mut lines);
        self.write_collapsed(lines, now).await;
    }

    async fn write_collapsed(&mut self, lines: Vec<Collapsed>, now: Instant) {
        for (stream, line) in lines {
            match stream {
                Stream::Stdout => self.targets.print(line, now).await,
                Stream::Stderr => self.targets.say(line, now).await,
            }
        }
    }

    async fn tick(&mut self, now: Instant) {
        self.targets.tick(now).await;
        if let Some(collapse) = &mut self.collapse {
            let mut lines = Vec::new();
            collapse.tick(now, &mut lines);
            self.write_collapsed(lines, now).await;
        }
    }

    async fn starting(&mut self, progress: StartProgress) {
        if self.shows_progress {
            self.targets.show_progress(&words::starting(progress)).await;
        }
    }

    async fn remark(&mut self, text: &str) {
        if self.verbosity > Verbosity::Quiet {
            self.targets.say(message(text), Instant::now()).await;
        }
    }

    /// Reports a gap in the output. Output for programs contains the gap at its position.
    async fn dropped(&mut self, bytes: Option<u64>) {
        let now = Instant::now();
        if self.form == Form::Json {
            self.targets.print(json::dropped(bytes), now).await;
        }
        self.targets.say(message(&words::dropped(bytes)), now).await;
    }

    async fn drain_faults(&mut self) {
        while let Ok(fault) = self.faults.try_recv() {
            self.fault(fault).await;
        }
    }

    async fn fault(&mut self, fault: Fault) {
        if fault.is_hang_up() {
            self.losses.hung_up = true;
            self.hung_up.notify_one();
            return;
        }
        self.losses.failed = true;
        let Fault { place, error } = fault;
        let text = format!("cannot write to {place}: {error}; what follows for it is lost");
        self.targets.say(message(&text), Instant::now()).await;
    }

    async fn interrupted(&mut self, signal: Signal) {
        if self.verbosity > Verbosity::Quiet {
            let text = format!("{signal}: ending the launch; once more ends it at once");
            self.targets.say(message(&text), Instant::now()).await;
        }
    }
}

/// True if the progress of a start is shown. The line is overwritten, so standard error must be a terminal with escape sequences.
pub fn shows_progress(verbosity: Verbosity) -> bool {
    verbosity > Verbosity::Quiet && obeys_escapes()
}

/// True for a launch that ended because its output has no reader any more. This cause is not reported.
fn is_hang_up(cause: &Cause) -> bool {
    matches!(cause.kind, CauseKind::Interrupted { signal } if signal == Signal::SIGPIPE as i32)
}
