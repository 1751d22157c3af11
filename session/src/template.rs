//! File names with `%r`, `%t`, `%n`, `%j` in them: one name for each rank, or one for several.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

use pmi_core::ids::{LocalRank, NodeIndex, Rank};

/// A file name in which some parts are filled in for each rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template {
    parts: Vec<Part>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Text(Vec<u8>),
    Rank,
    LocalRank,
    Node,
    LaunchId,
}

/// What a template is filled in with.
#[derive(Clone, Copy, Debug)]
pub struct Place<'a> {
    /// `%r`
    pub rank: Rank,
    /// `%t`
    pub local_rank: LocalRank,
    /// `%n`
    pub node: NodeIndex,
    /// `%j`
    pub launch_id: &'a str,
}

/// Why a text is no template.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TemplateError {
    /// There is no text.
    #[error("a file name is missing")]
    Empty,
    /// A percent sign is followed by something that has no meaning.
    #[error(
        "%{} has no meaning in a file name; %r is the rank, %t the rank on its node, %n the node, %j the launch id, \
         %% a percent sign",
        found.escape_ascii()
    )]
    Unknown {
        /// What follows the percent sign.
        found: u8,
    },
    /// The text ends with a percent sign.
    #[error("a percent sign at the end of a file name has no meaning; write %% for the sign itself")]
    Unfinished,
}

impl Template {
    /// Reads a file name with escapes.
    ///
    /// # Errors
    /// Refuses an empty name and every escape but `%r`, `%t`, `%n`, `%j`, `%%`.
    pub fn parse(text: &OsStr) -> Result<Self, TemplateError> {
        let mut parts = Vec::new();
        let mut literal = Vec::new();
        let mut bytes = text.as_bytes().iter().copied();
        if text.is_empty() {
            return Err(TemplateError::Empty);
        }
        while let Some(byte) = bytes.next() {
            if byte != b'%' {
                literal.push(byte);
                continue;
            }
            let part = match bytes.next().ok_or(TemplateError::Unfinished)? {
                b'r' => Part::Rank,
                b't' => Part::LocalRank,
                b'n' => Part::Node,
                b'j' => Part::LaunchId,
                b'%' => {
                    literal.push(b'%');
                    continue;
                }
                found => return Err(TemplateError::Unknown { found }),
            };
            if !literal.is_empty() {
                parts.push(Part::Text(std::mem::take(&mut literal)));
            }
            parts.push(part);
        }
        if !literal.is_empty() {
            parts.push(Part::Text(literal));
        }
        Ok(Self { parts })
    }

    /// The file name at `place`.
    pub fn expand(&self, place: Place<'_>) -> PathBuf {
        let mut name = Vec::new();
        for part in &self.parts {
            match part {
                Part::Text(text) => name.extend_from_slice(text),
                Part::Rank => name.extend(place.rank.to_string().bytes()),
                Part::LocalRank => name.extend(place.local_rank.to_string().bytes()),
                Part::Node => name.extend(place.node.to_string().bytes()),
                Part::LaunchId => name.extend(place.launch_id.bytes()),
            }
        }
        OsString::from_vec(name).into()
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    const PLACE: Place<'_> = Place { rank: Rank(17), local_rank: LocalRank(1), node: NodeIndex(8), launch_id: "k3jq" };

    #[test]
    fn templates_name_one_file_per_place() {
        let check = |text: &str, expected: &str| {
            let template = Template::parse(OsStr::new(text)).unwrap();
            assert_eq!(template.expand(PLACE), Path::new(expected), "{text}");
        };
        check("all.txt", "all.txt");
        check("out.%r", "out.17");
        check("%j/%n-%t", "k3jq/8-1");
        check("100%%-%r%r.log", "100%-1717.log");
        check("%%r", "%r");
    }

    #[test]
    fn names_need_not_be_text() {
        let template = Template::parse(OsStr::from_bytes(b"\xff%r")).unwrap();
        assert_eq!(template.expand(PLACE).as_os_str().as_bytes(), b"\xff17");
    }

    #[test]
    fn unknown_escapes_are_refused_and_the_known_ones_named() {
        let error = |text: &str| Template::parse(OsStr::new(text)).unwrap_err();
        assert_eq!(error(""), TemplateError::Empty);
        assert_eq!(error("a%"), TemplateError::Unfinished);
        assert_eq!(error("a%x"), TemplateError::Unknown { found: b'x' });
        let words = error("a%x").to_string();
        assert!(words.starts_with("%x has no meaning") && words.contains("%r is the rank"), "{words}");
    }
}
