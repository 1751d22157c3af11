//! Names of process sets: ranks of one launch from which MPI sessions make groups.

use std::fmt;
use std::str::FromStr;

/// Name of a process set, as MPI sees it. A text is read as a URI, with `app://` as the default scheme.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ProcessSetName(String);

/// Refusal of a text as the name of a process set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ProcessSetNameError {
    /// The name is empty or too long.
    #[error("a process set has a name of 1 to {} bytes, this one has {length}", ProcessSetName::MAX)]
    Length {
        /// Its length.
        length: usize,
    },
    /// The name has a byte that separates names in lists, or an invisible byte.
    #[error("the name of a process set is made of visible ASCII characters other than commas, not of byte {byte:#04x}")]
    Byte {
        /// The byte.
        byte: u8,
    },
    /// The name is reserved for MPI.
    #[error("names of process sets that begin with mpi:// are MPI's own; leave that away, or begin with app://")]
    Reserved,
}

impl ProcessSetName {
    /// Maximum number of bytes of a name, below the limit of MPI libraries (`MPI_MAX_PSET_NAME_LEN`).
    pub const MAX: usize = 255;

    /// Takes the name unchanged, even without a scheme: launchers of PMIx name sets in this way.
    ///
    /// # Errors
    /// Refuses a name that is empty, too long, reserved for MPI, or has invalid bytes.
    pub fn literal(name: &str) -> Result<Self, ProcessSetNameError> {
        if name.is_empty() || name.len() > Self::MAX {
            return Err(ProcessSetNameError::Length { length: name.len() });
        }
        if let Some(byte) = name.bytes().find(|byte| !byte.is_ascii_graphic() || *byte == b',') {
            return Err(ProcessSetNameError::Byte { byte });
        }
        let scheme = name.split_once("://").map_or("", |(scheme, _)| scheme);
        if scheme.eq_ignore_ascii_case("mpi") {
            return Err(ProcessSetNameError::Reserved);
        }
        Ok(Self(name.to_owned()))
    }

    /// Returns the name, with its scheme.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for ProcessSetName {
    type Err = ProcessSetNameError;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let is_full = name.contains("://") || name.is_empty();
        if is_full { Self::literal(name) } else { Self::literal(&format!("app://{name}")) }
    }
}

impl fmt::Display for ProcessSetName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Returns the process sets of a job, from the number of ranks and the name of each program. Programs with the same name form one
/// set.
pub(crate) fn of_programs<'a>(
    programs: impl IntoIterator<Item = (u32, Option<&'a ProcessSetName>)>,
) -> Vec<pmix_core::ProcessSet> {
    let mut sets: Vec<pmix_core::ProcessSet> = Vec::new();
    let mut first = 0;
    for (ranks, name) in programs {
        let ranks = first..first + ranks;
        first = ranks.end;
        let Some(name) = name.map(ProcessSetName::as_str) else { continue };
        match sets.iter_mut().find(|set| set.name == name) {
            Some(set) => set.ranks.push(ranks),
            None => sets.push(pmix_core::ProcessSet { name: name.to_owned(), ranks: vec![ranks] }),
        }
    }
    sets
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_without_a_scheme_is_an_application_s() {
        let check = |name: &str, expected: Result<&str, ProcessSetNameError>| {
            let parsed = name.parse::<ProcessSetName>();
            assert_eq!(parsed.as_ref().map(ProcessSetName::as_str), expected.as_ref().copied(), "{name:?}");
        };
        check("ocean", Ok("app://ocean"));
        check("app://ocean", Ok("app://ocean"));
        check("site://ocean/deep", Ok("site://ocean/deep"));
        check("", Err(ProcessSetNameError::Length { length: 0 }));
        check(&"x".repeat(250), Err(ProcessSetNameError::Length { length: 256 }));
        check("a,b", Err(ProcessSetNameError::Byte { byte: b',' }));
        check("a b", Err(ProcessSetNameError::Byte { byte: b' ' }));
        check("MPI://WORLD", Err(ProcessSetNameError::Reserved));
        assert_eq!(ProcessSetName::literal("ocean").unwrap().as_str(), "ocean");
        assert_eq!(ProcessSetName::literal("mpi://WORLD"), Err(ProcessSetNameError::Reserved));
    }

    #[test]
    fn programs_of_one_name_are_one_set() {
        let [sea, ice]: [ProcessSetName; 2] = ["sea", "ice"].map(|name| name.parse().unwrap());
        let sets = of_programs([(2, Some(&sea)), (2, None), (2, Some(&ice)), (2, Some(&sea))]);
        let seen: Vec<_> = sets.iter().map(|set| format!("{} {:?}", set.name, set.ranks)).collect();
        assert_eq!(seen, ["app://sea [0..2, 6..8]", "app://ice [4..6]"]);
    }
}
