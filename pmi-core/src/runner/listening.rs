//! Ranks that come through a TCP listener: whose processes are let in, and for how long they may be nobody.

use std::io;
use std::net;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::time;

use super::connection::WriteHalf;
use super::owner::{Endpoint, owner_of_peer};
use super::timing::Deadline;
use super::{Protocol, Runner, Shared};

/// Connections of one server that have not said which rank they are. More than that are closed as they come.
const UNCLAIMED_MAX: usize = 1024;

/// Pause after a connection could not be accepted, because descriptors or memory are short.
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);

/// Conditions for those who come through a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Admission {
    /// User whose processes are served. The kernel knows who owns the other end of a connection, so the processes must be on this
    /// machine, and in its network namespace.
    pub uid: u32,
    /// Time within which each must say which rank it is.
    pub claim_within: Duration,
}

impl<P: Protocol> Runner<P> {
    /// Also serves ranks that come through `listener`, which must listen on an address of this machine only.
    ///
    /// # Errors
    /// Fails when the runtime cannot watch the listener.
    pub fn listen(&self, listener: net::TcpListener, admission: Admission) -> io::Result<()> {
        listener.set_nonblocking(true)?;
        let listener = TcpListener::from_std(listener)?;
        let shared = Arc::clone(&self.shared);
        self.shared.state.lock().spawn(async move { shared.accept_all(listener, admission).await });
        Ok(())
    }
}

impl<P: Protocol> Shared<P> {
    async fn accept_all(self: Arc<Self>, listener: TcpListener, admission: Admission) {
        loop {
            match listener.accept().await {
                Ok((stream, _)) => {
                    if is_welcome(&stream, admission.uid).await {
                        self.accept(stream, admission.claim_within);
                    }
                }
                // Out of descriptors or memory, or a client that left at once: none is a reason to stop listening.
                Err(_) => time::sleep(ACCEPT_PAUSE).await,
            }
        }
    }

    fn accept(self: &Arc<Self>, stream: TcpStream, claim_within: Duration) {
        let mut state = self.state.lock();
        if state.unclaimed >= UNCLAIMED_MAX {
            tracing::warn!("closed a new connection: {UNCLAIMED_MAX} others have not said which rank they are");
            return;
        }
        // A socket that refuses this is gone already.
        if stream.set_nodelay(true).is_err() {
            return;
        }
        let id = state.protocol.accept();
        state.unclaimed += 1;
        self.set(&mut state, Deadline::Claim(id), claim_within);
        let (reader, writer) = stream.into_split();
        self.converse_with(&mut state, id, reader, WriteHalf::Tcp(writer));
    }
}

/// Returns true if a process of the user is at the other end, and was there when the connection was made.
async fn is_welcome(stream: &TcpStream, uid: u32) -> bool {
    let (Ok(local), Ok(remote)) = (stream.local_addr(), stream.peer_addr()) else { return false };
    let owner = owner_of_peer(Endpoint { local, remote }).await;
    match owner {
        // A connection that was reset meanwhile may have made room for another one with the same addresses.
        Some(owner) if owner == uid => stream.peer_addr().is_ok(),
        Some(owner) => {
            tracing::warn!("refused a process of user {owner} at port {}: only user {uid} is served", local.port());
            false
        }
        // It is gone again.
        None => false,
    }
}
