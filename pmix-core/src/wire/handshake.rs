//! The first frame of a client: its claim of a rank or as a tool, its version and its encoding.
//!
//! Texts end with a NUL, numbers have their high byte first. The credential (`native`: uid and gid) is unverified, and is skipped. The
//! driver gets the user of the peer from the kernel.

use bytes::{BufMut, Bytes, BytesMut};

use super::Encoding;
use super::reader::Proc;

/// Identity that a client claims.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Handshake<'a> {
    /// The claimed rank, or the tool.
    pub claim: Claim<'a>,
    /// The version of its library.
    pub version: Version,
    /// Encoding of its payloads.
    pub encoding: Encoding,
    /// Name of the encoding, as in the client's frame.
    pub module: &'static str,
}

/// Kind of a client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Claim<'a> {
    /// A launched rank.
    Rank(Proc<'a>),
    /// A tool (`PMIx_tool_init`), with its existing name; without one the server assigns a name.
    Tool(Option<Proc<'a>>),
}

/// The version of a client's library: some replies depend on it, beyond the encoding.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Version {
    /// As in **4**.2.2.
    pub major: u32,
    /// As in 4.**2**.2.
    pub minor: u32,
    /// As in 4.2.**2**. Release candidates have the number of their release.
    pub patch: u32,
}

/// Reason why a client is not served.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HandshakeError {
    /// The frame ends too early.
    #[error("a PMIx handshake that ends in the middle")]
    Truncated,
    /// The client is a singleton, which then runs without a server, or a tool of PMIx 2.
    #[error("a PMIx peer of kind {kind}: launched ranks and tools of PMIx 3 and later are served")]
    Kind {
        /// The declared kind.
        kind: u8,
    },
    /// Its encoding is not served.
    #[error("a PMIx client of version {version} that encodes as {module:?}; v21, v3, v4, v41, v51 and v61 are served")]
    Encoding {
        /// The declared version.
        version: String,
        /// The declared encoding.
        module: String,
    },
    /// The client also sends the type of each item.
    #[error("a PMIx client that sends fully described buffers (kind {kind}); unset PMIX_MCA_bfrops_base_default_type")]
    Described {
        /// The declared kind of buffer.
        kind: u8,
    },
}

/// The kinds of clients. Launchers are tools that also start processes.
mod kind {
    pub(super) const RANK: u8 = 0;
    pub(super) const TOOL_WITHOUT_NAME: u8 = 3;
    pub(super) const TOOL_WITH_NAME: u8 = 4;
    /// A tool that starts with the variables of a rank.
    pub(super) const TOOL_OF_RANK: u8 = 5;
    pub(super) const LAUNCHER_WITHOUT_NAME: u8 = 6;
    pub(super) const LAUNCHER_WITH_NAME: u8 = 7;
    pub(super) const LAUNCHER_OF_RANK: u8 = 8;
}

/// Length of a namespace in an answer to a tool, in bytes with its NULs.
const NAMESPACE: usize = 256;

/// Buffers without the types of their items.
const NOT_DESCRIBED: u8 = 1;

impl<'a> Handshake<'a> {
    /// Decodes the payload of a first frame.
    ///
    /// # Errors
    /// Refuses clients that cannot be served, with the reason.
    pub fn decode(payload: &'a [u8]) -> Result<Self, HandshakeError> {
        let mut rest = payload;
        text(&mut rest)?;
        let credential = number(&mut rest)?;
        take(&mut rest, credential as usize)?;
        let claim = claim(&mut rest)?;
        let version = text(&mut rest)?;
        // Clients of 2.0 end here.
        let module = text(&mut rest).unwrap_or_default();
        let (encoding, module) = match module {
            b"v21" => (Encoding::Fixed, "v21"),
            b"v3" => (Encoding::Fixed, "v3"),
            b"v4" => (Encoding::Flex, "v4"),
            b"v41" => (Encoding::Flex, "v41"),
            // The same bytes as v41, and a few newer types of values.
            b"v51" => (Encoding::Flex, "v51"),
            b"v61" => (Encoding::Flex, "v61"),
            module => {
                let words = |bytes: &[u8]| String::from_utf8_lossy(bytes).chars().take(40).collect();
                return Err(HandshakeError::Encoding { version: words(version), module: words(module) });
            }
        };
        match byte(&mut rest)? {
            NOT_DESCRIBED => Ok(Self { claim, version: Version::of(version), encoding, module }),
            kind => Err(HandshakeError::Described { kind }),
        }
    }
}

