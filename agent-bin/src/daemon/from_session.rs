//! Messages of a session process: read to the end of its socket, and passed to who receives them.

use std::sync::Arc;

use lattice_session::session_process::frames::{FROM_SESSION_MAX, codec};
use lattice_session::timeouts;
use pmi_core::quiet::ReadHalf;
use pmi_transport::proto::v1 as proto;
use prost::Message;
use proto::from_session::What;
use proto::node_event::What as EventWhat;
use proto::to_session::What as ToWhat;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_stream::StreamExt;
use tokio_util::codec::FramedRead;

use super::calls::{self, Callee, SessionQuestions};
use super::report::Events;
use super::to_session::ToSession;
use super::warnings::Warnings;

/// Number of calls of a session that may wait for their answers; more are refused. Some wait for an hour: look-ups of names.
const CALLS_MAX: usize = 4096;

/// Last words of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LastWords {
    /// The session reported.
    Report,
    /// The session ended without a report.
    Nothing,
}

/// Receivers of the session's messages.
pub(super) struct FromSession {
    pub(super) callee: Arc<Callee>,
    pub(super) to_session: ToSession,
    pub(super) events: Arc<Events>,
    pub(super) questions: Arc<SessionQuestions>,
}

impl FromSession {
    /// Reads to the end of the socket, or to the session's report. Its fences end with it, but not before other nodes have what it
    /// replied to them: ranks there may wait for what a rank committed last here.
    pub(super) async fn read(self, reader: ReadHalf) -> LastWords {
        let last = self.until_last_words(reader).await;
        self.questions.close();
        if let Some(fences) = &self.callee.fences {
            // Only a session that still runs, and does not read what it is asked, can hold this up.
            let _ = timeout(timeouts::KILL, fences.last_answers()).await;
        }
        last
    }

    async fn until_last_words(&self, reader: ReadHalf) -> LastWords {
        let mut frames = FramedRead::new(reader, codec(FROM_SESSION_MAX));
        let (mut under_way, mut warnings) = (JoinSet::new(), Warnings::default());
        while let Some(Ok(frame)) = frames.next().await {
            let Ok(message) = proto::FromSession::decode(frame.freeze()) else { break };
            match message.what {
                Some(What::Event(event)) => {
                    let is_report = matches!(event.what, Some(EventWhat::Report(_)));
                    self.events.push(event).await;
                    if is_report {
                        return LastWords::Report;
                    }
                }
                Some(What::Call(call)) => self.answer(call, &mut under_way).await,
                Some(What::Reply(reply)) => self.questions.replied(reply),
                Some(What::Warning(text)) => {
                    if let Some(text) = warnings.take(&text) {
                        tracing::warn!(launch = self.callee.launch_id, "its session: {text}");
                    }
                }
                None => {}
            }
        }
        LastWords::Nothing
    }

    /// Has a call answered, beside those that are under way.
    async fn answer(&self, call: proto::Call, under_way: &mut JoinSet<()>) {
        while under_way.try_join_next().is_some() {}
        // A send fails when the session has ended, and it needs no answer then.
        if under_way.len() >= CALLS_MAX {
            let refusal = calls::refusal(&call, &format!("{CALLS_MAX} calls of this node wait for answers"));
            let _ = self.to_session.send(ToWhat::Answer(refusal)).await;
            return;
        }
        let (callee, to_session) = (Arc::clone(&self.callee), self.to_session.clone());
        under_way.spawn(async move {
            let _ = to_session.send(ToWhat::Answer(callee.answer(call).await)).await;
        });
    }
}
