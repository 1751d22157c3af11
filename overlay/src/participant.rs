//! A process that makes and serves calls itself: a rank of a launch, or a guest. It has one socket to the launch's session, and no thread.
//! Calls are processed while the program waits in [`Participant::call`] or [`Participant::progress`].
//!
//! ```no_run
//! use lattice_overlay::method::Method;
//! use lattice_overlay::participant::Participant;
//!
//! let participant = Participant::of_launch()?;
//! participant.serve(Method(300), |_, from, body| Ok([format!("{from} says ").as_bytes(), body].concat().into()));
//! loop {
//!     participant.progress(None)?;
//! }
//! # Ok::<(), lattice_overlay::participant::ParticipantError>(())
//! ```

use std::cell::RefCell;
use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, Instant};

use bytes::{Buf, Bytes, BytesMut};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{
    self, AddressFamily, MsgFlags, SockFlag, SockType, UnixAddr, getsockopt, send, setsockopt, sockopt,
};
use nix::sys::time::TimeVal;
use nix::unistd::geteuid;

use crate::address::{SetId, Uid};
use crate::directory::{self, Contact, Directory, DirectoryError, SetRecord, activation};
use crate::error::{CallError, Fault};
use crate::frame::{Frame, FrameError};
use crate::greeting::{self, Caller, GUEST, PROOF_LEN, Purpose};
use crate::machine::{CallId, CallOptions, Effect, Machine, Neighbour, Opener, Request, Ticket};
use crate::method::{Method, named, take_named};

/// Time limit for the set of the own launch to appear. A launch becomes a set on demand, and accepts the demand shortly after its start.
const APPEARANCE: Duration = Duration::from_secs(5);
const LOOK_AGAIN: Duration = Duration::from_millis(10);
/// Time limit for a greeting, and for a session that does not read.
const SESSION_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum nesting of handlers: a handler makes a call, and serves another call while it waits.
const DEPTH_MAX: usize = 256;
/// Maximum name length and data length of a connection request, in bytes.
const CONNECT_NAME_MAX: usize = 32;
const CONNECT_DATA_MAX: usize = 4 << 10;
/// Bytes of one read.
const READ_ROOM: usize = 16 << 10;

/// A process that makes and serves calls. It belongs to one thread.
pub struct Participant {
    socket: UnixStream,
    me: Uid,
    machine: RefCell<Machine>,
    received: RefCell<BytesMut>,
    ended: RefCell<HashMap<CallId, Result<Bytes, CallError>>>,
    handlers: RefCell<HashMap<Method, Rc<Handler>>>,
    /// Handlers of [`Method::CONNECT`], by name.
    connecting: RefCell<HashMap<Bytes, Rc<Handler>>>,
    /// Requests that are being handled, the innermost last.
    serving: RefCell<Vec<Ticket>>,
}

/// Function that answers the calls of a method. It may make calls.
type Handler = dyn Fn(&Participant, Uid, &[u8]) -> Result<Bytes, Fault>;

