//! Connections between sets on one machine: Unix sockets in the abstract namespace. The kernel confirms that both ends have the same user.
//! The greeting contains a proof of the set's key.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use lattice_overlay::directory::{DirectoryError, Nonce, SetKey, SetRecord};
use lattice_overlay::greeting::{self, Caller, GREETING_LEN, GreetingError, PROOF_LEN};
use nix::unistd::geteuid;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::time::timeout;

/// Timeout of a greeting.
const GREETING_TIMEOUT: Duration = Duration::from_secs(3);
/// Attempts to connect, and the pause between them: a busy root may need some time.
const TRIES: u32 = 3;
const BETWEEN_TRIES: Duration = Duration::from_millis(50);

/// Failure to establish a connection between two sets.
#[derive(Debug, thiserror::Error)]
pub(super) enum ConnectError {
    /// The socket failed, or no process listens.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The other end sends nothing.
    #[error("it sends nothing for {} s", GREETING_TIMEOUT.as_secs())]
    Silent,
    /// The other end is a process of another user.
    #[error("it is a process of uid {0}")]
    Stranger(u32),
    /// The greeting is invalid.
    #[error(transparent)]
    Greeting(#[from] GreetingError),
    /// The listening process is not the set's root.
    #[error("the process that listens there does not have the set's key")]
    Impostor,
    /// The kernel returned no random numbers.
    #[error(transparent)]
    Random(#[from] DirectoryError),
}

/// Path of a set's socket in the abstract namespace, for tokio.
pub(super) fn path(nonce: &Nonce) -> PathBuf {
    abstract_path(&nonce.socket_name())
}

/// Path of a socket in the abstract namespace, for tokio.
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

/// Accepts a connection, and returns its caller and purpose. A caller without the key receives only the challenge.
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

/// Waits until the other end closes the connection, or sends data in violation of the protocol.
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
