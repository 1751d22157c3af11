//! Methods that every member serves, and their answers.

use bytes::{Buf, Bytes};
use serde::{Deserialize, Serialize};

/// Number of a method: numbers below 256 are ours, the rest is for programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Method(pub u32);

impl Method {
    /// Returns a [`SetInfo`] of the called process's set.
    pub const SET_INFO: Self = Self(1);
    /// Returns the body of the call.
    pub const PING: Self = Self(2);
    /// Requests a connection from a program: its handler for the name returns the necessary information. The body is [`named`].
    pub const CONNECT: Self = Self(3);
    /// Returns [`Connectivity`]: the links of the called member.
    pub const CONNECTIVITY: Self = Self(4);
    /// Returns [`Communicators`]: the communicators of the ranks at the called session. An empty body selects all of them; otherwise it is the
    /// id or name of one.
    pub const COMMUNICATOR: Self = Self(5);
    /// Returns the port of the name in the body, like `MPI_Lookup_name` at the called process.
    pub const LOOKUP: Self = Self(6);
    /// Publishes a port while the called set lives. The body is [`named`].
    pub const PUBLISH: Self = Self(7);
    /// Withdraws the name in the body.
    pub const UNPUBLISH: Self = Self(8);
    /// The first method number for programs.
    pub const FIRST_OF_PROGRAMS: Self = Self(256);

    /// Our methods by their names, as commands use them.
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

    /// Our method with this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::NAMED.into_iter().find(|&(known, _)| known == name).map(|(_, method)| method)
    }

    /// Returns true if the process of a rank answers it, and not its session.
    pub fn is_of_programs(self) -> bool {
        self == Self::CONNECT || self >= Self::FIRST_OF_PROGRAMS
    }

    /// Returns true if its body begins with a name.
    pub fn is_named(self) -> bool {
        self == Self::CONNECT || self == Self::PUBLISH
    }
}

/// Facts about a set, as its members report them.
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
    /// Frames that this member has received over it.
    pub received: u64,
}

/// Communicators of a member's ranks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Communicators {
    /// The member.
    pub member: String,
    /// The communicators: `MPI_COMM_WORLD`, then groups in the order of their names.
    pub communicators: Vec<Communicator>,
    /// Number of communicators that do not fit into the answer.
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
    /// Its processes; empty if the answer would be too long with them. A request for a single communicator returns them.
    pub members: Vec<CommunicatorPart>,
}

/// Processes of a communicator from one job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommunicatorPart {
    /// Address of the set of the ranks; otherwise the job: one that ranks have spawned, or a job of another launch.
    pub of: String,
    /// The ranks, such as `0-3,7`.
    pub ranks: String,
}

/// Body that begins with a name of 1 to 255 bytes, after its length in one byte; `None` for a name of another length.
pub fn named(name: &[u8], rest: &[u8]) -> Option<Bytes> {
    let length = u8::try_from(name.len()).ok().filter(|&length| length > 0)?;
    Some([&[length], name, rest].concat().into())
}

/// Splits such a body into its name and the rest.
pub fn take_named(mut body: Bytes) -> Option<(Bytes, Bytes)> {
    let length = usize::from(body.try_get_u8().ok()?);
    (1..=body.len()).contains(&length).then(|| (body.split_to(length), body))
}

/// Body of an answer that is a JSON document.
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