impl Version {
    /// Creates a version from its numbers.
    pub(super) const fn new(major: u32, minor: u32, patch: u32) -> Self {
        Self { major, minor, patch }
    }

    /// The numbers at the beginning of a text such as `4.2.2rc2`; missing numbers are 0.
    fn of(text: &[u8]) -> Self {
        let text = String::from_utf8_lossy(text);
        let mut numbers = text.split('.').map(|part| {
            let digits = part.find(|c: char| !c.is_ascii_digit()).unwrap_or(part.len());
            part[..digits].parse().unwrap_or(0)
        });
        let mut next = || numbers.next().unwrap_or(0);
        Self { major: next(), minor: next(), patch: next() }
    }
}

/// The answer to an accepted client. The client repeats `index` in its headers.
pub fn welcome(index: u32) -> Bytes {
    let mut bytes = BytesMut::with_capacity(8);
    bytes.put_u32(0);
    bytes.put_u32(index);
    bytes.freeze()
}

/// The answer to an accepted tool: the assigned name, if the tool needs one, and the server's name.
pub fn welcome_tool(given: Option<Proc<'_>>, server: Proc<'_>) -> Bytes {
    let mut bytes = BytesMut::with_capacity(2 * NAMESPACE + 16);
    bytes.put_u32(0);
    for name in given.into_iter().chain([server]) {
        let text = &name.namespace[..name.namespace.len().min(NAMESPACE - 1)];
        bytes.put_slice(text);
        bytes.put_bytes(0, NAMESPACE - text.len());
        bytes.put_u32(name.rank);
    }
    // Result of the check of its credential.
    bytes.put_u32(0);
    bytes.freeze()
}

/// Decodes the claim of the client. Tools also send their user and group, which are unverified too.
fn claim<'a>(rest: &mut &'a [u8]) -> Result<Claim<'a>, HandshakeError> {
    let kind = byte(rest)?;
    match kind {
        kind::RANK => Ok(Claim::Rank(proc(rest)?)),
        kind::TOOL_WITHOUT_NAME | kind::LAUNCHER_WITHOUT_NAME => {
            take(rest, 8)?;
            Ok(Claim::Tool(None))
        }
        kind::TOOL_WITH_NAME | kind::TOOL_OF_RANK | kind::LAUNCHER_WITH_NAME | kind::LAUNCHER_OF_RANK => {
            take(rest, 8)?;
            Ok(Claim::Tool(Some(proc(rest)?)))
        }
        kind => Err(HandshakeError::Kind { kind }),
    }
}

fn proc<'a>(rest: &mut &'a [u8]) -> Result<Proc<'a>, HandshakeError> {
    let namespace = text(rest)?;
    Ok(Proc { namespace, rank: number(rest)? })
}

fn take<'a>(rest: &mut &'a [u8], len: usize) -> Result<&'a [u8], HandshakeError> {
    let (taken, left) = rest.split_at_checked(len).ok_or(HandshakeError::Truncated)?;
    *rest = left;
    Ok(taken)
}

fn byte(rest: &mut &[u8]) -> Result<u8, HandshakeError> {
    Ok(take(rest, 1)?[0])
}

fn number(rest: &mut &[u8]) -> Result<u32, HandshakeError> {
    Ok(take(rest, 4)?.iter().fold(0, |number, &byte| number << 8 | u32::from(byte)))
}

