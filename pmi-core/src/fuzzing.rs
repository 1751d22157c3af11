//! Entry points of the fuzz targets in `fuzz/`, as plain functions. They accept any bytes, and panic when a promise is broken.
//!
//! [`frame`] splits a stream, [`request`] decodes a message and encodes answers to it, [`server`] runs a list of [`Operation`]s against a
//! whole server.

use std::collections::VecDeque;

use bytes::Bytes;

use crate::Offer;
use crate::deaths::DeathKind;
use crate::fence::{Contribution, FenceError, FenceId, Merged};
use crate::ids::{JobId, LocalRank, NodeIndex, Rank};
use crate::job::{Job, Placement};
use crate::kvs::Segment;
use crate::resources::ResourceError;
use crate::server::{Action, ConnectionId, RESOURCES_MAX, ReleaseTimer, Restarts, Server, Settings, Ticket};
use crate::services::{Answer, Call, NameCall, NameError, SpawnError};
use crate::wire::request::{Message, Version};
use crate::wire::{ErrorCode, Frame, FrameBuffer, FrameError, Response};

/// Checks that every split of a stream yields the same messages, and that the buffer never exceeds the limit of one message.
///
/// The first byte sets the length of the pieces; the rest is the stream.
pub fn frame(data: &[u8]) {
    let Some((&step, stream)) = data.split_first() else { return };
    let whole = frames(stream, stream.len().max(1));
    let pieces = frames(stream, usize::from(step) + 1);
    assert_eq!(whole.0, pieces.0, "in pieces of {}", usize::from(step) + 1);
    assert_eq!(whole.1.is_some(), pieces.1.is_some(), "{:?} and {:?}", whole.1, pieces.1);
}

fn frames(stream: &[u8], step: usize) -> (Vec<Vec<u8>>, Option<FrameError>) {
    let mut buffer = FrameBuffer::default();
    let mut seen = Vec::new();
    for piece in stream.chunks(step) {
        buffer.push(piece);
        loop {
            match buffer.advance() {
                Ok(true) => seen.push(buffer.raw().to_vec()),
                Ok(false) => break,
                Err(error) => return (seen, Some(error)),
            }
        }
        assert!(buffer.pending() <= FrameBuffer::SPAWN_MAX + 1, "{} bytes are held", buffer.pending());
    }
    assert!(seen.iter().map(Vec::len).sum::<usize>() + buffer.pending() == stream.len(), "bytes were lost");
    (seen, None)
}

/// Checks that every message is decoded or refused, and that every answer to it is well formed.
///
/// The first byte selects the frame of the rest.
pub fn request(data: &[u8]) {
    let Some((&kind, content)) = data.split_first() else { return };
    let frame = match kind % 3 {
        0 if content.contains(&b'\n') => return,
        0 => Frame::Line(content),
        1 => Frame::SpawnBlocks(content),
        _ => Frame::Pmi2(content),
    };
    let Ok(message) = Message::decode(frame) else { return };
    let answers = [
        Response::InitAck { rank: Rank(1), size: 2 },
        Response::Adopted { served: true, job: "j" },
        Response::Init(Version { major: 1, minor: 1 }),
        Response::FullInit { rank: Rank(0), size: 1, appnum: -1, spawner: Some("j") },
        Response::Maxes,
        Response::UniverseSize(None),
        Response::Done,
        Response::Value(Some(content)),
        Response::Value(None),
        Response::Indexed(Some((1, content, content))),
        Response::Space("j.k0.1".to_owned()),
        Response::Fence { tag: Some(7) },
        Response::FenceRefused { tag: 7, code: ErrorCode::NoMemory, text: "too many" },
        Response::Port(content),
        Response::Ring { count: 1, left: content, right: content },
        Response::Error { code: ErrorCode::Failed, text: String::from_utf8_lossy(content).into_owned().into() },
    ];
    for answer in answers {
        check_answer(&answer.encode(message.dialect, message.command, message.thread));
    }
}

