//! Protocol state of one connection: the messages so far decide which requests may follow.
//!
//! ```text
//!            init                 finalize
//! Silent ───────────> Open ───────────────────> Finalized
//!   │                 ^  │ init (again: MPI sessions)  │
//!   │ anything else   └──┘<────────────────────────────┘ init (a restarted program)
//!   └──> answered with an error: `init` comes first
//! ```

use crate::ids::LocalRank;
use crate::wire::request::{Request, Version};
use crate::wire::{ErrorCode, FrameBuffer, Response};

/// The protocol versions that a server offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer {
    /// PMI-1.
    pub pmi1: bool,
    /// PMI-2.
    pub pmi2: bool,
    /// Answers PMI-1.1 clients with 1.2, which has group barriers. flux's client then refuses to continue.
    pub group_barriers: bool,
}

impl Default for Offer {
    fn default() -> Self {
        Self { pmi1: true, pmi2: true, group_barriers: false }
    }
}

/// Protocol state of one connection.
#[derive(Debug, Default)]
pub(crate) struct Conversation {
    /// Bytes of an incomplete message.
    pub(crate) frames: FrameBuffer,
    /// Rank of the connection. Through `PMI_PORT` it is unknown until a claim.
    pub(crate) rank: Option<LocalRank>,
    /// True if the rank was claimed on this connection, and not assigned to it.
    pub(crate) claimed: bool,
    /// State of a claim of a rank that has another connection.
    pub(crate) contest: Contest,
    /// True if the last `init` came from a rank that had not finalized: from another process, or for another MPI session.
    pub(crate) is_repeated: bool,
    /// The last agreed version.
    version: Option<Version>,
}

/// State of a claim of a rank that has another connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Contest {
    #[default]
    None,
    /// The server handles the claim once more, after the end of the other connection if that has ended.
    Opened,
    /// The server handles the claim for the second time.
    Decided,
}

impl Conversation {
    /// Returns true for PMI-1.2: every fence answer then carries a tag.
    pub(crate) fn has_tags(&self) -> bool {
        self.version == Some(Version { major: 1, minor: 2 })
    }

    /// Returns true after the agreement on a version.
    pub(crate) fn is_greeted(&self) -> bool {
        self.version.is_some()
    }

    /// Agrees on a version, and returns the answer.
    pub(crate) fn greet(&mut self, asked: Version, offer: Offer) -> Response<'static> {
        let agreed = match asked.major {
            1 if offer.pmi1 => Version { major: 1, minor: if offer.group_barriers { 2 } else { 1 } },
            2 if offer.pmi2 => Version { major: 2, minor: 0 },
            1 | 2 => {
                let text = format!("PMI-{} is switched off for this launch", asked.major);
                return Response::Error { code: ErrorCode::Failed, text: text.into() };
            }
            other => {
                let text = format!("PMI version {other} is unknown, 1 and 2 are served");
                return Response::Error { code: ErrorCode::Failed, text: text.into() };
            }
        };
        self.version = Some(agreed);
        Response::Init(agreed)
    }

    /// Returns an error answer if `request` is not allowed in this state.
    pub(crate) fn refusal(&self, request: &Request<'_>) -> Option<Response<'static>> {
        let early = self.version.is_none();
        let text = match request {
            Request::Init(_) | Request::InitAck { .. } | Request::Abort { .. } => return None,
            _ if early && !matches!(request, Request::Adopted(_)) => "init comes first",
            Request::FullInit { .. } => return None,
            _ if self.rank.is_none() => "the rank of this connection is not known: initack or fullinit must come first",
            _ => return None,
        };
        Some(Response::Error { code: ErrorCode::NotThere, text: text.into() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn greeting(major: u32, offer: Offer) -> Response<'static> {
        Conversation::default().greet(Version { major, minor: 1 }, offer)
    }

    #[test]
    fn trap_03_init_is_answered_with_1_1_unless_1_2_is_wanted_and_with_2_0() {
        let all = Offer::default();
        assert_eq!(greeting(1, all), Response::Init(Version { major: 1, minor: 1 }));
        assert_eq!(greeting(2, all), Response::Init(Version { major: 2, minor: 0 }));
        let with_groups = Offer { group_barriers: true, ..all };
        assert_eq!(greeting(1, with_groups), Response::Init(Version { major: 1, minor: 2 }));
    }

    #[test]
    fn a_version_that_is_not_offered_is_refused_with_words() {
        let pmi2_only = Offer { pmi1: false, ..Offer::default() };
        assert!(matches!(greeting(1, pmi2_only), Response::Error { .. }));
        assert!(matches!(greeting(2, pmi2_only), Response::Init(_)));
        assert!(matches!(greeting(3, Offer::default()), Response::Error { .. }));
    }
}
