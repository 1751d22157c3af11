//! Standard input on its way to the API server, as fast as the ranks read it. No more is sent than the credit allows.

use bytes::Bytes;
use lattice_cluster_client::messages::ToLaunch;
use lattice_session::flow_control::Credit;
use tokio::sync::mpsc;

/// Standard input of the launch's owner.
#[derive(Debug)]
pub(super) struct StdinStream {
    source: Source,
    /// Part of the last piece for which there was no credit.
    rest: Bytes,
    credit: Credit,
}

#[derive(Debug)]
enum Source {
    /// No input, and no end of input.
    None,
    Open(mpsc::Receiver<Bytes>),
    /// The input has ended. This connection has not sent the end yet.
    EndUnsent,
    /// The input has ended. This connection has sent the end.
    EndSent,
}

impl StdinStream {
    pub(super) fn new(pieces: Option<mpsc::Receiver<Bytes>>) -> Self {
        let source = pieces.map_or(Source::None, Source::Open);
        Self { source, rest: Bytes::new(), credit: Credit::default() }
    }

    /// Adds bytes that may be sent.
    pub(super) fn grant(&mut self, bytes: u64) {
        self.credit.grant(bytes);
    }

    /// Drops the credit of a broken connection; returns the number of bytes that may be lost.
    pub(super) fn forget_connection(&mut self) -> u64 {
        if let Source::EndSent = self.source {
            self.source = Source::EndUnsent;
        }
        self.credit.reset()
    }

    /// Returns the next message; waits while there is no input, or no credit. Cancel-safe.
    pub(super) async fn next(&mut self) -> ToLaunch {
        if self.rest.is_empty() {
            match &mut self.source {
                Source::Open(pieces) => match pieces.recv().await {
                    Some(piece) => self.rest = piece,
                    None => return self.end(),
                },
                Source::EndUnsent => return self.end(),
                Source::None | Source::EndSent => return std::future::pending().await,
            }
        }
        match self.credit.take(self.rest.len() as u64) {
            0 => std::future::pending().await,
            // `len` is at most the length of the piece.
            len => ToLaunch::Stdin(self.rest.split_to(len as usize)),
        }
    }

    fn end(&mut self) -> ToLaunch {
        self.source = Source::EndSent;
        ToLaunch::StdinEnd
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    /// Message that is sent now; `None` if it waits.
    fn sent(input: &mut StdinStream) -> Option<ToLaunch> {
        match pin!(input.next()).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(message) => Some(message),
            Poll::Pending => None,
        }
    }

    #[test]
    fn nothing_is_sent_without_credit() {
        let (pieces, stream) = mpsc::channel(2);
        let mut input = StdinStream::new(Some(stream));
        pieces.try_send(Bytes::from_static(b"abcdef")).unwrap();
        assert_eq!(sent(&mut input), None);
        input.grant(4);
        assert_eq!(sent(&mut input), Some(ToLaunch::Stdin(Bytes::from_static(b"abcd"))));
        assert_eq!(sent(&mut input), None);
        input.grant(4);
        assert_eq!(sent(&mut input), Some(ToLaunch::Stdin(Bytes::from_static(b"ef"))));
        drop(pieces);
        assert_eq!(sent(&mut input), Some(ToLaunch::StdinEnd), "the end needs no credit");
        assert_eq!(sent(&mut input), None);
        assert_eq!(input.forget_connection(), 2, "of six bytes four were granted again");
        assert_eq!(sent(&mut input), Some(ToLaunch::StdinEnd), "the next connection hears of the end too");
    }

    #[test]
    fn a_launch_that_reads_nothing_is_sent_nothing_and_no_end_either() {
        let mut input = StdinStream::new(None);
        input.grant(100);
        assert_eq!(sent(&mut input), None);
        input.forget_connection();
        assert_eq!(sent(&mut input), None);
    }

    #[test]
    fn an_empty_input_has_an_end() {
        let (pieces, stream) = mpsc::channel(1);
        let mut input = StdinStream::new(Some(stream));
        assert_eq!(sent(&mut input), None);
        drop(pieces);
        assert_eq!(sent(&mut input), Some(ToLaunch::StdinEnd));
    }

    #[test]
    fn credit_of_a_connection_ends_with_it() {
        let (pieces, stream) = mpsc::channel(1);
        let mut input = StdinStream::new(Some(stream));
        pieces.try_send(Bytes::from_static(b"abcdef")).unwrap();
        input.grant(2);
        assert_eq!(sent(&mut input), Some(ToLaunch::Stdin(Bytes::from_static(b"ab"))));
        input.grant(1);
        assert_eq!(input.forget_connection(), 1, "of two bytes one was read by a rank");
        assert_eq!(sent(&mut input), None, "the next connection grants anew");
        input.grant(9);
        assert_eq!(sent(&mut input), Some(ToLaunch::Stdin(Bytes::from_static(b"cdef"))));
    }

    proptest::proptest! {
        /// For any order of pieces and grants, the bytes arrive in order, never exceed the grants, and the end follows.
        #[test]
        fn bytes_keep_their_order_and_stay_within_their_credit(
            pieces in proptest::collection::vec("[a-z]{1,9}", 0..8),
            grants in proptest::collection::vec(0_u64..12, 0..30),
        ) {
            let (sender, stream) = mpsc::channel(pieces.len().max(1));
            let mut input = StdinStream::new(Some(stream));
            pieces.iter().for_each(|piece| sender.try_send(Bytes::copy_from_slice(piece.as_bytes())).unwrap());
            drop(sender);
            let whole = pieces.concat();
            let (mut arrived, mut granted, mut ended) = (Vec::new(), 0, false);
            for grant in grants.into_iter().chain([whole.len() as u64]) {
                input.grant(grant);
                granted += grant;
                while let Some(message) = sent(&mut input) {
                    match message {
                        ToLaunch::Stdin(bytes) => arrived.extend_from_slice(&bytes),
                        ToLaunch::StdinEnd => ended = true,
                        other => panic!("{other:?}"),
                    }
                    proptest::prop_assert!(arrived.len() as u64 <= granted && !(ended && arrived.len() < whole.len()));
                }
            }
            proptest::prop_assert_eq!((String::from_utf8(arrived).unwrap(), ended), (whole, true));
        }
    }
}