/// Checks that an answer is one message, so that the client can parse the next answer.
fn check_answer(answer: &[u8]) {
    let shown = || answer.escape_ascii().to_string();
    if answer.starts_with(b"cmd=") {
        let lines = if answer.starts_with(b"cmd=initack rc=0\ncmd=set size=") { 4 } else { 1 };
        assert_eq!(memchr::memchr_iter(b'\n', answer).count(), lines, "{}", shown());
        assert!(answer.ends_with(b"\n"), "{}", shown());
        return;
    }
    let length = answer.get(..6).and_then(|length| str::from_utf8(length).ok()?.trim_start().parse().ok());
    assert_eq!(length, Some(answer.len().saturating_sub(6)), "{}", shown());
    assert!(answer[6..].starts_with(b"cmd=") && answer.ends_with(b";"), "{}", shown());
}

/// One event of a server. Numbers are taken modulo the number of candidates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation {
    /// A connection sends something.
    Bytes(u8, Vec<u8>),
    /// A connection ends.
    Disconnect(u8),
    /// A rank's process ends: with status 0 below 128, else by a signal that the host tolerates.
    Exit(u8),
    /// A connection arrives through `PMI_PORT`.
    Accept,
    /// One of the open fences ends: with an error for 0, else with a pair of another node.
    Fence(u8, u8),
    /// One of the open questions is answered: with an error for 0.
    Answer(u8, u8),
    /// One of the pending deadlines expires.
    Time(u8),
}

/// Encodes operations on a server of `ranks` ranks for [`server`].
pub fn encode(ranks: u8, operations: &[Operation]) -> Vec<u8> {
    let mut data = vec![ranks.saturating_sub(1), 1];
    for operation in operations {
        match operation {
            Operation::Bytes(connection, bytes) => {
                for piece in bytes.chunks(usize::from(u16::MAX)) {
                    data.extend([0, *connection]);
                    data.extend((piece.len() as u16).to_le_bytes());
                    data.extend(piece);
                }
            }
            Operation::Disconnect(connection) => data.extend([1, *connection]),
            Operation::Exit(local) => data.extend([2, *local]),
            Operation::Accept => data.push(3),
            Operation::Fence(which, result) => data.extend([4, *which, *result]),
            Operation::Answer(which, answer) => data.extend([5, *which, *answer]),
            Operation::Time(which) => data.extend([6, *which]),
        }
    }
    data
}

/// Decodes the next operation, and returns it with the rest of the bytes.
fn decode(data: &[u8]) -> Option<(Operation, &[u8])> {
    let (&kind, rest) = data.split_first()?;
    if kind % 7 == 3 {
        return Some((Operation::Accept, rest));
    }
    let (&which, rest) = rest.split_first()?;
    match kind % 7 {
        0 => {
            let (length, rest) = rest.split_first_chunk()?;
            let (bytes, rest) = rest.split_at(rest.len().min(u16::from_le_bytes(*length).into()));
            Some((Operation::Bytes(which, bytes.to_vec()), rest))
        }
        1 => Some((Operation::Disconnect(which), rest)),
        2 => Some((Operation::Exit(which), rest)),
        6 => Some((Operation::Time(which), rest)),
        kind => {
            let (&result, rest) = rest.split_first()?;
            let operation = if kind == 4 { Operation::Fence(which, result) } else { Operation::Answer(which, result) };
            Some((operation, rest))
        }
    }
}

/// Limits of the server under test, small enough to be reached.
const SETTINGS: Settings = Settings {
    offer: Offer { pmi1: true, pmi2: true, group_barriers: true },
    bytes_per_rank: 4096,
    questions_per_rank: 4,
    trace: false,
    resources: true,
    restarts: Restarts::Unexpected,
};

/// Maximum number of ranks of the server under test.
const RANKS_MAX: u8 = 4;

