//! News of the connection to the agent and the API server, passed on by the task that reads to the one that writes: what they have
//! taken, where a new stream goes on, and that a connection broke or was replaced. Also the number of commands that were taken, which
//! the writing task tells.
//!
//! ```text
//! reading task ──confirmed, resume, connection, end──> Confirmations ──take──> writing task
//!              ──command_taken─────────────────────────────────────  ──commands_to_tell──>
//! ```

use parking_lot::Mutex;
use pmi_core::quiet::WriteHalf;
use tokio::sync::Notify;

use super::failure_policy::Way;
use super::kept_events::Position;
use crate::numbered::{Arrival, Received};

/// Number of commands after which it is told without an event that they were taken.
const COMMANDS_UNTOLD_MAX: u64 = 16;

/// News for the task that writes.
#[derive(Default)]
pub(super) struct Confirmations {
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Default)]
struct State {
    news: News,
    commands: Received,
    /// The last number of a command that was told.
    told: u64,
}

/// What has happened since the writing task looked last, in the order in which it is to be dealt with.
#[derive(Default)]
pub(super) struct News {
    pub(super) connection: Option<Connection>,
    /// The API server has taken all events up to this one.
    pub(super) confirmed: u64,
    pub(super) resume: Option<Resume>,
    /// The way to the API server is another one.
    pub(super) way: Option<Way>,
    pub(super) end: Option<End>,
}

/// Change of the connection to the agent.
pub(super) enum Connection {
    /// The connection has broken.
    Broken,
    /// The connection is another one.
    New(WriteHalf),
}

/// Order to send events again, on a new stream from agent to API server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Resume {
    /// Number of the stream.
    pub(super) stream: u64,
    pub(super) position: Position,
}

/// Reason why the events of the session need not be kept any longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// All is acknowledged, or nobody wants it.
    Dismissed,
    /// No agent is there, and none will be.
    AgentGone,
}

impl Confirmations {
    /// The API server has taken all events up to this one.
    pub(super) fn confirm(&self, through: u64) {
        self.change(|news| news.confirmed = news.confirmed.max(through));
    }

    /// Events are to be sent again.
    pub(super) fn resume(&self, resume: Resume) {
        self.change(|news| (news.resume, news.way) = (Some(resume), Some(Way::Open)));
    }

    /// The agent has no stream to the API server, until [`Self::resume`].
    pub(super) fn unheard(&self) {
        self.change(|news| news.way = Some(Way::Broken));
    }

    /// The connection to the agent has changed. What was said on the one before does not count any more.
    pub(super) fn reconnect(&self, connection: Connection) {
        self.change(|news| (news.connection, news.resume, news.way) = (Some(connection), None, Some(Way::Broken)));
    }

    /// Nothing more need be kept.
    pub(super) fn end(&self, end: End) {
        self.change(|news| {
            news.end = Some(end);
            if end == End::AgentGone {
                news.way = Some(Way::Ended);
            }
        });
    }

    fn change(&self, change: impl FnOnce(&mut News)) {
        change(&mut self.state.lock().news);
        self.changed.notify_one();
    }

    /// Returns true if a command of this number is to be carried out: it has not come before.
    pub(super) fn is_new_command(&self, sequence: u64) -> bool {
        sequence == 0 || sequence > self.state.lock().commands.last()
    }

    /// A command was carried out. One of the agent's own has no number.
    pub(super) fn command_taken(&self, sequence: u64) {
        if sequence == 0 {
            return;
        }
        let mut state = self.state.lock();
        if state.commands.take(sequence) == Arrival::Gap {
            // Of a later version that leaves some out: none of them comes again.
            state.commands = Received::through(sequence);
        }
        if sequence.saturating_sub(state.told) >= COMMANDS_UNTOLD_MAX {
            self.changed.notify_one();
        }
    }

    /// Number of the last command that was taken.
    pub(super) fn commands_taken(&self) -> u64 {
        self.state.lock().commands.last()
    }

    /// Number of the last command that was taken, to be told; 0 if it was told before.
    pub(super) fn commands_to_tell(&self) -> u64 {
        let state = &mut *self.state.lock();
        let taken = state.commands.last();
        if std::mem::replace(&mut state.told, taken) == taken { 0 } else { taken }
    }

    /// True if so many commands were taken untold that it is not put off any longer.
    pub(super) fn must_tell(&self) -> bool {
        let state = self.state.lock();
        state.commands.last().saturating_sub(state.told) >= COMMANDS_UNTOLD_MAX
    }

    /// The news since the last call.
    pub(super) fn take(&self) -> News {
        std::mem::take(&mut self.state.lock().news)
    }

    /// Waits until there are news, or commands to be told of.
    pub(super) async fn changed(&self) {
        self.changed.notified().await;
    }
}
