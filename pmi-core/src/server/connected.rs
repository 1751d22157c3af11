//! Connections of a server: their ranks, their messages and their ends.

use std::mem;

use bytes::Bytes;

use super::{Action, Restarts, Server};
use crate::connections::ConnectionId;
use crate::conversation::Contest;
use crate::ids::{LocalRank, Rank};
use crate::report::{EndReason, Offence, Phase, Sender};
use crate::wire::request::Message;
use crate::wire::response::ADOPTION;

/// Reason why the conversation with a rank cannot begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The node has no such rank.
    #[error("local rank {local} is not on this node, which has {ranks} ranks of the job")]
    NoSuchRank {
        /// The requested rank.
        local: LocalRank,
        /// Number of ranks on the node.
        ranks: usize,
    },
    /// The rank already has a connection, which is its identity.
    #[error("rank {rank} has a connection to its server already")]
    Connected {
        /// The rank.
        rank: Rank,
    },
}

impl Server {
    /// Begins the conversation with a rank over a socket that no other process holds: the socket is the rank's identity.
    ///
    /// # Errors
    /// Refuses a rank that is not on the node, and one that has a connection.
    pub fn connect(&mut self, local: LocalRank) -> Result<ConnectionId, ConnectError> {
        let ranks = self.ranks.len();
        let state = self.ranks.get(local).ok_or(ConnectError::NoSuchRank { local, ranks })?;
        if state.connection.is_some() {
            return Err(ConnectError::Connected { rank: state.rank });
        }
        let connection = self.accept();
        self.conversations[connection].rank = Some(local);
        self.ranks[local].connection = Some(connection);
        Ok(connection)
    }

    /// Begins the conversation with a program that was started without a launcher and requests a server by `mpiexec -pmi_args`. The
    /// program listens, and the driver of this server connects to it. On this connection the server sends the first message.
    ///
    /// # Errors
    /// As [`Server::connect`].
    pub fn adopt(&mut self, local: LocalRank) -> Result<ConnectionId, ConnectError> {
        let connection = self.connect(local)?;
        self.send(connection, Bytes::from_static(ADOPTION));
        Ok(connection)
    }

    /// Begins a conversation with a process that connected through `PMI_PORT`. It must claim a rank without another connection
    /// (`initack`, or `fullinit` in PMI-2). The server has no clock: the driver closes the connection after a time limit.
    pub fn accept(&mut self) -> ConnectionId {
        self.conversations.open()
    }

    /// The rank of a connection, if known.
    pub fn rank_of(&self, connection: ConnectionId) -> Option<Rank> {
        let local = self.conversations.get(connection)?.rank?;
        Some(self.ranks[local].rank)
    }

    /// The connection of a rank, if any.
    pub fn connection_of(&self, local: LocalRank) -> Option<ConnectionId> {
        self.ranks.get(local)?.connection
    }

    /// A second process sends over the connection of a rank; the result of [`Action::AskForSender`].
    pub fn handle_second_sender(&mut self, connection: ConnectionId, pid: u32) {
        let Some(conversation) = self.conversations.get(connection) else { return };
        if let (Some(local), true) = (conversation.rank, conversation.is_repeated) {
            self.note_second(local, Some(pid));
        }
    }

    /// Requests the sender after each `init` except the first: the rank may begin another MPI session, or a child process uses its
    /// socket.
    pub(super) fn ask_for_sender(&mut self, connection: ConnectionId, local: LocalRank) {
        let phase = self.ranks[local].phase;
        self.conversations[connection].is_repeated = phase == Phase::Open;
        if phase != Phase::Silent {
            self.actions.push_back(Action::AskForSender { connection });
        }
    }

    /// Reports the second process of a rank, once.
    pub(super) fn note_second(&mut self, local: LocalRank, pid: Option<u32>) {
        let state = &mut self.ranks[local];
        if !self.ended && state.note_second() {
            self.actions.push_back(Action::SecondProcess { rank: state.rank, pid });
        }
    }

    /// Handles bytes from a connection: any number of messages, split anywhere.
    pub fn handle_bytes(&mut self, connection: ConnectionId, bytes: &[u8]) {
        self.push_bytes(connection, bytes);
        while self.handle_next(connection) {}
    }

    /// Stores bytes from a connection, and leaves each message to a call of [`Server::handle_next`]. Between two messages, a host can
    /// check how much of the answers the rank has read.
    pub fn push_bytes(&mut self, connection: ConnectionId, bytes: &[u8]) {
        if self.is_heard(connection) {
            self.conversations[connection].frames.push(bytes);
        }
    }

    /// Handles the next message of a connection. Returns false if no message is complete, or no further message is allowed.
    pub fn handle_next(&mut self, connection: ConnectionId) -> bool {
        if !self.is_heard(connection) {
            return false;
        }
        let mut frames = mem::take(&mut self.conversations[connection].frames);
        match frames.advance() {
            Ok(true) => {}
            Ok(false) => {
                self.conversations[connection].frames = frames;
                return false;
            }
            Err(error) => {
                self.offend(connection, error.into());
                return false;
            }
        }
        if self.settings.trace && self.conversations[connection].contest == Contest::None {
            self.trace(connection, Sender::Client, Bytes::copy_from_slice(frames.raw()));
        }
        match Message::decode(frames.frame()) {
            Ok(message) => self.handle_message(connection, message),
            Err(error) => self.offend(connection, error.into()),
        }
        let is_heard = self.is_heard(connection);
        if is_heard {
            let conversation = &mut self.conversations[connection];
            if conversation.contest == Contest::Opened {
                conversation.contest = Contest::Decided;
                frames.go_back();
            }
            conversation.frames = frames;
        }
        is_heard
    }

    fn is_heard(&self, connection: ConnectionId) -> bool {
        self.conversations.is_open(connection) && !self.ended
    }

    /// The rank has closed the connection, or it broke. That is not the end of the rank: child processes of a rank hold its socket open,
    /// and clients close it after `finalize`; see [`Server::handle_exit`].
    pub fn handle_disconnect(&mut self, connection: ConnectionId) {
        let Some(conversation) = self.conversations.get_mut(connection) else { return };
        conversation.frames = Default::default();
        let Some(local) = conversation.rank else { return self.conversations.release(connection) };
        let state = &mut self.ranks[local];
        // A claim without further messages is void, and so is the claim of a finalized program: the rank itself may still connect, or the
        // next program of its script. Where ranks may restart, every claim is void.
        let may_return = state.phase != Phase::Open || self.settings.restarts != Restarts::Unexpected;
        let is_void = conversation.claimed && may_return && state.connection == Some(connection);
        if is_void {
            state.connection = None;
        }
        // A pending answer must not reach a connection of another rank.
        if is_void && state.quota.questions() == 0 && !self.is_in_fence(connection) {
            self.conversations.release(connection);
        } else {
            self.conversations.close(connection);
        }
    }

    /// The rest of this connection cannot be parsed. For a rank, the job ends; a connection without a rank is only closed.
    fn offend(&mut self, connection: ConnectionId, offence: Offence) {
        self.actions.push_back(Action::Close { connection });
        match self.rank_of(connection) {
            Some(rank) => {
                self.conversations.close(connection);
                self.end(EndReason::Offence { rank, offence });
            }
            None => self.conversations.release(connection),
        }
    }
}
