//! Names of the files that a batch job writes to, with parts that are filled in where it runs.
//!
//! The letters are those of sbatch(1), as far as a batch job has them: `%j` and `%J` its id, `%x` its name, `%N` the node, `%n` and `%t`
//! 0, `%u` the user.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

/// A file name with parts to be filled in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilePattern(OsString);

/// Values that a pattern is filled in with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BatchPlace<'a> {
    /// Id of the allocation.
    pub(crate) id: &'a str,
    /// Name of the job.
    pub(crate) name: &'a str,
    /// Name of the node.
    pub(crate) node: &'a str,
    /// Name of the user.
    pub(crate) user: &'a str,
}

/// Refusal of a text as a pattern.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FilePatternError {
    /// The text is empty.
    #[error("a file name is missing")]
    Empty,
    /// A percent sign is followed by something without a meaning.
    #[error(
        "%{} has no meaning in a file name; %j is the job's id, %x its name, %N the node, %n and %t are 0, %u is the user, %% a percent sign",
        found.escape_ascii()
    )]
    Unknown {
        /// Byte after the percent sign.
        found: u8,
    },
    /// The text ends with a percent sign.
    #[error("a percent sign at the end of a file name has no meaning; write %% for the sign itself")]
    Unfinished,
}

impl FilePattern {
    /// Reads a file name.
    ///
    /// # Errors
    /// Refuses an empty name, and escapes other than those of the module.
    pub fn parse(text: OsString) -> Result<Self, FilePatternError> {
        if text.is_empty() {
            return Err(FilePatternError::Empty);
        }
        let nobody = BatchPlace { id: "", name: "", node: "", user: "" };
        filled(&text, nobody)?;
        Ok(Self(text))
    }

    /// The file of a job whose output nobody gave a name.
    pub(crate) fn usual() -> Self {
        Self("lattice-%j.out".into())
    }

    /// The text that was read.
    pub(crate) fn text(&self) -> &OsStr {
        &self.0
    }

    /// The file name at `place`.
    pub(crate) fn expand(&self, place: BatchPlace<'_>) -> PathBuf {
        filled(&self.0, place).unwrap_or_default()
    }
}

fn filled(text: &OsStr, place: BatchPlace<'_>) -> Result<PathBuf, FilePatternError> {
    let mut name = Vec::new();
    let mut bytes = text.as_bytes().iter().copied();
    while let Some(byte) = bytes.next() {
        if byte != b'%' {
            name.push(byte);
            continue;
        }
        name.extend_from_slice(match bytes.next().ok_or(FilePatternError::Unfinished)? {
            b'j' | b'J' => place.id.as_bytes(),
            b'x' => place.name.as_bytes(),
            b'N' => place.node.split('.').next().unwrap_or_default().as_bytes(),
            b'n' | b't' => b"0",
            b'u' => place.user.as_bytes(),
            b'%' => b"%",
            found => return Err(FilePatternError::Unknown { found }),
        });
    }
    Ok(OsString::from_vec(name).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_filled_in_and_the_rest_stays_as_it_is() {
        let place = BatchPlace { id: "k3jq", name: "ocean", node: "node7.cluster", user: "ann" };
        let check = |text: &str, expected: &str| {
            assert_eq!(FilePattern::parse(text.into()).unwrap().expand(place), PathBuf::from(expected));
        };
        check("out", "out");
        check("%x-%j_%J.%N", "ocean-k3jq_k3jq.node7");
        check("/logs/%u/%n%t%%", "/logs/ann/00%");
        assert_eq!(FilePattern::usual().expand(place), PathBuf::from("lattice-k3jq.out"));
    }

    #[test]
    fn escapes_without_a_meaning_are_refused_with_those_that_have_one() {
        let refused = |text: &str| FilePattern::parse(text.into()).unwrap_err().to_string();
        assert!(refused("%A").starts_with("%A has no meaning in a file name; %j is the job's id"));
        assert!(refused("a%").starts_with("a percent sign at the end"));
        assert_eq!(refused(""), "a file name is missing");
    }
}
