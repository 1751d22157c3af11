//! Runner of a set's member. Carries out the effects of its [`Machine`] with connections and tokio's clock.
//!
//! One task owns the machine. Each link has tasks of its own ([`line`]).

pub(super) mod line;

use pmi_transport::task;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use lattice_overlay::address::Uid;
use lattice_overlay::error::{CallError, Fault};
use lattice_overlay::frame::Frame;
use lattice_overlay::machine::{CallId, CallOptions, Effect, Machine, Membership, Neighbour, Opener, Request, Ticket};
use lattice_overlay::method::{Method, take_named};
use pmi_core::ids::Rank;
use pmi_core::services::{Lifetime, NameCall, NameRange, NameRequest, Publisher, Services};
use tokio::sync::{mpsc, oneshot};
use tokio::task::AbortHandle;
use tokio::time::Instant;

use self::line::{Line, Link};
use super::communicators::CommunicatorSource;

/// Capacity of the machine's input queue.
const INPUTS: usize = 256;
/// Limit of links for connections from other processes. Further connections are closed.
const LINKS_MAX: usize = 1024;
/// Longest wait for an input.
const IDLE: Duration = Duration::from_secs(3600);

type Reply = oneshot::Sender<Result<Bytes, CallError>>;

/// Connections of a member to its neighbours.
#[async_trait]
pub(super) trait Ways: Send + Sync + 'static {
    /// Opens a line to a neighbour. Returns the reason of a failure if callers should receive it.
    async fn open(&self, neighbour: Neighbour) -> Result<Line, Option<String>>;

    /// Name service of the user, if the member serves names.
    fn names(&self) -> Option<Arc<dyn Services>>;

    /// Communicators of the ranks of this set or session; `None` for a tool.
    fn communicators(&self) -> Option<CommunicatorSource>;
}

/// A running member.
#[derive(Clone, Debug)]
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
    /// A link was opened.
    Linked(Neighbour, Line, Opener),
    /// A link could not be opened, for this reason.
    NotLinked(Neighbour, Option<String>),
    /// A frame has arrived.
    Frame(Neighbour, Frame),
    /// A frame has arrived from the session of another node. This line carries the answers.
    FromSession(Neighbour, Line, Frame),
    /// This number of frames was written to the link with this number.
    Written(Neighbour, u64, u32),
    /// The link with this number has ended.
    Ended(Neighbour, u64),
    /// A handler has answered.
    Answered(Ticket, Result<Bytes, CallError>),
}

impl Member {
    /// Starts a member of a set.
    pub(super) fn start(membership: Membership, ways: Arc<dyn Ways>) -> Self {
        let (inputs, received) = mpsc::channel(INPUTS);
        let runner = Runner {
            machine: Machine::new(membership),
            ways,
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

    /// Adds a link that a neighbour has opened.
    pub(super) async fn take(&self, neighbour: Neighbour, line: Line) {
        // Fails if the member has ended.
        let _ = self.inputs.send(Input::Linked(neighbour, line, Opener::Them)).await;
    }

    /// Handles a frame from another node's session.
    pub(super) async fn hear(&self, neighbour: Neighbour, line: Line, frame: Frame) {
        let _ = self.inputs.send(Input::FromSession(neighbour, line, frame)).await;
    }
}

struct Runner {
    machine: Machine,
    ways: Arc<dyn Ways>,
    inputs: mpsc::Sender<Input>,
    links: HashMap<Neighbour, Link>,
    /// Number of the last link.
    last: u64,
    replies: HashMap<CallId, Reply>,
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
            Input::Linked(neighbour, line, opener) => self.on_link(neighbour, line, opener),
            Input::NotLinked(neighbour, why) if !self.links.contains_key(&neighbour) => match why {
                Some(why) => self.machine.handle_refused(neighbour, why, now),
                None => self.machine.handle_lost(neighbour, now),
            },
            // This includes frames of a replaced link.
            Input::Frame(neighbour, frame) => self.machine.handle_frame(neighbour, frame, now),
            Input::FromSession(neighbour, line, frame) => {
                self.on_link(neighbour, line, Opener::Them);
                self.machine.handle_frame(neighbour, frame, now);
            }
            Input::Written(neighbour, number, frames) if self.is_current(neighbour, number) => {
                self.machine.handle_written(neighbour, frames);
            }
            Input::Ended(neighbour, number) if self.is_current(neighbour, number) => {
                self.links.remove(&neighbour);
                self.machine.handle_lost(neighbour, now);
            }
            Input::Answered(ticket, result) => self.machine.answer(ticket, result, now),
            Input::NotLinked(..) | Input::Written(..) | Input::Ended(..) => {}
        }
    }

