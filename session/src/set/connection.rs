//! Connections between sets on one machine: Unix sockets in the abstract namespace, of one user by the kernel's word, greeted with a
//! proof of the set's key.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use lattice_overlay::directory::{DirectoryError, Nonce, SetKey, SetRecord};
use lattice_overlay::greeting::{self, Caller, GREETING_LEN, GreetingError, PROOF_LEN};
use nix::unistd::geteuid;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::time::timeout;

/// Time that a greeting may take.
const GREETING_TIMEOUT: Duration = Duration::from_secs(3);
/// Tries to connect, and the time between them: a root that is busy takes a moment.
const TRIES: u32 = 3;
const BETWEEN_TRIES: Duration = Duration::from_millis(50);

/// Failure of a connection to become one between two sets.
#[derive(Debug, thiserror::Error)]
pub(super) enum ConnectError {
    /// The socket fails, or nobody listens.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The other end says nothing.
    #[error("it says nothing for {} s", GREETING_TIMEOUT.as_secs())]
    Silent,
    /// The other end is a process of another user.
    #[error("it is a process of uid {0}")]
    Stranger(u32),
    /// The greeting is none.
    #[error(transparent)]
    Greeting(#[from] GreetingError),
    /// Whoever listens is not the set's root.
    #[error("whoever listens there does not know the set's key")]
    Impostor,
    /// The kernel has no random numbers to give.
    #[error(transparent)]
    Random(#[from] DirectoryError),
}

/// Path by which tokio names the socket of a set in the abstract namespace.
pub(super) fn path(nonce: &Nonce) -> PathBuf {
    abstract_path(&nonce.socket_name())
}

/// Path by which tokio names a socket in the abstract namespace.
pub(super) fn abstract_path(name: &str) -> PathBuf {
    PathBuf::from(format!("\0{name}"))
}

/// Connects to the root of a set.
pub(super) async fn connect(to: &SetRecord, caller: Caller) -> Result<UnixStream, ConnectError> {
    let path = path(to.nonce());
    let mut tries = 1;
    let socket = loop {
        match UnixStream::connect(&path).await {
            Ok(socket) => break socket,
            Err(_) if tries < TRIES => {
                tries += 1;
                tokio::time::sleep(BETWEEN_TRIES).await;
            }
            Err(error) => return Err(error.into()),
        }
    };
    timeout(GREETING_TIMEOUT, greet(socket, to, caller)).await.unwrap_or(Err(ConnectError::Silent))
}

async fn greet(mut socket: UnixStream, to: &SetRecord, caller: Caller) -> Result<UnixStream, ConnectError> {
    check_user(&socket)?;
    let (mut theirs, own) = ([0; PROOF_LEN], greeting::challenge()?);
    socket.read_exact(&mut theirs).await?;
    socket.write_all(&greeting::greet(to.key(), caller, &theirs, &own)).await?;
    let mut proof = [0; PROOF_LEN];
    socket.read_exact(&mut proof).await?;
    if greeting::is_root(to.key(), &own, &proof) { Ok(socket) } else { Err(ConnectError::Impostor) }
}

/// Takes a connection: who it is of, and what for. A caller without the key gets no further byte.
pub(super) async fn receive(socket: UnixStream, key: &SetKey) -> Result<(UnixStream, Caller), ConnectError> {
    timeout(GREETING_TIMEOUT, be_greeted(socket, key)).await.unwrap_or(Err(ConnectError::Silent))
}

async fn be_greeted(mut socket: UnixStream, key: &SetKey) -> Result<(UnixStream, Caller), ConnectError> {
    check_user(&socket)?;
    let challenge = greeting::challenge()?;
    socket.write_all(&challenge).await?;
    let mut greeting = [0; GREETING_LEN];
    socket.read_exact(&mut greeting).await?;
    let (caller, proof) = greeting::receive(key, &challenge, &greeting)?;
    socket.write_all(&proof).await?;
    Ok((socket, caller))
}

/// Fails if the other end is a process of another user.
pub(super) fn check_user(socket: &UnixStream) -> Result<(), ConnectError> {
    let uid = socket.peer_cred()?.uid();
    if uid == geteuid().as_raw() { Ok(()) } else { Err(ConnectError::Stranger(uid)) }
}

/// Waits until the other end closes the connection, or says something, which it must not.
pub(super) async fn closed(socket: &UnixStream) {
    loop {
        let is_open = match socket.readable().await {
            Ok(()) => socket.try_read(&mut [0]).is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock),
            Err(_) => false,
        };
        if !is_open {
            return;
        }
    }
}
