//! Reads the messages of a session process to the end of its socket, and passes each to its receiver.

use std::sync::Arc;

use lattice_session::session_process::frames::{FROM_SESSION_MAX, codec};
use lattice_session::timeouts;
use pmi_core::quiet::ReadHalf;
use pmi_transport::proto::v1 as proto;
use prost::Message;
use proto::from_session::What;
use proto::node_event::What as EventWhat;
use proto::to_session::What as ToWhat;
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_stream::StreamExt;
use tokio_util::codec::FramedRead;

use super::calls::{self, Callee, SessionQuestions};
use super::report::{Events, Word};
use super::to_session::ToSession;
use super::warnings::Warnings;

/// Maximum number of calls of a session that wait for an answer; further calls are refused. A look-up of a name may wait for an hour.
const CALLS_MAX: usize = 4096;

/// How the messages of a session ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LastWords {
    /// The session keeps its report, and stays until it is dismissed.
    Kept,
    /// The session could not start. It reported that before it ended.
    Left,
    /// The session ended without a report.
    Nothing,
}

/// Receivers of the session's messages.
pub(super) struct FromSession {
    pub(super) launch_id: String,
    /// `None` after the last rank of the session has ended.
    pub(super) callee: Option<Arc<Callee>>,
    pub(super) to_session: ToSession,
    pub(super) events: Arc<Events>,
    pub(super) questions: Arc<SessionQuestions>,
    /// Channel for the last words of the session; `None` after they were sent.
    pub(super) last_words: Option<oneshot::Sender<LastWords>>,
}

impl FromSession {
    /// Reads to the end of the socket.
    pub(super) async fn read(mut self, reader: ReadHalf) {
        self.read_all(reader).await;
        self.close(LastWords::Nothing).await;
    }

    /// Ends the calls of a session that has no ranks any more. Its fences end only after other nodes have received its replies: ranks there may
    /// wait for the last values that ranks committed here.
    async fn close(&mut self, last: LastWords) {
        let Some(last_words) = self.last_words.take() else { return };
        self.questions.close();
        let callee = self.callee.take();
        if let Some(fences) = callee.as_ref().and_then(|callee| callee.fences.as_ref()) {
            // Only a session that still runs, and does not read its questions, can delay this.
            let _ = timeout(timeouts::KILL, fences.last_answers()).await;
        }
        // An error means that the launch is over.
        let _ = last_words.send(last);
    }

    async fn read_all(&mut self, reader: ReadHalf) {
        let mut frames = FramedRead::new(reader, codec(FROM_SESSION_MAX));
        let (mut under_way, mut warnings) = (JoinSet::new(), Warnings::default());
        while let Some(Ok(frame)) = frames.next().await {
            let Ok(message) = proto::FromSession::decode(frame.freeze()) else { break };
            match message.what {
                Some(What::Event(event)) => {
                    let is_report = matches!(event.what, Some(EventWhat::Report(_)));
                    let last = if event.sequence == 0 { LastWords::Left } else { LastWords::Kept };
                    self.events.push(Word::Event(event)).await;
                    if is_report {
                        under_way.shutdown().await;
                        self.close(last).await;
                    }
                }
                Some(What::Resumed(resumed)) => self.events.push(Word::Resumed(resumed)).await,
                Some(What::Call(call)) => self.answer(call, &mut under_way).await,
                Some(What::Reply(reply)) => self.questions.replied(reply),
                Some(What::Warning(text)) => {
                    if let Some(text) = warnings.take(&text) {
                        tracing::warn!(launch = self.launch_id, "its session: {text}");
                    }
                }
                None => {}
            }
        }
    }

    /// Answers a call in a task of its own.
    async fn answer(&self, call: proto::Call, under_way: &mut JoinSet<()>) {
        while under_way.try_join_next().is_some() {}
        let Some(callee) = self.callee.clone() else { return };
        // Sending fails only after the session has ended; it then needs no answer.
        if under_way.len() >= CALLS_MAX {
            let refusal = calls::refusal(&call, &format!("{CALLS_MAX} calls of this node wait for answers"));
            let _ = self.to_session.send(ToWhat::Answer(refusal)).await;
            return;
        }
        let to_session = self.to_session.clone();
        under_way.spawn(async move {
            let _ = to_session.send(ToWhat::Answer(callee.answer(call).await)).await;
        });
    }
}
