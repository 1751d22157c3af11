//! Handshake and encryption of a link: Noise `NNpsk0`, by the crate `snow`.
//!
//! The pre-shared key follows from the launch's key, so both ends are proved to be sessions of the launch; the greeting is the
//! prologue, so both are proved to mean the same two nodes. Keys are fresh for each link: what was recorded cannot be replayed,
//! nor read later by who learns the launch's key. Each end says in the handshake which version of frames it knows.

use std::fmt;

use bytes::{BufMut, BytesMut};
use snow::{Builder, HandshakeState, TransportState};

use super::greeting::Greeting;
use super::key::LinkKey;

/// The hash and the cipher are `ring`'s, which uses the instructions for AES of the processor.
const PATTERN: &str = "Noise_NNpsk0_25519_AESGCM_SHA256";
/// Each message of the handshake: a public key, and one byte of payload with its tag.
pub(super) const HANDSHAKE_LEN: usize = 32 + 1 + TAG_LEN;
const TAG_LEN: usize = 16;
/// Longest message of Noise (section 3 of its specification), in bytes.
const MESSAGE_MAX: usize = 65_535;
/// Most bytes of plaintext in one message.
const PLAIN_MAX: usize = MESSAGE_MAX - TAG_LEN;

/// Failure of a link's encryption: the other end is no session of the launch, or bytes were changed on their way.
#[derive(Debug, thiserror::Error)]
#[error("the other end does not have the launch's key, or bytes were changed on their way: {0}")]
pub struct NoiseError(#[from] snow::Error);

/// Handshake of one end.
pub(super) struct Handshake(HandshakeState);

impl Handshake {
    /// Handshake of the session that opens a link.
    pub(super) fn of_caller(key: &LinkKey, greeting: &Greeting) -> Result<Self, NoiseError> {
        Ok(Self(builder(&key.handshake_key(), greeting)?.build_initiator()?))
    }

    /// Handshake of the session that a link was handed to.
    pub(super) fn of_called(key: &LinkKey, greeting: &Greeting) -> Result<Self, NoiseError> {
        Ok(Self(builder(&key.handshake_key(), greeting)?.build_responder()?))
    }

    /// Own message, which says the version of the frames that this end sends and reads.
    pub(super) fn write(&mut self, version: u8) -> Result<[u8; HANDSHAKE_LEN], NoiseError> {
        let mut message = [0; HANDSHAKE_LEN];
        self.0.write_message(&[version], &mut message)?;
        Ok(message)
    }

    /// Takes the other end's message; returns its version.
    pub(super) fn read(&mut self, message: &[u8; HANDSHAKE_LEN]) -> Result<u8, NoiseError> {
        let mut payload = [0; HANDSHAKE_LEN];
        self.0.read_message(message, &mut payload)?;
        Ok(payload[0])
    }

    /// Ciphers of the link, when both messages went.
    pub(super) fn finish(self) -> Result<Ciphers, NoiseError> {
        Ok(Ciphers(self.0.into_transport_mode()?))
    }
}

fn builder<'key>(key: &'key [u8; LinkKey::LEN], greeting: &'key Greeting) -> Result<Builder<'key>, NoiseError> {
    let pattern = PATTERN.parse().expect("the pattern is one that snow knows");
    Ok(Builder::new(pattern).psk(0, key)?.prologue(greeting.as_bytes())?)
}

/// Ciphers of a link, one for each direction.
pub(super) struct Ciphers(TransportState);

impl Ciphers {
    /// Appends `plain` to `sealed` as messages, each after its length in two bytes.
    pub(super) fn seal(&mut self, plain: &[u8], sealed: &mut BytesMut) -> Result<(), NoiseError> {
        for piece in plain.chunks(PLAIN_MAX) {
            let len = piece.len() + TAG_LEN;
            sealed.put_u16(len as u16);
            let start = sealed.len();
            sealed.resize(start + len, 0);
            self.0.write_message(piece, &mut sealed[start..])?;
        }
        Ok(())
    }

    /// Moves all messages that are whole in `sealed` to the end of `plain`.
    pub(super) fn open(&mut self, sealed: &mut BytesMut, plain: &mut BytesMut) -> Result<(), NoiseError> {
        while let Some(len) = sealed.first_chunk().map(|len| usize::from(u16::from_be_bytes(*len))) {
            if sealed.len() < 2 + len {
                sealed.reserve(2 + len - sealed.len());
                break;
            }
            let message = sealed.split_to(2 + len);
            let start = plain.len();
            plain.resize(start + len, 0);
            let read = self.0.read_message(&message[2..], &mut plain[start..])?;
            plain.truncate(start + read);
        }
        Ok(())
    }
}

impl fmt::Debug for Ciphers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Ciphers")
    }
}
