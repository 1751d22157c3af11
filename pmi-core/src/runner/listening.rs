//! Ranks that connect through a listener, at a TCP port or in a file: admission of processes, and the time limit for their claims.

use std::io;
use std::net;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener as StdUnixListener;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpSocket, TcpStream, UnixListener, UnixStream};
use tokio::sync::Semaphore;
use tokio::{task, time};

use super::connection::{ReadHalf, WriteHalf};
use super::deadlines::Deadline;
use super::host::Runner;
use super::owner::{Endpoint, Owner, owner_in_tables, owner_of_peer};
use super::protocol::Protocol;
use super::state::{SHORTAGE_PAUSE, Shared};
use crate::quiet;

/// Maximum number of connections of one server without a claimed rank. Further connections are closed at once.
const UNCLAIMED_MAX: usize = 1024;

/// Connections at a port that the kernel queues until they are accepted. Further clients wait for a second, and retry.
const BACKLOG: u32 = 4096;

/// Concurrent searches of the kernel's tables, for the clients of one port.
const SEARCHES_MAX: usize = 16;

/// Conditions for the clients of a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Admission {
    /// User to serve; processes of other users are refused. The kernel knows the owner of the other end of a connection. At a port, the
    /// processes must be on this machine and in its network namespace. At a file, any process that can reach the file may connect.
    pub uid: u32,
    /// Time limit for the claim of a rank.
    pub claim_within: Duration,
}

impl<P: Protocol> Runner<P> {
    /// Also serves ranks that connect through `listener`, which must listen only on an address of this machine. All ranks of a node may
    /// connect at once: the kernel queues as many connections as it allows (`net.core.somaxconn`), at most 4,096.
    ///
    /// # Errors
    /// Fails when the runtime cannot watch the listener.
    pub fn listen(&self, listener: net::TcpListener, admission: Admission) -> io::Result<()> {
        listener.set_nonblocking(true)?;
        // A second call of listen(2) changes the length of the queue; the standard library sets 128.
        let socket = TcpSocket::from_std_stream(net::TcpStream::from(OwnedFd::from(listener)));
        let listener = socket.listen(BACKLOG)?;
        let shared = Arc::clone(&self.shared);
        self.shared.state.lock().spawn(async move { shared.accept_all(listener, admission).await });
        Ok(())
    }

    /// Also serves ranks that connect through a socket in the file system.
    ///
    /// # Errors
    /// Fails when the runtime cannot watch the listener.
    pub fn listen_at_file(&self, listener: StdUnixListener, admission: Admission) -> io::Result<()> {
        listener.set_nonblocking(true)?;
        let listener = UnixListener::from_std(listener)?;
        let shared = Arc::clone(&self.shared);
        self.shared.state.lock().spawn(async move { shared.accept_all_at_file(listener, admission).await });
        Ok(())
    }
}

impl<P: Protocol> Shared<P> {
    async fn accept_all(self: Arc<Self>, listener: TcpListener, admission: Admission) {
        let searches = Arc::new(Semaphore::new(SEARCHES_MAX));
        loop {
            match listener.accept().await {
                Ok((stream, _)) => self.receive(stream, admission, &searches).await,
                // Descriptors or memory are exhausted, or a client closed at once. The listener continues in each case.
                Err(_) => time::sleep(SHORTAGE_PAUSE).await,
            }
        }
    }

    /// Admits a client of a port after its owner is known. Waits only for a free search.
    async fn receive(self: &Arc<Self>, stream: TcpStream, admission: Admission, searches: &Arc<Semaphore>) {
        // A socket without addresses is already closed.
        let (Ok(local), Ok(remote)) = (stream.local_addr(), stream.peer_addr()) else { return };
        let accepted = Endpoint { local, remote };
        match owner_of_peer(accepted, || stream.peer_addr().is_ok()) {
            Owner::Unknown => {
                let place = Arc::clone(searches).acquire_owned().await;
                let this = Arc::clone(self);
                self.state.lock().spawn(async move {
                    let owner = task::spawn_blocking(move || owner_in_tables(accepted)).await;
                    this.admit_peer(stream, owner.unwrap_or(Owner::Nobody), admission);
                    drop(place);
                });
            }
            owner => self.admit_peer(stream, owner, admission),
        }
    }

    fn admit_peer(self: &Arc<Self>, stream: TcpStream, owner: Owner, admission: Admission) {
        // A socket that refuses this is already closed.
        if is_welcome(&stream, owner, admission.uid) && stream.set_nodelay(true).is_ok() {
            let (reader, writer) = stream.into_split();
            self.admit(ReadHalf::Tcp(reader), WriteHalf::Tcp(writer), admission.claim_within);
        }
    }

    async fn accept_all_at_file(self: Arc<Self>, listener: UnixListener, admission: Admission) {
        loop {
            match listener.accept().await {
                Ok((stream, _)) if is_the_users(&stream, admission.uid) => {
                    let halves = stream.into_std().and_then(quiet::split);
                    // A socket that refuses this is already closed.
                    if let Ok((reader, writer)) = halves {
                        self.admit(ReadHalf::Unix(reader), WriteHalf::Unix(writer), admission.claim_within);
                    }
                }
                Ok(_) => {}
                Err(_) => time::sleep(SHORTAGE_PAUSE).await,
            }
        }
    }

    /// Starts the conversation with a client that has yet to claim a rank.
    fn admit(self: &Arc<Self>, reader: ReadHalf, writer: WriteHalf, claim_within: Duration) {
        let mut state = self.state.lock();
        if state.is_closed {
            return;
        }
        if state.unclaimed >= UNCLAIMED_MAX {
            tracing::warn!("closed a new connection: {UNCLAIMED_MAX} connections have sent no rank yet");
            return;
        }
        let id = state.protocol.accept();
        state.unclaimed += 1;
        self.set(&mut state, Deadline::Claim(id), claim_within);
        self.converse_with(&mut state, id, reader, writer);
    }
}

/// Returns true if a process of the user made the connection.
fn is_the_users(stream: &UnixStream, uid: u32) -> bool {
    match stream.peer_cred() {
        Ok(peer) if peer.uid() == uid => true,
        Ok(peer) => {
            tracing::warn!("refused a process of user {} at a socket: only user {uid} is served", peer.uid());
            false
        }
        // The peer has already closed.
        Err(_) => false,
    }
}

/// Returns true if a process of the user owns the other end, and owned it when the connection was made.
fn is_welcome(stream: &TcpStream, owner: Owner, uid: u32) -> bool {
    match owner {
        // After a reset, another connection may have the same addresses.
        Owner::User(owner) if owner == uid => stream.peer_addr().is_ok(),
        Owner::User(owner) => {
            let port = stream.local_addr().map_or(0, |local| local.port());
            tracing::warn!("refused a process of user {owner} at port {port}: only user {uid} is served");
            false
        }
        // The peer has already closed.
        Owner::Nobody | Owner::Unknown => false,
    }
}
