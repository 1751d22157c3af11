//! Follows a launch on a cluster: hands on its news, sends what is wanted of it, and attaches again when a connection breaks.
//!
//! ```text
//!              AttachResponse                    Item (bounded)              News
//! API server ────────────────────> Following ───────────────────> Followed ───────> Renderer
//!            <────────────────────     ^  ^ ^─────── Dealt ──────────┘
//!   acknowledge, stdin, signal, ...    │  └ pieces of input
//!                                      └ Control
//! ```
//!
//! What the renderer has handed to the writers is acknowledged, several events at a time; what is not acknowledged comes again when
//! somebody attaches, so that the connection can break without a loss while the API server lives. Nothing is read from it while
//! the renderer is behind: then the ranks wait in the end. What is sent needs no such bound, as it has others: input has
//! credit, acknowledgements are fewer than events.

mod attachment;
mod dealt;
mod input;

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use lattice_session::cause::{Cause, CauseKind, StartClass};
use lattice_session::deadline::until;
use lattice_session::event::{Event, Report};
use lattice_session::session::Control;
use lattice_session::timeouts;
use lattice_session::wire::event::NodeHappening;
use lattice_session::wire::{self, WireError};
use pmi_core::ids::{NodeIndex, Rank};
use pmi_transport::proto::v1 as proto;
use proto::attach_request::What as Wish;
use proto::attach_response::What as Told;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until, timeout, timeout_at};
use tonic::Status;

pub(super) use self::attachment::{Attachment, Role};
use self::dealt::{Acknowledgements, Dealt, Followed, Item};
use self::input::Input;
use super::{End, LaunchError};
use crate::cluster::{Cluster, ClusterError};
use crate::news::{News, StartProgress};
use crate::trace::ClusterTrace;

/// How many events may wait for the renderer; each has up to 64 KiB.
const ITEMS: usize = 64;
/// The pauses between two tries to attach again: the first one, and the longest one.
const PAUSES: (Duration, Duration) = (Duration::from_millis(50), timeouts::COME_BACK_PAUSE);
/// How long the API server may take to say goodbye in turn; nothing depends on it.
const GOODBYE: Duration = Duration::from_millis(100);

/// A launch that is being followed.
pub(super) struct Following {
    cluster: Cluster,
    launch_id: String,
    role: Role,
    /// How long we try to attach again when a connection broke.
    patience: Duration,
    controls: mpsc::Receiver<Control>,
    input: Input,
    trace: Option<ClusterTrace>,
    items: mpsc::Sender<Item>,
    dealt: watch::Receiver<Dealt>,
    acknowledgements: Acknowledgements,
    /// The last event that was put to the renderer.
    received: u64,
    /// What the user wanted while nobody could be told.
    unsent: VecDeque<Wish>,
}

/// What comes after a conversation.
enum Turn {
    /// Nothing.
    End(End),
    /// Another one: we were stopped, and go on.
    Continued,
}

/// What an answer of the API server makes us do.
enum Heard {
    /// Something for the renderer, or an event that it need not see.
    News(Option<News>),
    /// So much more input may be sent.
    Credit(u64),
    /// The launch is over.
    End(Report),
    /// It is known already.
    Again,
}

impl Following {
    /// Follows `launch_id`, which goes on for `lease` without its API server, giving it `input` if its ranks are to read ours; news
    /// come from the other value.
    pub(super) fn new(
        cluster: Cluster,
        launch_id: String,
        role: Role,
        lease: Duration,
        controls: mpsc::Receiver<Control>,
        input: Option<mpsc::Receiver<Bytes>>,
        trace: Option<ClusterTrace>,
    ) -> (Self, Followed) {
        let (items, news) = mpsc::channel(ITEMS);
        let (dealing, dealt) = watch::channel(Dealt::default());
        let following = Self {
            cluster,
            launch_id,
            role,
            patience: lease + timeouts::COME_BACK,
            controls,
            input: Input::new(input),
            trace,
            items,
            dealt,
            acknowledgements: Acknowledgements::default(),
            received: 0,
            unsent: VecDeque::new(),
        };
        (following, Followed::new(news, dealing))
    }

