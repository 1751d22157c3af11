//! Body of a response on its way to the caller. Its unsent bytes are charged to the caller's budget until the connection has
//! written the last of them, or has ended.
//!
//! ```text
//! handler ──polled while there is room──> AnswerBody ──counted pieces──> HTTP/2: waits for the peer's windows and its socket
//!                                             ^                              │ written, or dropped
//!                                             └───────── credited ───────────┘
//! ```

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};

use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};
use parking_lot::Mutex;
use tokio::time::{Sleep, sleep};
use tonic::Status;
use tonic::body::Body;

use super::budget::{Part, Place};
use super::request_body::Form;
use crate::limits::{STREAM_UNREAD, UNREAD_PAUSE, kept_cost};

/// Body of one response.
pub(super) struct AnswerBody {
    /// `None` after an early end.
    inner: Option<Body>,
    form: Form,
    unread: Arc<Unread>,
    /// Time of the next check of the budget. Set while the peer's unsent bytes leave no room.
    pause: Option<Pin<Box<Sleep>>>,
    /// The call's place in the budget.
    _call: Arc<Place>,
}

/// Unsent bytes of a response.
struct Unread(Mutex<State>);

struct State {
    place: Place,
    /// Waker of the body while it waits for its own bytes to be sent.
    waiting: Option<Waker>,
}

/// Piece of a response; it is charged until it is dropped.
struct Counted {
    bytes: Bytes,
    of: Arc<Unread>,
}

/// Room in the budget for the next piece of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Room {
    Some,
    /// There is room once the peer reads from this response.
    AfterOwn,
    /// There may be room later.
    Later,
}

impl AnswerBody {
    /// `form` is that of the call's requests: a call with one request message has one response message.
    pub(super) fn new(inner: Body, form: Form, unread: Place, call: Arc<Place>) -> Self {
        let unread = Arc::new(Unread(Mutex::new(State { place: unread, waiting: None })));
        Self { inner: Some(inner), form, unread, pause: None, _call: call }
    }

    /// Waits until there is room for a piece of a stream.
    fn poll_room(&mut self, context: &mut Context<'_>) -> Poll<()> {
        loop {
            if let Some(pause) = &mut self.pause {
                ready!(pause.as_mut().poll(context));
                self.pause = None;
            }
            match self.unread.room(context) {
                Room::Some => return Poll::Ready(()),
                Room::AfterOwn => return Poll::Pending,
                Room::Later => self.pause = Some(Box::pin(sleep(UNREAD_PAUSE))),
            }
        }
    }

    /// Charges a piece. A single response that exceeds the budget is refused.
    fn counted(&mut self, bytes: Bytes) -> Frame<Bytes> {
        let cost = kept_cost(bytes.len());
        let mut state = self.unread.0.lock();
        let amount = state.place.amount() + cost;
        let taken = match self.form {
            Form::One { .. } => state.place.resize(amount),
            Form::Stream => {
                state.place.overdraw(amount);
                Ok(())
            }
        };
        drop(state);
        match taken {
            Ok(()) => Frame::data(Bytes::from_owner(Counted { bytes, of: Arc::clone(&self.unread) })),
            Err(error) => {
                self.inner = None;
                let status = Status::resource_exhausted(error.to_string());
                tracing::info!(reason = status.message(), "an answer was refused");
                Frame::trailers(status.into_http::<Body>().into_parts().0.headers)
            }
        }
    }
}

impl Unread {
    fn room(&self, context: &Context<'_>) -> Room {
        let State { place, waiting } = &mut *self.0.lock();
        let own = place.amount();
        match own {
            // Unread streams leave room for streams that are read. All streams together leave room for single responses.
            0 if place.has_room(Part::ThreeQuarters) => Room::Some,
            0 => Room::Later,
            _ if own < STREAM_UNREAD && place.has_room(Part::Half) => Room::Some,
            _ => {
                *waiting = Some(context.waker().clone());
                Room::AfterOwn
            }
        }
    }
}

impl AsRef<[u8]> for Counted {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        let mut state = self.of.0.lock();
        let left = state.place.amount() - kept_cost(self.bytes.len());
        state.place.overdraw(left);
        let waiting = state.waiting.take();
        drop(state);
        waiting.into_iter().for_each(Waker::wake);
    }
}

