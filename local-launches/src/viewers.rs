//! Viewers of a launch on this machine (`lattice attach`). Each receives the events from now on, in the messages of a cluster's attachment.
//! No viewer delays the launch. A viewer that reads too slowly misses output, and receives the number of missed bytes.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use lattice_session::event::{Event, Report};
use lattice_session::wire;
use pmi_transport::proto::v1 as proto;
use prost::Message;
use proto::attach_response::What;
use tokio::sync::mpsc;

/// Maximum number of viewers of a launch.
pub(super) const VIEWERS_MAX: usize = 16;
/// Maximum number of bytes that are queued for a viewer. Beyond it, the viewer misses output.
const WAITING_MAX: usize = 8 << 20;

/// Marker after the last frame.
const END: Bytes = Bytes::new();

/// The viewers of a launch.
#[derive(Debug, Default)]
pub(super) struct Viewers(Vec<Viewer>);

#[derive(Debug)]
struct Viewer {
    frames: mpsc::UnboundedSender<Bytes>,
    waiting: Arc<AtomicUsize>,
    /// Bytes of output that it missed, and that are not reported to it yet.
    missed: u64,
}

/// Frames for a viewer, each with a length and a message.
#[derive(Debug)]
pub(super) struct Frames {
    frames: mpsc::UnboundedReceiver<Bytes>,
    waiting: Arc<AtomicUsize>,
}

impl Viewers {
    /// Adds a viewer; `None` if there are too many.
    pub(super) fn add(&mut self) -> Option<Frames> {
        self.0.retain(|viewer| !viewer.frames.is_closed());
        if self.0.len() >= VIEWERS_MAX {
            return None;
        }
        let (sender, frames) = mpsc::unbounded_channel();
        let waiting = Arc::new(AtomicUsize::new(0));
        self.0.push(Viewer { frames: sender, waiting: Arc::clone(&waiting), missed: 0 });
        Some(Frames { frames, waiting })
    }

    /// Sends an event to all viewers.
    pub(super) fn tell(&mut self, event: &Event) {
        if self.0.is_empty() || matches!(event, Event::Progress { .. } | Event::Spawned { .. } | Event::Died(_)) {
            return;
        }
        let output = if let Event::Output(output) = event { output.bytes.len() } else { 0 };
        let frame = frame(What::Event(wire::event::encode(event)));
        self.0.iter_mut().for_each(|viewer| viewer.send(&frame, output));
    }

    /// Sends the end of the launch to all viewers, as the last frame. Returns their channels, each of which closes after its viewer has
    /// read the frame.
    pub(super) fn complete(&mut self, launch_id: &str, report: &Report) -> Vec<mpsc::UnboundedSender<Bytes>> {
        let exit = |&(rank, exit)| wire::cause::encode_exit(rank, exit, None);
        let frame = frame(What::Complete(proto::LaunchCompleteNotification {
            launch_id: launch_id.to_owned(),
            success: report.cause.is_none(),
            ranks: report.exits.iter().map(exit).collect(),
            cause: report.cause.as_ref().map(wire::cause::encode),
            duration_us: report.duration.as_micros() as u64,
            usage: report.usage.map(wire::event::encode_usage),
            ..proto::LaunchCompleteNotification::default()
        }));
        let told = self.0.drain(..).map(|mut viewer| {
            viewer.send(&frame, 0);
            viewer.send(&END, 0);
            viewer.frames
        });
        told.collect()
    }

    /// Returns true if no viewer is connected.
    pub(super) fn is_empty(&self) -> bool {
        self.0.iter().all(|viewer| viewer.frames.is_closed())
    }
}

impl Viewer {
    /// Sends a frame with this number of bytes of output.
    fn send(&mut self, frame: &Bytes, output: usize) {
        if output > 0 && self.waiting.load(Ordering::Relaxed) + frame.len() > WAITING_MAX {
            self.missed += output as u64;
            return;
        }
        let missed = std::mem::take(&mut self.missed);
        let told = (missed > 0).then(|| self::frame(What::DroppedOutput(missed)));
        for frame in told.into_iter().chain([frame.clone()]) {
            self.waiting.fetch_add(frame.len(), Ordering::Relaxed);
            // A viewer that is gone is removed when the next viewer is added.
            let _ = self.frames.send(frame);
        }
    }
}

impl Frames {
    /// Returns the next frame; `None` after the last one. Cancel-safe.
    pub(super) async fn next(&mut self) -> Option<Bytes> {
        let frame = self.frames.recv().await?;
        self.waiting.fetch_sub(frame.len(), Ordering::Relaxed);
        (frame != END).then_some(frame)
    }
}

/// Encodes a message as a frame.
pub(super) fn frame(what: What) -> Bytes {
    proto::AttachResponse { what: Some(what), ..proto::AttachResponse::default() }
        .encode_length_delimited_to_vec()
        .into()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use lattice_session::event::{Output, Stream};
    use pmi_core::ids::Rank;

    use super::*;

    fn output(bytes: usize) -> Event {
        Event::Output(Output { rank: Rank(0), stream: Stream::Stdout, bytes: vec![b'x'; bytes].into() })
    }

    fn heard(frames: &mut Frames) -> Vec<What> {
        let frames = std::iter::from_fn(|| frames.frames.try_recv().ok());
        frames.map(|frame| proto::AttachResponse::decode_length_delimited(frame).unwrap().what.unwrap()).collect()
    }

    #[test]
    fn a_slow_viewer_misses_output_and_nothing_else() {
        let mut viewers = Viewers::default();
        let mut slow = viewers.add().unwrap();
        for _ in 0..2 * WAITING_MAX / (1 << 16) {
            viewers.tell(&output(1 << 16));
        }
        viewers.tell(&Event::Started { rank: Rank(0), pid: 7, at: Duration::ZERO });
        let heard = heard(&mut slow);
        let pieces = heard.iter().filter(|what| matches!(what, What::Event(_))).count();
        let missed =
            heard.iter().find_map(|what| if let What::DroppedOutput(bytes) = what { Some(*bytes) } else { None });
        assert_eq!(missed.unwrap() as usize, 2 * WAITING_MAX - (pieces - 1) * (1 << 16));
        assert!(pieces > 1 && matches!(heard.last(), Some(What::Event(_))));
    }

    #[test]
    fn there_is_room_for_those_who_come_when_others_have_gone() {
        let mut viewers = Viewers::default();
        let all: Vec<Frames> = (0..VIEWERS_MAX).map(|_| viewers.add().unwrap()).collect();
        assert!(viewers.add().is_none() && !viewers.is_empty());
        drop(all);
        assert!(viewers.is_empty() && viewers.add().is_some());
    }
}
