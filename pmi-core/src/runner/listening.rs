//! Ranks that come through a listener, at a TCP port or in a file: whose processes are let in, and for how long they may be nobody.

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
use super::owner::{Endpoint, Owner, owner_in_tables, owner_of_peer};
use super::timing::Deadline;
use super::{Protocol, Runner, SHORTAGE_PAUSE, Shared};
use crate::quiet;

/// Connections of one server that have not said which rank they are. More than that are closed as they come.
const UNCLAIMED_MAX: usize = 1024;

/// Connections at a port that the kernel keeps until they are accepted: beyond, those who connect wait for a second, and try again.
const BACKLOG: u32 = 4096;

/// Searches of the kernel's tables at a time, for those who have come through one port.
const SEARCHES_MAX: usize = 16;

/// Conditions for those who come through a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Admission {
    /// User whose processes are served. The kernel knows who owns the other end of a connection: at a port, the processes must be on this
    /// machine, and in its network namespace; at a file, wherever they can reach that.
    pub uid: u32,
    /// Time within which each must say which rank it is.
    pub claim_within: Duration,
}

impl<P: Protocol> Runner<P> {
    /// Also serves ranks that come through `listener`, which must listen on an address of this machine only. All ranks of a node may come
    /// at once: as many connections wait in the kernel as it allows (`net.core.somaxconn`), 4,096 at most.
    ///
    /// # Errors
    /// Fails when the runtime cannot watch the listener.
    pub fn listen(&self, listener: net::TcpListener, admission: Admission) -> io::Result<()> {
        listener.set_nonblocking(true)?;
        // A socket that listens takes another number (listen(2)); that of the standard library is 128.
        let socket = TcpSocket::from_std_stream(net::TcpStream::from(OwnedFd::from(listener)));
        let listener = socket.listen(BACKLOG)?;
        let shared = Arc::clone(&self.shared);
        self.shared.state.lock().spawn(async move { shared.accept_all(listener, admission).await });
        Ok(())
    }

    /// The same for ranks that come through a socket in the file system.
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
                // Out of descriptors or memory, or a client that left at once: none is a reason to stop listening.
                Err(_) => time::sleep(SHORTAGE_PAUSE).await,
            }
        }
    }

    /// Admits who has come to a port, when it is known whose process that is. Waits for nothing but a place for a search.
    async fn receive(self: &Arc<Self>, stream: TcpStream, admission: Admission, searches: &Arc<Semaphore>) {
        // A socket without addresses is gone already.
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
        // A socket that refuses this is gone already.
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
                    // A socket that refuses this is gone already.
                    if let Ok((reader, writer)) = halves {
                        self.admit(ReadHalf::Unix(reader), WriteHalf::Unix(writer), admission.claim_within);
                    }
                }
                Ok(_) => {}
                Err(_) => time::sleep(SHORTAGE_PAUSE).await,
            }
        }
    }

    /// Begins the conversation with somebody who has yet to say which rank it is.
    fn admit(self: &Arc<Self>, reader: ReadHalf, writer: WriteHalf, claim_within: Duration) {
        let mut state = self.state.lock();
        if state.is_closed {
            return;
        }
        if state.unclaimed >= UNCLAIMED_MAX {
            tracing::warn!("closed a new connection: {UNCLAIMED_MAX} others have not said which rank they are");
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
        // It is gone again.
        Err(_) => false,
    }
}

/// Returns true if a process of the user is at the other end, and was there when the connection was made.
fn is_welcome(stream: &TcpStream, owner: Owner, uid: u32) -> bool {
    match owner {
        // A connection that was reset meanwhile may have made room for another one with the same addresses.
        Owner::User(owner) if owner == uid => stream.peer_addr().is_ok(),
        Owner::User(owner) => {
            let port = stream.local_addr().map_or(0, |local| local.port());
            tracing::warn!("refused a process of user {owner} at port {port}: only user {uid} is served");
            false
        }
        // It is gone again.
        Owner::Nobody | Owner::Unknown => false,
    }
}
