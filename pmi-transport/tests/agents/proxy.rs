//! Proxy between the ends of links. It forwards bytes at once, with a delay or in small pieces, and records them.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

/// Timing of the forwarding.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    /// Maximum bytes that are read before they are forwarded.
    pub(crate) piece: usize,
    /// Delay of each piece.
    pub(crate) delay: Duration,
}

impl Pace {
    pub(crate) const AT_ONCE: Self = Self { piece: 65_536, delay: Duration::ZERO };
}

/// Bytes that the opener of each connection has sent, in the order of the connections.
pub(crate) type Recording = Arc<Mutex<Vec<Vec<u8>>>>;

/// Starts to listen before `target`; returns the address and the recording. It listens while the runtime lives.
pub(crate) async fn in_front_of(target: String, pace: Pace) -> (String, Recording) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let recording = Recording::default();
    let kept = Arc::clone(&recording);
    tokio::spawn(async move {
        let mut connections = JoinSet::new();
        while let Ok((client, _)) = listener.accept().await {
            connections.spawn(pass_on(client, target.clone(), pace, Arc::clone(&kept)));
        }
    });
    (address, recording)
}

async fn pass_on(client: TcpStream, target: String, pace: Pace, recording: Recording) {
    let Ok(server) = TcpStream::connect(target).await else { return };
    for socket in [&client, &server] {
        socket.set_nodelay(true).unwrap();
    }
    let connection = {
        let mut recording = lock(&recording);
        recording.push(Vec::new());
        recording.len() - 1
    };
    let ((from_client, to_client), (from_server, to_server)) = (client.into_split(), server.into_split());
    let there = copy(from_client, to_server, pace, |bytes| lock(&recording)[connection].extend_from_slice(bytes));
    let back = copy(from_server, to_client, pace, |_| {});
    tokio::join!(there, back);
}

fn lock(recording: &Recording) -> std::sync::MutexGuard<'_, Vec<Vec<u8>>> {
    recording.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn copy(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, pace: Pace, mut seen: impl FnMut(&[u8])) {
    let mut piece = vec![0; pace.piece];
    while let Ok(read @ 1..) = from.read(&mut piece).await {
        seen(&piece[..read]);
        if !pace.delay.is_zero() {
            tokio::time::sleep(pace.delay).await;
        }
        if to.write_all(&piece[..read]).await.is_err() {
            return;
        }
    }
}
