//! The stream that carries a launch's events to the API server, and its commands back. It is opened again when it breaks.
//!
//! ```text
//! session ──events──> [Line] ──────────────> API server
//!    ^                  │ discards without a stream, and until the session has answered `resume`
//!    └──commands, resume, acknowledged events <── API server
//!    └──notice of a broken stream <── agent
//! ```
//!
//! A delivery is a pipe: the session numbers its events, and keeps them until the API server has taken them. When a stream breaks, the agent
//! drops the events under way. On the next stream the API server reports its last event, and the session continues from there. The agent keeps
//! only its own messages: the cause and the report of a session that was killed.
//!
//! The end of the stream after a report acknowledges the report. The API server delays it until the report is durable. If it does not come
//! within [`timeouts::REPORT_ACK`], the agent opens a new stream.

mod line;

use std::sync::Arc;
use std::time::Duration;

use lattice_session::cause::Cause;
use lattice_session::deadline::until;
use lattice_session::event::{Event, Report};
use lattice_session::{timeouts, wire};
use pmi_core::ids::NodeIndex;
use pmi_transport::limits::MESSAGE_MAX;
use pmi_transport::proto::v1 as proto;
use proto::launch_report::What as ReportWhat;
use proto::node_command::What as CommandWhat;
use proto::node_service_client::NodeServiceClient;
use proto::to_session::What as ToWhat;
use tokio::sync::{Notify, mpsc, watch};
use tokio::time::{Instant, timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Status};

use self::line::{Beginning, Line};
use super::api_channels::Place;
use super::report_relay::{Downward, Offer, Way};
use super::to_session::ToSession;

/// Maximum number of a session's messages that wait here; small, because the session keeps them.
const WAITING_MAX: usize = 16;

/// Pause before the second attempt to reach the API server; doubles up to [`timeouts::REPORT_PAUSE`].
pub(super) const PAUSE_FIRST: Duration = Duration::from_millis(50);

/// Number of events that wait for the stream: events that are ready at the same time share packets on the connection.
const ON_THEIR_WAY: usize = 16;

/// Time that the first stream waits for its first event, so that the events of a very short launch are sent together.
const FIRST_EVENT: Duration = Duration::from_millis(50);

/// Message from a session, or from this agent in its place, to the API server.
#[derive(Debug)]
pub(super) enum Word {
    /// An event; an event of the agent itself has no number.
    Event(proto::NodeEvent),
    /// The session's answer to `resume`.
    Resumed(proto::Resumed),
}

/// Queue of a session's messages.
pub(super) struct Events {
    words: mpsc::Sender<Word>,
    /// Notified after each event.
    news: Arc<Notify>,
}

impl Events {
    /// Queues the first cause that the agent detected; waits while the queue is full.
    pub(super) async fn push_cause(&self, cause: Cause) {
        self.push(Word::Event(wire::event::encode(&Event::Ending(cause)))).await;
    }

    /// Queues a report in place of a session's; waits while the queue is full.
    pub(super) async fn push_report(&self, report: &Report) {
        self.push(Word::Event(wire::event::encode_report(report))).await;
    }

    /// Queues a message; waits while the queue is full.
    pub(super) async fn push(&self, word: Word) {
        // The queue is closed once the API server has no record of the launch.
        let _ = self.words.send(word).await;
        self.news.notify_one();
    }
}

/// Result of a delivery.
#[derive(Debug)]
pub(super) enum Delivered {
    /// The API server has acknowledged the report.
    All,
    /// The API server refuses reports of this launch.
    Unwanted(Status),
    /// The API server does not support reports, and the launch runs without it.
    Unheard,
}

/// Part of a launch that a stream covers.
#[derive(Clone, Debug)]
pub(super) struct ReportFor {
    pub(super) launch_id: String,
    pub(super) node_id: String,
    /// Index of the node in the launch.
    pub(super) node: NodeIndex,
}

impl ReportFor {
    fn encode(&self, again: bool) -> proto::ReportFor {
        let Self { launch_id, node_id, node } = self.clone();
        proto::ReportFor { launch_id, node_id, node_index: node.0, again }
    }
}

/// Routes for a launch's events.
pub(super) struct Ways {
    pub(super) api: Place,
    /// Offers to relay the launch's first reports; `None` if there can be no offer.
    pub(super) offers: Option<mpsc::Receiver<Offer>>,
}

/// The delivery of one launch's events.
pub(super) struct Delivery {
    ways: Ways,
    of: ReportFor,
    to_session: ToSession,
    line: Line,
    news: Arc<Notify>,
    /// The session may assume that the API server receives its events.
    seems_heard: bool,
}

impl Delivery {
    /// Makes a delivery, and the queue of its events. The events of an adopted session had a delivery in an earlier agent.
    pub(super) fn new(ways: Ways, of: ReportFor, to_session: ToSession, is_taken_up: bool) -> (Self, Events) {
        let (words, waiting) = mpsc::channel(WAITING_MAX);
        let news = Arc::new(Notify::new());
        let events = Events { words, news: Arc::clone(&news) };
        let line = if is_taken_up { Line::taken_up(waiting) } else { Line::new(waiting) };
        (Self { ways, of, to_session, line, news, seems_heard: true }, events)
    }

