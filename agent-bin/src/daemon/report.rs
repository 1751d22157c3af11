//! The stream on which a launch's events go to the API server and its commands come back; opened again when it breaks.
//!
//! Events that were on their way when a stream broke are lost, but for the first cause and the report: those are sent again on each
//! new stream until the report is acknowledged. The acknowledgement is the end of the stream after the report, which the API server
//! withholds until the report is durable. One that does not come within [`timeouts::REPORT_ACK`] is asked for on a new stream. While there is
//! no API server, events wait: nothing else is put into a stream that is opened again before it is accepted.

use std::sync::Arc;
use std::time::Duration;

use lattice_session::cause::Cause;
use lattice_session::event::{Event, Report};
use lattice_session::{timeouts, wire};
use pmi_core::ids::NodeIndex;
use pmi_transport::connect::Channel;
use pmi_transport::limits::MESSAGE_MAX;
use pmi_transport::proto::v1 as proto;
use prost::Message;
use proto::launch_report::What as ReportWhat;
use proto::node_event::What;
use proto::node_service_client::NodeServiceClient;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio::time::{sleep, timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Status};

use super::to_session::ToSession;

/// Bytes of events that may wait for the API server; beyond that, back-pressure stops the session.
const WAITING_MAX: usize = 32 << 20;

/// Number of events that may wait.
const EVENTS_MAX: usize = 1 << 16;

/// Pause before the second attempt to open the stream; doubles up to [`timeouts::REPORT_PAUSE`].
const PAUSE_FIRST: Duration = Duration::from_millis(50);

/// Number of events on their way into the stream: those that are there at once share packets on the connection.
const ON_THEIR_WAY: usize = 16;

/// Time that the first stream waits for its first event; events of a launch that ends at once go all together.
const FIRST_EVENT: Duration = Duration::from_millis(50);

/// An event, and its share of the room for events.
type Waiting = (proto::NodeEvent, OwnedSemaphorePermit);

/// Queue of a session's events; the first cause overtakes all others.
pub(super) struct Events {
    urgent: mpsc::Sender<Waiting>,
    normal: mpsc::Sender<Waiting>,
    room: Arc<Semaphore>,
    /// Notified of each event.
    news: Arc<Notify>,
}

impl Events {
    /// Queues the first cause; waits while there is no room.
    pub(super) async fn push_cause(&self, cause: Cause) {
        self.push(wire::event::encode(&Event::Ending(cause))).await;
    }

    /// Queues a report; waits while there is no room.
    pub(super) async fn push_report(&self, report: &Report) {
        self.push(wire::event::encode_report(report)).await;
    }

    /// Queues an event; waits while there is no room.
    pub(super) async fn push(&self, event: proto::NodeEvent) {
        // No event is larger than all the room.
        let size = event.encoded_len().clamp(1, WAITING_MAX) as u32;
        let Ok(permit) = Arc::clone(&self.room).acquire_many_owned(size).await else { return };
        let line = if matches!(event.what, Some(What::Ending(_))) { &self.urgent } else { &self.normal };
        // Nobody takes events once the API server does not know the launch.
        let _ = line.send((event, permit)).await;
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
    fn encode(&self) -> proto::ReportFor {
        let Self { launch_id, node_id, node } = self.clone();
        proto::ReportFor { launch_id, node_id, node_index: node.0 }
    }
}

/// The delivery of one launch's events.
pub(super) struct Delivery {
    api: Channel,
    of: ReportFor,
    to_session: ToSession,
    urgent: mpsc::Receiver<Waiting>,
    normal: mpsc::Receiver<Waiting>,
    news: Arc<Notify>,
    /// A stream was opened before: the first one carries events at once, so that a short launch needs no round trip for them.
    again: bool,
    /// Sent again on each new stream, as the report is.
    cause: Option<proto::NodeEvent>,
    report: Option<proto::NodeEvent>,
}

impl Delivery {
    /// Makes a delivery, and the queue of its events.
    pub(super) fn new(api: Channel, of: ReportFor, to_session: ToSession) -> (Self, Events) {
        let (urgent, urgent_out) = mpsc::channel(EVENTS_MAX);
        let (normal, normal_out) = mpsc::channel(EVENTS_MAX);
        let news = Arc::new(Notify::new());
        let events = Events { urgent, normal, room: Arc::new(Semaphore::new(WAITING_MAX)), news: Arc::clone(&news) };
        let delivery = Self {
            api,
            of,
            to_session,
            urgent: urgent_out,
            normal: normal_out,
            news,
            again: false,
            cause: None,
            report: None,
        };
        (delivery, events)
    }