impl HttpBody for AnswerBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        if self.form == Form::Stream {
            ready!(self.poll_room(context));
        }
        let Some(inner) = &mut self.inner else { return Poll::Ready(None) };
        let frame = ready!(Pin::new(inner).poll_frame(context));
        let Some(Ok(frame)) = frame else { return Poll::Ready(frame) };
        Poll::Ready(Some(Ok(match frame.into_data() {
            Ok(bytes) => self.counted(bytes),
            Err(trailers) => trailers,
        })))
    }

    fn is_end_stream(&self) -> bool {
        self.inner.as_ref().is_none_or(HttpBody::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        // The length is unknown, because a refusal is shorter.
        SizeHint::default()
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use tokio::time::Instant;

    use super::super::budget::Budget;
    use super::*;
    use crate::identity::Caller;
    use crate::limits::OF_USERS;

    const ONE: Form = Form::One { longest: 100 };
    const PIECE: usize = 64 << 10;

    /// Body with this number of pieces, each of this many bytes.
    struct Pieces(usize, usize);

    impl HttpBody for Pieces {
        type Data = Bytes;
        type Error = Status;

        fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
            let Some(left) = self.0.checked_sub(1) else { return Poll::Ready(None) };
            self.0 = left;
            Poll::Ready(Some(Ok(Frame::data(vec![7; self.1].into()))))
        }
    }

    fn answer(budget: &Arc<Budget>, user: u32, form: Form, pieces: Pieces) -> AnswerBody {
        let name = Some(Caller::User(user));
        let call = Arc::new(budget.call(name.clone()).unwrap());
        AnswerBody::new(Body::new(pieces), form, budget.unread(name), call)
    }

    /// Returns the next piece. The error is the gRPC code of a refusal, or `end`.
    async fn next(body: &mut AnswerBody) -> Result<Bytes, String> {
        let Some(frame) = poll_fn(|context| Pin::new(&mut *body).poll_frame(context)).await else {
            return Err("end".to_owned());
        };
        let code =
            |trailers: Frame<Bytes>| trailers.into_trailers().unwrap()["grpc-status"].to_str().unwrap().to_owned();
        frame.unwrap().into_data().map_err(code)
    }

    /// Returns the pieces that arrive while none of them is read.
    async fn unread(body: &mut AnswerBody) -> Vec<Bytes> {
        let mut pieces = Vec::new();
        while let Ok(Ok(piece)) = tokio::time::timeout(UNREAD_PAUSE / 2, next(body)).await {
            pieces.push(piece);
        }
        pieces
    }

    #[tokio::test(start_paused = true)]
    async fn a_stream_that_nobody_reads_is_made_no_longer_and_goes_on_when_it_is_read() {
        let budget = Arc::default();
        let mut body = answer(&budget, 7, Form::Stream, Pieces(100, PIECE));
        let mut pieces = unread(&mut body).await;
        assert_eq!(pieces.len(), STREAM_UNREAD / PIECE);
        for _ in pieces.len()..100 {
            let waiting = tokio::spawn(async move { (next(&mut body).await.unwrap(), body) });
            tokio::task::yield_now().await;
            assert!(!waiting.is_finished());
            drop(pieces.remove(0));
            let (piece, again) = waiting.await.unwrap();
            (pieces, body) = ([pieces, vec![piece]].concat(), again);
        }
        drop(pieces);
        assert_eq!(next(&mut body).await, Err("end".to_owned()));
    }

    #[tokio::test(start_paused = true)]
    async fn streams_of_a_user_leave_room_for_those_that_are_read() {
        let budget = Arc::default();
        let mut stopped: Vec<_> =
            (0..OF_USERS.calls - 2).map(|_| answer(&budget, 7, Form::Stream, Pieces(100, PIECE))).collect();
        let mut held = Vec::new();
        for body in &mut stopped[..150] {
            held.extend(unread(body).await);
        }
        let bytes: usize = held.iter().map(Bytes::len).sum();
        assert!((OF_USERS.unread / 2..OF_USERS.unread).contains(&bytes), "{bytes}");
        let mut read = answer(&budget, 7, Form::Stream, Pieces(1000, PIECE));
        let start = Instant::now();
        while next(&mut read).await.is_ok() {}
        assert_eq!(start.elapsed(), std::time::Duration::ZERO, "it never waits");
        for body in &mut stopped[150..] {
            held.extend(unread(body).await);
        }
        let left = OF_USERS.unread - held.iter().map(Bytes::len).sum::<usize>();
        held.push(next(&mut answer(&budget, 7, ONE, Pieces(1, left / 2))).await.expect("room for whole answers"));
        let mut late = answer(&budget, 7, Form::Stream, Pieces(1, PIECE));
        assert!(unread(&mut late).await.is_empty(), "there is no room at all");
        drop(held);
        assert_eq!(next(&mut late).await.unwrap().len(), PIECE);
    }

    #[tokio::test]
    async fn whole_answers_that_nobody_reads_are_refused_and_no_other_user_suffers() {
        let budget = Arc::default();
        let whole = |user, length| answer(&budget, user, ONE, Pieces(1, length));
        let mut held = vec![next(&mut whole(7, 2 * OF_USERS.unread)).await.expect("alone, it may be longer")];
        let mut refused = whole(7, PIECE);
        assert_eq!(next(&mut refused).await, Err("8".to_owned()));
        assert_eq!(next(&mut refused).await, Err("end".to_owned()));
        held.clear();
        for user in 0..64 {
            while let Ok(piece) = next(&mut whole(user, 1 << 20)).await {
                held.push(piece);
            }
        }
        assert!((30..=36).contains(&held.len()), "{}", held.len());
        assert!(next(&mut whole(100, PIECE)).await.is_ok(), "it is small");
    }
}
