//! File names with `%r`, `%t`, `%l`, `%n`, `%N`, `%j`, `%J` in them: one name for each rank, or one for several.
//!
//! The letters mean what they mean in file names of `srun` (filename pattern, srun(1)): `%t` is the task identifier relative to
//! the job, which is the rank; `%n` the node identifier relative to the job; `%N` the short host name; `%j` and `%J` the job,
//! here the launch id. `%r` is the rank, too; `%l`, which srun does not have, is the local rank.

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
    Host,
    LaunchId,
}

/// Values that a template is filled in with.
#[derive(Clone, Copy, Debug)]
pub struct Place<'a> {
    /// `%r` and `%t`
    pub rank: Rank,
    /// `%l`
    pub local_rank: LocalRank,
    /// `%n`
    pub node: NodeIndex,
    /// Name of the node; `%N` is its part before the first dot.
    pub host: &'a str,
    /// `%j` and `%J`
    pub launch_id: &'a str,
}

/// Reason why a text is no template.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TemplateError {
    /// The text is empty.
    #[error("a file name is missing")]
    Empty,
    /// A percent sign is followed by something that has no meaning.
    #[error(
        "%{} has no meaning in a file name; %r and %t are the rank, %l the rank on its node, %n the node, %N its host name, \
         %j the launch id, %% a percent sign",
        found.escape_ascii()
    )]
    Unknown {
        /// Byte after the percent sign.
        found: u8,
    },
    /// The text ends with a percent sign.
    #[error("a percent sign at the end of a file name has no meaning; write %% for the sign itself")]
    Unfinished,
    /// The name would hold a zero byte, which no file name can.
    #[error("a file name cannot hold a zero byte")]
    ZeroByte,
}

impl Template {
    /// Reads a file name with escapes.
    ///
    /// # Errors
    /// Refuses an empty name, a zero byte and every escape but those that the module lists and `%%`.
    pub fn parse(text: &OsStr) -> Result<Self, TemplateError> {
        if text.is_empty() {
            return Err(TemplateError::Empty);
        }
        let mut template = Self { parts: Vec::new() };
        let mut bytes = text.as_bytes().iter().copied();
        while let Some(byte) = bytes.next() {
            match byte {
                0 => return Err(TemplateError::ZeroByte),
                b'%' => match bytes.next().ok_or(TemplateError::Unfinished)? {
                    b'r' | b't' => template.parts.push(Part::Rank),
                    b'l' => template.parts.push(Part::LocalRank),
                    b'n' => template.parts.push(Part::Node),
                    b'N' => template.parts.push(Part::Host),
                    b'j' | b'J' => template.parts.push(Part::LaunchId),
                    b'%' => template.push_literal(b"%"),
                    found => return Err(TemplateError::Unknown { found }),
                },
                byte => template.push_literal(&[byte]),
            }
        }
        Ok(template)
    }

    /// The same name below `directory`, unless it is absolute; percent signs of `directory` are no escapes.
    pub fn below(mut self, directory: &OsStr) -> Self {
        if matches!(self.parts.first(), Some(Part::Text(text)) if text.starts_with(b"/")) {
            return self;
        }
        let mut absolute = Self { parts: Vec::new() };
        absolute.push_literal(directory.as_bytes());
        if !directory.as_bytes().ends_with(b"/") {
            absolute.push_literal(b"/");
        }
        for part in self.parts.drain(..) {
            match part {
                Part::Text(text) => absolute.push_literal(&text),
                part => absolute.parts.push(part),
            }
        }
        absolute
    }

    fn push_literal(&mut self, bytes: &[u8]) {
        match self.parts.last_mut() {
            Some(Part::Text(text)) => text.extend_from_slice(bytes),
            _ => self.parts.push(Part::Text(bytes.to_vec())),
        }
    }

    /// The text that [`Template::parse`] reads back.
    pub fn to_text(&self) -> OsString {
        let mut text = Vec::new();
        for part in &self.parts {
            match part {
                Part::Text(bytes) => {
                    for &byte in bytes {
                        text.extend(std::iter::repeat_n(byte, if byte == b'%' { 2 } else { 1 }));
                    }
                }
                Part::Rank => text.extend(b"%r"),
                Part::LocalRank => text.extend(b"%l"),
                Part::Node => text.extend(b"%n"),
                Part::Host => text.extend(b"%N"),
                Part::LaunchId => text.extend(b"%j"),
            }
        }
        OsString::from_vec(text)
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
                Part::Host => name.extend(place.host.split('.').next().unwrap_or_default().bytes()),
                Part::LaunchId => name.extend(place.launch_id.bytes()),
            }
        }
        OsString::from_vec(name).into()
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use proptest::prelude::*;

    use super::*;

    const PLACE: Place<'_> = Place {
        rank: Rank(17),
        local_rank: LocalRank(1),
        node: NodeIndex(8),
        host: "node8.example.org",
        launch_id: "k3jq",
    };

    fn template(text: &str) -> Template {
        Template::parse(OsStr::new(text)).unwrap()
    }

    #[test]
    fn templates_name_one_file_per_place() {
        let check = |text: &str, expected: &str| {
            assert_eq!(template(text).expand(PLACE), Path::new(expected), "{text}");
        };
        check("all.txt", "all.txt");
        check("out.%r", "out.17");
        check("%j/%n-%l", "k3jq/8-1");
        check("100%%-%r%r.log", "100%-1717.log");
        check("%%r", "%r");
    }

    /// With the rank on its node instead, ranks of different nodes would write to one file.
    #[test]
    fn letters_mean_what_they_mean_to_srun() {
        let check = |text: &str, expected: &str| {
            assert_eq!(template(text).expand(PLACE), Path::new(expected), "{text}");
        };
        check("%t", "17");
        check("%n", "8");
        check("%N", "node8");
        check("%j.%J", "k3jq.k3jq");
    }

    #[test]
    fn relative_names_are_put_below_a_directory_whose_percent_signs_are_no_escapes() {
        let check = |name: &str, directory: &str, expected: &str| {
            let below = template(name).below(OsStr::new(directory));
            assert_eq!(below.to_text(), expected, "{name} below {directory}");
        };
        check("in.%r", "/a%r/b", "/a%%r/b/in.%r");
        check("%r/in", "/", "/%r/in");
        check("/in.%t", "/a", "/in.%r");
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
        assert_eq!(error("a\0"), TemplateError::ZeroByte);
        assert_eq!(error("a%x"), TemplateError::Unknown { found: b'x' });
        let words = error("a%x").to_string();
        assert!(words.starts_with("%x has no meaning") && words.contains("%r and %t are the rank"), "{words}");
    }

    proptest! {
        #[test]
        fn every_template_can_be_written_down_and_read_again(text in "([a-z/.]|%[rtlnNjJ%]){1,20}") {
            let template = template(&text);
            prop_assert_eq!(Template::parse(&template.to_text()), Ok(template));
        }
    }
}