    /// Follows the launch to its end, or until the user leaves it.
    ///
    /// # Errors
    /// Fails when the API server cannot be reached while the launch could go on, or does not let us attach any more.
    pub(super) async fn run(mut self, mut attachment: Attachment) -> Result<End, LaunchError> {
        loop {
            let broken = match self.converse(attachment).await {
                Ok(Turn::End(end)) => return Ok(end),
                Ok(Turn::Continued) => {
                    let back = self.attach_again(self.cluster.broken("this command was stopped")).await;
                    attachment = back.map_err(|error| self.lost_sight(error))?;
                    self.input.forget_connection();
                    continue;
                }
                Err(error) if error.is_passing() => error,
                Err(error) => return Err(self.lost_sight(error)),
            };
            self.remark(format!("the connection to the API server broke, attaching again: {}", first_line(&broken)))
                .await;
            attachment = match self.attach_again(broken).await {
                Ok(attachment) => attachment,
                Err(error) => return Err(self.lost_sight(error)),
            };
            self.remark("attached again".to_owned()).await;
            let unsure = self.input.forget_connection();
            if unsure > 0 {
                self.remark(format!("warning: up to {unsure} bytes of standard input may be lost")).await;
            }
        }
    }

    fn lost_sight(&self, source: ClusterError) -> LaunchError {
        LaunchError::LostSight { launch: self.launch_id.clone(), source: Box::new(source) }
    }

    /// Speaks with the API server for as long as the connection lasts.
    async fn converse(&mut self, mut attachment: Attachment) -> Result<Turn, ClusterError> {
        let items = self.items.clone();
        self.input.grant(attachment.window);
        for wish in self.unsent.drain(..) {
            attachment.send(wish);
        }
        loop {
            let due = self.acknowledgements.due();
            tokio::select! {
                heard = next_answer(&items, &mut attachment.answers) => {
                    let (room, answer) = match heard {
                        Some((room, answer)) => (room, answer.map_err(|status| self.cluster.refused(&status))?),
                        None => return Ok(Turn::End(End::Left(nix::libc::SIGPIPE))),
                    };
                    let answer = answer.ok_or_else(|| self.cluster.broken("it ended the conversation"))?;
                    let sequence = answer.sequence;
                    match self.hear(answer).map_err(|error| self.cluster.nonsense(error))? {
                        Heard::News(news) => room.send(Item { sequence, news }),
                        Heard::Credit(bytes) => self.input.grant(bytes),
                        Heard::Again => {}
                        Heard::End(report) => {
                            drop(room);
                            self.say_goodbye(attachment, sequence).await;
                            return Ok(Turn::End(End::Over(report)));
                        }
                    }
                }
                Some(control) = self.controls.recv() => match self.wish(control) {
                    Ok(wish) if attachment.has_hung_up() => {
                        keep(&mut self.unsent, wish);
                        return Ok(Turn::Continued);
                    }
                    Ok(wish) => {
                        let stops_us = wish == Wish::Signal(nix::libc::SIGSTOP);
                        attachment.send(wish);
                        if stops_us {
                            // Who is stopped answers nobody, and is not gone for all that.
                            attachment.hang_up();
                        }
                    }
                    Err(Some(signal)) => {
                        self.remark(format!("launch {} goes on without us", self.launch_id)).await;
                        part(attachment).await;
                        return Ok(Turn::End(End::Left(signal)));
                    }
                    Err(None) => {}
                },
                wish = self.input.next() => attachment.send(wish),
                Ok(()) = self.dealt.changed() => {
                    let dealt = *self.dealt.borrow_and_update();
                    if let Some(sequence) = self.acknowledgements.note(dealt, Instant::now()) {
                        attachment.send(Wish::Acknowledge(sequence));
                    }
                }
                () = until(due) => {
                    if let Some(sequence) = self.acknowledgements.take() {
                        attachment.send(Wish::Acknowledge(sequence));
                    }
                }
            }
        }
    }

