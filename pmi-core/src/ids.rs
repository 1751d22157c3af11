//! Numbers and names that identify things. Each has its own type, so that a rank cannot be used as a node.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

macro_rules! index_type {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub u32);

        impl $name {
            /// The same number as an index into a slice.
            pub fn index(self) -> usize {
                self.0 as usize
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }

        impl From<u32> for $name {
            fn from(number: u32) -> Self {
                Self(number)
            }
        }
    };
}

index_type! {
    /// A rank's zero-based position in its job.
    Rank
}

index_type! {
    /// A rank's zero-based position among its job's ranks on the same node.
    LocalRank
}

index_type! {
    /// A node's zero-based position in its job.
    NodeIndex
}

/// The count of completed fences of one scope in a job; the first fence has epoch 0.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Epoch(pub u64);

impl Epoch {
    /// The epoch of the fence after this one.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// A job's name. On the wire it is PMI-1's `kvsname` and PMI-2's `jobid`.
///
/// Two jobs on one node must never share a name, not even one after the other. MPICH 5 derives the name of its shared memory from it. A
/// file left by a killed job of the same name makes the next `MPI_Init` fail (measured). So a new name should contain a random part.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct JobId(Arc<str>);

/// Reason why a text is not a [`JobId`].
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JobIdError {
    /// The text is empty or too long for a `kvsname` buffer.
    #[error("a job id has 1 to {max} bytes, not {len}", max = JobId::MAX_LEN)]
    Length {
        /// The number of bytes seen.
        len: usize,
    },
    /// The text holds a character with a special meaning in a wire format.
    #[error("a job id holds letters, digits, `_`, `-` and `.`, not {found:?}")]
    Character {
        /// The offending character.
        found: char,
    },
}

impl JobId {
    /// The longest job id, in bytes.
    pub const MAX_LEN: usize = 63;

    /// Creates a job id from a text that needs no escapes in either wire format.
    ///
    /// # Errors
    /// Refuses an empty or overlong text, and every character except ASCII letters, digits, `_`, `-` and `.`.
    pub fn new(text: &str) -> Result<Self, JobIdError> {
        if text.is_empty() || text.len() > Self::MAX_LEN {
            return Err(JobIdError::Length { len: text.len() });
        }
        let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
        match text.chars().find(|&c| !allowed(c)) {
            Some(found) => Err(JobIdError::Character { found }),
            None => Ok(Self(text.into())),
        }
    }

    /// The job id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl TryFrom<String> for JobId {
    type Error = JobIdError;

    fn try_from(text: String) -> Result<Self, JobIdError> {
        Self::new(&text)
    }
}

impl From<JobId> for String {
    fn from(id: JobId) -> Self {
        id.as_str().to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn job_ids_stand_unescaped_on_both_wires() {
        for good in ["a", "kvs_1-2.0", &"x".repeat(63)] {
            assert_eq!(JobId::new(good).unwrap().as_str(), good);
        }
        for bad in ["", "a b", "a;b", "a=b", "a\nb", "ä", &"x".repeat(64)] {
            assert!(JobId::new(bad).is_err(), "{bad:?} was taken");
        }
    }
}
