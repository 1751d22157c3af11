//! Frames that this node sends on a link. They are queued under the node's lock. After it is released, the link's own writer writes them,
//! at once if the connection accepts them.
//!
//! ```text
//! Sender::send ──> frames ──flush──> FrameSink ──> connection          (sessions)
//!                    └────────────> Outgoing, a stream ──> a call      (agents, and links that are not open yet)
//! ```
//! The task of a link sleeps unless its sink must wait.

use std::collections::VecDeque;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;
use tokio_stream::Stream;

use super::budget::{Budget, Holding};
use super::frames::kept_bytes;
use crate::proto::v1::LinkFrame;

/// Writer of a link that never blocks.
pub trait FrameSink: Send {
    /// Writes the frames that `next` returns, until the connection accepts no more.
    fn write(&mut self, next: &mut dyn FnMut() -> Option<LinkFrame>) -> SinkState;
}

/// State of a [`FrameSink`] after a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SinkState {
    /// All frames are written.
    Ready,
    /// Bytes wait in the sink. Write again once the connection accepts more.
    Blocked,
    /// Bytes wait in the sink for further frames. Write again after a moment.
    Held,
    /// The connection is broken.
    Broken,
}

/// Frames that this node sends on a link, for its transport: a stream, or [attached](Outgoing::attach) to a sink. The stream ends when this
/// node closes the link.
#[derive(Debug)]
pub struct Outgoing(Arc<Queue>);

/// The near end of a link. Dropping it closes the link.
#[derive(Debug)]
pub(super) struct Sender(Arc<Queue>);

/// Reason why a frame cannot be queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Stuck {
    #[error("it does not read what it is sent")]
    NotReading,
    #[error("as much as may wait in the links to all nodes waits already")]
    NoRoom,
}

/// Queue of one link.
pub(super) struct Queue {
    held: Holding,
    state: Mutex<State>,
}

struct State {
    frames: VecDeque<LinkFrame>,
    sink: Option<Box<dyn FrameSink>>,
    sink_state: SinkState,
    /// True after the last frame was queued.
    is_closed: bool,
    /// Task of the link, while it waits.
    waker: Option<Waker>,
}

impl Sender {
    pub(super) fn new(budget: &Budget) -> (Self, Outgoing) {
        let (frames, sink_state) = (VecDeque::new(), SinkState::Ready);
        let state = Mutex::new(State { frames, sink: None, sink_state, is_closed: false, waker: None });
        let queue = Arc::new(Queue { held: budget.holding(), state });
        (Self(Arc::clone(&queue)), Outgoing(queue))
    }

    /// Queues a frame. Fails if the queue would exceed `max` bytes, or all links together their limit. Returns the queue if it must be
    /// [flushed](Queue::flush).
    pub(super) fn send(&self, frame: LinkFrame, max: usize) -> Result<Option<Arc<Queue>>, Stuck> {
        let (queue, cost) = (&self.0, cost(&frame));
        if !queue.held.take(cost, max) {
            return Err(if queue.held.has_room(cost, max) { Stuck::NoRoom } else { Stuck::NotReading });
        }
        let mut state = queue.state.lock();
        if state.sink_state == SinkState::Broken {
            // The reading task reports the end of the link.
            queue.held.give(cost);
            return Ok(None);
        }
        state.frames.push_back(frame);
        if state.sink.is_none() {
            state.wake();
            return Ok(None);
        }
        // The thread that queued the first frame flushes all frames.
        let is_to_be_flushed = state.sink_state != SinkState::Blocked && state.frames.len() == 1;
        Ok(is_to_be_flushed.then(|| Arc::clone(queue)))
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.is_closed = true;
        state.wake();
    }
}

impl Queue {
    /// Writes the queued frames until the connection accepts no more.
    pub(super) fn flush(&self) {
        let mut state = self.state.lock();
        if state.sink_state != SinkState::Blocked {
            self.write(&mut state);
        }
    }

    fn write(&self, state: &mut State) {
        let State { frames, sink, sink_state, is_closed, .. } = state;
        let Some(sink) = sink else { return };
        *sink_state = sink.write(&mut || self.take(frames));
        if *is_closed || *sink_state != SinkState::Ready {
            state.wake();
        }
    }

    fn take(&self, frames: &mut VecDeque<LinkFrame>) -> Option<LinkFrame> {
        let frame = frames.pop_front()?;
        self.held.give(cost(&frame));
        Some(frame)
    }
}

