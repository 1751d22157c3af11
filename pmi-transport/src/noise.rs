//! Handshake and encryption of a connection between ends that share one key: Noise `NNpsk0`, by the crate `snow`.
//!
//! The pre-shared key authenticates both ends. The prologue, which is not sent, ensures that both ends use the key for the same purpose.
//! Session keys are fresh for each connection: a recording cannot be replayed, nor decrypted later with the pre-shared key. Each end
//! sends the version of its following protocol in the handshake.

use std::fmt;

use bytes::{BufMut, BytesMut};
use snow::params::{CipherChoice, DHChoice, HashChoice};
use snow::resolvers::{CryptoResolver, DefaultResolver, RingResolver};
use snow::types::{Cipher, Dh, Hash, Random};
use snow::{Builder, HandshakeState, TransportState};

/// Length of a pre-shared key in bytes.
pub(crate) const KEY_LEN: usize = 32;
const PATTERN: &str = "Noise_NNpsk0_25519_AESGCM_SHA256";
/// Length of each handshake message: a public key, and one byte of payload with its tag.
pub(crate) const HANDSHAKE_LEN: usize = 32 + 1 + TAG_LEN;
const TAG_LEN: usize = 16;
/// Longest message of Noise (section 3 of its specification), in bytes.
const MESSAGE_MAX: usize = 65_535;
/// Most bytes of plaintext in one message.
const PLAIN_MAX: usize = MESSAGE_MAX - TAG_LEN;

/// Encryption failure of a connection: the other end has another key, or bytes were changed in transit.
#[derive(Debug, thiserror::Error)]
#[error("the other end does not have this key, or bytes were changed on their way: {0}")]
pub struct NoiseError(#[from] snow::Error);

/// Handshake of one end.
pub(crate) struct Handshake(HandshakeState);

impl Handshake {
    /// Handshake of the end that opened the connection.
    pub(crate) fn of_caller(key: &[u8; KEY_LEN], prologue: &[u8]) -> Result<Self, NoiseError> {
        Ok(Self(builder(key, prologue)?.build_initiator()?))
    }

    /// Handshake of the end that accepted the connection.
    pub(crate) fn of_called(key: &[u8; KEY_LEN], prologue: &[u8]) -> Result<Self, NoiseError> {
        Ok(Self(builder(key, prologue)?.build_responder()?))
    }

    /// Returns the own message, with the protocol version of this end.
    pub(crate) fn write(&mut self, version: u8) -> Result<[u8; HANDSHAKE_LEN], NoiseError> {
        let mut message = [0; HANDSHAKE_LEN];
        self.0.write_message(&[version], &mut message)?;
        Ok(message)
    }

    /// Reads the other end's message; returns its version.
    pub(crate) fn read(&mut self, message: &[u8; HANDSHAKE_LEN]) -> Result<u8, NoiseError> {
        let mut payload = [0; HANDSHAKE_LEN];
        self.0.read_message(message, &mut payload)?;
        Ok(payload[0])
    }

    /// Returns the ciphers of the connection, after both messages.
    pub(crate) fn finish(self) -> Result<Ciphers, NoiseError> {
        Ok(Ciphers(self.0.into_transport_mode()?))
    }
}

fn builder<'key>(key: &'key [u8; KEY_LEN], prologue: &'key [u8]) -> Result<Builder<'key>, NoiseError> {
    let pattern = PATTERN.parse().expect("the pattern is one that snow knows");
    Ok(Builder::with_resolver(pattern, Box::new(Primitives)).psk(0, key)?.prologue(prologue)?)
}

/// Hash and cipher are those of `ring`: it uses the processor's AES instructions, and the program contains it for TLS anyway. snow does
/// not use `ring` for the key exchange, so that is snow's own.
struct Primitives;

impl CryptoResolver for Primitives {
    fn resolve_rng(&self) -> Option<Box<dyn Random>> {
        RingResolver.resolve_rng()
    }

    fn resolve_dh(&self, choice: &DHChoice) -> Option<Box<dyn Dh>> {
        DefaultResolver.resolve_dh(choice)
    }

    fn resolve_hash(&self, choice: &HashChoice) -> Option<Box<dyn Hash>> {
        RingResolver.resolve_hash(choice)
    }

    fn resolve_cipher(&self, choice: &CipherChoice) -> Option<Box<dyn Cipher>> {
        RingResolver.resolve_cipher(choice)
    }
}

/// Ciphers of a connection, one for each direction.
pub(crate) struct Ciphers(TransportState);

impl Ciphers {
    /// Appends `plain` to `sealed` as messages. A length of two bytes precedes each message.
    pub(crate) fn seal(&mut self, plain: &[u8], sealed: &mut BytesMut) -> Result<(), NoiseError> {
        for piece in plain.chunks(PLAIN_MAX) {
            let len = piece.len() + TAG_LEN;
            sealed.put_u16(len as u16);
            let start = sealed.len();
            sealed.resize(start + len, 0);
            self.0.write_message(piece, &mut sealed[start..])?;
        }
        Ok(())
    }

    /// Decrypts all complete messages of `sealed`, and appends them to `plain`.
    pub(crate) fn open(&mut self, sealed: &mut BytesMut, plain: &mut BytesMut) -> Result<(), NoiseError> {
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
