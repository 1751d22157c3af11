//! A launch to which this process is attached: shows its updates, sends the user's commands and input, and attaches again when a connection
//! breaks.
//!
//! ```text
//!              AttachResponse                       Item (bounded)            Update
//! API server ────────────────> AttachedLaunch ───────────────────> Updates ──────────> Renderer
//!            <────────────────     ^  ^  ^─────── Rendered ───────────┘
//!   acknowledge, stdin, signal     │  └ pieces of input
//!                                  └ Control
//! ```
//!
//! Events are acknowledged, several at a time, after the renderer has passed them to the writers. Unacknowledged events are sent again at
//! the next attach. So a broken connection loses nothing while the API server lives. While the renderer lags, nothing is read from the
//! connection: this is the back-pressure that slows the ranks. Outgoing messages need no such bound, as they have other limits: input has
//! credit, and acknowledgements are fewer than events.

mod acknowledgements;
mod answer;
mod commands;
mod stdin_stream;

use std::time::Duration;

use bytes::Bytes;
use lattice_cluster_client::messages::{Answer, Role, ToLaunch};
use lattice_cluster_client::{Attachment, Cluster, ClusterError};
use lattice_render::trace::ClusterTrace;
use lattice_render::updates::Update;
use lattice_session::deadline::until;
use lattice_session::event::Report;
use lattice_session::session_io::Control;
use lattice_session::timeouts;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until, timeout, timeout_at};

use self::acknowledgements::{Acknowledgements, Item, Rendered, Updates};
use self::answer::Meaning;
use self::commands::{Command, Unsent};
use self::stdin_stream::StdinStream;
use super::LaunchError;
use super::frontend::End;

/// Maximum number of events that wait for the renderer. Each has up to 64 KiB.
const ITEMS: usize = 64;
/// First and longest pause between attempts to attach again.
const PAUSES: (Duration, Duration) = (Duration::from_millis(50), timeouts::COME_BACK_PAUSE);
/// Time limit for the API server to close its side. Nothing depends on it.
const GOODBYE: Duration = Duration::from_millis(100);

/// Settings of an attached launch.
pub(super) struct AttachSettings {
    /// The API server.
    pub(super) cluster: Cluster,
    /// The launch.
    pub(super) launch_id: String,
    /// Role of this process.
    pub(super) role: Role,
    /// Time for which the launch continues while its API server is away.
    pub(super) lease: Duration,
    /// Standard input of this process, if ranks of the launch read it.
    pub(super) stdin: Option<mpsc::Receiver<Bytes>>,
    /// File for PMI messages, if they are traced.
    pub(super) trace: Option<ClusterTrace>,
}

/// A launch to which this process is attached.
pub(super) struct AttachedLaunch {
    cluster: Cluster,
    launch_id: String,
    role: Role,
    /// Time limit for attaching again after a connection broke.
    attach_timeout: Duration,
    controls: mpsc::Receiver<Control>,
    stdin: StdinStream,
    trace: Option<ClusterTrace>,
    items: mpsc::Sender<Item>,
    rendered: watch::Receiver<Rendered>,
    acknowledgements: Acknowledgements,
    /// Number of the last received event.
    received: u64,
    unsent: Unsent,
}

/// End of one connection.
enum Disconnect {
    /// No connection follows.
    Final(End),
    /// This process was stopped and continued. Another connection follows.
    Continued,
}

/// Effect of a user command on the connection.
enum Reaction {
    /// The connection continues.
    Converse,
    /// Another connection replaces it.
    AttachAgain,
    /// The user leaves the launch by this signal.
    Leave(i32),
}

/// Room that is reserved in the queue of the renderer, and the answer for it.
type Received = (mpsc::OwnedPermit<Item>, Result<Box<Answer>, ClusterError>);

/// An event while a connection exists.
enum Input {
    /// An answer; `None` if the renderer has ended.
    Answer(Option<Received>),
    /// A user command.
    Control(Control),
    /// A message with input, or with its end.
    Stdin(ToLaunch),
    /// The renderer has made progress.
    Rendered(Rendered),
    /// An acknowledgement is due.
    Due,
}