    /// Delivers until the report is acknowledged, however often the stream has to be opened again.
    pub(super) async fn run(mut self) -> Delivered {
        let mut pause = PAUSE_FIRST;
        // Without any, the stream is there for commands.
        let _ = timeout(FIRST_EVENT, self.news.notified()).await;
        loop {
            match self.one_stream().await {
                Ok(()) if self.report.is_some() => return Delivered::All,
                Ok(()) => tracing::warn!(launch = self.of.launch_id, "the API server ended the stream of reports"),
                Err(status) => match status.code() {
                    Code::NotFound | Code::PermissionDenied | Code::FailedPrecondition => {
                        return Delivered::Unwanted(status);
                    }
                    // An API server that knows nothing of reports: the launch runs for itself.
                    Code::Unimplemented => return self.drain().await,
                    _ => tracing::warn!(launch = self.of.launch_id, "reports wait: {}", status.message()),
                },
            }
            sleep(pause).await;
            pause = (pause * 2).min(timeouts::REPORT_PAUSE);
        }
    }

    /// Sends events and receives commands until either end ends it.
    async fn one_stream(&mut self) -> Result<(), Status> {
        let (sender, receiver) = mpsc::channel(ON_THEIR_WAY);
        let client = NodeServiceClient::new(self.api.clone());
        let mut client = client.max_decoding_message_size(MESSAGE_MAX).max_encoding_message_size(MESSAGE_MAX);
        let to_session = self.to_session.clone();
        let (accept, accepted) = watch::channel(!std::mem::replace(&mut self.again, true));
        let receive = async {
            let mut commands = client.report_launch(ReceiverStream::new(receiver)).await?.into_inner();
            accept.send_replace(true);
            while let Some(command) = commands.message().await? {
                // A session that has ended needs no commands.
                let _ = to_session.send(proto::to_session::What::Command(command)).await;
            }
            Ok(())
        };
        let mut receive = std::pin::pin!(receive);
        tokio::select! {
            result = &mut receive => return result,
            () = self.send(sender, accepted) => {}
        }
        let unacknowledged =
            || Status::deadline_exceeded("the API server has not acknowledged the report; it is sent again");
        timeout(timeouts::REPORT_ACK, receive).await.unwrap_or_else(|_| Err(unacknowledged()))
    }

    /// Sends events, once the stream is accepted, until the report has been sent, or the stream takes no more.
    async fn send(&mut self, stream: mpsc::Sender<proto::LaunchReport>, mut accepted: watch::Receiver<bool>) {
        let report = |what| proto::LaunchReport { what: Some(what) };
        let again = self.cause.iter().chain(&self.report).cloned().map(ReportWhat::Event);
        for what in std::iter::once(ReportWhat::Of(self.of.encode())).chain(again) {
            if stream.send(report(what)).await.is_err() {
                return std::future::pending().await;
            }
        }
        if accepted.wait_for(|accepted| *accepted).await.is_err() {
            return std::future::pending().await;
        }
        while self.report.is_none() {
            // First the place, then what is put there: an event that was taken out is never lost.
            let Ok(place) = stream.reserve().await else { return std::future::pending().await };
            let Some(event) = self.next().await else { return };
            place.send(report(ReportWhat::Event(event)));
        }
    }

    /// The next event; remembers what has to be sent again. `None` if the launch ended without a report.
    async fn next(&mut self) -> Option<proto::NodeEvent> {
        let (event, _room) = tokio::select! {
            biased;
            Some(event) = self.urgent.recv() => event,
            Some(event) = self.normal.recv() => event,
            else => return None,
        };
        match &event.what {
            Some(What::Ending(_)) => self.cause = Some(event.clone()),
            Some(What::Report(_)) => self.report = Some(event.clone()),
            _ => {}
        }
        Some(event)
    }

    async fn drain(mut self) -> Delivered {
        while self.report.is_none() && self.next().await.is_some() {}
        Delivered::All
    }
}

#[cfg(test)]
mod tests;
