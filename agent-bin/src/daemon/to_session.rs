//! Messages to a session process: a bounded queue, and the task that writes it to the process's socket.

use bytes::BytesMut;
use lattice_session::fabric::NodeFabric;
use lattice_session::session_process::frames::append_frame;
use lattice_session::wire::fabric;
use pmi_core::quiet::WriteHalf;
use pmi_transport::proto::v1 as proto;
use prost::Message;
use proto::to_session::What;
use tokio::io::AsyncWriteExt;
use tokio::sync::mpsc;
use zeroize::Zeroize;

use super::ending::Ending;
use super::wire::ending;

/// Maximum number of messages that wait for a session to read them.
const WAITING_MAX: usize = 256;

/// Queue of messages to a session.
#[derive(Clone)]
pub(super) struct ToSession(mpsc::Sender<proto::ToSession>);

/// Messages that wait to be sent to the session.
pub(super) struct Waiting(mpsc::Receiver<proto::ToSession>);

/// Error of a message to a session that has ended.
#[derive(Debug)]
pub(super) struct HasEnded;

impl ToSession {
    /// Creates an empty queue; the holder of the second half writes it.
    pub(super) fn new() -> (Self, Waiting) {
        let (sender, receiver) = mpsc::channel(WAITING_MAX);
        (Self(sender), Waiting(receiver))
    }

    /// Orders the session to end, unless the queue is full: a session that no longer reads is killed later.
    pub(super) fn end(&self, how: Ending) {
        let what = Some(What::Command(ending::encode(how)));
        let _ = self.0.try_send(proto::ToSession { what });
    }

    /// Dismisses the session, unless the queue is full: a session that no longer reads is killed later.
    pub(super) fn dismiss(&self) {
        let _ = self.0.try_send(proto::ToSession { what: Some(What::Dismissed(proto::Nothing {})) });
    }

    /// Notifies the session that the API server does not receive its messages, unless the queue is full: the session detects it later by itself.
    pub(super) fn unheard(&self) {
        let _ = self.0.try_send(proto::ToSession { what: Some(What::Unheard(proto::Nothing {})) });
    }

    /// Queues a message; waits while the queue is full.
    ///
    /// # Errors
    /// Fails if the session has ended.
    pub(super) async fn send(&self, what: What) -> Result<(), HasEnded> {
        self.0.send(proto::ToSession { what: Some(what) }).await.map_err(|_| HasEnded)
    }
}

impl Waiting {
    /// The next message, for tests in the role of the session.
    #[cfg(test)]
    pub(super) async fn next(&mut self) -> Option<What> {
        self.0.recv().await?.what
    }

    /// Writes the first message, and then the queue, until its other half is dropped or the session stops reading.
    pub(super) async fn write(mut self, mut socket: WriteHalf, mut first: BytesMut) {
        let written = socket.write_all(&first).await;
        // The bytes may contain a key.
        first.as_mut().zeroize();
        if written.is_err() {
            return;
        }
        let mut bytes = BytesMut::new();
        loop {
            while let Ok(message) = self.0.try_recv() {
                append_frame(&mut bytes, &message);
            }
            if !bytes.is_empty() && socket.write_all(&bytes).await.is_err() {
                return;
            }
            bytes.clear();
            let Some(message) = self.0.recv().await else { return };
            append_frame(&mut bytes, &message);
        }
    }
}

/// First frame for a session process: this node's additions to its order.
pub(super) fn first_frame(told: &NodeFabric) -> BytesMut {
    let start = proto::StartSession { fabric: fabric::encode_node(told), ..Default::default() };
    // Capacity for the whole frame: a buffer that grows leaves copies in memory, here of a key.
    let mut bytes = BytesMut::with_capacity(start.encoded_len() + 16);
    append_frame(&mut bytes, &start);
    bytes
}