impl AttachedLaunch {
    /// A launch with these settings, and the updates from its connections.
    pub(super) fn new(settings: AttachSettings, controls: mpsc::Receiver<Control>) -> (Self, Updates) {
        let AttachSettings { cluster, launch_id, role, lease, stdin, trace } = settings;
        let (items, updates) = mpsc::channel(ITEMS);
        let (rendering, rendered) = watch::channel(Rendered::default());
        let attached = Self {
            cluster,
            launch_id,
            role,
            attach_timeout: lease + timeouts::COME_BACK,
            controls,
            stdin: StdinStream::new(stdin),
            trace,
            items,
            rendered,
            acknowledgements: Acknowledgements::default(),
            received: 0,
            unsent: Unsent::default(),
        };
        (attached, Updates::new(updates, rendering))
    }

    /// Stays attached until the launch ends, or the user leaves it.
    ///
    /// # Errors
    /// Fails if the API server is unreachable for as long as the launch could continue, or refuses another attach.
    pub(super) async fn run(mut self, mut attachment: Attachment) -> Result<End, LaunchError> {
        loop {
            let broken = match self.converse(attachment).await {
                Ok(Disconnect::Final(end)) => return Ok(end),
                Ok(Disconnect::Continued) => {
                    let again = self.attach_again(self.cluster.broken("this command was stopped")).await;
                    attachment = again.map_err(|error| self.lost_sight(error))?;
                    self.stdin.forget_connection();
                    continue;
                }
                Err(error) if error.is_passing() => error,
                Err(error) => return Err(self.lost_sight(error)),
            };
            self.remark(format!("the connection to the API server broke, attaching again: {}", first_line(&broken)))
                .await;
            attachment = self.attach_again(broken).await.map_err(|error| self.lost_sight(error))?;
            self.remark("attached again".to_owned()).await;
            let unconfirmed = self.stdin.forget_connection();
            if unconfirmed > 0 {
                self.remark(format!("warning: up to {unconfirmed} bytes of standard input may be lost")).await;
            }
        }
    }

    fn lost_sight(&self, source: ClusterError) -> LaunchError {
        LaunchError::LostSight { launch: self.launch_id.clone(), source: Box::new(source) }
    }

    /// Serves one connection until it ends.
    async fn converse(&mut self, mut attachment: Attachment) -> Result<Disconnect, ClusterError> {
        self.stdin.grant(attachment.window);
        self.unsent.drain().for_each(|message| attachment.send(message));
        loop {
            match self.next_input(&mut attachment).await {
                Input::Answer(None) => return Ok(Disconnect::Final(End::Left(nix::libc::SIGPIPE))),
                Input::Answer(Some((room, answer))) => {
                    if let Some(report) = self.on_answer(room, *answer?) {
                        self.say_goodbye(attachment).await;
                        return Ok(Disconnect::Final(End::Over(report)));
                    }
                }
                Input::Control(control) => match self.on_control(control, &mut attachment) {
                    Reaction::Converse => {}
                    Reaction::AttachAgain => return Ok(Disconnect::Continued),
                    Reaction::Leave(signal) => {
                        self.remark(format!("launch {} goes on without us", self.launch_id)).await;
                        close(attachment).await;
                        return Ok(Disconnect::Final(End::Left(signal)));
                    }
                },
                Input::Stdin(message) => attachment.send(message),
                Input::Rendered(rendered) => {
                    let acknowledged = self.acknowledgements.on_rendered(rendered, Instant::now());
                    acknowledged.into_iter().for_each(|number| attachment.send(ToLaunch::Acknowledge(number)));
                }
                Input::Due => {
                    let acknowledged = self.acknowledgements.take();
                    acknowledged.into_iter().for_each(|number| attachment.send(ToLaunch::Acknowledge(number)));
                }
            }
        }
    }

    /// Handles a user command, as far as it concerns the launch.
    fn on_control(&mut self, control: Control, attachment: &mut Attachment) -> Reaction {
        match Command::of(control, self.role) {
            Command::Send(message) if attachment.has_hung_up() => {
                self.unsent.keep(message);
                return Reaction::AttachAgain;
            }
            Command::Send(message) => {
                let stops_this_process = message == ToLaunch::Signal(nix::libc::SIGSTOP);
                attachment.send(message);
                if stops_this_process {
                    // A stopped client does not answer, but is not gone.
                    attachment.hang_up();
                }
            }
            Command::Leave(signal) => return Reaction::Leave(signal),
            Command::Ignore => {}
        }
        Reaction::Converse
    }