    fn is_current(&self, neighbour: Neighbour, number: u64) -> bool {
        self.links.get(&neighbour).is_some_and(|link| link.number == number)
    }

    /// Adds a link. If both ends open a link at the same time, the link of the lower set is used. A rank has one process and a session has
    /// one line, so a second link to them is dropped.
    fn on_link(&mut self, neighbour: Neighbour, line: Line, opener: Opener) {
        let stays = match neighbour {
            Neighbour::Set(set) if self.machine.me().set() < set => Opener::Us,
            Neighbour::Set(_) => Opener::Them,
            Neighbour::Rank(_) | Neighbour::Member(_) if self.links.contains_key(&neighbour) => return,
            Neighbour::Rank(_) | Neighbour::Member(_) | Neighbour::Session => opener,
        };
        if opener == Opener::Them && self.links.len() >= LINKS_MAX && !self.links.contains_key(&neighbour) {
            return;
        }
        self.last += 1;
        let new = Link::start(line, neighbour, self.last, self.inputs.clone());
        match self.links.remove(&neighbour) {
            Some(current) if opener != stays => {
                self.links.insert(neighbour, current.beside(new));
            }
            former => {
                let new = if let Some(former) = former { new.beside(former) } else { new };
                self.links.insert(neighbour, new);
                self.machine.handle_opened(neighbour, opener, Instant::now().into_std());
            }
        }
    }

    fn carry_out(&mut self) {
        while let Some(effect) = self.machine.poll_effect() {
            match effect {
                Effect::Open(neighbour) => {
                    task::spawn(open(Arc::clone(&self.ways), neighbour, self.inputs.clone()));
                }
                Effect::Close(neighbour) => drop(self.links.remove(&neighbour)),
                Effect::Send(neighbour, frame) => {
                    if let Some(link) = self.links.get(&neighbour) {
                        // The link's tasks report its end.
                        let _ = link.frames.send(frame);
                    }
                }
                Effect::Serve(request) => self.serve(request),
                Effect::Ended(id, result) => {
                    if let Some(reply) = self.replies.remove(&id) {
                        // The caller may have stopped waiting.
                        let _ = reply.send(result);
                    }
                }
            }
        }
    }

    /// Serves requests for names and communicators. The machine answers all other requests.
    fn serve(&mut self, request: Request) {
        let is_about_names = (Method::LOOKUP..=Method::UNPUBLISH).contains(&request.method);
        if let Some(names) = self.ways.names().filter(|_| is_about_names) {
            let inputs = self.inputs.clone();
            task::spawn(async move {
                let result = ask_names(&*names, request.method, request.body).await;
                // Fails if the member has ended.
                let _ = inputs.send(Input::Answered(request.ticket, result)).await;
            });
            return;
        }
        let result = match self.ways.communicators().filter(|_| request.method == Method::COMMUNICATOR) {
            Some(communicators) => {
                communicators.answer(self.machine.me(), self.machine.set_info().ranks, &request.body)
            }
            None => Err(CallError::NoSuchMethod),
        };
        self.machine.answer(request.ticket, result, Instant::now().into_std());
    }
}

async fn ask_names(names: &dyn Services, method: Method, body: Bytes) -> Result<Bytes, CallError> {
    let range = NameRange::User;
    let call = match method {
        Method::LOOKUP => NameCall::Lookup { service: body, timeout: None, range },
        Method::PUBLISH => {
            let malformed = || CallError::Refused { why: "there is no name before the port".to_owned() };
            let (service, port) = take_named(body).ok_or_else(malformed)?;
            NameCall::Publish { service, port, lifetime: Lifetime::Withdrawn, range }
        }
        _ => NameCall::Unpublish { service: body, publisher: Publisher::AnyOfLaunch },
    };
    let asked = names.name(NameRequest::of(Rank(0), call)).await;
    asked.map_err(|error| CallError::Handler(Fault(error.to_string())))
}

/// Opens a link, and sends the result to the member.
async fn open(ways: Arc<dyn Ways>, neighbour: Neighbour, inputs: mpsc::Sender<Input>) {
    let input = match ways.open(neighbour).await {
        Ok(line) => Input::Linked(neighbour, line, Opener::Us),
        Err(why) => Input::NotLinked(neighbour, why),
    };
    // Fails if the member has ended.
    let _ = inputs.send(input).await;
}