/// Checks that a server survives every sequence of events: it answers in whole messages, holds bounded memory, asks bounded questions,
/// and sends nothing after it reports that its job must end.
///
/// The first byte sets the number of ranks. The second sets whether the job has another node (odd or even), the restart mode (halved) and
/// the initial state (divided by six). The rest are operations in the format of [`encode`].
pub fn server(data: &[u8]) {
    let [ranks, other_node, operations @ ..] = data else { return };
    let mut operations = operations;
    let ranks = 1 + u32::from(ranks % RANKS_MAX);
    let restarts = [Restarts::Unexpected, Restarts::Keep, Restarts::Fresh][usize::from(other_node / 2 % 3)];
    let mut host = Host::new(ranks, 2 * u32::from(other_node % 2), restarts);
    for operation in prepared(other_node / 6, host.connections.len() as u8) {
        host.perform(operation);
        host.collect();
    }
    while let Some((operation, rest)) = decode(operations) {
        operations = rest;
        host.perform(operation);
        host.collect();
    }
}

/// Operations that lead to a state: a new server; a server after `init` of all ranks over PMI-1 or over PMI-2; a server with ranks that
/// have put pairs and wait in a fence for the last rank.
fn prepared(state: u8, connections: u8) -> Vec<Operation> {
    let say = |connection: u8, text: &[u8]| Operation::Bytes(connection, text.to_vec());
    let begin = b"cmd=init pmi_version=1 pmi_subversion=1\n";
    let all = 0..connections;
    match state % 4 {
        0 => Vec::new(),
        1 => all.map(|connection| say(connection, begin)).collect(),
        2 => all
            .map(|rank| {
                let begin = "cmd=init pmi_version=2 pmi_subversion=0\n";
                say(rank, format!("{begin}38    cmd=fullinit;pmirank={rank};threaded=FALSE;").as_bytes())
            })
            .collect(),
        _ => all
            .flat_map(|connection| {
                let put = format!("cmd=put kvsname=j key=k{connection} value=v\n");
                let fence = (connection + 1 < connections).then(|| say(connection, b"cmd=barrier_in\n"));
                [say(connection, begin), say(connection, put.as_bytes())].into_iter().chain(fence)
            })
            .collect(),
    }
}

/// A server and its pending operations.
struct Host {
    server: Server,
    ranks: u32,
    connections: Vec<ConnectionId>,
    fences: VecDeque<(FenceId, Contribution)>,
    calls: VecDeque<(Ticket, Call)>,
    timers: Vec<ReleaseTimer>,
    ended: bool,
    /// Bytes from other nodes.
    foreign: usize,
}

impl Host {
    fn new(ranks: u32, elsewhere: u32, restarts: Restarts) -> Self {
        let counts = if elsewhere > 0 { vec![ranks, elsewhere] } else { vec![ranks] };
        let placement = Placement::block(&counts);
        let id = JobId::new("j").expect("a letter");
        let job = Job { universe_size: Some(8), ..Job::on_one_node(id, placement.size()) };
        let mut server = Server::new(Job { placement, ..job }, NodeIndex(0), Settings { restarts, ..SETTINGS });
        server.report_merged();
        // The last rank must connect through `PMI_PORT`.
        let connections = (0..ranks.saturating_sub(1).max(1))
            .map(|local| server.connect(LocalRank(local)).expect("a rank of the job"))
            .collect();
        let (fences, calls, timers) = Default::default();
        Self { server, ranks, connections, fences, calls, timers, ended: false, foreign: 0 }
    }

    fn connection(&self, which: u8) -> ConnectionId {
        self.connections[usize::from(which) % self.connections.len()]
    }

    fn perform(&mut self, operation: Operation) {
        match operation {
            Operation::Bytes(which, bytes) => self.server.handle_bytes(self.connection(which), &bytes),
            Operation::Disconnect(which) => self.server.handle_disconnect(self.connection(which)),
            Operation::Exit(which) => {
                let local = LocalRank(u32::from(which) % self.ranks);
                match which {
                    0..128 => self.server.handle_exit(local),
                    128.. => self.server.handle_borne_failure(local, DeathKind::Killed),
                }
            }
            Operation::Accept => {
                let connection = self.server.accept();
                if !self.connections.contains(&connection) {
                    self.connections.push(connection);
                }
            }
            Operation::Fence(which, result) => {
                let which = usize::from(which) % self.fences.len().max(1);
                if let Some((id, contribution)) = self.fences.remove(which) {
                    let result = self.fence_result(&id, contribution, result);
                    self.server.handle_fence(&id, result);
                }
            }
            Operation::Time(which) => {
                let which = usize::from(which) % self.timers.len().max(1);
                if which < self.timers.len() {
                    self.server.handle_timer(self.timers.swap_remove(which));
                }
            }
            Operation::Answer(which, good) => {
                let which = usize::from(which) % self.calls.len().max(1);
                if let Some((ticket, call)) = self.calls.remove(which) {
                    self.server.handle_answer(ticket, &answer(call, good));
                }
            }
        }
    }

