//! Lines: connections that carry the frames between a member and one neighbour, and the tasks that write and read them.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use lattice_overlay::frame::Frame;
use lattice_overlay::machine::Neighbour;
use pmi_core::ids::NodeIndex;
use pmi_transport::sealed_stream::{SealedReader, SealedWriter};
use pmi_transport::session_link::Entered;
use pmi_transport::task;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::mpsc;
use tokio::task::AbortHandle;

use super::Input;

/// Limit of one write, in bytes. A larger single frame is also one write.
const WRITE_ROOM: usize = 256 << 10;
/// Buffer space for one read, in bytes.
const READ_ROOM: usize = 16 << 10;
/// Limit of frames that the session of another node has not confirmed. Further frames wait.
const UNCONFIRMED_MAX: usize = 16;

/// Number of written frames after which the member receives a report. The machine counts hundreds of frames.
const WRITTEN_TOLD: u32 = 16;

/// Result of a sent frame: the receiving session has it, or has not received it for this reason.
pub type Confirmation = Pin<Box<dyn Future<Output = Result<(), String>> + Send>>;

/// Connections to the sessions of a launch's other nodes.
pub trait Sessions: Send + Sync {
    /// Sends a frame to the session of a node.
    fn send(&self, node: NodeIndex, frame: Bytes) -> Confirmation;
}

/// Carrier of the frames of one link.
pub(in super::super) enum Line {
    /// A connection on this machine, to another set or to a process.
    Local(UnixStream),
    /// A connection to the root of another set on a cluster.
    Sealed(Entered),
    /// The links between the sessions of the launch. Their owner passes received frames to the member.
    Session(NodeIndex, Arc<dyn Sessions>),
}

/// An open link. Its tasks end when it is dropped.
pub(super) struct Link {
    pub(super) number: u64,
    /// The machine limits the number of waiting frames.
    pub(super) frames: mpsc::UnboundedSender<Frame>,
    #[expect(dead_code, reason = "held")]
    tasks: Tasks,
    /// The second link, if both ends have opened a link at the same time. No frame is sent over it. It is still read, because the far end
    /// may have used it before it detected both.
    #[expect(dead_code, reason = "held")]
    second: Option<Box<Self>>,
}

/// Tasks that end with their link.
struct Tasks(Vec<AbortHandle>);

impl Drop for Tasks {
    fn drop(&mut self) {
        self.0.iter().for_each(AbortHandle::abort);
    }
}

/// Sender of reports from a link's tasks to the member.
#[derive(Clone)]
struct ReportSender {
    inputs: mpsc::Sender<Input>,
    neighbour: Neighbour,
    number: u64,
    /// Number of written frames that were not reported.
    written: u32,
}

impl ReportSender {
    /// Reports written frames, for several writes together. Returns false if the member has ended.
    async fn written(&mut self, frames: u32) -> bool {
        self.written += frames;
        if self.written < WRITTEN_TOLD {
            return true;
        }
        let frames = std::mem::take(&mut self.written);
        self.inputs.send(Input::Written(self.neighbour, self.number, frames)).await.is_ok()
    }

    async fn ended(&self) {
        // Fails if the member has ended.
        let _ = self.inputs.send(Input::Ended(self.neighbour, self.number)).await;
    }
}

impl Link {
    /// Starts the tasks of a line.
    pub(super) fn start(line: Line, neighbour: Neighbour, number: u64, inputs: mpsc::Sender<Input>) -> Self {
        let (frames, outgoing) = mpsc::unbounded_channel();
        let told = ReportSender { inputs, neighbour, number, written: 0 };
        let tasks = match line {
            Line::Local(socket) => {
                let (reading, writing) = socket.into_split();
                both(Reading::Local(reading), BytesMut::new(), Writing::Local(writing), outgoing, told)
            }
            Line::Sealed(Entered { ahead, reader, writer }) => {
                both(Reading::Sealed(reader), ahead, Writing::Sealed(writer), outgoing, told)
            }
            Line::Session(node, sessions) => vec![task::spawn(send(sessions, node, outgoing, told)).abort_handle()],
        };
        Self { number, frames, tasks: Tasks(tasks), second: None }
    }

