//! The output side of a launch: events go in, bytes come out, in the order and the form that the user asked for.
//!
//! ```text
//!              Event                       Piece                Step           Bytes
//! session ──(bounded)──> Renderer ──────> Targets: LineHold ──> Decoration ──(bounded)──> Writer threads
//!                        text or JSON       one for each place
//! ```
//!
//! Every arrow waits for the next: a slow terminal slows the ranks, and no flood fills memory. Ranks' bytes are not copied on
//! this way unless something stands before each line. No line of one rank is torn by another: see `output/hold.rs`.

mod decoration;
mod files;
mod hold;
mod json;
mod targets;
mod words;
mod writer;

use std::io;
use std::sync::Arc;
use std::time::Instant;

use lattice_agent::cause::{Cause, CauseKind};
use lattice_agent::event::{Event, Report};
use nix::sys::signal::Signal;
use tokio::sync::{Notify, mpsc, watch};

use self::decoration::Decoration;
pub use self::files::FileError;
use self::files::Files;
use self::targets::{Targets, WriterName};
pub(crate) use self::words::message;
pub(crate) use self::writer::{Fault, PlaceName};
use crate::exit::{self, Losses};
use crate::map;
use crate::request::LaunchRequest;

/// How much Lattice itself says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Verbosity {
    /// Only why the launch failed.
    Quiet,
    /// Warnings too.
    #[default]
    Normal,
    /// Also what is set, started and ended.
    Verbose,
}

/// The files of a launch are open, and nothing is started yet.
#[derive(Debug)]
pub struct OpenFiles(Files);

impl OpenFiles {
    /// Opens every file that ranks' output goes to; see [`FileError`].
    ///
    /// # Errors
    /// Fails at the first file that cannot be opened.
    pub fn open(request: &LaunchRequest) -> Result<Self, FileError> {
        Files::open(request).map(Self)
    }
}

/// Turns the events of one launch into output.
#[derive(Debug)]
pub(crate) struct Renderer {
    form: Form,
    verbosity: Verbosity,
    /// The node that this session's ranks run on.
    host: String,
    launch_id: String,
    targets: Targets,
    faults: mpsc::UnboundedReceiver<Fault>,
    interrupts: mpsc::UnboundedReceiver<Signal>,
    hung_up: Arc<Notify>,
    losses: Losses,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    /// Output as it is, and messages of ours in words.
    Text,
    /// Everything as events, one on each line.
    Json,
}

/// What a renderer shares with those around it.
#[derive(Debug)]
pub(crate) struct Wires {
    /// Told when nobody reads our output any more.
    pub(crate) hung_up: Arc<Notify>,
    /// The signals by which the user ends the launch.
    pub(crate) interrupts: mpsc::UnboundedReceiver<Signal>,
    /// True once nothing shall be waited for any more.
    pub(crate) abandoned: watch::Receiver<bool>,
    /// Where faults are reported, and how: other writers have the sending side too.
    pub(crate) faults: (mpsc::UnboundedSender<Fault>, mpsc::UnboundedReceiver<Fault>),
}

impl Renderer {
    /// Starts the writers.
    ///
    /// # Errors
    /// Fails if our own streams cannot be used or the system has no thread left.
    pub(crate) fn start(
        request: &LaunchRequest,
        verbosity: Verbosity,
        OpenFiles(files): OpenFiles,
        wires: Wires,
    ) -> io::Result<Self> {
        let output = &request.output;
        let decoration = Decoration::new(output.label, output.timestamp, request.spec.job.size());
        let (report, faults) = wires.faults;
        Ok(Self {
            form: if output.json { Form::Json } else { Form::Text },
            verbosity,
            host: request.spec.hosts[request.spec.node.index()].clone(),
            launch_id: request.spec.launch_id.clone(),
            targets: Targets::start(files, decoration, &report, wires.abandoned)?,
            faults,
            interrupts: wires.interrupts,
            hung_up: wires.hung_up,
            losses: Losses::default(),
        })
    }

    /// Says what is about to start.
    pub(crate) async fn open(&mut self, request: &LaunchRequest) {
        let now = Instant::now();
        if self.form == Form::Json {
            self.targets.print(json::launch(request), now).await;
        }
        if self.verbosity == Verbosity::Verbose {
            self.targets.say(message(&words::settings(request)), now).await;
        }
        if request.show_map {
            self.targets.say(map::table(request).into(), now).await;
        }
    }

    /// Renders events until the session has no more.
    pub(crate) async fn run(&mut self, mut events: mpsc::Receiver<Event>) {
        loop {
            let tick = self.targets.next_tick();
            tokio::select! {
                event = events.recv() => match event {
                    Some(event) => self.event(event).await,
                    None => return,
                },
                Some(fault) = self.faults.recv() => self.fault(fault).await,
                Some(signal) = self.interrupts.recv() => self.interrupted(signal).await,
                () = sleep_until(tick) => self.targets.tick(Instant::now()).await,
            }
        }
    }

    /// Writes all that is left, says why the launch failed if it did, and returns its exit code.
    pub(crate) async fn finish(mut self, report: &Report) -> u8 {
        let now = Instant::now();
        self.targets.release_all(now).await;
        self.targets.close(WriterName::Files).await;
        self.drain_faults().await;
        if self.form == Form::Json {
            let code = exit::code(report.cause.as_ref(), self.losses);
            self.targets.print(json::complete(&self.launch_id, code, report), now).await;
        }
        // The last word comes after all output, so that output must be written first; in one place it is anyhow.
        if self.targets.has_own_stderr() {
            self.targets.close(WriterName::Stdout).await;
            self.drain_faults().await;
        }
        if let Some(cause) = &report.cause
            && (!is_hang_up(cause) || self.verbosity == Verbosity::Verbose)
        {
            self.targets.say(message(&cause.to_string()), now).await;
        }
        self.targets.close(WriterName::Stdout).await;
        self.targets.close(WriterName::Stderr).await;
        self.drain_faults().await;
        exit::code(report.cause.as_ref(), self.losses)
    }

    async fn event(&mut self, event: Event) {
        let now = Instant::now();
        match event {
            Event::Output(output) if self.form == Form::Text || self.targets.is_file(output.rank, output.stream) => {
                self.targets.output(output, now).await;
                return;
            }
            Event::Exited { rank, .. } => self.targets.rank_ended(rank, now).await,
            _ => {}
        }
        if self.form == Form::Json
            && let Some(line) = json::event(&event, &self.host)
        {
            self.targets.print(line, now).await;
        }
        if let Some(text) = words::event(&event, self.verbosity) {
            self.targets.say(message(&text), now).await;
        }
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

/// Whether the launch was ended because nobody reads its output, which is no news to anybody.
fn is_hang_up(cause: &Cause) -> bool {
    matches!(cause.kind, CauseKind::Interrupted { signal } if signal == Signal::SIGPIPE as i32)
}

async fn sleep_until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline.into()).await,
        None => std::future::pending().await,
    }
}