fn text<'a>(rest: &mut &'a [u8]) -> Result<&'a [u8], HandshakeError> {
    let end = rest.iter().position(|&byte| byte == 0).ok_or(HandshakeError::Truncated)?;
    let text = take(rest, end)?;
    take(rest, 1)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sent by Open MPI 4.1.8's own libpmix.
    const RECORDED: &[u8] = b"native\0\0\0\0\x08\0\0\0\0\0\0\0\0\0job1\0\0\0\0\x013.2.5a1\0v3\0\x01hash\0";

    #[test]
    fn a_recorded_handshake_is_understood() {
        let handshake = Handshake::decode(RECORDED).unwrap();
        let version = Version { major: 3, minor: 2, patch: 5 };
        let encoding = Encoding::Fixed;
        let claim = Claim::Rank(Proc { namespace: b"job1", rank: 1 });
        assert_eq!(handshake, Handshake { claim, version, encoding, module: "v3" });
        // everything up to the buffer type is required
        for end in 0..RECORDED.len() - 5 {
            assert!(Handshake::decode(&RECORDED[..end]).is_err(), "{end} bytes were enough");
        }
    }

    /// The first frame of `pps` of libpmix 4.2.2, without the facts about itself at the end; and the same with a name.
    #[test]
    fn tools_come_with_and_without_a_name() {
        let greeting = |kind: u8, name: &[u8]| {
            let begin = [b"native\0\0\0\0\x08\0\0\0\0\0\0\0\0", &[kind][..], b"\0\0\x03\xe8\0\0\x03\xe8"].concat();
            [&begin, name, b"4.2.2rc2\0v41\0\x01hash\0"].concat()
        };
        for kind in [kind::TOOL_WITHOUT_NAME, kind::LAUNCHER_WITHOUT_NAME] {
            let greeting = greeting(kind, b"");
            assert_eq!(Handshake::decode(&greeting).unwrap().claim, Claim::Tool(None));
            assert!((0..greeting.len() - 6).all(|end| Handshake::decode(&greeting[..end]).is_err()));
        }
        for kind in [kind::TOOL_WITH_NAME, kind::TOOL_OF_RANK, kind::LAUNCHER_WITH_NAME, kind::LAUNCHER_OF_RANK] {
            let greeting = greeting(kind, b"debugger\0\0\0\0\x07");
            let name = Proc { namespace: b"debugger", rank: 7 };
            assert_eq!(Handshake::decode(&greeting).unwrap().claim, Claim::Tool(Some(name)));
        }
    }

    #[test]
    fn younger_encodings_are_read_like_v41() {
        for module in ["v4", "v41", "v51", "v61"] {
            let at = RECORDED.windows(3).position(|window| window == b"v3\0").unwrap();
            let bytes = [&RECORDED[..at], module.as_bytes(), &RECORDED[at + 2..]].concat();
            let handshake = Handshake::decode(&bytes).unwrap();
            assert_eq!((handshake.encoding, handshake.module), (Encoding::Flex, module));
        }
    }

    #[test]
    fn a_tool_reads_names_of_one_length() {
        let server = Proc { namespace: b"lattice", rank: 0 };
        let named = welcome_tool(None, server);
        assert_eq!((named.len(), &named[4..12]), (4 + 260 + 4, &b"lattice\0"[..]));
        let long = [b'x'; 300];
        let unnamed = welcome_tool(Some(Proc { namespace: &long, rank: 5 }), server);
        assert_eq!(unnamed.len(), 4 + 260 + 260 + 4);
        assert_eq!((&unnamed[258..260], &unnamed[260..264]), (&b"x\0"[..], &5_u32.to_be_bytes()[..]));
    }

    #[test]
    fn clients_that_cannot_be_served_are_refused_with_words() {
        let check = |from: &[u8], to: &[u8], words: &str| {
            let at = RECORDED.windows(from.len()).position(|window| window == from).unwrap();
            let bytes = [&RECORDED[..at], to, &RECORDED[at + from.len()..]].concat();
            let error = Handshake::decode(&bytes).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        };
        check(b"\0job1", b"\x09job1", "kind 9");
        check(b"\0job1", b"\x01job1", "tools of PMIx 3 and later");
        check(b"v3\0", b"v20\0", "version 3.2.5a1 that encodes as \"v20\"");
        check(b"\x01hash", b"\x02hash", "fully described");
    }
}
