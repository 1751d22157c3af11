//! Input of a simulated session on its way from commands and other sessions to ranks. The order and limits of pieces, and the nodes without
//! a piece, are handled by the real code. Tasks, and pipes between the backlog and the ranks, are simulated.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::Instant;

use bytes::Bytes;
use pmi_core::ids::{NodeIndex, Rank};
use pmi_transport::fence::AnswerId;
use tokio::sync::oneshot;

use crate::gathered::NodeSelection;
use crate::input_piece::InputPiece;
use crate::runner::{Backlog, BacklogState, Next};
use crate::session_process::frames::ToAgent;
use crate::session_process::input_relay::{Passing, Share};
use crate::session_process::stdin::{self, Input, InputEnd, Pieces, Readers, Waiting};
use crate::wire;
use crate::wire::event::{NodeHappening, encode_happening};

/// Limit of the ranks' backlog, in bytes, with the overhead of each piece. The real limit is 64 MiB.
const BACKLOG_MAX: usize = 4 << 10;

/// Answer to a read of a rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InputRead {
    /// Input that was read.
    Bytes(Bytes),
    /// No input is available yet. [`super::SessionEffect::InputReady`] follows.
    Wait,
    /// The end of the input.
    End,
}

/// Sender of a piece for several nodes, and receiver of the answer.
pub(super) enum Asker {
    /// The API server.
    Api,
    /// The session of another node.
    Session(AnswerId),
}

/// A share of a piece on its way to another node.
pub(super) struct Sent {
    pub(super) number: u64,
    pub(super) part: Range<u32>,
    pub(super) to: NodeIndex,
    pub(super) piece: InputPiece,
}

/// A piece that is being forwarded.
struct Relayed {
    number: u64,
    offset: u64,
    passing: Passing,
    /// `None` if this node refused the piece or has taken it.
    taken: Option<oneshot::Receiver<()>>,
    asker: Asker,
}

/// Effects of the input.
#[derive(Default)]
pub(super) struct Outcome {
    pub(super) to_agent: Vec<ToAgent>,
    pub(super) shares: Vec<Sent>,
    pub(super) answers: Vec<(AnswerId, Result<Bytes, String>)>,
    /// Ranks for which more input, or the end of the input, is available.
    pub(super) ready: Vec<Rank>,
    /// Ranks with input that was closed because they did not read it.
    pub(super) closed: Vec<Rank>,
    /// The reason why the input was ended early.
    pub(super) ended: Option<InputEnd>,
}

impl Outcome {
    pub(super) fn is_nothing(&self) -> bool {
        let Self { to_agent, shares, answers, ready, closed, ended } = self;
        to_agent.is_empty()
            && shares.is_empty()
            && answers.is_empty()
            && ready.is_empty()
            && closed.is_empty()
            && ended.is_none()
    }
}

/// The input of a session.
pub(super) struct SessionInput {
    me: NodeIndex,
    input: Input,
    pieces: Pieces,
    readers: Readers,
    /// A piece that the session has taken, but not the backlog.
    taken: VecDeque<Bytes>,
    /// `None` before the ranks run, and after the last reader has stopped.
    backlog: Option<Backlog>,
    /// Reading ranks, by their index in the backlog.
    fed: Vec<Rank>,
    has_ended: bool,
    is_over: bool,
    relayed: Vec<Relayed>,
    count: u64,
    outcome: Outcome,
}

impl SessionInput {
    pub(super) fn new(me: NodeIndex, readers: Readers, window: u64) -> Self {
        let (input, pieces) = stdin::ends(window);
        Self {
            me,
            input,
            pieces,
            readers,
            taken: VecDeque::new(),
            backlog: None,
            fed: Vec::new(),
            has_ended: false,
            is_over: false,
            relayed: Vec::new(),
            count: 0,
            outcome: Outcome::default(),
        }
    }

    /// Starts the backlog for the ranks that read.
    pub(super) fn feed(&mut self, ranks: Vec<Rank>) {
        let mut backlog = Backlog::new(BACKLOG_MAX);
        for _ in &ranks {
            backlog.add_reader();
        }
        (self.backlog, self.fed) = (Some(backlog), ranks);
    }

    pub(super) fn push(&mut self, piece: Bytes) {
        if let Err(end) = self.input.push(piece) {
            self.cut(end);
        }
    }

    pub(super) fn end(&mut self) {
        self.input.end();
    }

    fn cut(&mut self, end: InputEnd) {
        self.outcome.to_agent.push(ToAgent::warning(end.to_string()));
        self.outcome.ended = Some(end);
    }

    /// Handles a piece for several nodes.
    pub(super) fn arrived(&mut self, piece: InputPiece, asker: Asker) {
        if let Some(reason) = Passing::refusal(self.me, &piece, self.relayed.len()) {
            if let Asker::Session(id) = asker {
                self.outcome.answers.push((id, Err(reason)));
            }
            return;
        }
        let taken = match self.input.push_numbered(piece.clone()) {
            Ok(taken) => Some(taken),
            Err(end) => {
                self.cut(end);
                None
            }
        };
        self.count += 1;
        let (number, offset) = (self.count, piece.offset);
        let (passing, shares) = Passing::begin(piece);
        self.relayed.push(Relayed { number, offset, passing, taken, asker });
        self.send(number, shares);
    }