    /// What an answer means.
    fn hear(&mut self, answer: proto::AttachResponse) -> Result<Heard, WireError> {
        if answer.sequence != 0 {
            if answer.sequence <= self.received {
                return Ok(Heard::Again);
            }
            self.received = answer.sequence;
        }
        let node = NodeIndex(answer.node);
        Ok(match answer.what {
            Some(Told::Event(event)) => Heard::News(match wire::event::decode(event)? {
                NodeHappening::Event(event) => is_shown(&event).then_some(News::Event(node, event)),
                NodeHappening::Trace(lines) => {
                    if let Some(trace) = &mut self.trace {
                        trace.write(node, &lines);
                    }
                    None
                }
                _ => None,
            }),
            Some(Told::StdinCredit(bytes)) => Heard::Credit(bytes),
            Some(Told::Complete(complete)) => Heard::End(report(complete)?),
            Some(Told::Starting(progress)) => Heard::News(Some(News::Starting(StartProgress {
                nodes: progress.nodes,
                nodes_started: progress.nodes_started,
                ranks: progress.ranks,
                ranks_started: progress.ranks_started,
            }))),
            Some(Told::DroppedOutput(bytes)) => Heard::News(Some(News::Dropped((bytes > 0).then_some(bytes)))),
            Some(Told::UnendedNodes(nodes)) => Heard::News(Some(News::Remark(format!(
                "warning: {nodes} did not say that its part of the launch has ended; processes may be left there"
            )))),
            // A later version's news are none to us, but dealt with.
            Some(Told::Spec(_)) | None => Heard::News(None),
        })
    }

    /// What the launch is to be told; `Err` with the signal by which the user leaves, or with nothing to be told.
    fn wish(&self, control: Control) -> Result<Wish, Option<i32>> {
        match (self.role, control) {
            (Role::Owner, Control::Signal(signal)) => Ok(Wish::Signal(signal)),
            (Role::Owner, Control::End(signal)) => Ok(Wish::End(signal)),
            (Role::Owner, Control::Kill(signal)) => Ok(Wish::Kill(signal)),
            (Role::Viewer, Control::End(signal) | Control::Kill(signal)) => Err(Some(signal)),
            _ => Err(None),
        }
    }

    /// Everything is told: waits until all of it is dealt with, and says so.
    async fn say_goodbye(&mut self, attachment: Attachment, sequence: u64) {
        let last = Item { sequence: sequence.max(self.received), news: None };
        let last_sequence = last.sequence;
        // Whoever renders has nothing more to do when it asks for what comes after this.
        if self.items.send(last).await.is_ok() {
            let _ = self.dealt.wait_for(|dealt| dealt.sequence >= last_sequence).await;
        }
        attachment.send(Wish::Acknowledge(last_sequence));
        part(attachment).await;
    }

    /// Tries to attach until that goes well, it is refused, the user has had enough, or our patience is over.
    async fn attach_again(&mut self, broken: ClusterError) -> Result<Attachment, ClusterError> {
        let deadline = Instant::now() + self.patience;
        let (mut pause, longest) = PAUSES;
        let mut last = broken;
        while Instant::now() < deadline {
            let next = Instant::now() + pause;
            pause = (2 * pause).min(longest);
            let after = self.dealt.borrow().sequence;
            tokio::select! {
                opened = timeout_at(deadline, Attachment::open(&self.cluster, &self.launch_id, after, self.role)) => match opened {
                    Ok(Ok((attachment, _))) => return Ok(attachment),
                    Ok(Err(error)) if error.is_passing() => last = error,
                    Ok(Err(error)) => return Err(error),
                    Err(_) => break,
                },
                () = impatience(&mut self.controls, self.role, &mut self.unsent) => break,
            }
            tokio::select! {
                () = sleep_until(next.min(deadline)) => {}
                () = impatience(&mut self.controls, self.role, &mut self.unsent) => break,
            }
        }
        Err(last)
    }

