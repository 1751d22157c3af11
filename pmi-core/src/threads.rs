//! A server that the threads of a host share: for hosts without a runtime, with one thread for each rank.
//!
//! ```text
//! thread of a rank: serve ── requests ──────> Server ── answers ──> its writer thread
//!                                               └── fences, questions ──> a thread each
//! ```
//! A rank that does not read blocks no other rank: its answers are queued, and above a limit the server stops reading from it.

mod outgoing;

use std::collections::HashMap;
use std::io::{self, ErrorKind, Read};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::{fmt, mem};

use self::outgoing::Outgoing;
use crate::connections::ConnectionId;
use crate::fence::Fence;
use crate::ids::LocalRank;
use crate::report::EndReason;
use crate::server::{Action, ConnectError, Server};
use crate::services::Services;

/// Maximum number of bytes in one read from a rank.
const CHUNK: usize = 4096;

/// A server of one job, with its fence, its services, and its ends of the ranks' sockets.
///
/// It has no clock: for settings with resource registration, use the [driver](crate::driver).
pub struct ThreadedServer {
    state: Mutex<State>,
    fence: Arc<dyn Fence>,
    services: Arc<dyn Services>,
}

struct State {
    server: Server,
    peers: HashMap<ConnectionId, Peer>,
    /// Reason why the job must end, once it must.
    end: Option<EndReason>,
}

/// The server's end of a rank's connection.
struct Peer {
    socket: UnixStream,
    outgoing: Arc<Outgoing>,
}

/// Reason why a rank is not served, or no longer served.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NotServed {
    /// The rank cannot be connected.
    #[error(transparent)]
    Refused(#[from] ConnectError),
    /// The system has no free descriptor or thread.
    #[error("the system has no descriptor or thread for a rank's connection")]
    System(#[from] io::Error),
    /// The job must end, for this reason. The host must end its ranks.
    #[error("the job must end")]
    End(EndReason),
}

impl ThreadedServer {
    /// Shares the server of a job on one node, or of a job on several nodes that `fence` connects.
    pub fn new(mut server: Server, fence: Arc<dyn Fence>, services: Arc<dyn Services>) -> Arc<Self> {
        if !services.has_names() {
            server.offer_no_names();
        }
        let state = Mutex::new(State { server, peers: HashMap::new(), end: None });
        Arc::new(Self { state, fence, services })
    }

    /// Serves a rank over its blocking socket, until the rank closes its end. The calling thread is dedicated to the rank.
    ///
    /// # Errors
    /// Fails for a rank that is not on the node or is already served, without descriptors or threads, and as soon as the job must end.
    ///
    /// # Panics
    /// Panics, only in this thread, if the system has no free thread for a fence or a question of the rank.
    pub fn serve(self: &Arc<Self>, rank: LocalRank, mut socket: UnixStream) -> Result<(), NotServed> {
        let (connection, outgoing) = self.connect(rank, &socket)?;
        let mut buffer = [0; CHUNK];
        loop {
            outgoing.wait_until_few();
            match socket.read(&mut buffer) {
                Ok(0) => break,
                Ok(count) => self.change(|server| server.handle_bytes(connection, &buffer[..count]))?,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // Handled as a close.
                Err(_) => break,
            }
        }
        outgoing.close();
        self.change(|server| server.handle_disconnect(connection))
    }

    /// Records the successful end of a rank, after [`serve`](Self::serve) has returned: the rank's last messages count before its end.
    ///
    /// # Errors
    /// [`NotServed::End`] if the job must end, for example when other ranks wait for the rank in a fence.
    pub fn rank_exited(self: &Arc<Self>, rank: LocalRank) -> Result<(), NotServed> {
        self.change(|server| server.handle_exit(rank))
    }

    fn connect(&self, rank: LocalRank, socket: &UnixStream) -> Result<(ConnectionId, Arc<Outgoing>), NotServed> {
        let (ours, writers) = (socket.try_clone()?, socket.try_clone()?);
        let outgoing = Arc::new(Outgoing::default());
        let mut state = self.lock();
        let connection = state.server.connect(rank)?;
        let queue = outgoing.clone();
        thread::Builder::new().spawn(move || queue.write_to(writers))?;
        state.peers.insert(connection, Peer { socket: ours, outgoing: outgoing.clone() });
        Ok((connection, outgoing))
    }

    /// Passes an input to the server, and carries out its actions.
    fn change(self: &Arc<Self>, tell: impl FnOnce(&mut Server)) -> Result<(), NotServed> {
        let mut state = self.lock();
        if state.end.is_none() {
            tell(&mut state.server);
            while let Some(action) = state.server.poll_action() {
                self.act(&mut state, action);
            }
        }
        state.end.clone().map_or(Ok(()), |reason| Err(NotServed::End(reason)))
    }

    fn act(self: &Arc<Self>, state: &mut State, action: Action) {
        let host = self.clone();
        match action {
            Action::Send { connection, bytes } => {
                if let Some(peer) = state.peers.get(&connection) {
                    peer.outgoing.push(bytes);
                }
            }
            // Its writer closes the socket after the last byte.
            Action::Close { connection } => {
                if let Some(peer) = state.peers.remove(&connection) {
                    peer.outgoing.close();
                }
            }
            Action::Fence { id, contribution } => aside(move || {
                let result = wait_for(host.fence.exchange(&id, contribution));
                let _ = host.change(|server| server.handle_fence(&id, result));
            }),
            Action::Call { ticket, rank, call } => aside(move || {
                let answer = wait_for(call.ask(&*host.services, rank));
                let _ = host.change(|server| server.handle_answer(ticket, &answer));
            }),
            Action::End(reason) => {
                state.end = Some(reason);
                for peer in mem::take(&mut state.peers).into_values() {
                    peer.outgoing.close();
                    let _ = peer.socket.shutdown(Shutdown::Both);
                }
            }
            // Timers belong to resources, traces to settings. The other actions are reports for other nodes and hosts, which this host
            // does not offer.
            _ => {}
        }
    }

    /// After a panic in a thread, the server either continues, or has reported that the job must end.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for ThreadedServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ThreadedServer").finish_non_exhaustive()
    }
}

/// Runs a long operation in its own thread. The operation passes its result to the server.
fn aside(work: impl FnOnce() + Send + 'static) {
    thread::spawn(work);
}

/// Blocks this thread until a future completes, and returns its result.
fn wait_for<T>(future: impl Future<Output = T>) -> T {
    struct Unpark(Thread);

    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }

    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(value) => return value,
            Poll::Pending => thread::park(),
        }
    }
}
