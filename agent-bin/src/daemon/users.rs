//! Users of this node need no certificate for the API server. The agent forwards their bytes from a Unix socket unchanged, with the uid that the
//! kernel reports. The API server decides which operations that user may request from this node.

mod crowd;

use std::io;
use std::sync::Arc;

use bytes::{BufMut, BytesMut};
use lattice_session::timeouts::{AWAY, COME_BACK_PAUSE};
use pmi_transport::connect::{is_unheard, reason};
use pmi_transport::limits::ACCEPT_PAUSE;
use pmi_transport::listen::LocalSocket;
use pmi_transport::proto::v1::node_service_client::NodeServiceClient;
use pmi_transport::proto::v1::{ProxiedBytes, ProxyFor, proxied_bytes::What};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::net::unix::OwnedReadHalf;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::{Status, Streaming};

use self::crowd::{Admitted, Crowd};
use super::Node;
use super::api_channels::Place;

/// Maximum number of messages on their way to the API server, and maximum size of each in bytes.
const WAITING: usize = 4;
const PIECE: usize = 16 << 10;
/// Maximum number of calls that open a path to the API server at a time.
const OPENING_MAX: usize = 16;

/// Forwards connections indefinitely.
pub(super) async fn serve(node: Arc<Node>, socket: LocalSocket) {
    let mut passing = JoinSet::new();
    let mut crowd = Crowd::default();
    let opening = Arc::new(Semaphore::new(OPENING_MAX));
    loop {
        let accepted = tokio::select! {
            accepted = socket.accept() => accepted,
            Some(ended) = passing.join_next() => {
                // The tasks do not panic.
                if let Ok(member) = ended {
                    crowd.leave(member);
                }
                continue;
            }
        };
        let user = accepted.and_then(|user| Ok((user.peer_cred()?.uid(), user)));
        let (uid, user) = match user {
            Ok(user) => user,
            Err(error) => {
                tracing::warn!(%error, "a user's connection cannot be accepted");
                sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let Some(Admitted { member, dismissed, opening: own }) = crowd.admit(uid) else {
            tracing::info!(uid, "a user's connection is closed: there are too many");
            continue;
        };
        let (node, opening) = (Arc::clone(&node), Arc::clone(&opening));
        passing.spawn(async move {
            let passed = async {
                let passage = open(&node, uid, [&own, &opening], &dismissed).await?;
                dismissed.run_until_cancelled(pass_on(passage, user)).await.ok_or_else(place_needed)?
            };
            if let Err(error) = passed.await {
                tracing::info!(uid, error = reason(&error), "a user's connection is not passed on");
            }
            member
        });
    }
}

fn place_needed() -> Status {
    Status::resource_exhausted("its place was needed for another user")
}

/// Opens a path to the API server for a user's connection, unless that is dismissed first. `opening` has the permits of the user, and those of
/// all users.
///
/// A call that is being opened is never dropped, and their number is bounded: an HTTP/2 server closes a connection on which many calls are
/// reset before it has accepted them, and that connection carries calls of other users and of launches.
async fn open(
    node: &Node,
    uid: u32,
    [own, all]: [&Semaphore; 2],
    dismissed: &CancellationToken,
) -> Result<Passage, Status> {
    let deadline = Instant::now() + AWAY;
    loop {
        let turns = async { (own.acquire().await, all.acquire().await) };
        let turns = dismissed.run_until_cancelled(turns).await.ok_or_else(place_needed)?;
        let opened = passage(node, uid).await;
        drop(turns);
        match opened {
            Err(status) if is_unheard(&status) && Instant::now() < deadline => {
                dismissed.run_until_cancelled(sleep(COME_BACK_PAUSE)).await.ok_or_else(place_needed)?;
            }
            opened => return opened,
        }
    }
}

/// Forwards bytes between a user and the API server until the API server has closed the connection.
async fn pass_on(passage: Passage, user: UnixStream) -> Result<(), Status> {
    let Passage { sender, mut answers, place: _place } = passage;
    let (reader, mut writer) = user.into_split();
    let inward = async {
        while let Some(ProxiedBytes { what: Some(What::Data(bytes)) }) = answers.message().await? {
            if writer.write_all(&bytes).await.is_err() {
                break;
            }
        }
        Ok(())
    };
    tokio::select! {
        ended = inward => ended,
        // The API server closes the connection after it has received the end of the user's stream.
        _ = async { drop(say(reader, sender).await); std::future::pending::<()>().await } => Ok(()),
    }
}

/// Path to the API server and back for one connection of a user.
struct Passage {
    sender: mpsc::Sender<ProxiedBytes>,
    answers: Streaming<ProxiedBytes>,
    /// Counts the stream as long as it lives, so that further calls use another connection before this one is full.
    place: Place,
}

/// Opens a path to the API server for the bytes of a user, and for the answers.
async fn passage(node: &Node, uid: u32) -> Result<Passage, Status> {
    let (sender, receiver) = mpsc::channel(WAITING);
    let of = ProxyFor { node_id: node.config.node_id.clone(), uid };
    // The receiver exists.
    let _ = sender.send(ProxiedBytes { what: Some(What::Of(of)) }).await;
    let place = node.api.place();
    let mut api = NodeServiceClient::new(place.channel());
    let answers = api.proxy_user(ReceiverStream::new(receiver)).await?.into_inner();
    Ok(Passage { sender, answers, place })
}

/// Sends the bytes of a user until the end of the stream.
async fn say(mut user: OwnedReadHalf, api: mpsc::Sender<ProxiedBytes>) -> io::Result<()> {
    let mut piece = BytesMut::new();
    loop {
        piece.reserve(PIECE);
        if user.read_buf(&mut (&mut piece).limit(PIECE)).await? == 0 {
            return Ok(());
        }
        let message = ProxiedBytes { what: Some(What::Data(piece.split().freeze())) };
        if api.send(message).await.is_err() {
            return Ok(());
        }
    }
}
