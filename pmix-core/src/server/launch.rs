//! The state that all parts of a server use: jobs, clients, open questions, and the queue of actions.

use std::collections::{HashMap, VecDeque};
use std::mem;
use std::time::Duration;

use bytes::Bytes;
use pmi_core::connections::{ConnectionId, Connections};
use pmi_core::ids::{NodeIndex, Rank};
use pmi_core::report::{EndReason, Sender, Trace};

use super::action::{Action, Ticket};
use super::client::{Address, Client, Identity};
use super::jobs::Jobs;
use super::open_questions::{AnswerReceiver, OpenQuestion, PeerQuestion};
use super::question::Question;
use super::settings::Settings;
use crate::namespace::{JobIndex, Seat};
use crate::services::Call;
use crate::wire::describe::describe;
use crate::wire::handshake::Handshake;
use crate::wire::{frame, reply, status};

/// Maximum number of unanswered questions of one tool; open questions of an earlier tool count for the next one in its slot.
const TOOL_QUESTIONS_MAX: usize = 64;

/// The launch on this node.
#[derive(Default)]
pub(super) struct Launch {
    pub(super) settings: Settings,
    pub(super) jobs: Jobs,
    pub(super) clients: Connections<Client>,
    /// Questions to the host without an answer so far.
    pub(super) calls: HashMap<Ticket, AnswerReceiver>,
    /// Questions to other nodes' servers without an answer so far.
    peer_questions: HashMap<Ticket, PeerQuestion>,
    /// Number of fences that have ended here. An answer from before a fence may be older than the data of the fence.
    pub(super) fences_ended: u64,
    next_ticket: u64,
    pub(super) ended: bool,
    pub(super) actions: VecDeque<Action>,
}

impl Launch {
    pub(super) fn new(settings: Settings) -> Self {
        Self { settings, ..Self::default() }
    }

    /// The rank of a connection, if known.
    pub(super) fn seat_of(&self, connection: ConnectionId) -> Option<Seat> {
        Some(self.clients.get(connection)?.identity?.seat)
    }

    /// Assigns an identity to a client.
    pub(super) fn identify(&mut self, connection: ConnectionId, seat: Seat, handshake: &Handshake<'_>) {
        let Handshake { version, encoding, module, .. } = *handshake;
        let claim = self.new_ticket();
        self.clients[connection].identity = Some(Identity { seat, claim, encoding, version, module });
    }

    pub(super) fn new_ticket(&mut self) -> Ticket {
        self.next_ticket += 1;
        Ticket(self.next_ticket)
    }

    /// Ends the launch, once.
    pub(super) fn end(&mut self, job: JobIndex, reason: EndReason) {
        if !mem::replace(&mut self.ended, true) {
            self.actions.push_back(Action::End { job, reason });
        }
    }

    /// Returns the maximum number of unanswered questions of a client.
    pub(super) fn questions_max(&self, seat: Seat) -> usize {
        if self.jobs.is_tool(seat) { TOOL_QUESTIONS_MAX } else { self.settings.questions_per_rank }
    }

    /// Counts questions of a client until [`Launch::credit`]. If there are too many, refuses the request and returns false.
    pub(super) fn charge(&mut self, address: Address, questions: usize) -> bool {
        let seat = address.identity.seat;
        let most = self.questions_max(seat);
        let fits = self.jobs.rank_mut(seat).is_some_and(|state| state.quota.ask_many(questions, most));
        if !fits {
            self.answer(address, status::OUT_OF_RESOURCE);
        }
        fits
    }

    /// Questions of a client are answered.
    pub(super) fn credit(&mut self, seat: Seat, questions: usize) {
        if let Some(state) = self.jobs.rank_mut(seat) {
            state.quota.answered_many(questions);
        }
    }

    /// Returns the time that a get may wait for a rank of this node. That is the client's timeout, if any; else a long time for a rank
    /// without any commit, and a short time for a rank with other commits.
    pub(super) fn timeout(&self, job: JobIndex, rank: Rank, wished: Option<Duration>) -> Duration {
        match wished {
            Some(wished) => wished.min(self.settings.rank_timeout),
            None if self.jobs[job].data.contains_key(&rank) => self.settings.key_timeout,
            None => self.settings.rank_timeout,
        }
    }

