//! A launch on this machine that another command runs, and that this command shows (`lattice attach`). Its updates arrive on that command's
//! socket, from now on. Its exit code at the end is the exit code of this command. Input of this command does not reach it.

use bytes::{Buf, Bytes, BytesMut};
use lattice_cluster_client::messages::FromLaunch;
use lattice_cluster_client::wire;
use lattice_console::Verbosity;
use lattice_local_launches::{LocalError, LocalLaunch};
use lattice_render::updates::{Update, UpdateSource};
use lattice_render::{OutputRequest, PreparedLaunch};
use lattice_session::session_io::Control;
use lattice_session::wire::placed;
use pmi_transport::proto::v1 as proto;
use prost::Message;
use proto::attach_response::What;
use tokio::io::AsyncReadExt;
use tokio::net::UnixStream;
use tokio::sync::mpsc;

use super::frontend::{End, Frontend};
use super::{LaunchError, open_files};
use crate::signal_forwarder::{EarlySignals, RankLocation};

/// Maximum size of a message in bytes. The spec of a launch has programs and arguments of all its ranks.
const MESSAGE_MAX: usize = 64 << 20;
/// Maximum number of updates that wait for the renderer.
const UPDATES: usize = 64;

/// Shows a launch to its end, or until the user leaves it; returns the exit code.
pub(super) async fn view(here: &LocalLaunch, output: OutputRequest, verbosity: Verbosity) -> Result<u8, LaunchError> {
    let mut stream = Messages { socket: UnixStream::from_std(here.attach()?)?, bytes: BytesMut::new() };
    let broken = || LocalError::Over { id: here.id().to_owned() };
    let Some(What::Spec(spec)) = stream.next().await.and_then(|message| message.what) else {
        return Err(broken().into());
    };
    let placed = placed::decode(spec).map_err(|_| broken())?;
    let launch = PreparedLaunch::on_cluster(placed, output);
    let files = open_files(&launch)?;
    let signals = (EarlySignals::listen()?, RankLocation::Local);
    let (mut frontend, controls) = Frontend::new(&launch, signals, verbosity, files, mpsc::unbounded_channel())?;
    frontend.renderer.ignore_interrupts();
    let (updates, source) = mpsc::channel(UPDATES);
    let work = async { follow(stream, controls, updates).await.ok_or_else(|| broken().into()) };
    frontend.run(&launch, Received(source), work).await
}

/// Passes updates on until the launch is over; `None` if its command is gone before.
async fn follow(
    mut stream: Messages,
    mut controls: mpsc::Receiver<Control>,
    updates: mpsc::Sender<Update>,
) -> Option<End> {
    loop {
        let message = tokio::select! {
            message = stream.next() => message?,
            Some(control) = controls.recv() => match control {
                Control::End(signal) | Control::Kill(signal) => return Some(End::Left(signal)),
                // A viewer does not control the launch.
                _ => continue,
            },
        };
        let update = match wire::decode(message).ok()?.what {
            FromLaunch::Event(node, event) => Update::Event(node, event),
            FromLaunch::Dropped(bytes) => Update::Dropped(bytes),
            FromLaunch::Complete(report) => return Some(End::Over(report)),
            _ => continue,
        };
        // If the renderer has ended, this command is about to end.
        updates.send(update).await.ok()?;
    }
}

/// Messages of a socket. A length precedes each message.
struct Messages {
    socket: UnixStream,
    bytes: BytesMut,
}

impl Messages {
    /// Returns the next message; `None` at the end, and for an invalid message. Cancel-safe.
    async fn next(&mut self) -> Option<proto::AttachResponse> {
        loop {
            if let Some(message) = self.take()? {
                return proto::AttachResponse::decode(message).ok();
            }
            if self.socket.read_buf(&mut self.bytes).await.ok()? == 0 {
                return None;
            }
        }
    }

    /// Returns a complete message, if there is one. The outer `None` reports an invalid length.
    fn take(&mut self) -> Option<Option<Bytes>> {
        let mut rest = &self.bytes[..];
        let Ok(length) = prost::decode_length_delimiter(&mut rest) else {
            // A length has up to ten bytes.
            return (self.bytes.len() < 10).then_some(None);
        };
        let head = self.bytes.len() - rest.len();
        if length > MESSAGE_MAX {
            return None;
        }
        if rest.len() < length {
            return Some(None);
        }
        self.bytes.advance(head);
        Some(Some(self.bytes.split_to(length).freeze()))
    }
}

/// Updates from another task.
struct Received(mpsc::Receiver<Update>);

impl UpdateSource for Received {
    async fn next(&mut self) -> Option<Update> {
        self.0.recv().await
    }
}