    async fn remark(&self, text: String) {
        // Who does not listen any more needs no remarks.
        let _ = self.items.send(Item { sequence: 0, news: Some(News::Remark(text)) }).await;
    }
}

/// Lets the API server hear what was said last, and that this was all.
async fn part(mut attachment: Attachment) {
    attachment.hang_up();
    let end = async { while let Ok(Some(_)) = attachment.answers.message().await {} };
    // It may have more to tell than we want to hear.
    let _ = timeout(GOODBYE, end).await;
}

/// Returns when the user wants the launch to end at once, or leaves it; what else the owner wants is kept for later.
async fn impatience(controls: &mut mpsc::Receiver<Control>, role: Role, unsent: &mut VecDeque<Wish>) {
    loop {
        match (role, controls.recv().await) {
            (_, Some(Control::Kill(_)) | None) | (Role::Viewer, Some(Control::End(_))) => return,
            (Role::Owner, Some(Control::End(signal))) => keep(unsent, Wish::End(signal)),
            // Above all SIGCONT: without it ranks that were stopped would stay so.
            (Role::Owner, Some(Control::Signal(signal))) => keep(unsent, Wish::Signal(signal)),
            (_, Some(_)) => {}
        }
    }
}

/// Keeps a wish behind those before; of the same ones the last, so that there are no more than there are signals.
fn keep(unsent: &mut VecDeque<Wish>, wish: Wish) {
    unsent.retain(|before| *before != wish);
    unsent.push_back(wish);
}

/// The next answer, once there is room for it; `None` when nobody renders any more.
async fn next_answer<'a>(
    items: &'a mpsc::Sender<Item>,
    answers: &mut tonic::Streaming<proto::AttachResponse>,
) -> Option<(mpsc::Permit<'a, Item>, Result<Option<proto::AttachResponse>, Status>)> {
    let room = items.reserve().await.ok()?;
    Some((room, answers.message().await))
}

/// Whether the renderer has any use for an event: others are between nodes and the API server.
fn is_shown(event: &Event) -> bool {
    !matches!(event, Event::Progress { .. } | Event::Waiting { .. } | Event::Spawned { .. })
}

/// How the launch ended as a whole.
fn report(complete: proto::LaunchCompleteNotification) -> Result<Report, WireError> {
    let mut exits: Vec<_> =
        complete.ranks.iter().map(|exit| (Rank(exit.rank), wire::cause::decode_exit(exit))).collect();
    exits.sort_unstable_by_key(|&(rank, _)| rank);
    let cause = match complete.cause {
        Some(cause) => Some(wire::cause::decode(cause)?),
        None if complete.success => None,
        None => Some(Cause {
            host: "API server".to_owned(),
            kind: CauseKind::NotStarted { reason: complete.error_message, class: StartClass::System },
        }),
    };
    Ok(Report { exits, cause, duration: Duration::from_micros(complete.duration_us) })
}

fn first_line(error: &ClusterError) -> String {
    error.to_string().lines().next().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn signals_are_kept_until_there_is_a_connection() {
        let (control, mut controls) = mpsc::channel(8);
        let (stop, cont) = (nix::libc::SIGSTOP, nix::libc::SIGCONT);
        for signal in [stop, cont, stop, nix::libc::SIGUSR1, cont] {
            control.try_send(Control::Signal(signal)).unwrap();
        }
        control.try_send(Control::Kill(2)).unwrap();
        let mut unsent = VecDeque::new();
        impatience(&mut controls, Role::Owner, &mut unsent).await;
        assert_eq!(unsent, [Wish::Signal(stop), Wish::Signal(nix::libc::SIGUSR1), Wish::Signal(cont)]);
    }

    #[tokio::test]
    async fn a_viewer_wants_nothing_of_the_launch() {
        let (control, mut controls) = mpsc::channel(8);
        control.try_send(Control::Signal(10)).unwrap();
        control.try_send(Control::End(2)).unwrap();
        let mut unsent = VecDeque::new();
        impatience(&mut controls, Role::Viewer, &mut unsent).await;
        assert!(unsent.is_empty());
    }
}