    /// Answers a request with a status.
    pub(super) fn answer(&mut self, address: Address, status: i32) {
        self.reply(address, &reply::status(address.identity.encoding, status));
    }

    /// Answers a request, if its client is still connected.
    pub(super) fn reply(&mut self, address: Address, payload: &[u8]) {
        self.reply_in_parts(address, payload, Bytes::new());
    }

    /// Sends an answer that other clients may receive too. A short answer is copied: one write costs less than two.
    pub(super) fn reply_shared(&mut self, address: Address, payload: &Bytes) {
        const COPIED_MAX: usize = 4096;
        match payload.len() {
            ..=COPIED_MAX => self.reply(address, payload),
            _ => self.reply_in_parts(address, &[], payload.clone()),
        }
    }

    /// Answers with `begin` and then `rest`, which many answers share without a copy.
    pub(super) fn reply_in_parts(&mut self, address: Address, begin: &[u8], rest: Bytes) {
        let Address { connection, tag, identity } = address;
        let is_there = |client: &Client| client.identity.is_some_and(|there| there.claim == identity.claim);
        if !self.clients.get(connection).is_some_and(is_there) {
            return;
        }
        let head = frame::header(tag, begin.len() + rest.len());
        if self.settings.trace {
            self.trace(connection, Sender::Server, tag, &[begin, &rest[..]].concat());
        }
        self.push_send(connection, [&head[..], begin].concat().into());
        if !rest.is_empty() {
            self.push_send(connection, rest);
        }
    }

    pub(super) fn push_send(&mut self, connection: ConnectionId, bytes: Bytes) {
        if self.ended {
            return;
        }
        self.actions.push_back(Action::Send { connection, bytes });
    }

    /// Reports a message as text.
    pub(super) fn trace(&mut self, connection: ConnectionId, sender: Sender, tag: u32, payload: &[u8]) {
        let Client { identity: Some(Identity { seat, encoding, .. }), .. } = self.clients[connection] else {
            return;
        };
        let bytes = describe(encoding, sender, tag, payload).into();
        let rank = if self.jobs.is_tool(seat) { None } else { Some(self.jobs.rank(seat).rank) };
        self.actions.push_back(Action::Trace(Trace { rank, sender, bytes }));
    }

    /// Sends a question to the host, in the name of a rank.
    pub(super) fn call(&mut self, job: JobIndex, rank: Rank, call: Call, receiver: AnswerReceiver) {
        let ticket = self.new_ticket();
        self.calls.insert(ticket, receiver);
        self.actions.push_back(Action::Call { ticket, job, rank, call });
    }

    /// Sends a question to the server of another node.
    pub(super) fn ask_peer(&mut self, node: NodeIndex, question: &Question, asking: OpenQuestion) -> Ticket {
        self.ask_peer_for(node, question.encode(), asking)
    }

    fn ask_peer_for(&mut self, node: NodeIndex, question: Bytes, asking: OpenQuestion) -> Ticket {
        let ticket = self.new_ticket();
        let fences_ended = self.fences_ended;
        let open = PeerQuestion { asking, node, question: question.clone(), fences_ended };
        self.peer_questions.insert(ticket, open);
        self.actions.push_back(Action::Ask { ticket, node, question });
        ticket
    }

    /// Returns the question of an answer. If a fence has ended here since the question, values in the answer may be older than the
    /// fence's data: sends the question again, and returns `None`.
    pub(super) fn take_peer_question(&mut self, ticket: Ticket, answer: Option<&Bytes>) -> Option<OpenQuestion> {
        let open = self.peer_questions.remove(&ticket)?;
        let has_values = answer.is_some_and(|answer| answer.starts_with(&status::SUCCESS.to_be_bytes()));
        if has_values && open.asking.brings_data() && open.fences_ended != self.fences_ended {
            self.ask_peer_for(open.node, open.question, open.asking);
            return None;
        }
        Some(open.asking)
    }

    /// Answers a question of another node's server.
    pub(super) fn reply_to_peer(&mut self, ticket: Ticket, answer: impl Into<Bytes>) {
        self.actions.push_back(Action::Reply { ticket, answer: answer.into() });
    }

    /// Answers a question of another node's server with a status.
    pub(super) fn answer_peer(&mut self, ticket: Ticket, status: i32) {
        self.reply_to_peer(ticket, status.to_be_bytes().to_vec());
    }
}