impl State {
    fn wake(&mut self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

impl Outgoing {
    /// Attaches a sink. From now on the thread that queues a frame also writes it.
    pub fn attach(&mut self, sink: Box<dyn FrameSink>) {
        let mut state = self.0.state.lock();
        state.sink = Some(sink);
        self.0.write(&mut state);
    }

    /// Waits until the attached sink must wait; returns its state. Returns `None` once the link is closed and all frames are written.
    pub async fn waits(&mut self) -> Option<SinkState> {
        std::future::poll_fn(|context| {
            let mut state = self.0.state.lock();
            match state.sink_state {
                SinkState::Ready if state.is_closed && state.frames.is_empty() => Poll::Ready(None),
                SinkState::Ready => {
                    state.waker = Some(context.waker().clone());
                    Poll::Pending
                }
                waits => Poll::Ready(Some(waits)),
            }
        })
        .await
    }

    /// Lets the attached sink continue writing.
    pub fn resume(&mut self) {
        let mut state = self.0.state.lock();
        self.0.write(&mut state);
    }

    /// Takes the next frame if one is queued.
    #[cfg(feature = "fuzzing")]
    pub(super) fn try_next(&mut self) -> Option<LinkFrame> {
        self.0.take(&mut self.0.state.lock().frames)
    }
}

impl Drop for Outgoing {
    /// Discards the queued frames and further ones.
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        let sink = state.sink.take();
        (state.sink_state, state.waker) = (SinkState::Broken, None);
        while self.0.take(&mut state.frames).is_some() {}
        drop(state);
        drop(sink);
    }
}

impl Stream for Outgoing {
    type Item = LinkFrame;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<LinkFrame>> {
        let mut state = self.0.state.lock();
        match self.0.take(&mut state.frames) {
            Some(frame) => Poll::Ready(Some(frame)),
            None if state.is_closed => Poll::Ready(None),
            None => {
                state.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }
}

impl fmt::Debug for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Queue").finish_non_exhaustive()
    }
}

fn cost(frame: &LinkFrame) -> usize {
    frame.what.as_ref().map_or(0, kept_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::v1::{FenceKey, link_frame::What};

    /// Sink that writes to a list, and then has this state.
    struct List(Arc<Mutex<(Vec<u64>, SinkState)>>);

    impl FrameSink for List {
        fn write(&mut self, next: &mut dyn FnMut() -> Option<LinkFrame>) -> SinkState {
            let (written, state) = &mut *self.0.lock();
            while let Some(LinkFrame { what: Some(What::Awaited(key)) }) = next() {
                written.push(key.epoch);
            }
            *state
        }
    }

    fn frame(epoch: u64) -> LinkFrame {
        LinkFrame { what: Some(What::Awaited(FenceKey { epoch, ..FenceKey::default() })) }
    }

    fn now<T>(future: impl Future<Output = T>) -> Option<T> {
        let mut context = Context::from_waker(Waker::noop());
        match std::pin::pin!(future).poll(&mut context) {
            Poll::Ready(result) => Some(result),
            Poll::Pending => None,
        }
    }

    #[test]
    fn frames_are_written_in_their_order_by_the_flush_and_the_rest_by_the_task() {
        let list = Arc::new(Mutex::new((Vec::new(), SinkState::Ready)));
        let (sender, mut outgoing) = Sender::new(&Budget::new(usize::MAX));
        let send = |epoch| sender.send(frame(epoch), usize::MAX).unwrap();
        assert!(send(1).is_none(), "nothing is attached");
        outgoing.attach(Box::new(List(Arc::clone(&list))));
        assert_eq!((list.lock().0.clone(), now(outgoing.waits())), (vec![1], None));
        let queue = send(2).unwrap();
        assert!(send(3).is_none(), "one flush writes both");
        list.lock().1 = SinkState::Blocked;
        queue.flush();
        assert_eq!((list.lock().0.clone(), now(outgoing.waits())), (vec![1, 2, 3], Some(Some(SinkState::Blocked))));
        assert!(send(4).is_none(), "the task writes it");
        queue.flush();
        assert_eq!(list.lock().0, [1, 2, 3]);
        list.lock().1 = SinkState::Ready;
        outgoing.resume();
        assert_eq!((list.lock().0.clone(), now(outgoing.waits())), (vec![1, 2, 3, 4], None));
        let queue = send(5).unwrap();
        drop(sender);
        assert_eq!(now(outgoing.waits()), None, "a frame waits for its flush");
        queue.flush();
        assert_eq!((list.lock().0.len(), now(outgoing.waits())), (5, Some(None)));
    }

    #[test]
    fn frames_for_a_link_that_has_ended_take_no_room() {
        let (sender, outgoing) = Sender::new(&Budget::new(usize::MAX));
        assert!(sender.send(frame(1), usize::MAX).unwrap().is_none());
        drop(outgoing);
        assert!(sender.0.held.is_empty() && sender.send(frame(2), usize::MAX).unwrap().is_none());
        assert!(sender.0.held.is_empty());
    }
}
