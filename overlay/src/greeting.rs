//! First bytes of a connection to a set's root: who comes, what for, and the proof that both know the key of the set.
//!
//! ```text
//! caller                                                     root
//!   │ <──────────────────────────────── challenge, 32 bytes │
//!   │ version, purpose, own set, rank, challenge, proof: 74 ─> │  a wrong proof gets no further byte
//!   │ <──────────────────────────────────── proof, 32 bytes │
//! ```
//! Each proof is over a challenge that the other end has just made: what was recorded proves nothing.

use crate::address::SetId;
use crate::directory::{DirectoryError, SetKey, random};

/// Version of the bytes.
const VERSION: u8 = 1;
/// Length of a challenge, and of a proof.
pub const PROOF_LEN: usize = 32;
/// Length of a caller's greeting.
pub const GREETING_LEN: usize = HEAD_LEN + PROOF_LEN;
/// Length of what the caller's proof is over, beside the root's challenge.
const HEAD_LEN: usize = 1 + 1 + 4 + 4 + PROOF_LEN;

/// Rank of a caller that is none, and that the root gives a number as a guest.
pub const GUEST: u32 = u32::MAX;

const OF_CALLER: &[u8] = b"lattice set caller";
const OF_ROOT: &[u8] = b"lattice set root";

/// Number that nobody can foresee.
pub type Challenge = [u8; PROOF_LEN];

/// Use of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// A link between two roots: frames, both ways.
    Frames = 1,
    /// A meeting of launches: what the caller brings, and how it ends.
    Meeting = 2,
    /// Nothing is said; the end of the connection is the end of one of the two.
    Presence = 3,
    /// The process of a rank of the set, or a guest: the root says in four bytes which rank it is, then frames, both ways.
    Rank = 4,
}

/// Caller of a connection, as it has proved to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caller {
    /// Its set.
    pub set: SetId,
    /// Its rank in the set, or [`GUEST`]; 0 for a root.
    pub rank: u32,
    /// Its use of the connection.
    pub purpose: Purpose,
}

/// Greeting that is none: of another version, or without the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GreetingError {
    /// Another version, or a purpose that this one does not know.
    #[error("the caller speaks version {0}, this program {VERSION}")]
    Version(u8),
    /// A purpose that this version does not know.
    #[error("the caller comes for {0}, which means nothing here")]
    Purpose(u8),
    /// The caller does not know the key.
    #[error("the caller does not know the set's key")]
    Key,
}

/// Makes a challenge.
///
/// # Errors
/// Fails if the kernel has no random numbers to give.
pub fn challenge() -> Result<Challenge, DirectoryError> {
    random()
}

/// The caller's greeting, which answers the root's challenge with one of its own.
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

/// The caller of a greeting that answers `own`, and the root's proof for it.
///
/// # Errors
/// Refuses a caller that does not know the key, and one of another version.
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
