//! Body of a request on its way to a handler. The bytes of incomplete messages are charged to the peer's budget. A message that
//! arrives too slowly fails its call.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};
use tokio::time::{Instant, Sleep, sleep_until};
use tonic::Status;
use tonic::body::Body;

use super::budget::Place;
use super::framing::Framing;
use crate::limits::{MESSAGE_MAX, REQUEST_TIMEOUT};

/// Form of a call's requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// One message, of at most `longest` bytes, with a time limit.
    One { longest: usize },
    /// Any number of messages, at any time.
    Stream,
}

/// Body of one request.
pub(super) struct RequestBody {
    inner: Body,
    form: Form,
    framing: Framing,
    unfinished: Place,
    /// Time by which the awaited or incomplete message must be complete.
    deadline: Option<Pin<Box<Sleep>>>,
    /// The call's place in the budget.
    _call: Arc<Place>,
}

impl RequestBody {
    pub(super) fn new(inner: Body, form: Form, unfinished: Place, call: Arc<Place>) -> Self {
        let mut body = Self { inner, form, framing: Framing::default(), unfinished, deadline: None, _call: call };
        body.set_deadline(false);
        body
    }

    /// A call with one message has a deadline from its start; a stream has one from the start of each message.
    fn set_deadline(&mut self, has_moved_on: bool) {
        let is_awaited = match self.form {
            Form::One { .. } => self.framing.whole() == 0,
            Form::Stream => self.framing.unfinished() > 0,
        };
        match (is_awaited, &self.deadline) {
            (false, _) => self.deadline = None,
            (true, Some(_)) if !has_moved_on => {}
            (true, _) => self.deadline = Some(Box::pin(sleep_until(Instant::now() + REQUEST_TIMEOUT))),
        }
    }

    fn take(&mut self, bytes: &[u8]) -> Result<(), Status> {
        let before = self.framing.whole();
        let longest = self.framing.take(bytes);
        if let Form::One { longest: most } = self.form
            && longest > most
        {
            return Err(Status::out_of_range(format!("the request has {longest} bytes; this call takes {most}")));
        }
        // A longer message is refused by the decoder.
        let unfinished = self.framing.unfinished().min(MESSAGE_MAX);
        self.unfinished.resize(unfinished).map_err(|error| Status::resource_exhausted(error.to_string()))?;
        self.set_deadline(self.framing.whole() > before);
        Ok(())
    }
}

impl HttpBody for RequestBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        if let Poll::Ready(frame) = Pin::new(&mut self.inner).poll_frame(context) {
            let Some(Ok(frame)) = frame else { return Poll::Ready(frame) };
            let taken = frame.data_ref().map_or(Ok(()), |bytes| self.take(bytes));
            return Poll::Ready(Some(taken.map(|()| frame)));
        }
        let Some(deadline) = self.deadline.as_mut() else { return Poll::Pending };
        ready!(deadline.as_mut().poll(context));
        let reason = format!("the request was not whole after {REQUEST_TIMEOUT:?}");
        Poll::Ready(Some(Err(Status::deadline_exceeded(reason))))
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::future::poll_fn;

    use tonic::Code;

    use super::super::budget::Budget;
    use super::*;
    use crate::identity::Caller;

    /// Body of pieces that each arrive after a delay in seconds; it never ends.
    struct Slow(VecDeque<(u64, Bytes)>, Option<Pin<Box<Sleep>>>);

    impl HttpBody for Slow {
        type Data = Bytes;
        type Error = Status;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            context: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
            let Some(seconds) = self.0.front().map(|(seconds, _)| *seconds) else { return Poll::Pending };
            let until = Instant::now() + std::time::Duration::from_secs(seconds);
            ready!(self.1.get_or_insert_with(|| Box::pin(sleep_until(until))).as_mut().poll(context));
            self.1 = None;
            Poll::Ready(self.0.pop_front().map(|(_, bytes)| Ok(Frame::data(bytes))))
        }
    }

    /// Reads a request of such pieces until it fails. Returns the number of bytes, and the failure.
    async fn read(form: Form, pieces: Vec<(u64, Vec<u8>)>) -> (usize, Code) {
        let budget = Arc::new(Budget::default());
        let name = Some(Caller::User(7));
        let call = Arc::new(budget.call(name.clone()).unwrap());
        let pieces = pieces.into_iter().map(|(seconds, bytes)| (seconds, bytes.into())).collect();
        let inner = Body::new(Slow(pieces, None));
        let mut body = RequestBody::new(inner, form, budget.unfinished(name), call);
        let mut bytes = 0;
        loop {
            match poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await.unwrap() {
                Ok(frame) => bytes += frame.into_data().unwrap().len(),
                Err(status) => return (bytes, status.code()),
            }
        }
    }

    const ONE: Form = Form::One { longest: 100 };

    fn message(length: u8) -> Vec<u8> {
        [vec![0, 0, 0, 0, length], vec![1; length.into()]].concat()
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_must_be_whole_in_time() {
        let (start, whole) = (Instant::now(), message(50));
        assert_eq!(read(ONE, Vec::new()).await, (0, Code::DeadlineExceeded));
        assert_eq!(start.elapsed().as_secs(), REQUEST_TIMEOUT.as_secs());
        // Single bytes in between do not extend the deadline.
        let bytes = whole[..20].iter().map(|&byte| (4, vec![byte])).collect();
        assert_eq!(read(ONE, bytes).await, (7, Code::DeadlineExceeded));
    }

    #[tokio::test(start_paused = true)]
    async fn a_stream_may_be_silent_between_its_messages_and_not_within_one() {
        let start = Instant::now();
        let whole = message(3);
        let pieces = vec![(1000, whole.clone()), (1000, whole.clone()), (1000, whole[..6].to_vec())];
        assert_eq!(read(Form::Stream, pieces).await, (22, Code::DeadlineExceeded));
        assert_eq!(start.elapsed().as_secs(), 3000 + REQUEST_TIMEOUT.as_secs());
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_that_says_it_is_too_long_is_refused_before_it_comes() {
        assert_eq!(read(ONE, vec![(0, vec![0, 0, 0, 0, 101])]).await, (0, Code::OutOfRange));
        assert_eq!(read(Form::Stream, vec![(0, vec![0, 0, 0, 0, 101])]).await, (5, Code::DeadlineExceeded));
    }
}
