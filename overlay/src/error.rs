//! Failures of calls, and their encoding in frames.

use bytes::{Buf, BufMut, Bytes, BytesMut};

use crate::address::Uid;
use crate::frame::BODY_MAX;

/// Failure of a call.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    /// A member has no usable route to the destination.
    #[error("no way leads on from {at}: the members that could pass it on do not answer")]
    NoRoute {
        /// The last member that the call has reached.
        at: Uid,
    },
    /// The process with the call is lost, or the route to it. It may have been served, so it is not made again.
    #[error("the called process, or the way to it, is gone, as {at} reports; the method may have been called")]
    Lost {
        /// The member that detected the loss.
        at: Uid,
    },
    /// No answer arrived in time.
    #[error("no answer came within {ms} ms")]
    Timeout {
        /// Time limit of the caller, in milliseconds.
        ms: u32,
    },
    /// The call was forwarded more often than the longest route requires.
    #[error("{at} does not pass it on: it was passed on more often than any way is long")]
    TtlSpent {
        /// The member that dropped it.
        at: Uid,
    },
    /// A queue limit of a member is reached.
    #[error("{at} has no room for it: too much waits there\ntry: again, a little later")]
    Busy {
        /// The member.
        at: Uid,
    },
    /// The process does not serve the method.
    #[error("no process serves this method there")]
    NoSuchMethod,
    /// The set has no such process.
    #[error("the set has no such process")]
    NoSuchProcess,
    /// The call is not permitted for this caller, or not possible.
    #[error("it is refused: {why}")]
    Refused {
        /// Reason, for the user.
        why: String,
    },
    /// The handler failed.
    #[error("the handler failed: {0}")]
    Handler(Fault),
}

/// Failure of a handler, with its own message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Fault(pub String);

const NO_ROUTE: u32 = 1;
const TIMEOUT: u32 = 2;
const TTL_SPENT: u32 = 3;
const BUSY: u32 = 4;
const NO_SUCH_METHOD: u32 = 5;
const NO_SUCH_PROCESS: u32 = 6;
const REFUSED: u32 = 7;
const HANDLER: u32 = 8;
const LOST: u32 = 9;

impl CallError {
    /// Code and body of the frame for this failure.
    pub(crate) fn encode(&self) -> (u32, Bytes) {
        let at = |uid: &Uid| Bytes::copy_from_slice(&uid.bits().to_be_bytes());
        let text = |text: &str| Bytes::copy_from_slice(&text.as_bytes()[..text.floor_char_boundary(BODY_MAX)]);
        match self {
            Self::NoRoute { at: uid } => (NO_ROUTE, at(uid)),
            Self::Timeout { ms } => {
                let mut body = BytesMut::new();
                body.put_u32(*ms);
                (TIMEOUT, body.freeze())
            }
            Self::Lost { at: uid } => (LOST, at(uid)),
            Self::TtlSpent { at: uid } => (TTL_SPENT, at(uid)),
            Self::Busy { at: uid } => (BUSY, at(uid)),
            Self::NoSuchMethod => (NO_SUCH_METHOD, Bytes::new()),
            Self::NoSuchProcess => (NO_SUCH_PROCESS, Bytes::new()),
            Self::Refused { why } => (REFUSED, text(why)),
            Self::Handler(Fault(why)) => (HANDLER, text(why)),
        }
    }

    /// Decodes the failure in a frame.
    pub(crate) fn decode(code: u32, mut body: Bytes) -> Self {
        let at = || body.first_chunk().map(|bits| Uid::from_bits(u64::from_be_bytes(*bits)));
        let told = match code {
            NO_ROUTE => at().map(|at| Self::NoRoute { at }),
            LOST => at().map(|at| Self::Lost { at }),
            TTL_SPENT => at().map(|at| Self::TtlSpent { at }),
            BUSY => at().map(|at| Self::Busy { at }),
            NO_SUCH_METHOD => Some(Self::NoSuchMethod),
            NO_SUCH_PROCESS => Some(Self::NoSuchProcess),
            TIMEOUT if body.len() == 4 => Some(Self::Timeout { ms: body.get_u32() }),
            HANDLER => Some(Self::Handler(Fault(String::from_utf8_lossy(&body).into_owned()))),
            REFUSED => Some(Self::Refused { why: String::from_utf8_lossy(&body).into_owned() }),
            _ => None,
        };
        told.unwrap_or_else(|| Self::Refused { why: format!("the reason has number {code}, which means nothing here") })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_are_read_as_they_were_told() {
        let at = Uid::from_bits(0x1234_5678_8000_0007);
        for error in [
            CallError::NoRoute { at },
            CallError::Lost { at },
            CallError::Timeout { ms: 30_000 },
            CallError::TtlSpent { at },
            CallError::Busy { at },
            CallError::NoSuchMethod,
            CallError::NoSuchProcess,
            CallError::Refused { why: "über Kreuz".to_owned() },
            CallError::Handler(Fault(String::new())),
        ] {
            let (code, body) = error.encode();
            assert_eq!(CallError::decode(code, body), error);
        }
    }

    #[test]
    fn what_means_nothing_is_a_refusal_and_long_words_are_cut() {
        for (code, body) in [(NO_ROUTE, &b"1234567"[..]), (TIMEOUT, b"12345"), (0, b""), (99, b"")] {
            assert!(matches!(CallError::decode(code, Bytes::from_static(body)), CallError::Refused { .. }), "{code}");
        }
        let (_, body) = CallError::Refused { why: "ü".repeat(BODY_MAX) }.encode();
        assert!(body.len() <= BODY_MAX);
    }
}
