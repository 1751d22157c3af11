//! The first frame of a client: which rank it is, and how it will speak.
//!
//! Texts end with a NUL, numbers have their high byte first. The credential (`native`: uid and gid) proves nothing, and is passed
//! over; who the peer is, the driver asks the kernel.

use bytes::{BufMut, Bytes, BytesMut};

use super::Encoding;

/// Identity that a client claims.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Handshake<'a> {
    /// The namespace that it belongs to.
    pub namespace: &'a [u8],
    /// Its rank there.
    pub rank: u32,
    /// The version of its library.
    pub version: Version,
    /// Encoding of its payloads.
    pub encoding: Encoding,
    /// The name of that, as the client says it.
    pub module: &'static str,
}

/// The version of a client's library: some replies depend on it, beyond the encoding.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Version {
    /// As in **4**.2.2.
    pub major: u32,
    /// As in 4.**2**.2.
    pub minor: u32,
}

/// Reason for which a client is not served.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HandshakeError {
    /// The frame ends too early.
    #[error("a PMIx handshake that ends in the middle")]
    Truncated,
    /// The peer is a tool, a launcher or a singleton.
    #[error("a PMIx peer of kind {kind}: only launched ranks are served, no tools")]
    NotARank {
        /// The kind it says.
        kind: u8,
    },
    /// Its encoding is not served.
    #[error("a PMIx client of version {version} that encodes as {module:?}; v21, v3, v4 and v41 are served")]
    Encoding {
        /// Its version, as it says.
        version: String,
        /// Its encoding, as it says.
        module: String,
    },
    /// The peer sends the type of each item along.
    #[error("a PMIx client that sends fully described buffers (kind {kind}); unset PMIX_MCA_bfrops_base_default_type")]
    Described {
        /// The kind of buffer it says.
        kind: u8,
    },
}

/// The kind of a launched rank.
const RANK: u8 = 0;

/// Buffers without the types of their items.
const NOT_DESCRIBED: u8 = 1;

impl<'a> Handshake<'a> {
    /// Reads the payload of a first frame.
    ///
    /// # Errors
    /// Refuses clients that cannot be served, and says why.
    pub fn decode(payload: &'a [u8]) -> Result<Self, HandshakeError> {
        let mut rest = payload;
        text(&mut rest)?;
        let credential = number(&mut rest)?;
        take(&mut rest, credential as usize)?;
        let kind = byte(&mut rest)?;
        if kind != RANK {
            return Err(HandshakeError::NotARank { kind });
        }
        let namespace = text(&mut rest)?;
        let rank = number(&mut rest)?;
        let version = text(&mut rest)?;
        // Clients of 2.0 end here.
        let module = text(&mut rest).unwrap_or_default();
        let (encoding, module) = match module {
            b"v21" => (Encoding::Fixed, "v21"),
            b"v3" => (Encoding::Fixed, "v3"),
            b"v4" => (Encoding::Flex, "v4"),
            b"v41" => (Encoding::Flex, "v41"),
            module => {
                let words = |bytes: &[u8]| String::from_utf8_lossy(bytes).chars().take(40).collect();
                return Err(HandshakeError::Encoding { version: words(version), module: words(module) });
            }
        };
        match byte(&mut rest)? {
            NOT_DESCRIBED => Ok(Self { namespace, rank, version: Version::of(version), encoding, module }),
            kind => Err(HandshakeError::Described { kind }),
        }
    }
}

impl Version {
    /// The numbers at the beginning of a text such as `4.2.2rc2`; what is not there is 0.
    fn of(text: &[u8]) -> Self {
        let text = String::from_utf8_lossy(text);
        let mut numbers = text.split('.').map(|part| {
            let digits = part.find(|c: char| !c.is_ascii_digit()).unwrap_or(part.len());
            part[..digits].parse().unwrap_or(0)
        });
        Self { major: numbers.next().unwrap_or(0), minor: numbers.next().unwrap_or(0) }
    }
}

/// The answer to a client that is welcome. It repeats `index` in its headers.
pub fn welcome(index: u32) -> Bytes {
    let mut bytes = BytesMut::with_capacity(8);
    bytes.put_u32(0);
    bytes.put_u32(index);
    bytes.freeze()
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

    /// As Open MPI 4.1.8's own libpmix sends it.
    const RECORDED: &[u8] = b"native\0\0\0\0\x08\0\0\0\0\0\0\0\0\0job1\0\0\0\0\x013.2.5a1\0v3\0\x01hash\0";

    #[test]
    fn a_recorded_handshake_is_understood() {
        let handshake = Handshake::decode(RECORDED).unwrap();
        let version = Version { major: 3, minor: 2 };
        let encoding = Encoding::Fixed;
        assert_eq!(handshake, Handshake { namespace: b"job1", rank: 1, version, encoding, module: "v3" });
        // up to the buffer type everything is needed
        for end in 0..RECORDED.len() - 5 {
            assert!(Handshake::decode(&RECORDED[..end]).is_err(), "{end} bytes were enough");
        }
    }

    #[test]
    fn clients_that_cannot_be_served_are_refused_with_words() {
        let check = |from: &[u8], to: &[u8], words: &str| {
            let at = RECORDED.windows(from.len()).position(|window| window == from).unwrap();
            let bytes = [&RECORDED[..at], to, &RECORDED[at + from.len()..]].concat();
            let error = Handshake::decode(&bytes).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        };
        check(b"\0job1", b"\x03job1", "no tools");
        check(b"v3\0", b"v20\0", "version 3.2.5a1 that encodes as \"v20\"");
        check(b"\x01hash", b"\x02hash", "fully described");
    }
}