    /// Keeps `other` as the unused second link, if both ends have opened a link at the same time.
    pub(super) fn beside(self, other: Self) -> Self {
        Self { second: Some(Box::new(Self { second: None, ..other })), ..self }
    }
}

fn both(
    reading: Reading,
    ahead: BytesMut,
    writing: Writing,
    outgoing: mpsc::UnboundedReceiver<Frame>,
    told: ReportSender,
) -> Vec<AbortHandle> {
    let reader = task::spawn(read(reading, ahead, told.clone())).abort_handle();
    vec![reader, task::spawn(write(writing, outgoing, told)).abort_handle()]
}

enum Reading {
    Local(OwnedReadHalf),
    Sealed(SealedReader),
}

impl Reading {
    /// Reads more bytes. Returns false at the end.
    async fn more(&mut self, stream: &mut BytesMut) -> bool {
        match self {
            Self::Local(socket) => {
                stream.reserve(READ_ROOM);
                matches!(socket.read_buf(stream).await, Ok(1..))
            }
            Self::Sealed(reader) => {
                let piece = reader.next().await.unwrap_or_default();
                stream.extend_from_slice(&piece);
                !piece.is_empty()
            }
        }
    }
}

enum Writing {
    Local(OwnedWriteHalf),
    Sealed(SealedWriter),
}

impl Writing {
    async fn write(&mut self, bytes: &[u8]) -> bool {
        match self {
            Self::Local(socket) => socket.write_all(bytes).await.is_ok(),
            Self::Sealed(writer) => writer.write_all(bytes).await.is_ok(),
        }
    }
}

/// Reads the frames of a link until its end. Reading stops while the machine's input queue is full.
async fn read(mut reading: Reading, mut stream: BytesMut, told: ReportSender) {
    loop {
        match Frame::take(&mut stream) {
            Ok(Some(frame)) => {
                if told.inputs.send(Input::Frame(told.neighbour, frame)).await.is_err() {
                    return;
                }
            }
            Ok(None) if reading.more(&mut stream).await => {}
            Ok(None) => break,
            Err(error) => {
                tracing::debug!("the link to {:?} ends: {error}", told.neighbour);
                break;
            }
        }
    }
    told.ended().await;
}

/// Writes the frames of a link until it ends.
async fn write(mut writing: Writing, mut outgoing: mpsc::UnboundedReceiver<Frame>, mut told: ReportSender) {
    let mut stream = BytesMut::new();
    while let Some(frame) = outgoing.recv().await {
        let mut frames = 1;
        frame.append(&mut stream);
        while stream.len() < WRITE_ROOM
            && let Ok(frame) = outgoing.try_recv()
        {
            frame.append(&mut stream);
            frames += 1;
        }
        if !writing.write(&stream).await {
            break;
        }
        stream.clear();
        if !told.written(frames).await {
            return;
        }
    }
    told.ended().await;
}

/// Sends the frames of a link to the session of another node until one of them is not delivered.
async fn send(
    sessions: Arc<dyn Sessions>,
    node: NodeIndex,
    mut outgoing: mpsc::UnboundedReceiver<Frame>,
    mut told: ReportSender,
) {
    let mut unconfirmed = VecDeque::<Confirmation>::new();
    loop {
        tokio::select! {
            Some(confirmed) = first(&mut unconfirmed) => {
                unconfirmed.pop_front();
                if let Err(reason) = confirmed {
                    tracing::debug!("the link to {:?} ends: {reason}", told.neighbour);
                    break;
                }
                if !told.written(1).await {
                    break;
                }
            }
            frame = outgoing.recv(), if unconfirmed.len() < UNCONFIRMED_MAX => {
                let Some(frame) = frame else { return };
                let mut bytes = BytesMut::new();
                frame.append(&mut bytes);
                unconfirmed.push_back(sessions.send(node, bytes.freeze()));
            }
        }
    }
    told.ended().await;
}

/// Waits for the first confirmation; `None` without a pending confirmation.
async fn first(unconfirmed: &mut VecDeque<Confirmation>) -> Option<Result<(), String>> {
    match unconfirmed.front_mut() {
        Some(confirmation) => Some(confirmation.await),
        None => None,
    }
}
