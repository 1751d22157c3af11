//! The stream on which a launch's events go to the API server and its commands come back; opened again when it breaks.
//!
//! ```text
//! session ──events──> [Line] ──────────────> API server
//!    ^                  │ discards, while no stream is there, and until the session has answered `resume`
//!    └──commands, resume, what was taken <── API server
//!    └──that a stream broke <── here
//! ```
//!
//! A delivery is a pipe: the session numbers its events and keeps them until the API server has taken them. When a stream breaks, what
//! was on its way is dropped here; on the next one the API server says what it has, and the session goes on from there. Only what the
//! agent has to say itself is kept here: the cause and the report of a session that was killed.
//!
//! The acknowledgement of a report is the end of the stream after it, which the API server withholds until the report is durable. One
//! that does not come within [`timeouts::REPORT_ACK`] is asked for on a new stream.

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

/// Number of a session's messages that may wait here: few, as the session keeps them.
const WAITING_MAX: usize = 16;

/// Pause before the API server is asked a second time; doubles up to [`timeouts::REPORT_PAUSE`].
pub(super) const PAUSE_FIRST: Duration = Duration::from_millis(50);

/// Number of events on their way into the stream: those that are there at once share packets on the connection.
const ON_THEIR_WAY: usize = 16;

/// Time that the first stream waits for its first event; events of a launch that ends at once go all together.
const FIRST_EVENT: Duration = Duration::from_millis(50);

/// Message of a session, or of this agent in place of it, on its way to the API server.
#[derive(Debug)]
pub(super) enum Word {
    /// An event; one of the agent's own has no number.
    Event(proto::NodeEvent),
    /// The session's answer to `resume`.
    Resumed(proto::Resumed),
}

/// Queue of a session's messages.
pub(super) struct Events {
    words: mpsc::Sender<Word>,
    /// Notified of each event.
    news: Arc<Notify>,
}

impl Events {
    /// Queues the first cause, as the agent sees it; waits while there is no room.
    pub(super) async fn push_cause(&self, cause: Cause) {
        self.push(Word::Event(wire::event::encode(&Event::Ending(cause)))).await;
    }

    /// Queues a report in place of a session; waits while there is no room.
    pub(super) async fn push_report(&self, report: &Report) {
        self.push(Word::Event(wire::event::encode_report(report))).await;
    }

    /// Queues a message; waits while there is no room.
    pub(super) async fn push(&self, word: Word) {
        // Nobody takes them once the API server does not know the launch.
        let _ = self.words.send(word).await;
        self.news.notify_one();
    }
}

/// End of a delivery.
#[derive(Debug)]
pub(super) enum Delivered {
    /// The API server has acknowledged the report.
    All,
    /// The API server refuses reports of this launch.
    Unwanted(Status),
    /// The API server knows nothing of reports: the launch runs for itself.
    Unheard,
}

/// Part of a launch that a stream reports of.
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

/// Ways on which a launch's events can go.
pub(super) struct Ways {
    pub(super) api: Place,
    /// Offers to relay what the launch reports first; `None` if nobody will make any.
    pub(super) offers: Option<mpsc::Receiver<Offer>>,
}

/// The delivery of one launch's events.
pub(super) struct Delivery {
    ways: Ways,
    of: ReportFor,
    to_session: ToSession,
    line: Line,
    news: Arc<Notify>,
    /// The session may think that the API server hears it.
    seems_heard: bool,
}

impl Delivery {
    /// Makes a delivery, and the queue of its events; of a session that was taken up an agent before has delivered events.
    pub(super) fn new(ways: Ways, of: ReportFor, to_session: ToSession, is_taken_up: bool) -> (Self, Events) {
        let (words, waiting) = mpsc::channel(WAITING_MAX);
        let news = Arc::new(Notify::new());
        let events = Events { words, news: Arc::clone(&news) };
        let line = if is_taken_up { Line::taken_up(waiting) } else { Line::new(waiting) };
        (Self { ways, of, to_session, line, news, seems_heard: true }, events)
    }

    /// Delivers until the report is acknowledged, however often the stream has to be opened again.
    pub(super) async fn run(mut self) -> Delivered {
        let mut pause = PAUSE_FIRST;
        // Without any, the stream is there for commands.
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
                    // Also where it takes this agent for somebody else: the launch is no worse for that.
                    Code::Unimplemented => return Delivered::Unheard,
                    _ if self.seems_heard => {
                        tracing::warn!(launch = self.of.launch_id, "reports wait: {}", status.message());
                    }
                    // Told already, for this time without an API server.
                    _ => tracing::debug!(launch = self.of.launch_id, "reports wait: {}", status.message()),
                },
            }
            if std::mem::take(&mut self.seems_heard) {
                self.to_session.unheard();
            }
            // A session whose messages nobody took could not be heard on anything else.
            let _ = timeout(pause, self.line.discard()).await;
            pause = (pause * 2).min(timeouts::REPORT_PAUSE);
        }
    }

    /// Reports by way of a relay, if one comes in time, until all is said or the node is to go on by itself.
    async fn relayed(&mut self) -> Option<Delivered> {
        // From the end of this on, offers come too late.
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
            // A relay that comes again has nothing that the one before did not have.
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

    /// Sends events and receives commands on a stream to the API server until either end ends it.
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

    /// Passes events on to a stream until `receive`, which takes what comes back on it, is at its end.
    async fn carry(
        &mut self,
        stream: Beginning,
        sender: mpsc::Sender<proto::LaunchReport>,
        receive: impl Future<Output = Result<(), Status>>,
    ) -> Result<(), Status> {
        let mut receive = std::pin::pin!(receive);
        // There is room: it is the first.
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
