//! Connections of a server: whose they are, the messages that come over them, and how they end.

use std::mem;

use bytes::Bytes;

use super::{Action, Restarts, Server};
use crate::connections::ConnectionId;
use crate::conversation::Contest;
use crate::ids::{LocalRank, Rank};
use crate::report::{EndReason, Offence, Phase, Sender};
use crate::wire::request::Message;
use crate::wire::response::ADOPTION;

/// A rank whose conversation cannot begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The node has no such rank.
    #[error("local rank {local} is not on this node, which has {ranks} ranks of the job")]
    NoSuchRank {
        /// The rank that was asked for.
        local: LocalRank,
        /// Number of ranks on the node.
        ranks: usize,
    },
    /// The rank has a connection, which is its identity.
    #[error("rank {rank} has a connection to its server already")]
    Connected {
        /// The rank.
        rank: Rank,
    },
}

impl Server {
    /// Begins the conversation with a rank over a socket that nobody else holds: the socket is the rank's identity.
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

    /// Begins the conversation with a program that nobody launched, and that asked for a server by running `mpiexec -pmi_args`: it
    /// listens, whoever drives this server connects to it. On this connection the server speaks first.
    ///
    /// # Errors
    /// As [`Server::connect`].
    pub fn adopt(&mut self, local: LocalRank) -> Result<ConnectionId, ConnectError> {
        let connection = self.connect(local)?;
        self.send(connection, Bytes::from_static(ADOPTION));
        Ok(connection)
    }

    /// Begins a conversation with a process that came through `PMI_PORT`. It must claim a rank (`initack`, or `fullinit` in PMI-2)
    /// that no other connection has. The server has no clock: the driver closes the connection when that takes too long.
    pub fn accept(&mut self) -> ConnectionId {
        self.conversations.open()
    }

    /// The rank of a connection, once known.
    pub fn rank_of(&self, connection: ConnectionId) -> Option<Rank> {
        let local = self.conversations.get(connection)?.rank?;
        Some(self.ranks[local].rank)
    }

    /// The connection of a rank, once it has one.
    pub fn connection_of(&self, local: LocalRank) -> Option<ConnectionId> {
        self.ranks.get(local)?.connection
    }

    /// A second process sends over the connection of a rank, the answer to [`Action::AskForSender`].
    pub fn handle_second_sender(&mut self, connection: ConnectionId, pid: u32) {
        let Some(conversation) = self.conversations.get(connection) else { return };
        if let (Some(local), true) = (conversation.rank, conversation.is_repeated) {
            self.note_second(local, Some(pid));
        }
    }

    /// Asks for the sender after each `init` but the first: the rank may begin another MPI session, or a child of it has the socket.
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

    /// Takes what was read from a connection: any number of messages, cut anywhere.
    pub fn handle_bytes(&mut self, connection: ConnectionId, bytes: &[u8]) {
        self.push_bytes(connection, bytes);
        while self.handle_next(connection) {}
    }

    /// Takes the same, and leaves each message to a call of [`Server::handle_next`]: between two of them a host sees how much of the
    /// answers the rank has read.
    pub fn push_bytes(&mut self, connection: ConnectionId, bytes: &[u8]) {
        if self.is_heard(connection) {
            self.conversations[connection].frames.push(bytes);
        }
    }

    /// Handles the next message of a connection. Returns false if none has come whole, or no other will be handled.
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

    /// The connection was closed by its rank, or broke. It says nothing about the rank's end: children of a rank hold its
    /// socket open, and clients close it after `finalize`; see [`Server::handle_exit`].
    pub fn handle_disconnect(&mut self, connection: ConnectionId) {
        let Some(conversation) = self.conversations.get_mut(connection) else { return };
        conversation.frames = Default::default();
        let Some(local) = conversation.rank else { return self.conversations.release(connection) };
        let state = &mut self.ranks[local];
        // A claim that nothing followed is void, and so is that of a program that was through: the rank itself may still come, or the next
        // program of its script. Where ranks may begin again, so is any claim.
        let may_return = state.phase != Phase::Open || self.settings.restarts != Restarts::Unexpected;
        let is_void = conversation.claimed && may_return && state.connection == Some(connection);
        if is_void {
            state.connection = None;
        }
        // An answer that is still to come must find nobody else's connection.
        if is_void && state.quota.questions() == 0 && !self.is_in_fence(connection) {
            self.conversations.release(connection);
        } else {
            self.conversations.close(connection);
        }
    }

    /// Nothing more of this connection can be understood. A rank's job ends with it; a stranger's does not matter.
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
