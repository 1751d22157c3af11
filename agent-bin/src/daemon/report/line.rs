//! Forwards a session's messages to one stream after the other. A message that continues the present stream is forwarded. A message that the
//! session will send again is dropped.

use pmi_transport::proto::v1 as proto;
use proto::launch_report::What as ReportWhat;
use proto::node_event::What;
use tokio::sync::mpsc;

use super::{Word, report};

/// Maximum number of the agent's own messages. There are three: a cause of being cut off, a cause and a report.
const OWN_MAX: usize = 4;

/// A session's messages, and the state of their delivery.
pub(super) struct Line {
    words: mpsc::Receiver<Word>,
    /// Number of the present stream; 0 before the first.
    stream: u64,
    flow: Flow,
    /// Number of the last event in a stream that the API server had accepted; `None` if an earlier agent had streams.
    handed: Option<u64>,
    /// Number of the last event in the present stream.
    put: u64,
    /// The agent's own messages, which go into each stream.
    own: Vec<proto::NodeEvent>,
    /// Number of own messages in the present stream.
    own_put: usize,
    /// A stream contains a report.
    reported: bool,
}

/// Whether the session's events continue the present stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flow {
    PassesOn,
    /// The events belong to an earlier stream, until the session confirms that it continues on the present one.
    Discards,
}

/// Start of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Beginning {
    pub(super) number: u64,
    pub(super) handed: Option<u64>,
    again: bool,
}

impl Beginning {
    /// Returns true if there was an earlier stream.
    pub(super) fn is_again(self) -> bool {
        self.again
    }
}

impl Line {
    /// Messages of a session before its first stream.
    pub(super) fn new(words: mpsc::Receiver<Word>) -> Self {
        Self {
            words,
            stream: 0,
            flow: Flow::PassesOn,
            handed: Some(0),
            put: 0,
            own: Vec::new(),
            own_put: 0,
            reported: false,
        }
    }

    /// Messages of a session that had streams in an earlier agent.
    pub(super) fn taken_up(words: mpsc::Receiver<Word>) -> Self {
        Self { handed: None, ..Self::new(words) }
    }

    /// Starts a stream. The first one takes events at once, so that a short launch needs no round trip for them.
    pub(super) fn begin(&mut self) -> Beginning {
        let again = self.stream > 0 || self.handed.is_none();
        self.stream += 1;
        self.flow = if again { Flow::Discards } else { Flow::PassesOn };
        (self.put, self.own_put) = (0, 0);
        Beginning { number: self.stream, handed: self.handed, again }
    }

    /// Ends the stream; `accepted` is true if the API server accepted it.
    pub(super) fn end(&mut self, accepted: bool) {
        self.flow = Flow::Discards;
        if accepted && self.put > 0 {
            self.handed = self.handed.max(Some(self.put));
        }
    }

    /// Returns true if a stream contains a report.
    pub(super) fn has_reported(&self) -> bool {
        self.reported
    }

    /// Forwards messages until one is a report; waits indefinitely after the last message.
    pub(super) async fn pass_on(&mut self, stream: &mpsc::Sender<proto::LaunchReport>) {
        loop {
            let what = match self.own.get(self.own_put).cloned() {
                Some(own) => {
                    self.own_put += 1;
                    Some(ReportWhat::Event(own))
                }
                None => self.next().await,
            };
            let Some(what) = what else { continue };
            let (sequence, is_report) = match &what {
                ReportWhat::Event(event) => (event.sequence, is_report(event)),
                ReportWhat::Of(_) | ReportWhat::Resumed(_) => (0, false),
            };
            if stream.send(report(what)).await.is_err() {
                return std::future::pending().await;
            }
            self.put = self.put.max(sequence);
            if is_report {
                self.reported = true;
                return;
            }
        }
    }

    /// Takes messages indefinitely, and drops the session's.
    pub(super) async fn discard(&mut self) {
        self.flow = Flow::Discards;
        loop {
            let _ = self.next().await;
        }
    }

    /// The next message, if it is for the present stream and not kept in `own`. Waits indefinitely after the last message.
    async fn next(&mut self) -> Option<ReportWhat> {
        let Some(word) = self.words.recv().await else { return std::future::pending().await };
        match word {
            Word::Event(event) if is_own(&event) => {
                if self.own.len() < OWN_MAX {
                    self.own.push(event);
                }
                None
            }
            Word::Resumed(resumed) => {
                let is_answer = resumed.stream == self.stream && self.flow == Flow::Discards;
                is_answer.then(|| {
                    self.flow = Flow::PassesOn;
                    ReportWhat::Resumed(resumed)
                })
            }
            Word::Event(_) if self.flow == Flow::Discards => None,
            Word::Event(event) => Some(ReportWhat::Event(event)),
        }
    }
}

/// Returns true for a message without a number from the agent, or from a session that could not start. No other component keeps it.
fn is_own(event: &proto::NodeEvent) -> bool {
    event.sequence == 0 && matches!(event.what, Some(What::Ending(_) | What::Report(_)))
}

fn is_report(event: &proto::NodeEvent) -> bool {
    matches!(event.what, Some(What::Report(_)))
}