    fn send(&mut self, number: u64, shares: Vec<Share>) {
        let sent = shares.into_iter().filter_map(|share| {
            let to = share.to()?;
            Some(Sent { number, part: share.part, to, piece: share.piece })
        });
        self.outcome.shares.extend(sent);
    }

    /// Handles another node's answer to a share, or the error of the question.
    pub(super) fn answered(&mut self, number: u64, part: Range<u32>, answer: Result<Bytes, String>) {
        let Some(relayed) = self.relayed.iter_mut().find(|relayed| relayed.number == number) else { return };
        let answer: Option<Option<NodeSelection>> =
            answer.ok().and_then(|answer| wire::input::decode_answer(answer).ok());
        let shares = relayed.passing.answered(part, answer);
        self.send(number, shares);
    }

    /// Reads at most `most` bytes for a rank.
    pub(super) fn read(&mut self, rank: Rank, most: usize, now: Instant) -> InputRead {
        let Some(reader) = self.fed.iter().position(|known| *known == rank) else { return self.unfed() };
        let Some(backlog) = &mut self.backlog else { return InputRead::End };
        match backlog.next(reader) {
            Next::Piece(mut piece) => {
                piece.truncate(most);
                backlog.advance(reader, piece.len(), now.into());
                InputRead::Bytes(piece)
            }
            Next::Wait => InputRead::Wait,
            Next::End => InputRead::End,
        }
    }

    /// A rank without input reads an empty file. Before the backlog exists, it waits.
    fn unfed(&self) -> InputRead {
        let waits = self.readers == Readers::Here && self.backlog.is_none() && !self.is_over;
        if waits { InputRead::Wait } else { InputRead::End }
    }

    /// Stops a rank's input.
    pub(super) fn leave(&mut self, rank: Rank) {
        if let (Some(reader), Some(backlog)) = (self.fed.iter().position(|known| *known == rank), &mut self.backlog) {
            backlog.leave(reader);
        }
    }

    /// Time at which a rank that does not read loses its input.
    pub(super) fn next_wake(&self) -> Option<Instant> {
        match self.backlog.as_ref()?.state() {
            BacklogState::Full { deadline } => Some(deadline.into_std()),
            BacklogState::Room => None,
        }
    }

    /// Moves pieces as far as there is room. Returns the effects.
    pub(super) fn pump(&mut self, now: Instant) -> Outcome {
        while self.feed_backlog(now) | self.take_piece() {}
        let is_taken =
            |taken: &mut oneshot::Receiver<()>| !matches!(taken.try_recv(), Err(oneshot::error::TryRecvError::Empty));
        for relayed in &mut self.relayed {
            relayed.taken.take_if(is_taken);
        }
        let is_over = |relayed: &mut Relayed| relayed.taken.is_none() && relayed.passing.is_over();
        for Relayed { offset, passing, asker, .. } in self.relayed.extract_if(.., is_over) {
            let missed = passing.missed();
            match asker {
                Asker::Api => {
                    let event = encode_happening(&NodeHappening::InputPassed { offset, missed });
                    self.outcome.to_agent.push(ToAgent::event(event));
                }
                Asker::Session(id) => {
                    self.outcome.answers.push((id, Ok(wire::input::encode_answer(offset, missed.as_ref()))));
                }
            }
        }
        std::mem::take(&mut self.outcome)
    }

    /// Simulates the task that feeds ranks, as far as it can proceed.
    fn feed_backlog(&mut self, now: Instant) -> bool {
        let Some(backlog) = &mut self.backlog else { return false };
        if let BacklogState::Full { deadline } = backlog.state()
            && deadline.into_std() <= now
        {
            let stalled = backlog.cut_stalled(now.into());
            let ranks: Vec<Rank> = stalled.into_iter().map(|reader| self.fed[reader]).collect();
            self.outcome.ready.extend(&ranks);
            self.outcome.closed.extend(ranks);
        }
        if !backlog.has_readers() {
            (self.backlog, self.is_over) = (None, true);
            self.fed.clear();
            self.taken.clear();
            return true;
        }
        if backlog.state() != BacklogState::Room {
            return false;
        }
        match self.taken.pop_front() {
            Some(piece) => backlog.push(piece, now.into()),
            None if self.has_ended && !self.is_over => {
                backlog.close();
                self.is_over = true;
            }
            None => return false,
        }
        self.outcome.ready.extend(&self.fed);
        true
    }

    /// Simulates the task between the commands and the session. The session has one piece, and one more may be on its way.
    fn take_piece(&mut self) -> bool {
        if !self.taken.is_empty() {
            return false;
        }
        let (piece, told) = match self.pieces.try_next() {
            Some(Waiting::Piece(piece, told)) => (piece, told),
            Some(Waiting::End) => {
                self.has_ended = true;
                return true;
            }
            Some(Waiting::Ignored(len)) => {
                self.outcome.to_agent.push(stdin::taken(len));
                return true;
            }
            None => return false,
        };
        self.outcome.to_agent.extend(self.pieces.take(piece.len() as u64, told));
        let is_read = self.readers == Readers::Here && !(self.is_over && self.backlog.is_none());
        if is_read && !piece.is_empty() {
            self.taken.push_back(piece);
        }
        true
    }
}
