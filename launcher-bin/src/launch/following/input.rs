//! Our standard input on its way to the API server: no more than there is credit for.

use bytes::Bytes;
use lattice_session::flow_control::Credit;
use pmi_transport::proto::v1::Nothing;
use pmi_transport::proto::v1::attach_request::What as Wish;
use tokio::sync::mpsc;

/// Input that is sent as fast as the ranks read it.
#[derive(Debug)]
pub(super) struct Input {
    source: Source,
    /// What of the last piece there was no credit for.
    rest: Bytes,
    credit: Credit,
}

#[derive(Debug)]
enum Source {
    /// There is none, and its end is not told either.
    None,
    Open(mpsc::Receiver<Bytes>),
    /// It has come to its end, of which this connection has heard or not.
    Ended {
        told: bool,
    },
}

impl Input {
    pub(super) fn new(pieces: Option<mpsc::Receiver<Bytes>>) -> Self {
        let source = pieces.map_or(Source::None, Source::Open);
        Self { source, rest: Bytes::new(), credit: Credit::default() }
    }

    /// So many bytes more may be sent.
    pub(super) fn grant(&mut self, bytes: u64) {
        self.credit.grant(bytes);
    }

    /// The connection is gone, and its credit with it; returns how many bytes may be lost.
    pub(super) fn forget_connection(&mut self) -> u64 {
        if let Source::Ended { told } = &mut self.source {
            *told = false;
        }
        self.credit.reset()
    }

    /// The next thing to send; waits while there is nothing, or no credit. Can be dropped and called again without a loss.
    pub(super) async fn next(&mut self) -> Wish {
        if self.rest.is_empty() {
            match &mut self.source {
                Source::Open(pieces) => match pieces.recv().await {
                    Some(piece) => self.rest = piece,
                    None => return self.end(),
                },
                Source::Ended { told: false } => return self.end(),
                Source::None | Source::Ended { told: true } => return std::future::pending().await,
            }
        }
        match self.credit.take(self.rest.len() as u64) {
            0 => std::future::pending().await,
            // At most the length of the piece.
            len => Wish::Stdin(self.rest.split_to(len as usize)),
        }
    }

    fn end(&mut self) -> Wish {
        self.source = Source::Ended { told: true };
        Wish::StdinEnd(Nothing {})
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    /// What is sent now; `None` if it waits.
    fn sent(input: &mut Input) -> Option<Wish> {
        match pin!(input.next()).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(wish) => Some(wish),
            Poll::Pending => None,
        }
    }

    #[test]
    fn nothing_is_sent_without_credit() {
        let (pieces, stream) = mpsc::channel(2);
        let mut input = Input::new(Some(stream));
        pieces.try_send(Bytes::from_static(b"abcdef")).unwrap();
        assert_eq!(sent(&mut input), None);
        input.grant(4);
        assert_eq!(sent(&mut input), Some(Wish::Stdin(Bytes::from_static(b"abcd"))));
        assert_eq!(sent(&mut input), None);
        input.grant(4);
        assert_eq!(sent(&mut input), Some(Wish::Stdin(Bytes::from_static(b"ef"))));
        drop(pieces);
        assert_eq!(sent(&mut input), Some(Wish::StdinEnd(Nothing {})), "the end needs no credit");
        assert_eq!(sent(&mut input), None);
        assert_eq!(input.forget_connection(), 2, "of six bytes four were granted again");
        assert_eq!(sent(&mut input), Some(Wish::StdinEnd(Nothing {})), "the next connection hears of the end too");
    }
}
