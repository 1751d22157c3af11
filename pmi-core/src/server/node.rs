//! The job on this node, as all parts of a server share it: its ranks, their connections and limits, and the actions for the driver.

use std::collections::VecDeque;
use std::mem;

use bytes::Bytes;

use super::action::Action;
use super::mortality::{missed, misses_the_dead};
use super::settings::Settings;
use crate::connections::{ConnectionId, Connections};
use crate::conversation::{Contest, Conversation};
use crate::deaths::Deaths;
use crate::fence::{Contribution, FenceId};
use crate::ids::{LocalRank, NodeIndex, Rank};
use crate::job::{Block, Job};
use crate::report::{EndReason, Offence, Phase, Sender, Trace};
use crate::roster::Roster;
use crate::wire::request::{Group, Message};
use crate::wire::response::Address;
use crate::wire::{ErrorCode, FrameBuffer, Response, check_pair};

/// The longest command in reports; every real command is shorter.
const COMMAND_SHOWN: usize = 32;

/// The job on this node.
pub(super) struct JobNode {
    pub(super) job: Job,
    /// Number of this node in the job.
    pub(super) index: NodeIndex,
    pub(super) settings: Settings,
    pub(super) ranks: Roster,
    /// Dead ranks of all nodes, without which the other ranks continue.
    pub(super) deaths: Deaths,
    pub(super) conversations: Connections<Conversation>,
    /// Number of complete fences of the whole job.
    pub(super) fences: u64,
    pub(super) actions: VecDeque<Action>,
    has_ended: bool,
}

/// A request of a known rank.
#[derive(Clone, Copy)]
pub(super) struct Origin<'a> {
    pub(super) connection: ConnectionId,
    pub(super) local: LocalRank,
    pub(super) message: &'a Message<'a>,
}

/// A rank that waits for the end of a fence, with its answer.
#[derive(Clone, Debug)]
pub(super) struct Waiter {
    pub(super) connection: ConnectionId,
    pub(super) answer: Bytes,
}

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

impl Origin<'_> {
    /// Address of an answer that follows later.
    pub(super) fn address(&self) -> Address {
        let Message { dialect, command, thread, .. } = *self.message;
        Address { dialect, command: command.into(), thread: thread.map(Into::into) }
    }

    /// The rank as a waiter for the end of a fence. A tag is part of the answer.
    pub(super) fn waiter(&self, tag: Option<u32>) -> Waiter {
        let Message { dialect, command, thread, .. } = *self.message;
        let answer = Response::Fence { tag }.encode(dialect, command, thread);
        Waiter { connection: self.connection, answer: answer.into() }
    }
}

impl JobNode {
    pub(super) fn new(job: Job, index: NodeIndex, settings: Settings) -> Self {
        Self {
            ranks: Roster::new(job.placement.ranks_on(index)),
            job,
            index,
            settings,
            deaths: Deaths::default(),
            conversations: Connections::default(),
            fences: 0,
            actions: VecDeque::new(),
            has_ended: false,
        }
    }

    /// Returns true after the request to end the job.
    pub(super) fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// Requests the end of the job, once.
    pub(super) fn end(&mut self, reason: EndReason) {
        if !mem::replace(&mut self.has_ended, true) {
            self.actions.push_back(Action::End(reason));
        }
    }

    pub(super) fn send(&mut self, connection: ConnectionId, bytes: Bytes) {
        if self.has_ended {
            return;
        }
        if self.settings.trace {
            self.trace(connection, Sender::Server, bytes.clone());
        }
        self.actions.push_back(Action::Send { connection, bytes });
    }

    fn trace(&mut self, connection: ConnectionId, sender: Sender, bytes: Bytes) {
        let rank = self.rank_of(connection);
        self.actions.push_back(Action::Trace(Trace { rank, sender, bytes }));
    }

    /// Sends their answers to ranks that have waited.
    pub(super) fn release(&mut self, waiters: Vec<Waiter>) {
        for Waiter { connection, answer } in waiters {
            self.send(connection, answer);
        }
    }

    /// Begins a fence with the other nodes.
    pub(super) fn exchange(&mut self, id: FenceId, contribution: Contribution) {
        self.actions.push_back(Action::Fence { id, contribution });
    }

    /// Opens the connection of a rank without another one.
    pub(super) fn connect(&mut self, local: LocalRank) -> Result<ConnectionId, ConnectError> {
        let ranks = self.ranks.len();
        let state = self.ranks.get_mut(local).ok_or(ConnectError::NoSuchRank { local, ranks })?;
        if state.connection.is_some() {
            return Err(ConnectError::Connected { rank: state.rank });
        }
        let connection = self.conversations.open();
        self.conversations[connection].rank = Some(local);
        state.connection = Some(connection);
        Ok(connection)
    }

    /// The rank of a connection, if known.
    pub(super) fn rank_of(&self, connection: ConnectionId) -> Option<Rank> {
        let local = self.conversations.get(connection)?.rank?;
        Some(self.ranks[local].rank)
    }

    /// Returns true if the server still reads from the connection.
    pub(super) fn reads_from(&self, connection: ConnectionId) -> bool {
        self.conversations.is_open(connection) && !self.has_ended
    }

