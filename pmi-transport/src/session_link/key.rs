//! Keys of the links of one launch.

use std::fmt;

use ring::hkdf::{HKDF_SHA256, KeyType, Prk, Salt};
use ring::hmac;
use zeroize::Zeroizing;

use crate::sealed_stream::SharedKey;

/// Key of all links of a launch: 256 random bits. It is wiped from memory on drop.
#[derive(Clone, PartialEq, Eq)]
pub struct LinkKey(Zeroizing<[u8; Self::LEN]>);

/// Key by which an agent verifies greetings of a launch. It is derived from the launch's [`LinkKey`], and opens no
/// link.
#[derive(Clone)]
pub struct GateKey(hmac::Key);

/// Length of a derived key in bytes, in the form that `ring` requires.
struct DerivedLen;

impl KeyType for DerivedLen {
    fn len(&self) -> usize {
        LinkKey::LEN
    }
}

impl LinkKey {
    /// Length in bytes.
    pub const LEN: usize = 32;

    /// The key with these bytes.
    pub fn from_bytes(bytes: [u8; Self::LEN]) -> Self {
        Self(Zeroizing::new(bytes))
    }

    /// Its bytes, for the message to the sessions.
    pub fn as_bytes(&self) -> &[u8; Self::LEN] {
        &self.0
    }

    /// Key of the launch's greetings.
    pub fn gate_key(&self) -> GateKey {
        GateKey(hmac::Key::new(hmac::HMAC_SHA256, &*self.derived(&[b"lattice link gate"])))
    }

    /// Pre-shared key of the handshakes between sessions.
    pub(super) fn handshake_key(&self) -> Zeroizing<[u8; Self::LEN]> {
        self.derived(&[b"lattice link noise"])
    }

    /// Key of the connection that another set opens with these bytes.
    pub(super) fn pass_key(&self, opening: &[u8]) -> SharedKey {
        SharedKey::from_bytes(*self.derived(&[b"lattice set pass", opening]))
    }

    fn derived(&self, purpose: &[&[u8]]) -> Zeroizing<[u8; Self::LEN]> {
        let from: Prk = Salt::new(HKDF_SHA256, &[]).extract(&*self.0);
        let mut derived = Zeroizing::new([0; Self::LEN]);
        let output = from.expand(purpose, DerivedLen).expect("32 bytes are less than 255 blocks of the hash");
        output.fill(&mut *derived).expect("the buffer has the length that was asked for");
        derived
    }
}

impl GateKey {
    pub(super) fn sign(&self, message: &[u8]) -> hmac::Tag {
        hmac::sign(&self.0, message)
    }

    pub(super) fn verifies(&self, message: &[u8], mac: &[u8]) -> bool {
        hmac::verify(&self.0, message, mac).is_ok()
    }
}

/// Omits the key, so that no log contains it.
impl fmt::Debug for LinkKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LinkKey")
    }
}

/// Omits the key too.
impl fmt::Debug for GateKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("GateKey")
    }
}
