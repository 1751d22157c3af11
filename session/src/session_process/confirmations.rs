//! Updates about the agent and the API server, from the reading task to the writing task. They contain the last event number of the API
//! server, the position of a new stream, and changes of the agent connection. They also count received commands, which the writing task
//! acknowledges.
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

/// Number of received commands after which the writing task acknowledges them without waiting for an event.
const COMMANDS_UNTOLD_MAX: u64 = 16;

/// Updates for the writing task.
#[derive(Default)]
pub(super) struct Confirmations {
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Default)]
struct State {
    news: News,
    commands: Received,
    /// Number of the last command that was acknowledged.
    told: u64,
}

/// Updates since the writing task's last look, in the order in which the task handles them.
#[derive(Default)]
pub(super) struct News {
    pub(super) connection: Option<Connection>,
    /// Number of the last event that the API server has received.
    pub(super) confirmed: u64,
    pub(super) resume: Option<Resume>,
    /// New state of the connection to the API server.
    pub(super) way: Option<Way>,
    pub(super) end: Option<End>,
}

/// Change of the connection to the agent.
pub(super) enum Connection {
    /// The connection has broken.
    Broken,
    /// A new connection has replaced the old one.
    New(WriteHalf),
}

/// Order to resend events on a new stream from the agent to the API server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Resume {
    /// Number of the stream.
    pub(super) stream: u64,
    pub(super) position: Position,
}

/// Reason why the session can discard its events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// All events are acknowledged, or no API server expects them.
    Dismissed,
    /// No agent is connected, and no agent will connect.
    AgentGone,
}

impl Confirmations {
    /// Records that the API server has received all events up to this one.
    pub(super) fn confirm(&self, through: u64) {
        self.change(|news| news.confirmed = news.confirmed.max(through));
    }

    /// Records an order to resend events.
    pub(super) fn resume(&self, resume: Resume) {
        self.change(|news| (news.resume, news.way) = (Some(resume), Some(Way::Open)));
    }

    /// Records that the agent has no stream to the API server until [`Self::resume`].
    pub(super) fn unheard(&self) {
        self.change(|news| news.way = Some(Way::Broken));
    }

    /// Records a change of the agent connection. Updates from the old connection are discarded.
    pub(super) fn reconnect(&self, connection: Connection) {
        self.change(|news| (news.connection, news.resume, news.way) = (Some(connection), None, Some(Way::Broken)));
    }

    /// Records that the session can discard all events.
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

    /// Returns true if the command with this number must be carried out: it was not received before.
    pub(super) fn is_new_command(&self, sequence: u64) -> bool {
        sequence == 0 || sequence > self.state.lock().commands.last()
    }

    /// Records that a command was carried out. Commands of the agent itself have no number.
    pub(super) fn command_taken(&self, sequence: u64) {
        if sequence == 0 {
            return;
        }
        let mut state = self.state.lock();
        if state.commands.take(sequence) == Arrival::Gap {
            // A later version may leave out numbers. It does not resend the missing commands.
            state.commands = Received::through(sequence);
        }
        if sequence.saturating_sub(state.told) >= COMMANDS_UNTOLD_MAX {
            self.changed.notify_one();
        }
    }

    /// Number of the last received command.
    pub(super) fn commands_taken(&self) -> u64 {
        self.state.lock().commands.last()
    }

    /// Number of the last received command, for an acknowledgement; 0 if it is already acknowledged.
    pub(super) fn commands_to_tell(&self) -> u64 {
        let state = &mut *self.state.lock();
        let taken = state.commands.last();
        if std::mem::replace(&mut state.told, taken) == taken { 0 } else { taken }
    }

    /// Returns true if so many commands are unacknowledged that the acknowledgement must be sent now.
    pub(super) fn must_tell(&self) -> bool {
        let state = self.state.lock();
        state.commands.last().saturating_sub(state.told) >= COMMANDS_UNTOLD_MAX
    }

    /// Returns the updates since the last call.
    pub(super) fn take(&self) -> News {
        std::mem::take(&mut self.state.lock().news)
    }

    /// Waits for updates, or for commands that need an acknowledgement.
    pub(super) async fn changed(&self) {
        self.changed.notified().await;
    }
}
