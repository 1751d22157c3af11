//! The runner of a set's member: carries out the effects of its [`Machine`] with Unix sockets and tokio's clock.
//!
//! One task owns the machine. A link is two more: one reads frames, one writes all that wait with one system call.

use pmi_transport::task;
use std::collections::HashMap;
use std::path::PathBuf;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use lattice_overlay::address::{SetId, Uid};
use lattice_overlay::directory::Directory;
use lattice_overlay::error::CallError;
use lattice_overlay::frame::Frame;
use lattice_overlay::greeting::{Caller, Purpose};
use lattice_overlay::machine::{CallId, CallOptions, Effect, Machine, Membership, Neighbour, Opener};
use lattice_overlay::method::Method;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{mpsc, oneshot};
use tokio::task::AbortHandle;
use tokio::time::Instant;

use super::{blocking, connection};

/// Inputs that wait for the machine.
const INPUTS: usize = 256;
/// Most links that others have opened. Whoever comes then is refused by the end of its connection.
const LINKS_MAX: usize = 1024;
/// Bytes that are gathered for one write, unless a single frame has more.
const WRITE_ROOM: usize = 256 << 10;
/// Room for what one read brings.
const READ_ROOM: usize = 16 << 10;
/// Longest time without an input.
const IDLE: Duration = Duration::from_secs(3600);

type Reply = oneshot::Sender<Result<Bytes, CallError>>;

/// A member that runs.
#[derive(Debug)]
pub(super) struct Member {
    inputs: mpsc::Sender<Input>,
    running: AbortHandle,
}

enum Input {
    Call {
        to: Uid,
        method: Method,
        body: Bytes,
        timeout: Duration,
        reply: Reply,
    },
    /// A link is there, or cannot be.
    Linked(Neighbour, Option<UnixStream>, Opener),
    /// A frame has come.
    Frame(Neighbour, Frame),
    /// So many frames were written to the link of this number.
    Written(Neighbour, u64, u32),
    /// The link of this number has ended.
    Ended(Neighbour, u64),
}

impl Member {
    /// Starts a member of a set whose fellow sets are in the directory at `place`.
    pub(super) fn start(membership: Membership, place: Option<PathBuf>) -> Self {
        let (inputs, received) = mpsc::channel(INPUTS);
        let set = membership.set;
        let runner = Runner {
            set,
            machine: Machine::new(membership),
            place,
            inputs: inputs.clone(),
            links: HashMap::new(),
            last: 0,
            replies: HashMap::new(),
        };
        Self { inputs, running: task::spawn(runner.run(received)).abort_handle() }
    }

    pub(super) fn stop(&self) {
        self.running.abort();
    }

    /// Calls a process.
    pub(super) async fn call(
        &self,
        to: Uid,
        method: Method,
        body: Bytes,
        timeout: Duration,
    ) -> Result<Bytes, CallError> {
        let ending = || CallError::Refused { why: "this process is ending".to_owned() };
        let (reply, result) = oneshot::channel();
        self.inputs.send(Input::Call { to, method, body, timeout, reply }).await.map_err(|_| ending())?;
        result.await.unwrap_or_else(|_| Err(ending()))
    }

    /// Takes a link that a neighbour has opened.
    pub(super) async fn take(&self, neighbour: Neighbour, socket: UnixStream) {
        // It has ended otherwise.
        let _ = self.inputs.send(Input::Linked(neighbour, Some(socket), Opener::Them)).await;
    }
}

struct Runner {
    set: SetId,
    machine: Machine,
    place: Option<PathBuf>,
    inputs: mpsc::Sender<Input>,
    links: HashMap<Neighbour, Link>,
    /// Number of the last link.
    last: u64,
    replies: HashMap<CallId, Reply>,
}

/// A link that is open. Its tasks end with it.
struct Link {
    number: u64,
    /// The machine limits what waits here.
    frames: mpsc::UnboundedSender<Frame>,
    #[expect(dead_code, reason = "held")]
    tasks: Tasks,
    /// The other one, where both ends have opened a link at a time. Nothing is sent over it any more, but it is read, for the far end may
    /// have used it before it knew of both.
    #[expect(dead_code, reason = "held")]
    second: Option<Box<Self>>,
}

/// Tasks that end with their link.
struct Tasks([AbortHandle; 2]);

impl Drop for Tasks {
    fn drop(&mut self) {
        self.0.iter().for_each(AbortHandle::abort);
    }
}

impl Runner {
    async fn run(mut self, mut inputs: mpsc::Receiver<Input>) {
        loop {
            let wake = self.machine.next_wake().map_or_else(|| Instant::now() + IDLE, Instant::from_std);
            tokio::select! {
                input = inputs.recv() => match input {
                    Some(input) => self.on_input(input),
                    None => return,
                },
                () = tokio::time::sleep_until(wake) => self.machine.handle_time(Instant::now().into_std()),
            }
            self.carry_out();
        }
    }

    fn on_input(&mut self, input: Input) {
        let now = Instant::now().into_std();
        match input {
            Input::Call { to, method, body, timeout, reply } => {
                let id = self.machine.call(to, method, body, CallOptions { timeout, within: None }, now);
                self.replies.insert(id, reply);
            }
            Input::Linked(neighbour, Some(socket), opener) => self.on_link(neighbour, socket, opener),
            Input::Linked(neighbour, None, _) if !self.links.contains_key(&neighbour) => {
                self.machine.handle_lost(neighbour, now);
            }
            // Also of a link whose place another one has taken.
            Input::Frame(neighbour, frame) => self.machine.handle_frame(neighbour, frame, now),
            Input::Written(neighbour, number, frames) if self.is_current(neighbour, number) => {
                self.machine.handle_written(neighbour, frames);
            }
            Input::Ended(neighbour, number) if self.is_current(neighbour, number) => {
                self.links.remove(&neighbour);
                self.machine.handle_lost(neighbour, now);
            }
            Input::Linked(..) | Input::Written(..) | Input::Ended(..) => {}
        }
    }

