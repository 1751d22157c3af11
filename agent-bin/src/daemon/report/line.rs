//! A session's messages on their way into one stream after the other: passed on where they follow what the stream has, dropped where
//! the session will send them again.

use pmi_transport::proto::v1 as proto;
use proto::launch_report::What as ReportWhat;
use proto::node_event::What;
use tokio::sync::mpsc;

use super::{Word, report};

/// The most messages of the agent's own; there are a cause and a report, and a cause of being cut off before them.
const OWN_MAX: usize = 4;

/// A session's messages, and how far they have come.
pub(super) struct Line {
    words: mpsc::Receiver<Word>,
    /// Number of the present stream; 0 before the first.
    stream: u64,
    flow: Flow,
    /// Number of the last event that a stream took which the API server had accepted; `None` if an agent before this one had streams.
    handed: Option<u64>,
    /// Number of the last event that the present stream took.
    put: u64,
    /// What the agent says itself: it goes into each stream.
    own: Vec<proto::NodeEvent>,
    /// Number of those that the present stream has.
    own_put: usize,
    /// A stream took a report.
    reported: bool,
}

/// Whether the session's events follow what the present stream has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flow {
    PassesOn,
    /// They are of a stream before, until the session has said that it goes on with this one.
    Discards,
}

/// Stream that begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Beginning {
    pub(super) number: u64,
    pub(super) handed: Option<u64>,
    again: bool,
}

impl Beginning {
    /// Returns true if there was a stream before this one.
    pub(super) fn is_again(self) -> bool {
        self.again
    }
}

impl Line {
    /// Messages of a session that no stream has had any of.
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

    /// Messages of a session whose streams an agent before this one had.
    pub(super) fn taken_up(words: mpsc::Receiver<Word>) -> Self {
        Self { handed: None, ..Self::new(words) }
    }

    /// A stream begins. The first one takes events at once, so that a short launch needs no round trip for them.
    pub(super) fn begin(&mut self) -> Beginning {
        let again = self.stream > 0 || self.handed.is_none();
        self.stream += 1;
        self.flow = if again { Flow::Discards } else { Flow::PassesOn };
        (self.put, self.own_put) = (0, 0);
        Beginning { number: self.stream, handed: self.handed, again }
    }

    /// The stream has ended; `accepted` if the API server had ever accepted it.
    pub(super) fn end(&mut self, accepted: bool) {
        self.flow = Flow::Discards;
        if accepted && self.put > 0 {
            self.handed = self.handed.max(Some(self.put));
        }
    }

    /// Returns true if a report was put into a stream.
    pub(super) fn has_reported(&self) -> bool {
        self.reported
    }

    /// Passes messages on until one was a report; for ever after the last one.
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

    /// Takes messages, and drops those of the session, for ever.
    pub(super) async fn discard(&mut self) {
        self.flow = Flow::Discards;
        loop {
            let _ = self.next().await;
        }
    }

    /// The next message, if it is for the present stream and not kept in `own`. Waits for ever after the last one.
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

/// Returns true for what the agent, or a session that could not begin, says without a number: nobody else keeps it.
fn is_own(event: &proto::NodeEvent) -> bool {
    event.sequence == 0 && matches!(event.what, Some(What::Ending(_) | What::Report(_)))
}

fn is_report(event: &proto::NodeEvent) -> bool {
    matches!(event.what, Some(What::Report(_)))
}