    /// Delivers until the report is acknowledged, and opens the stream again as often as necessary.
    pub(super) async fn run(mut self) -> Delivered {
        let mut pause = PAUSE_FIRST;
        // Without an event, the stream still carries commands.
        let _ = timeout(FIRST_EVENT, self.news.notified()).await;
        if let Some(delivered) = self.relayed().await {
            return delivered;
        }
        loop {
            match self.one_stream().await {
                Ok(()) if self.line.has_reported() => return Delivered::All,
                Ok(()) => tracing::warn!(launch = self.of.launch_id, "the API server ended the stream of reports"),
                Err(status) => match status.code() {
                    Code::NotFound | Code::FailedPrecondition => return Delivered::Unwanted(status),
                    // Also if the server mistakes this agent for another peer: the launch is not affected.
                    Code::Unimplemented => return Delivered::Unheard,
                    _ if self.seems_heard => {
                        tracing::warn!(launch = self.of.launch_id, "reports wait: {}", status.message());
                    }
                    // Logged before, for this absence of the API server.
                    _ => tracing::debug!(launch = self.of.launch_id, "reports wait: {}", status.message()),
                },
            }
            if std::mem::take(&mut self.seems_heard) {
                self.to_session.unheard();
            }
            // If no task took its messages, the session could not send anything else.
            let _ = timeout(pause, self.line.discard()).await;
            pause = (pause * 2).min(timeouts::REPORT_PAUSE);
        }
    }

    /// Reports through a relay, if one arrives in time, until everything is reported or the node must continue without it.
    async fn relayed(&mut self) -> Option<Delivered> {
        // After this function returns, offers come too late.
        let mut offers = self.ways.offers.take()?;
        let Ok(Some(Offer::Way(Way { reports, mut commands }))) = timeout(timeouts::FETCHED, offers.recv()).await
        else {
            return None;
        };
        let to_session = self.to_session.clone();
        let receive = async move {
            loop {
                match commands.recv().await {
                    Some(Downward::Command(command)) => drop(to_session.send(ToWhat::Command(command)).await),
                    Some(Downward::End(result)) => return result,
                    None => return Err(Status::unavailable("the relay is gone")),
                }
            }
        };
        let replaced = async {
            // A second relay has nothing that the first one did not have.
            while let Some(Offer::Way(_)) = offers.recv().await {}
        };
        let stream = self.line.begin();
        let carried = tokio::select! {
            result = self.carry(stream, reports, receive) => result,
            () = replaced => Err(Status::aborted("the relay does not answer")),
        };
        self.line.end(true);
        match carried {
            Ok(()) if self.line.has_reported() => Some(Delivered::All),
            Err(status) if matches!(status.code(), Code::NotFound | Code::FailedPrecondition) => {
                Some(Delivered::Unwanted(status))
            }
            Ok(()) => None,
            Err(status) => {
                tracing::debug!(launch = self.of.launch_id, "a stream of its own is opened: {}", status.message());
                None
            }
        }
    }

    /// Sends events and receives commands on a stream to the API server until either side ends it.
    async fn one_stream(&mut self) -> Result<(), Status> {
        let (sender, receiver) = mpsc::channel(ON_THEIR_WAY);
        let client = NodeServiceClient::new(self.ways.api.channel());
        let mut client = client.max_decoding_message_size(MESSAGE_MAX).max_encoding_message_size(MESSAGE_MAX);
        let stream = self.line.begin();
        let order = move |after: Option<u64>| proto::ResumeEvents {
            stream: stream.number,
            after,
            handed: if after.is_none() { stream.handed } else { None },
        };
        let to_session = self.to_session.clone();
        let (accept, accepted) = watch::channel(false);
        let receive = async move {
            let mut commands = client.report_launch(ReceiverStream::new(receiver)).await?.into_inner();
            accept.send_replace(true);
            while let Some(command) = commands.message().await? {
                let what = match command.what {
                    Some(CommandWhat::Resume(proto::Resume { after })) => ToWhat::Resume(order(after)),
                    _ => ToWhat::Command(command),
                };
                // A session that has ended needs no commands.
                let _ = to_session.send(what).await;
            }
            Ok(())
        };
        let result = self.carry(stream, sender, receive).await;
        let accepted = *accepted.borrow();
        self.line.end(accepted);
        self.seems_heard |= accepted;
        result
    }

    /// Forwards events to a stream until `receive` ends, which handles the other direction.
    async fn carry(
        &mut self,
        stream: Beginning,
        sender: mpsc::Sender<proto::LaunchReport>,
        receive: impl Future<Output = Result<(), Status>>,
    ) -> Result<(), Status> {
        let mut receive = std::pin::pin!(receive);
        // The channel has room for its first message.
        let _ = sender.send(report(ReportWhat::Of(self.of.encode(stream.is_again())))).await;
        let mut acknowledged_by = self.line.has_reported().then(acknowledgement_due);
        loop {
            tokio::select! {
                result = &mut receive => return result,
                () = self.line.pass_on(&sender) => acknowledged_by = Some(acknowledgement_due()),
                () = until(acknowledged_by) => return Err(unacknowledged()),
            }
        }
    }
}

fn report(what: ReportWhat) -> proto::LaunchReport {
    proto::LaunchReport { what: Some(what) }
}

fn acknowledgement_due() -> Instant {
    Instant::now() + timeouts::REPORT_ACK
}

fn unacknowledged() -> Status {
    Status::deadline_exceeded("the API server has not acknowledged the report; it is asked again")
}

#[cfg(test)]
mod tests;