    fn fence_result(&mut self, id: &FenceId, brought: Contribution, seed: u8) -> Result<Merged, FenceError> {
        if seed == 0 {
            return Err(FenceError::NodeLost { node: NodeIndex(1), epoch: id.epoch, reason: String::new() });
        }
        let foreign: Segment = [([0, 0, 0, seed], vec![seed; usize::from(seed)])].into_iter().collect();
        self.foreign += foreign.as_bytes().len();
        Ok(brought.segments.into_iter().chain([foreign]).collect::<Vec<_>>().into())
    }

    fn collect(&mut self) {
        while let Some(action) = self.server.poll_action() {
            let silent = matches!(action, Action::Trace(_) | Action::Close { .. });
            assert!(!self.ended || silent, "after the end: {action:?}");
            match action {
                Action::Send { connection, bytes } => {
                    assert!(self.connections.contains(&connection), "{connection:?} was never made");
                    check_answer(&bytes);
                }
                Action::Fence { id, contribution } => self.fences.push_back((id, contribution)),
                Action::Call { ticket, call, .. } => self.calls.push_back((ticket, call)),
                Action::Merged { segments, .. } => {
                    let keys = segments.iter().flat_map(Segment::pairs).map(|(key, _)| key);
                    let known = keys.filter(|key| self.server.value(key).is_some()).count();
                    assert!(known == 0 || self.server.pairs().len() > 0, "{known} keys of no pairs");
                }
                Action::End(_) => self.ended = true,
                Action::SetTimer { timer, .. } => self.timers.push(timer),
                Action::CancelTimer(timer) => self.timers.retain(|pending| *pending != timer),
                Action::Close { .. }
                | Action::ReadOut { .. }
                | Action::AskForSender { .. }
                | Action::SecondProcess { .. }
                | Action::Restarted { .. }
                | Action::Trace(_)
                | Action::Died(_)
                | Action::Overdue { .. } => {}
            }
        }
        let put = self.ranks as usize * SETTINGS.bytes_per_rank;
        let memory = self.server.memory();
        assert!(memory <= 16 * (put + self.foreign) + 64 * 1024, "{memory} bytes for {put} put");
        assert!(self.timers.len() <= self.ranks as usize * RESOURCES_MAX, "too many deadlines");
        assert!(self.calls.len() <= self.ranks as usize * SETTINGS.questions_per_rank, "too many questions");
    }
}

fn answer(call: Call, good: u8) -> Answer {
    match call {
        Call::Name(NameCall::Lookup { service, .. }) if good > 0 => Answer::Port(Ok(service)),
        Call::Name(_) if good > 0 => Answer::Named(Ok(())),
        Call::Name(NameCall::Publish { .. }) => {
            Answer::Named(Err(NameError::AlreadyPublished { holder: "rank\n0".into() }))
        }
        Call::Name(NameCall::Lookup { .. }) => {
            Answer::Port(Err(NameError::Unavailable { reason: "no\nway; here".into() }))
        }
        Call::Name(_) => Answer::Named(Err(NameError::NotFound)),
        Call::Spawn(_) if good > 0 => Answer::Spawned(Ok(JobId::new("child").expect("letters"))),
        Call::Resource(change) => {
            let refused = ResourceError::Refused { reason: "not\nyours; here".into() };
            Answer::Resource(change, if good > 0 { Ok(()) } else { Err(refused) })
        }
        Call::Spawn(request) => {
            let first = request.apps.first().map_or(Bytes::new(), |app| app.program.clone());
            Answer::Spawned(Err(SpawnError::Failed { reason: String::from_utf8_lossy(&first).into_owned() }))
        }
    }
}