    fn is_current(&self, neighbour: Neighbour, number: u64) -> bool {
        self.links.get(&neighbour).is_some_and(|link| link.number == number)
    }

    /// Takes a link. Where both ends open one at a time, that of the lower set is used. A rank has one process.
    fn on_link(&mut self, neighbour: Neighbour, socket: UnixStream, opener: Opener) {
        let stays = match neighbour {
            Neighbour::Set(set) if self.set < set => Opener::Us,
            Neighbour::Set(_) => Opener::Them,
            Neighbour::Rank(_) if self.links.contains_key(&neighbour) => return,
            Neighbour::Rank(_) | Neighbour::Member(_) | Neighbour::Session => opener,
        };
        if opener == Opener::Them && self.links.len() >= LINKS_MAX && !self.links.contains_key(&neighbour) {
            return;
        }
        let new = self.start_link(neighbour, socket);
        match self.links.remove(&neighbour) {
            Some(current) if opener != stays => {
                self.links.insert(neighbour, Link { second: Some(Box::new(new)), ..current });
            }
            former => {
                let second = former.map(|former| Box::new(Link { second: None, ..former }));
                self.links.insert(neighbour, Link { second, ..new });
                self.machine.handle_opened(neighbour, opener, Instant::now().into_std());
            }
        }
    }

    fn start_link(&mut self, neighbour: Neighbour, socket: UnixStream) -> Link {
        self.last += 1;
        let number = self.last;
        let (reading, writing) = socket.into_split();
        let (frames, outgoing) = mpsc::unbounded_channel();
        let tasks = [
            task::spawn(read(reading, self.inputs.clone(), neighbour, number)).abort_handle(),
            task::spawn(write(writing, outgoing, self.inputs.clone(), neighbour, number)).abort_handle(),
        ];
        Link { number, frames, tasks: Tasks(tasks), second: None }
    }

    fn carry_out(&mut self) {
        while let Some(effect) = self.machine.poll_effect() {
            match effect {
                Effect::Open(Neighbour::Set(set)) => {
                    task::spawn(open(self.set, set, self.place.clone(), self.inputs.clone()));
                }
                Effect::Close(neighbour) => drop(self.links.remove(&neighbour)),
                Effect::Send(neighbour, frame) => {
                    if let Some(link) = self.links.get(&neighbour) {
                        // Its end is told by its tasks.
                        let _ = link.frames.send(frame);
                    }
                }
                Effect::Serve(request) => {
                    let now = Instant::now().into_std();
                    self.machine.answer(request.ticket, Err(CallError::NoSuchMethod), now);
                }
                Effect::Ended(id, result) => {
                    if let Some(reply) = self.replies.remove(&id) {
                        // Whoever called may have given up.
                        let _ = reply.send(result);
                    }
                }
                // A set of one member has no others, and ranks come by themselves.
                Effect::Open(_) => {}
            }
        }
    }
}

/// Opens a link to the root of another set.
async fn open(own: SetId, set: SetId, place: Option<PathBuf>, inputs: mpsc::Sender<Input>) {
    let find = move || Directory::open_existing(&place?).ok()??.find(set).ok()?;
    let socket = match blocking(find).await {
        Ok(Some(record)) => {
            connection::connect(&record, Caller { set: own, rank: 0, purpose: Purpose::Frames }).await.ok()
        }
        Ok(None) | Err(_) => None,
    };
    // The member may have ended.
    let _ = inputs.send(Input::Linked(Neighbour::Set(set), socket, Opener::Us)).await;
}

/// Reads the frames of a link to its end. While the machine takes none, none are read.
async fn read(mut socket: OwnedReadHalf, inputs: mpsc::Sender<Input>, neighbour: Neighbour, number: u64) {
    let mut stream = BytesMut::with_capacity(READ_ROOM);
    'link: while matches!(socket.read_buf(&mut stream).await, Ok(1..)) {
        loop {
            match Frame::take(&mut stream) {
                Ok(Some(frame)) => {
                    if inputs.send(Input::Frame(neighbour, frame)).await.is_err() {
                        return;
                    }
                }
                Ok(None) => break,
                Err(error) => {
                    tracing::debug!("the link to {neighbour:?} ends: {error}");
                    break 'link;
                }
            }
        }
        stream.reserve(READ_ROOM);
    }
    let _ = inputs.send(Input::Ended(neighbour, number)).await;
}

/// Writes the frames of a link until it ends.
async fn write(
    mut socket: OwnedWriteHalf,
    mut outgoing: mpsc::UnboundedReceiver<Frame>,
    inputs: mpsc::Sender<Input>,
    neighbour: Neighbour,
    number: u64,
) {
    let mut stream = BytesMut::new();
    while let Some(frame) = outgoing.recv().await {
        let mut frames = 1;
        frame.append(&mut stream);
        while stream.len() < WRITE_ROOM
            && let Ok(frame) = outgoing.try_recv()
        {
            frame.append(&mut stream);
            frames += 1;
        }
        if socket.write_all(&stream).await.is_err() {
            break;
        }
        stream.clear();
        if inputs.send(Input::Written(neighbour, number, frames)).await.is_err() {
            return;
        }
    }
    let _ = inputs.send(Input::Ended(neighbour, number)).await;
}
