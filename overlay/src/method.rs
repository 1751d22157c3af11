//! Methods that every member serves, and what they answer.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

/// Number of a method: those below 256 are ours, the others a program's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Method(pub u32);

impl Method {
    /// Answers a [`SetInfo`] of the callee's set.
    pub const SET_INFO: Self = Self(1);
    /// Answers with the body of the call.
    pub const PING: Self = Self(2);
    /// Answers [`Connectivity`]: the links that the callee has.
    pub const CONNECTIVITY: Self = Self(4);
    /// The first one that programs may serve.
    pub const FIRST_OF_PROGRAMS: Self = Self(256);

    /// Name of a method of ours, as commands take it.
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "set-info" => Some(Self::SET_INFO),
            "ping" => Some(Self::PING),
            "connectivity" => Some(Self::CONNECTIVITY),
            _ => None,
        }
    }
}

/// Facts about a set, as its members tell them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SetInfo {
    /// Id of the set.
    pub set: u32,
    /// The launch; `None` for a tool.
    pub launch: Option<String>,
    /// Number of its ranks.
    pub ranks: u32,
    /// Number of its members: sessions, one on each node.
    pub members: u32,
    /// Address of its root.
    pub root: String,
}

/// Links of a member.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Connectivity {
    /// The member.
    pub member: String,
    /// Its links, in the order of their far ends.
    pub links: Vec<LinkInfo>,
}

/// A link of a member.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkInfo {
    /// Far end of the link.
    pub to: String,
    /// `stride` within a set, `root` between two.
    pub kind: String,
    /// True if this member opened it.
    pub opened: bool,
    /// Frames that this member has sent over it.
    pub sent: u64,
    /// Frames that have come over it.
    pub received: u64,
}

/// Body of an answer that is a document.
pub(crate) fn document(answer: &impl Serialize) -> Bytes {
    serde_json::to_vec(answer).unwrap_or_default().into()
}
