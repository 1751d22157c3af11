//! A launch and those who follow it: what they say, and what their coming and going means for the launch.

use std::time::Duration;

use pmi_transport::proto::v1::attach_request::What;
use pmi_transport::proto::v1::{AttachResponse, StartProgress, node_command};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;
use tonic::Status;

use super::audience::{Change, Role};
use super::task::{Launch, Phase};

/// How often clients hear how far the start is.
const START_NEWS: Duration = Duration::from_millis(100);
/// The highest signal number.
const SIGNAL_MAX: i32 = 64;

/// Where a client's messages go.
pub(crate) type ClientSender = mpsc::Sender<Result<AttachResponse, Status>>;

/// What clients are told of the start.
#[derive(Debug)]
pub(super) struct StartNews {
    /// Ranks have started since clients were told last.
    pub due: bool,
    told: Instant,
}

impl StartNews {
    pub(super) fn new(now: Instant) -> Self {
        Self { due: false, told: now }
    }
}

impl Launch {
    pub(super) fn on_attach(
        &mut self,
        after: u64,
        owns: bool,
        sender: ClientSender,
        reply: oneshot::Sender<Result<u64, Status>>,
    ) {
        let joined = self.audience.join(after, owns, super::over::told_to_users(&self.spec), sender);
        if let Ok(number) = joined
            && self.audience.role(number) == Some(Role::Owner)
        {
            let grants = self.journal.acknowledge(after.min(self.tape.latest()));
            self.grant(grants);
            self.input.attach();
        }
        self.start_news.due = true;
        // Who asked may have gone; then nobody listens, which is noticed.
        let _ = reply.send(joined);
    }

    pub(super) fn on_said(&mut self, number: u64, what: What) {
        match (self.audience.role(number), what) {
            (None, _) | (Some(Role::Viewer), What::Acknowledge(_)) => {}
            (_, What::Attach(_)) => {
                self.dismiss(number, Status::invalid_argument("the stream follows a launch already"));
            }
            (Some(Role::Viewer), _) => {
                let text = "only the owner of a launch gives it input and signals on this stream; others have calls of their own";
                self.dismiss(number, Status::failed_precondition(text));
            }
            (Some(Role::Owner), what) => self.on_owner_said(number, what),
        }
    }

    fn on_owner_said(&mut self, number: u64, what: What) {
        match what {
            What::Acknowledge(sequence) => {
                // It cannot have dealt with what it was not sent.
                let grants = self.journal.acknowledge(sequence.min(self.tape.told(number)));
                self.grant(grants);
            }
            What::Stdin(piece) => match self.input.push(piece) {
                Ok(flow) => self.pass_on(flow),
                Err(error) => self.dismiss(number, Status::resource_exhausted(error.to_string())),
            },
            What::StdinEnd(_) => {
                let flow = self.input.end();
                self.pass_on(flow);
            }
            What::Signal(signal) | What::End(signal) | What::Kill(signal) if !(1..=SIGNAL_MAX).contains(&signal) => {
                let text = format!("{signal} is no signal; there are 1 to {SIGNAL_MAX}");
                self.dismiss(number, Status::invalid_argument(text));
            }
            What::Signal(signal) => self.tell_all(&node_command::What::Signal(signal)),
            What::End(signal) => self.end_by(signal, "the client asks for it"),
            What::Kill(signal) => {
                self.interrupted(signal);
                self.tell_all(&node_command::What::Kill(signal));
            }
            // Was answered before.
            What::Attach(_) => {}
        }
    }

    fn dismiss(&mut self, number: u64, status: Status) {
        self.audience.dismiss(number, status, Instant::now());
    }

    pub(super) fn on_audience(&mut self, change: Change) {
        match change {
            Change::Gone(number) => self.audience.on_gone(number, Instant::now()),
            Change::Spooled(sequence) => {
                let grants = self.journal.acknowledge(sequence);
                self.grant(grants);
            }
            Change::NotSpooled => self.stop_waiting(),
        }
    }

    /// Output waits for nobody from now on: its owner is gone for good, or held up a launch that must end.
    pub(super) fn stop_waiting(&mut self) {
        if !self.journal.waits() {
            return;
        }
        let grants = self.journal.stop_waiting();
        self.grant(grants);
    }

    /// Lets others see, and a server that comes after this one know, whether the owner is stopped.
    fn note_owner(&mut self) {
        let stopped_at = self.audience.stopped_since().unwrap_or(0);
        if std::mem::replace(&mut self.summary.lock().client_stopped_at, stopped_at) != stopped_at {
            self.unwritten.note();
        }
    }

    /// Ends a launch whose owner is missing; tells clients how far the start is.
    pub(super) fn check_audience(&mut self, now: Instant) {
        if matches!(self.phase, Phase::Over { .. }) {
            return;
        }
        self.note_owner();
        // Before all nodes have accepted it, nobody was told whom to follow.
        if matches!(self.phase, Phase::Active { .. }) && self.audience.gives_up_owner(now) {
            self.end_by(nix::libc::SIGHUP, "its client went away without a word");
            self.stop_waiting();
        }
        if self.start_news.due && !self.audience.is_empty() && now >= self.start_news.told + START_NEWS {
            self.start_news = StartNews::new(now);
            let (nodes_started, ranks_started) = self.judge.starts();
            self.tape.tell_start(StartProgress {
                nodes: self.nodes.len() as u32,
                nodes_started,
                ranks: self.placement.size(),
                ranks_started,
                ranks_initialized: self.judge.initialized(),
            });
        }
    }
}
