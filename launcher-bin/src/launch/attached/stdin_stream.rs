//! Standard input on its way to the API server, as fast as the ranks read it: no more than there is credit for.

use bytes::Bytes;
use lattice_session::flow_control::Credit;
use pmi_transport::proto::v1::Nothing;
use pmi_transport::proto::v1::attach_request::What as ToLaunch;
use tokio::sync::mpsc;

/// Standard input of the launch's owner.
#[derive(Debug)]
pub(super) struct StdinStream {
    source: Source,
    /// Part of the last piece that there was no credit for.
    rest: Bytes,
    credit: Credit,
}

#[derive(Debug)]
enum Source {
    /// There is none, and no end is sent either.
    None,
    Open(mpsc::Receiver<Bytes>),
    /// It has ended, and this connection has not been sent the end.
    EndUnsent,
    /// It has ended, and this connection has been sent the end.
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

    /// Drops the credit of a connection that is gone; returns the number of bytes that may be lost.
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
        ToLaunch::StdinEnd(Nothing {})
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
        assert_eq!(sent(&mut input), Some(ToLaunch::StdinEnd(Nothing {})), "the end needs no credit");
        assert_eq!(sent(&mut input), None);
        assert_eq!(input.forget_connection(), 2, "of six bytes four were granted again");
        assert_eq!(sent(&mut input), Some(ToLaunch::StdinEnd(Nothing {})), "the next connection hears of the end too");
    }
}
