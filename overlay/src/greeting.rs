//! First bytes of a connection to a set's root: the caller, its purpose, and the mutual proof that both ends have the
//! set's key.
//!
//! ```text
//! caller                                                     root
//!   │ <──────────────────────────────── challenge, 32 bytes │
//!   │ version, purpose, own set, rank, challenge, proof: 74 ─> │  after a wrong proof no byte is sent
//!   │ <──────────────────────────────────── proof, 32 bytes │
//! ```
//! Each proof covers a fresh challenge of the other end, so a recording proves nothing.

use crate::address::SetId;
use crate::directory::{DirectoryError, SetKey, random};

/// Version of the layout.
const VERSION: u8 = 1;
/// Length of a challenge, and of a proof, in bytes.
pub const PROOF_LEN: usize = 32;
/// Length of a caller's greeting in bytes.
pub const GREETING_LEN: usize = HEAD_LEN + PROOF_LEN;
/// Length of the part that the caller's proof covers, in addition to the root's challenge.
const HEAD_LEN: usize = 1 + 1 + 4 + 4 + PROOF_LEN;

/// Rank of a caller that is not a rank. The root assigns it a number as a guest.
pub const GUEST: u32 = u32::MAX;

const OF_CALLER: &[u8] = b"lattice set caller";
const OF_ROOT: &[u8] = b"lattice set root";

/// Unpredictable number.
pub type Challenge = [u8; PROOF_LEN];

/// Use of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// A link between two roots: frames in both directions.
    Frames = 1,
    /// A meeting of launches: the caller's contribution, and the result.
    Meeting = 2,
    /// No data; the connection ends with either of the two processes.
    Presence = 3,
    /// The process of a rank of the set, or a guest: the root sends its rank in four bytes, then frames follow in both
    /// directions.
    Rank = 4,
}

/// Authenticated caller of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caller {
    /// Its set.
    pub set: SetId,
    /// Its rank in the set, or [`GUEST`]; 0 for a root.
    pub rank: u32,
    /// Purpose of the connection.
    pub purpose: Purpose,
}

/// Invalid greeting: of another version, with an unknown purpose, or without the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GreetingError {
    /// Another version.
    #[error("the caller speaks version {0}, this program {VERSION}")]
    Version(u8),
    /// Unknown purpose.
    #[error("the caller comes for {0}, which means nothing here")]
    Purpose(u8),
    /// The caller does not have the key.
    #[error("the caller does not know the set's key")]
    Key,
}

/// Makes a challenge.
///
/// # Errors
/// Fails if the kernel returns no random numbers.
pub fn challenge() -> Result<Challenge, DirectoryError> {
    random()
}

/// The caller's greeting. It answers the root's challenge, and contains the caller's own.
pub fn greet(key: &SetKey, caller: Caller, theirs: &Challenge, own: &Challenge) -> [u8; GREETING_LEN] {
    let mut greeting = [0; GREETING_LEN];
    greeting[0] = VERSION;
    greeting[1] = caller.purpose as u8;
    greeting[2..6].copy_from_slice(&caller.set.bits().to_be_bytes());
    greeting[6..10].copy_from_slice(&caller.rank.to_be_bytes());
    greeting[10..HEAD_LEN].copy_from_slice(own);
    let proof = key.prove(OF_CALLER, &[&theirs[..], &greeting[..HEAD_LEN]].concat());
    greeting[HEAD_LEN..].copy_from_slice(&proof);
    greeting
}

/// Verifies a greeting that answers `own`; returns its caller, and the root's proof for it.
///
/// # Errors
/// Refuses a caller without the key, and another version or purpose.
pub fn receive(
    key: &SetKey,
    own: &Challenge,
    greeting: &[u8; GREETING_LEN],
) -> Result<(Caller, [u8; PROOF_LEN]), GreetingError> {
    let (head, proof) = greeting.split_at(HEAD_LEN);
    if head[0] != VERSION {
        return Err(GreetingError::Version(head[0]));
    }
    if !key.verifies(OF_CALLER, &[&own[..], head].concat(), proof) {
        return Err(GreetingError::Key);
    }
    let purpose = match head[1] {
        1 => Purpose::Frames,
        2 => Purpose::Meeting,
        3 => Purpose::Presence,
        4 => Purpose::Rank,
        other => return Err(GreetingError::Purpose(other)),
    };
    let number = |at: usize| u32::from_be_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
    let (set, rank) = (SetId::from_bits(number(2)), number(6));
    Ok((Caller { set, rank, purpose }, key.prove(OF_ROOT, &head[10..])))
}

/// Returns true if this is the root's proof for the caller's challenge.
pub fn is_root(key: &SetKey, own: &Challenge, proof: &[u8; PROOF_LEN]) -> bool {
    key.verifies(OF_ROOT, own, proof)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(byte: u8) -> SetKey {
        SetKey::from_bytes([byte; 32])
    }

    const CALLER: Caller = Caller { set: SetId::from_bits(77), rank: 5, purpose: Purpose::Meeting };

    #[test]
    fn both_ends_prove_that_they_know_the_key() {
        let (theirs, own) = (challenge().unwrap(), challenge().unwrap());
        let greeting = greet(&key(1), CALLER, &theirs, &own);
        let (caller, proof) = receive(&key(1), &theirs, &greeting).unwrap();
        assert_eq!(caller, CALLER);
        assert!(is_root(&key(1), &own, &proof));
        assert!(!is_root(&key(2), &own, &proof));
        assert!(!is_root(&key(1), &theirs, &proof));
    }

    #[test]
    fn a_wrong_key_a_recorded_greeting_and_every_changed_byte_are_refused() {
        let (theirs, own) = (challenge().unwrap(), challenge().unwrap());
        let greeting = greet(&key(1), CALLER, &theirs, &own);
        assert_eq!(receive(&key(2), &theirs, &greeting), Err(GreetingError::Key));
        assert_eq!(receive(&key(1), &challenge().unwrap(), &greeting), Err(GreetingError::Key));
        for at in 1..GREETING_LEN {
            let mut changed = greeting;
            changed[at] ^= 1;
            assert_eq!(receive(&key(1), &theirs, &changed), Err(GreetingError::Key), "{at}");
        }
    }

    #[test]
    fn another_version_is_told() {
        let theirs = challenge().unwrap();
        let mut greeting = greet(&key(1), CALLER, &theirs, &theirs);
        greeting[0] = 2;
        assert_eq!(receive(&key(1), &theirs, &greeting), Err(GreetingError::Version(2)));
    }
}
