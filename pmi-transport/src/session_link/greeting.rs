//! First bytes of a link. The agent of the called node reads them.
//!
//! ```text
//!   0        8           24     28   32         48                  80
//!   │ magic  │ launch    │ from │ to │ nonce    │ HMAC-SHA256 of    │   numbers big-endian
//!   │ 8      │ hash, 16  │ 4    │ 4  │ 16       │ the 48 bytes, 32  │
//! ```

use std::fmt;

use pmi_core::ids::NodeIndex;
use ring::digest::{SHA256, digest};

use super::key::GateKey;

/// Magic number of a greeting of this version. Its first byte starts neither TLS (0x16) nor HTTP/2 ("PRI").
pub(crate) const MAGIC: [u8; 8] = *b"LATLINK1";

const SIGNED_LEN: usize = 48;

/// Short name of a launch: the first 16 bytes of the SHA-256 of its id.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct LaunchHash([u8; 16]);

impl LaunchHash {
    /// The short name of the launch `id`.
    pub fn of(id: &str) -> Self {
        let digest = digest(&SHA256, id.as_bytes());
        Self(digest.as_ref()[..16].try_into().expect("a SHA-256 has 32 bytes"))
    }
}

impl fmt::Debug for LaunchHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Announcement of a link. Its content is unproven until [`is_signed_by`](Self::is_signed_by) succeeds.
#[derive(Clone, PartialEq, Eq)]
pub struct Greeting {
    bytes: [u8; Self::LEN],
}

/// Refusal of bytes that are not a greeting of this version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the connection opens with {seen:02x?}; a link of this version opens with {MAGIC:02x?}")]
pub struct GreetingError {
    /// First bytes of the connection.
    pub seen: [u8; 8],
}

impl Greeting {
    /// Length in bytes.
    pub const LEN: usize = 80;

    /// Caller outside the launch: the root of another set.
    pub const OTHER_SET: NodeIndex = NodeIndex(u32::MAX);

    /// The greeting of node `from` of a launch to node `to`. The nonce must be unused.
    pub fn new(launch: LaunchHash, from: NodeIndex, to: NodeIndex, nonce: [u8; 16], key: &GateKey) -> Self {
        let mut bytes = [0; Self::LEN];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..24].copy_from_slice(&launch.0);
        bytes[24..28].copy_from_slice(&from.0.to_be_bytes());
        bytes[28..32].copy_from_slice(&to.0.to_be_bytes());
        bytes[32..48].copy_from_slice(&nonce);
        let mac = key.sign(&bytes[..SIGNED_LEN]);
        bytes[SIGNED_LEN..].copy_from_slice(mac.as_ref());
        Self { bytes }
    }

    /// Parses a greeting.
    ///
    /// # Errors
    /// Refuses bytes with another magic number.
    pub fn from_bytes(bytes: [u8; Self::LEN]) -> Result<Self, GreetingError> {
        match bytes[..8].try_into() {
            Ok(MAGIC) => Ok(Self { bytes }),
            Ok(seen) => Err(GreetingError { seen }),
            Err(_) => Err(GreetingError { seen: [0; 8] }),
        }
    }

    /// Its bytes.
    pub fn as_bytes(&self) -> &[u8; Self::LEN] {
        &self.bytes
    }

    /// Launch of the link.
    pub fn launch(&self) -> LaunchHash {
        let mut hash = [0; 16];
        hash.copy_from_slice(&self.bytes[8..24]);
        LaunchHash(hash)
    }

    /// Calling node.
    pub fn from(&self) -> NodeIndex {
        self.node_at(24)
    }

    /// Called node.
    pub fn to(&self) -> NodeIndex {
        self.node_at(28)
    }

    /// Random number of the greeting.
    pub fn nonce(&self) -> [u8; 16] {
        let mut nonce = [0; 16];
        nonce.copy_from_slice(&self.bytes[32..SIGNED_LEN]);
        nonce
    }

    /// Returns true if a session of the launch with this key wrote it.
    pub fn is_signed_by(&self, key: &GateKey) -> bool {
        key.verifies(&self.bytes[..SIGNED_LEN], &self.bytes[SIGNED_LEN..])
    }

    fn node_at(&self, offset: usize) -> NodeIndex {
        let mut number = [0; 4];
        number.copy_from_slice(&self.bytes[offset..offset + 4]);
        NodeIndex(u32::from_be_bytes(number))
    }
}

impl fmt::Debug for Greeting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (launch, from, to) = (self.launch(), self.from(), self.to());
        f.debug_struct("Greeting").field("launch", &launch).field("from", &from).field("to", &to).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session_link::LinkKey;

    fn key(byte: u8) -> GateKey {
        LinkKey::from_bytes([byte; LinkKey::LEN]).gate_key()
    }

    fn greeting() -> Greeting {
        Greeting::new(LaunchHash::of("launch"), NodeIndex(3), NodeIndex(0x0102_0304), [9; 16], &key(1))
    }

    #[test]
    fn what_was_written_is_read() {
        let read = Greeting::from_bytes(*greeting().as_bytes()).unwrap();
        assert_eq!(
            (read.launch(), read.from(), read.to()),
            (LaunchHash::of("launch"), NodeIndex(3), NodeIndex(0x0102_0304))
        );
        assert!(read.is_signed_by(&key(1)));
    }

    #[test]
    fn a_session_of_another_launch_cannot_sign() {
        assert!(!greeting().is_signed_by(&key(2)));
        assert_ne!(LaunchHash::of("launch"), LaunchHash::of("launch2"));
    }

    #[test]
    fn no_byte_can_be_changed() {
        for at in 8..Greeting::LEN {
            let mut bytes = *greeting().as_bytes();
            bytes[at] ^= 1;
            assert!(!Greeting::from_bytes(bytes).unwrap().is_signed_by(&key(1)), "byte {at}");
        }
    }

    #[test]
    fn other_protocols_are_told_apart() {
        let mut bytes = *greeting().as_bytes();
        bytes[..8].copy_from_slice(b"PRI * HT");
        let error = Greeting::from_bytes(bytes).unwrap_err();
        assert_eq!(error.seen, *b"PRI * HT");
    }
}
