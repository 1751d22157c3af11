//! Methods that every member serves, and what they answer.

use bytes::{Buf, Bytes};
use serde::{Deserialize, Serialize};

/// Number of a method: those below 256 are ours, the others a program's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Method(pub u32);

impl Method {
    /// Answers a [`SetInfo`] of the callee's set.
    pub const SET_INFO: Self = Self(1);
    /// Answers with the body of the call.
    pub const PING: Self = Self(2);
    /// Asks a program for a connection of its own kind: its handler for the name answers what is needed for that. The body is a
    /// [`named`] one.
    pub const CONNECT: Self = Self(3);
    /// Answers [`Connectivity`]: the links that the callee has.
    pub const CONNECTIVITY: Self = Self(4);
    /// Answers [`Communicators`]: those that ranks at the callee's session are in. The body is empty for all of them, else the id of one or its
    /// name.
    pub const COMMUNICATOR: Self = Self(5);
    /// Answers with the port of the name in the body, as `MPI_Lookup_name` does at the callee.
    pub const LOOKUP: Self = Self(6);
    /// Publishes a port for as long as the callee's set lives. The body is a [`named`] one.
    pub const PUBLISH: Self = Self(7);
    /// Withdraws the name in the body.
    pub const UNPUBLISH: Self = Self(8);
    /// The first one that programs may serve.
    pub const FIRST_OF_PROGRAMS: Self = Self(256);

    /// Methods of ours by their names, as commands take them.
    pub const NAMED: [(&'static str, Self); 8] = [
        ("set-info", Self::SET_INFO),
        ("ping", Self::PING),
        ("connect", Self::CONNECT),
        ("connectivity", Self::CONNECTIVITY),
        ("communicator", Self::COMMUNICATOR),
        ("lookup", Self::LOOKUP),
        ("publish", Self::PUBLISH),
        ("unpublish", Self::UNPUBLISH),
    ];

    /// Method of ours with this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::NAMED.into_iter().find(|&(known, _)| known == name).map(|(_, method)| method)
    }

    /// Returns true if the process of a rank answers it, and not its session.
    pub fn is_of_programs(self) -> bool {
        self == Self::CONNECT || self >= Self::FIRST_OF_PROGRAMS
    }

    /// Returns true if its body opens with a name.
    pub fn is_named(self) -> bool {
        self == Self::CONNECT || self == Self::PUBLISH
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
    /// `stride` or `direct` within a set, `root` between two, `rank` to a process.
    pub kind: String,
    /// True if this member opened it.
    pub opened: bool,
    /// Frames that this member has sent over it.
    pub sent: u64,
    /// Frames that have come over it.
    pub received: u64,
}

/// Communicators of a member's ranks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Communicators {
    /// The member.
    pub member: String,
    /// The communicators: `MPI_COMM_WORLD`, then groups in the order of their names.
    pub communicators: Vec<Communicator>,
    /// Number of those for which an answer has no room.
    pub left_out: u32,
}

/// A communicator: a group of processes with an id.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Communicator {
    /// Its [`GroupId`](crate::address::GroupId) as text.
    pub id: String,
    /// Its name.
    pub name: String,
    /// Number of its processes.
    pub size: u32,
    /// Its processes; empty in an answer that would be too long with them. Who asks for one communicator is told them.
    pub members: Vec<CommunicatorPart>,
}

/// Processes of a communicator that are of one job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommunicatorPart {
    /// Address of the set whose ranks they are, else the job: one that ranks have spawned, or of another launch.
    pub of: String,
    /// The ranks, as `0-3,7`.
    pub ranks: String,
}

/// Body that opens with a name of 1 to 255 bytes, after its length in one byte; `None` for a name of another length.
pub fn named(name: &[u8], rest: &[u8]) -> Option<Bytes> {
    let length = u8::try_from(name.len()).ok().filter(|&length| length > 0)?;
    Some([&[length], name, rest].concat().into())
}

/// Name at the beginning of such a body, and the rest.
pub fn take_named(mut body: Bytes) -> Option<(Bytes, Bytes)> {
    let length = usize::from(body.try_get_u8().ok()?);
    (1..=body.len()).contains(&length).then(|| (body.split_to(length), body))
}

/// Body of an answer that is a document.
pub fn document(answer: &impl Serialize) -> Bytes {
    serde_json::to_vec(answer).unwrap_or_default().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_read_as_it_was_written_and_none_is_longer_than_its_body() {
        for (name, rest) in [(&b"a"[..], &b"rest"[..]), (&[7; 255], b""), (b"bay", &[0; 300])] {
            let (read, left) = take_named(named(name, rest).unwrap()).unwrap();
            assert_eq!((&read[..], &left[..]), (name, rest));
        }
        assert_eq!((named(b"", b"rest"), named(&[7; 256], b"")), (None, None));
        for body in [&b""[..], &[0], &[0, 1], &[2, 1]] {
            assert_eq!(take_named(Bytes::copy_from_slice(body)), None, "{body:?}");
        }
    }
}