/// Failure to become or remain a participant.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ParticipantError {
    /// This process is not a rank of a launch.
    #[error(
        "this process is no rank of a launch: LATTICE_LAUNCH_ID or LATTICE_RANK is not set\ntry: start it by lattice launch"
    )]
    NoRank,
    /// The launch or the set is not in the directory, and has no session here.
    #[error("{what} is no set of yours on this machine, and has no node here\ntry: lattice set list")]
    NoSet {
        /// The launch, or the id of the set.
        what: String,
    },
    /// The directory is not usable.
    #[error(transparent)]
    Directory(#[from] DirectoryError),
    /// The session does not answer, or has ended.
    #[error("the session of the set cannot be reached: {0}")]
    Session(#[from] io::Error),
    /// The answering process is not the session.
    #[error("the process that answers for the set does not have its key, or is another user's")]
    Impostor,
    /// The session refuses, because another process is connected for this rank.
    #[error("another process speaks for this rank already, or the launch is ending")]
    Refused,
    /// The session sent a malformed frame.
    #[error("the session sent what is no frame: {0}")]
    Frame(#[from] FrameError),
}

impl Participant {
    /// Connects as the rank of a launch that the environment of this process names.
    ///
    /// # Errors
    /// Fails outside a launch, and if the launch's session on this machine cannot be reached.
    pub fn of_launch() -> Result<Self, ParticipantError> {
        let launch = std::env::var("LATTICE_LAUNCH_ID").map_err(|_| ParticipantError::NoRank)?;
        let rank =
            std::env::var("LATTICE_RANK").ok().and_then(|rank| rank.parse().ok()).ok_or(ParticipantError::NoRank)?;
        let told = std::env::var(Contact::VARIABLE).ok();
        if let Some(contact) = told.and_then(|text| Contact::parse(&text)) {
            return Self::connect(&contact, rank);
        }
        let (place, until) = (place()?, Instant::now() + APPEARANCE);
        loop {
            activation::activate(&launch);
            let directory = Directory::open_existing(&place)?;
            match directory.map(|directory| directory.find_launch(&launch)).transpose()?.flatten() {
                Some(set) => return Self::connect(&set.contact(), rank),
                None if Instant::now() >= until => {
                    return Err(ParticipantError::NoSet { what: format!("launch {launch}") });
                }
                None => std::thread::sleep(LOOK_AGAIN),
            }
        }
    }

    /// Connects as a guest of a set, from any process of its user on this machine, or on a node of a cluster launch.
    ///
    /// # Errors
    /// Fails if there is no such set, or if its session cannot be reached.
    pub fn guest_of(set: SetId) -> Result<Self, ParticipantError> {
        let found = find(set);
        if let Ok(Some(record)) = &found {
            return Self::connect(&record.contact(), GUEST);
        }
        match Self::connect(&Contact::of_guests(set), GUEST) {
            Err(ParticipantError::Session(error)) if error.kind() == io::ErrorKind::ConnectionRefused => {
                found?;
                Err(ParticipantError::NoSet { what: set.to_string() })
            }
            taken => taken,
        }
    }

    fn connect(to: &Contact, rank: u32) -> Result<Self, ParticipantError> {
        let mut socket = reach(&to.nonce.socket_name(), SESSION_TIMEOUT)?;
        socket.set_read_timeout(Some(SESSION_TIMEOUT))?;
        socket.set_write_timeout(Some(SESSION_TIMEOUT))?;
        let rank = greet(&mut socket, to, rank)?;
        let mut machine = Machine::of_rank(to.set, rank);
        machine.handle_opened(Neighbour::Session, Opener::Us, Instant::now());
        Ok(Self {
            socket,
            me: machine.me(),
            machine: RefCell::new(machine),
            received: RefCell::default(),
            ended: RefCell::default(),
            handlers: RefCell::default(),
            connecting: RefCell::default(),
            serving: RefCell::default(),
        })
    }

    /// Address of this process.
    pub fn me(&self) -> Uid {
        self.me
    }

    /// Sets of the user on this machine.
    ///
    /// # Errors
    /// Fails if the directory cannot be read.
    pub fn sets(&self) -> Result<Vec<SetRecord>, ParticipantError> {
        activation::activate_all();
        let directory = Directory::open_existing(&place()?)?;
        Ok(directory.map(|directory| directory.list()).transpose()?.unwrap_or_default())
    }

    /// Serves a method with `handler` while this process waits in [`Participant::progress`] or in a call. The session answers methods below
    /// [`Method::FIRST_OF_PROGRAMS`], except [`Method::CONNECT`]. The handler replaces an earlier one. For an answer longer than 64 KiB the
    /// caller receives a handler failure.
    pub fn serve(&self, method: Method, handler: impl Fn(&Self, Uid, &[u8]) -> Result<Bytes, Fault> + 'static) {
        self.handlers.borrow_mut().insert(method, Rc::new(handler));
    }

    /// Serves connection requests for `name` with `handler`. It receives the caller's data, and returns the information for the connection,
    /// such as an address. [`Participant::connect_to`] lists the limits.
    pub fn accept(&self, name: &[u8], handler: impl Fn(&Self, Uid, &[u8]) -> Result<Bytes, Fault> + 'static) {
        self.connecting.borrow_mut().insert(Bytes::copy_from_slice(name), Rc::new(handler));
        self.serve(Method::CONNECT, |this, from, body| {
            let (name, data) =
                take_named(Bytes::copy_from_slice(body)).ok_or_else(|| Fault("no name came".to_owned()))?;
            let handler = this.connecting.borrow().get(&name).filter(|_| data.len() <= CONNECT_DATA_MAX).cloned();
            let nobody =
                || Fault(format!("no process accepts connections to {:?} here", String::from_utf8_lossy(&name)));
            handler.ok_or_else(nobody)?(this, from, &data)
        });
    }

    /// Requests a connection to `name` from a process, with `data` of the caller; returns its answer.
    ///
    /// # Errors
    /// Fails like a call, and with [`CallError::Refused`] if the name does not have 1 to 32 bytes, or the data exceeds 4 KiB.
    pub fn connect_to(&self, to: Uid, name: &[u8], data: &[u8], timeout: Duration) -> Result<Bytes, CallError> {
        let why = || format!("a name has 1 to {CONNECT_NAME_MAX} bytes, and data {CONNECT_DATA_MAX} at most");
        let fits = name.len() <= CONNECT_NAME_MAX && data.len() <= CONNECT_DATA_MAX;
        let body = named(name, data).filter(|_| fits).ok_or_else(|| CallError::Refused { why: why() })?;
        self.call(to, Method::CONNECT, &body, timeout)
    }

    /// Calls a method of a process, and waits for the answer. Meanwhile it serves calls of other processes.
    ///
    /// # Errors
    /// Returns the failure of the call; if the session has ended, [`CallError::Lost`] from this process, because the call may have been
    /// served.
    pub fn call(&self, to: Uid, method: Method, body: &[u8], timeout: Duration) -> Result<Bytes, CallError> {
        let options = CallOptions { timeout, within: self.serving.borrow().last().copied() };
        let body = Bytes::copy_from_slice(body);
        let id = self.machine.borrow_mut().call(to, method, body, options, Instant::now());
        let lost = |_: ParticipantError| CallError::Lost { at: self.me };
        self.carry_out().map_err(lost)?;
        loop {
            if let Some(result) = self.ended.borrow_mut().remove(&id) {
                return result;
            }
            if let Err(error) = self.progress(None) {
                self.machine.borrow_mut().give_up(id);
                return Err(lost(error));
            }
        }
    }

    /// Descriptor that becomes readable when [`Participant::progress`] has work.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Waits up to `timeout` for input, and processes it.
    ///
    /// # Errors
    /// Fails if the session has ended.
    pub fn progress(&self, timeout: Option<Duration>) -> Result<(), ParticipantError> {
        let due = self.machine.borrow().next_wake().map(|due| due.saturating_duration_since(Instant::now()));
        let wait = [timeout, due].into_iter().flatten().min();
        self.receive(wait)?;
        self.machine.borrow_mut().handle_time(Instant::now());
        self.carry_out()
    }

    /// Reads the input that arrives within `wait`.
    fn receive(&self, wait: Option<Duration>) -> Result<(), ParticipantError> {
        let wait = wait.map_or(PollTimeout::NONE, poll_timeout);
        let mut watched = [PollFd::new(self.socket.as_fd(), PollFlags::POLLIN)];
        match poll(&mut watched, wait) {
            Ok(0) | Err(Errno::EINTR) => return Ok(()),
            Ok(_) => {}
            Err(errno) => return Err(io::Error::from(errno).into()),
        }
        let mut piece = [0; READ_ROOM];
        let length = (&self.socket).read(&mut piece)?;
        if length == 0 {
            self.machine.borrow_mut().handle_lost(Neighbour::Session, Instant::now());
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
        }
        self.received.borrow_mut().extend_from_slice(&piece[..length]);
        loop {
            let frame = Frame::take(&mut self.received.borrow_mut())?;
            let Some(frame) = frame else { return Ok(()) };
            self.machine.borrow_mut().handle_frame(Neighbour::Session, frame, Instant::now());
        }
    }

    /// Executes all effects. No borrow is held while a handler runs, because the handler may call this again.
    fn carry_out(&self) -> Result<(), ParticipantError> {
        let mut written = BytesMut::new();
        loop {
            let effect = self.machine.borrow_mut().poll_effect();
            match effect {
                Some(Effect::Send(_, frame)) => frame.append(&mut written),
                other => {
                    self.write(&mut written)?;
                    match other {
                        None => return Ok(()),
                        Some(Effect::Serve(request)) => self.handle(&request),
                        Some(Effect::Ended(id, result)) => drop(self.ended.borrow_mut().insert(id, result)),
                        // The only link is open as long as this value exists.
                        Some(Effect::Open(_) | Effect::Close(_) | Effect::Send(..)) => {}
                    }
                }
            }
        }
    }

    fn write(&self, written: &mut BytesMut) -> Result<(), ParticipantError> {
        if written.is_empty() {
            return Ok(());
        }
        while !written.is_empty() {
            // The end of the session must not kill a C program by SIGPIPE.
            match send(self.socket.as_raw_fd(), written, MsgFlags::MSG_NOSIGNAL) {
                Ok(sent) => written.advance(sent),
                Err(Errno::EINTR) => {}
                Err(errno) => return Err(io::Error::from(errno).into()),
            }
        }
        // At least one frame was written. The machine's counter saturates at zero.
        self.machine.borrow_mut().handle_written(Neighbour::Session, u32::MAX);
        Ok(())
    }

    fn handle(&self, request: &Request) {
        let handler = self.handlers.borrow().get(&request.method).cloned();
        let depth = self.serving.borrow().len();
        let result = match handler {
            None => Err(CallError::NoSuchMethod),
            Some(_) if depth >= DEPTH_MAX => Err(CallError::Busy { at: self.me }),
            Some(handler) => {
                self.serving.borrow_mut().push(request.ticket);
                let result = handler(self, request.from, &request.body);
                self.serving.borrow_mut().pop();
                result.map_err(CallError::Handler)
            }
        };
        self.machine.borrow_mut().answer(request.ticket, result, Instant::now());
    }
}

/// Directory of the user's sets, from the environment of this process.
fn place() -> Result<PathBuf, DirectoryError> {
    let variable = |name: &str| std::env::var_os(name);
    let (named, home) = (variable(directory::VARIABLE), variable("HOME"));
    directory::place(named.as_deref().map(Path::new), home.as_deref().map(Path::new))
}

/// Looks up a set by its id in the directory of the user's sets.
fn find(set: SetId) -> Result<Option<SetRecord>, DirectoryError> {
    let directory = Directory::open_existing(&place()?)?;
    Ok(directory.map(|directory| directory.find(set)).transpose()?.flatten())
}

/// Adds a millisecond, so that deadlines have passed after the wait.
fn poll_timeout(left: Duration) -> PollTimeout {
    PollTimeout::try_from(left.saturating_add(Duration::from_millis(1))).unwrap_or(PollTimeout::MAX)
}

/// Connects to a socket in the abstract namespace. Any user may own it, so a socket that accepts no connection is waited for only `within`.
fn reach(name: &str, within: Duration) -> io::Result<UnixStream> {
    let socket = socket::socket(AddressFamily::Unix, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
    // It limits connect(2) as well, which then fails with EAGAIN.
    let within = TimeVal::new(within.as_secs().cast_signed(), within.subsec_micros().into());
    setsockopt(&socket, sockopt::SendTimeout, &within)?;
    match socket::connect(socket.as_raw_fd(), &UnixAddr::new_abstract(name.as_bytes())?) {
        Ok(()) => Ok(UnixStream::from(socket)),
        Err(Errno::EAGAIN) => {
            let reason = "its socket takes no connections; the session is stopped, or another user has taken its name";
            Err(io::Error::new(io::ErrorKind::TimedOut, reason))
        }
        Err(errno) => Err(errno.into()),
    }
}

/// Proves that this process has the set's key, and verifies the proof of the session; returns the rank that the session assigns.
fn greet(socket: &mut UnixStream, to: &Contact, rank: u32) -> Result<u32, ParticipantError> {
    let peer = getsockopt(&socket, sockopt::PeerCredentials).map_err(io::Error::from)?;
    if peer.uid() != geteuid().as_raw() {
        return Err(ParticipantError::Impostor);
    }
    let (mut theirs, own) = ([0; PROOF_LEN], greeting::challenge()?);
    socket.read_exact(&mut theirs)?;
    let caller = Caller { set: to.set, rank, purpose: Purpose::Rank };
    socket.write_all(&greeting::greet(&to.key, caller, &theirs, &own))?;
    let mut proof = [0; PROOF_LEN];
    socket.read_exact(&mut proof)?;
    if !greeting::is_root(&to.key, &own, &proof) {
        return Err(ParticipantError::Impostor);
    }
    let mut rank = [0; 4];
    match socket.read_exact(&mut rank) {
        Ok(()) => Ok(u32::from_be_bytes(rank)),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Err(ParticipantError::Refused),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixListener};

    use nix::sys::socket::{Backlog, bind, listen};

    use super::*;

    /// A session that ends after it has read a call, which it may have forwarded.
    fn session_of_one_call(contact: &Contact) -> std::thread::JoinHandle<()> {
        let address = SocketAddr::from_abstract_name(contact.nonce.socket_name()).unwrap();
        let (listener, key) = (UnixListener::bind_addr(&address).unwrap(), contact.key.clone());
        std::thread::spawn(move || {
            let (mut socket, _) = listener.accept().unwrap();
            let challenge = greeting::challenge().unwrap();
            socket.write_all(&challenge).unwrap();
            let mut greeting = [0; greeting::GREETING_LEN];
            socket.read_exact(&mut greeting).unwrap();
            let (_, proof) = greeting::receive(&key, &challenge, &greeting).unwrap();
            socket.write_all(&proof).unwrap();
            socket.write_all(&7_u32.to_be_bytes()).unwrap();
            socket.read_exact(&mut [0; crate::frame::HEADER_LEN]).unwrap();
        })
    }

    /// The ids of sets can be guessed, and so can the socket names for guests. The queue of such a socket may stay full indefinitely.
    #[test]
    fn whoever_takes_no_connection_is_not_waited_for_without_end() {
        let name = format!("lattice-participant-test-{}", std::process::id());
        let hostile = socket::socket(AddressFamily::Unix, SockType::Stream, SockFlag::SOCK_CLOEXEC, None).unwrap();
        bind(hostile.as_raw_fd(), &UnixAddr::new_abstract(name.as_bytes()).unwrap()).unwrap();
        listen(&hostile, Backlog::new(0).unwrap()).unwrap();
        let tries: Vec<_> = (0..4).map(|_| reach(&name, Duration::from_millis(10))).collect();
        assert!(tries[0].is_ok());
        assert_eq!(tries[3].as_ref().unwrap_err().kind(), io::ErrorKind::TimedOut);
    }

    #[test]
    fn any_time_can_be_waited_for() {
        assert_eq!(poll_timeout(Duration::from_millis(5)).as_millis(), Some(6));
        assert_eq!(poll_timeout(Duration::MAX), PollTimeout::MAX);
    }

    #[test]
    fn a_call_whose_session_ends_may_have_been_served() {
        let contact = Contact::of_guests(SetId::from_bits(0x0fff_fff1));
        let session = session_of_one_call(&contact);
        let participant = Participant::connect(&contact, 7).unwrap();
        let called = participant.call(contact.set.root(), Method::PING, b"", Duration::from_secs(60));
        assert_eq!(called, Err(CallError::Lost { at: participant.me() }));
        session.join().unwrap();
    }
}