    /// Takes the bytes of a connection, if they begin with a complete message: the current frame.
    pub(super) fn take_message(&mut self, connection: ConnectionId) -> Option<FrameBuffer> {
        if !self.reads_from(connection) {
            return None;
        }
        let conversation = &mut self.conversations[connection];
        match conversation.frames.advance() {
            Ok(true) => {}
            Ok(false) => return None,
            Err(error) => {
                conversation.frames = FrameBuffer::default();
                self.offend(connection, error.into());
                return None;
            }
        }
        let frames = mem::take(&mut conversation.frames);
        if self.settings.trace && conversation.contest == Contest::None {
            self.trace(connection, Sender::Client, Bytes::copy_from_slice(frames.raw()));
        }
        Some(frames)
    }

    /// Stores the bytes of a connection again after its message. Returns false if no further message is allowed.
    pub(super) fn put_back(&mut self, connection: ConnectionId, mut frames: FrameBuffer) -> bool {
        let is_read = self.reads_from(connection);
        if is_read {
            let conversation = &mut self.conversations[connection];
            if conversation.contest == Contest::Opened {
                conversation.contest = Contest::Decided;
                frames.go_back();
            }
            conversation.frames = frames;
        }
        is_read
    }

    /// The rest of this connection cannot be parsed. For a rank, the job ends; a connection without a rank is only closed.
    pub(super) fn offend(&mut self, connection: ConnectionId, offence: Offence) {
        self.actions.push_back(Action::Close { connection });
        match self.rank_of(connection) {
            Some(rank) => {
                self.conversations.close(connection);
                self.end(EndReason::Offence { rank, offence });
            }
            None => self.conversations.release(connection),
        }
    }

    /// Records the last command of a rank for reports.
    pub(super) fn note_command(&mut self, connection: ConnectionId, command: &str) {
        let Some(local) = self.conversations[connection].rank else { return };
        let state = &mut self.ranks[local];
        if state.last_command.as_deref() != Some(command) {
            let shown = command.char_indices().nth(COMMAND_SHOWN).map_or(command, |(end, _)| &command[..end]);
            state.last_command = Some(shown.to_owned().into());
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
        if !self.has_ended && state.note_second() {
            self.actions.push_back(Action::SecondProcess { rank: state.rank, pid });
        }
    }

    /// Returns the refusal of a pair that cannot be stored; otherwise counts the pair as stored.
    pub(super) fn refuse_pair(&mut self, local: LocalRank, key: &[u8], value: &[u8]) -> Option<Response<'static>> {
        if let Err(error) = check_pair(key, value) {
            return Some(error.into());
        }
        let (quota, limit) = (&mut self.ranks[local].quota, self.settings.bytes_per_rank);
        if quota.take_pair(key.len(), value.len(), limit) {
            return None;
        }
        let text = format!("this rank has put {} bytes; the limit is {limit}", quota.bytes());
        Some(Response::Error { code: ErrorCode::NoMemory, text: text.into() })
    }

    /// Returns the refusal of `questions` more unanswered questions; otherwise counts them.
    pub(super) fn refuse_questions(&mut self, local: LocalRank, questions: usize) -> Option<Response<'static>> {
        let quota = &mut self.ranks[local].quota;
        if quota.ask_many(questions, self.settings.questions_per_rank) {
            return None;
        }
        let text = format!("{} questions of this rank wait for an answer", quota.questions());
        Some(Response::Error { code: ErrorCode::NoMemory, text: text.into() })
    }

    /// The nodes that hold a member of the group, in order.
    pub(super) fn nodes_of(&self, group: &Group<'_>) -> Vec<NodeIndex> {
        let placement = &self.job.placement;
        let mut nodes: Vec<_> = match group {
            Group::World => placement.blocks().iter().flat_map(nodes_of_block).collect(),
            Group::Node => vec![self.index],
            Group::Ranks(ranks) => ranks.iter().filter_map(|rank| placement.node_of(rank)).collect(),
        };
        nodes.sort_unstable();
        nodes.dedup();
        nodes
    }

    /// Returns true for a dead rank that fences do not wait for. Checks puts only for dead ranks.
    pub(super) fn is_dispensable(&self, local: LocalRank) -> bool {
        self.ranks[local].died.is_some() && !misses_the_dead(&self.ranks, self.fences)
    }

    /// Reports dead ranks of this node, unless their data is still needed.
    pub(super) fn report_deaths(&mut self) {
        if misses_the_dead(&self.ranks, self.fences) || self.has_ended {
            return;
        }
        let new = self.ranks.deaths().filter(|death| self.deaths.add(death.rank));
        self.actions.extend(new.map(Action::Died));
    }

    /// Ends the job if the ranks of this node need data of a node without living ranks. They wait in the fence of all ranks.
    pub(super) fn end_if_node_is_missed(&mut self) {
        if self.deaths.is_empty() || !misses_the_dead(&self.ranks, self.fences) {
            return;
        }
        if let Some(node) = self.deaths.dead_node(&self.job.placement, self.index) {
            self.end(missed(node));
        }
    }
}

fn nodes_of_block(block: &Block) -> impl Iterator<Item = NodeIndex> + use<> {
    (block.first_node.0..block.first_node.0 + block.nodes).map(NodeIndex)
}