    /// Returns the next input. Cancel-safe.
    async fn next_input(&mut self, attachment: &mut Attachment) -> Input {
        tokio::select! {
            answer = next_answer(&self.items, attachment) => Input::Answer(answer),
            Some(control) = self.controls.recv() => Input::Control(control),
            message = self.stdin.next() => Input::Stdin(message),
            Ok(()) = self.rendered.changed() => Input::Rendered(*self.rendered.borrow_and_update()),
            () = until(self.acknowledgements.due()) => Input::Due,
        }
    }

    /// Handles an answer; returns the report at the launch's end.
    fn on_answer(&mut self, room: mpsc::OwnedPermit<Item>, answer: Answer) -> Option<Report> {
        let sequence = answer.sequence;
        let update = match answer::read(answer, &mut self.received) {
            Meaning::Update(update) => update,
            Meaning::Trace(node, lines) => {
                if let Some(trace) = &mut self.trace {
                    trace.write(node, &lines);
                }
                None
            }
            Meaning::Credit(bytes) => {
                self.stdin.grant(bytes);
                return None;
            }
            Meaning::Duplicate => return None,
            Meaning::End(report) => return Some(report),
        };
        room.send(Item { sequence, update });
        None
    }

    /// Waits until all events are rendered, acknowledges them, and closes the connection.
    async fn say_goodbye(&mut self, attachment: Attachment) {
        let last = self.received;
        // The renderer requests the next item after it has completed all events before this one.
        if self.items.send(Item { sequence: Some(last), update: None }).await.is_ok() {
            let _ = self.rendered.wait_for(|rendered| rendered.sequence >= last).await;
        }
        attachment.send(ToLaunch::Acknowledge(last));
        close(attachment).await;
    }

    /// Tries to attach until it succeeds or is refused, until the user stops waiting, or until the time limit.
    async fn attach_again(&mut self, broken: ClusterError) -> Result<Attachment, ClusterError> {
        let deadline = Instant::now() + self.attach_timeout;
        let (mut pause, longest) = PAUSES;
        let mut last = broken;
        while Instant::now() < deadline {
            let next = Instant::now() + pause;
            pause = (2 * pause).min(longest);
            let after = self.rendered.borrow().sequence;
            tokio::select! {
                opened = timeout_at(deadline, Attachment::open(&self.cluster, &self.launch_id, after, self.role)) => match opened {
                    Ok(Ok((attachment, _))) => return Ok(attachment),
                    Ok(Err(error)) if error.is_passing() => last = error,
                    Ok(Err(error)) => return Err(error),
                    Err(_) => break,
                },
                () = given_up(&mut self.controls, self.role, &mut self.unsent) => break,
            }
            tokio::select! {
                () = sleep_until(next.min(deadline)) => {}
                () = given_up(&mut self.controls, self.role, &mut self.unsent) => break,
            }
        }
        Err(last)
    }

    async fn remark(&self, text: String) {
        // If the renderer has ended, the remark is not needed.
        let _ = self.items.send(Item { sequence: None, update: Some(Update::Remark(text)) }).await;
    }
}

/// Closes this side, and lets the API server read all sent messages.
async fn close(mut attachment: Attachment) {
    attachment.hang_up();
    // The API server may have more to send than is worth waiting for.
    let _ = timeout(GOODBYE, attachment.drain()).await;
}

/// Returns when the user stops waiting for a connection. Keeps other commands for the next connection.
async fn given_up(controls: &mut mpsc::Receiver<Control>, role: Role, unsent: &mut Unsent) {
    while let Some(control) = controls.recv().await {
        if unsent.take_in(control, role) {
            return;
        }
    }
}

/// Returns the next answer, once the queue of the renderer has room; `None` if the renderer has ended. Cancel-safe.
async fn next_answer(items: &mpsc::Sender<Item>, attachment: &mut Attachment) -> Option<Received> {
    let room = items.clone().reserve_owned().await.ok()?;
    Some((room, attachment.answer().await.map(Box::new)))
}

fn first_line(error: &ClusterError) -> String {
    error.to_string().lines().next().unwrap_or_default().to_owned()
}
