//! File names with letters after percent signs, for ranks of a launch and for batch jobs: one name for each rank, or one for several.
//!
//! The letters have the same meaning as in file names of `srun` and `sbatch` (filename pattern, srun(1)): `%t` is the task identifier relative
//! to the job, which is the rank; `%n` the node identifier relative to the job; `%N` the short host name; `%j`, `%J` and `%s` the job and its
//! step, here the id of the launch or of the batch job; `%x` the name of either; `%u` the user. `%r` is the rank as well. srun does not have
//! `%l`, the local rank, and `%R`, the rank with as many digits as the last one. A number between the sign and the letter pads numbers with
//! zeros to this many digits: `%3t`.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

use pmi_core::ids::{LocalRank, NodeIndex, Rank};

/// A file name with parts that are filled in for each rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template {
    parts: Vec<Part>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Text(Vec<u8>),
    /// A field, padded to this many digits if it is a number.
    Field(Field, u8),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Field {
    Rank,
    /// Rank with as many digits as the last one.
    EvenRank,
    LocalRank,
    Node,
    Host,
    LaunchId,
    Name,
    User,
}

/// Letters of fields. If a field has several letters, the first one is written.
const LETTERS: [(u8, Field); 11] = [
    (b'r', Field::Rank),
    (b't', Field::Rank),
    (b'R', Field::EvenRank),
    (b'l', Field::LocalRank),
    (b'n', Field::Node),
    (b'N', Field::Host),
    (b'j', Field::LaunchId),
    (b'J', Field::LaunchId),
    (b's', Field::LaunchId),
    (b'x', Field::Name),
    (b'u', Field::User),
];

/// Largest width.
const WIDTH_MAX: u8 = 32;

/// Values for the fields of a template.
#[derive(Clone, Copy, Debug)]
pub struct Place<'a> {
    /// `%r` and `%t`
    pub rank: Rank,
    /// Number of ranks of the launch.
    pub ranks: u32,
    /// `%l`
    pub local_rank: LocalRank,
    /// `%n`
    pub node: NodeIndex,
    /// Name of the node; `%N` is its part before the first dot.
    pub host: &'a str,
    /// `%j`, `%J` and `%s`
    pub launch_id: &'a str,
}

/// Refusal of a text as a template.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TemplateError {
    /// The text is empty.
    #[error("a file name is missing")]
    Empty,
    /// A percent sign is followed by a byte without a meaning.
    #[error(
        "%{} has no meaning in a file name; %r and %t are the rank, %R with the digits of the last one, %l the rank on its node, %n the node, %N its host name, \
         %j the id, %x the name, %u the user, %% a percent sign; %3t has three digits",
        found.escape_ascii()
    )]
    Unknown {
        /// Byte after the percent sign.
        found: u8,
    },
    /// The text ends with a percent sign.
    #[error("a percent sign at the end of a file name has no meaning; write %% for the sign itself")]
    Unfinished,
    /// A number is padded to more than `WIDTH_MAX` digits.
    #[error("a number in a file name has up to {WIDTH_MAX} digits")]
    Width,
    /// The name has a zero byte, which no file name can contain.
    #[error("a file name cannot hold a zero byte")]
    ZeroByte,
}

impl Template {
    /// Reads a file name with escapes.
    ///
    /// # Errors
    /// Refuses an empty name, a zero byte, and every escape other than `%%` and the escapes that the module lists.
    pub fn parse(text: &OsStr) -> Result<Self, TemplateError> {
        if text.is_empty() {
            return Err(TemplateError::Empty);
        }
        let mut template = Self { parts: Vec::new() };
        let mut rest = text.as_bytes();
        while let [byte, behind @ ..] = rest {
            rest = behind;
            match byte {
                0 => return Err(TemplateError::ZeroByte),
                b'%' => rest = template.push_escape(rest)?,
                byte => template.push_literal(&[*byte]),
            }
        }
        Ok(template)
    }

    /// Reads the text after a percent sign; returns the rest.
    fn push_escape<'a>(&mut self, text: &'a [u8]) -> Result<&'a [u8], TemplateError> {
        if let [b'%', rest @ ..] = text {
            self.push_literal(b"%");
            return Ok(rest);
        }
        let digits = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
        let (number, text) = text.split_at(digits);
        let width = number.iter().try_fold(0_u8, |width, digit| width.checked_mul(10)?.checked_add(digit - b'0'));
        let width = width.filter(|&width| width <= WIDTH_MAX).ok_or(TemplateError::Width)?;
        let [letter, rest @ ..] = text else { return Err(TemplateError::Unfinished) };
        let field = LETTERS.iter().find(|(known, _)| known == letter);
        let &(_, field) = field.ok_or(TemplateError::Unknown { found: *letter })?;
        self.parts.push(Part::Field(field, width));
        Ok(rest)
    }

    /// Fills in the fields that are equal for all ranks: `%x` and `%u`. Otherwise these stay unchanged.
    pub fn of(self, name: &OsStr, user: impl FnOnce() -> String) -> Self {
        let mut filled = Self { parts: Vec::new() };
        let mut user = Some(user);
        let mut known = String::new();
        for part in self.parts {
            match part {
                Part::Text(text) => filled.push_literal(&text),
                Part::Field(Field::Name, _) => filled.push_literal(name.as_bytes()),
                Part::Field(Field::User, _) => {
                    if let Some(user) = user.take() {
                        known = user();
                    }
                    filled.push_literal(known.as_bytes());
                }
                part => filled.parts.push(part),
            }
        }
        filled
    }

    /// Returns the same name below `directory`, unless it is absolute. Percent signs of `directory` are no escapes.
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

    /// Returns the text that [`Template::parse`] reads back.
    pub fn to_text(&self) -> OsString {
        let mut text = Vec::new();
        for part in &self.parts {
            match part {
                Part::Text(bytes) => {
                    for &byte in bytes {
                        text.extend(std::iter::repeat_n(byte, if byte == b'%' { 2 } else { 1 }));
                    }
                }
                Part::Field(field, width) => text.extend(written(*field, *width).bytes()),
            }
        }
        OsString::from_vec(text)
    }

    /// Returns true if the name has a field before its last slash: its directory differs between ranks, or between launches.
    pub fn has_field_in_directory(&self) -> bool {
        let last = self.parts.iter().rposition(|part| matches!(part, Part::Text(text) if text.contains(&b'/')));
        let directory = last.map_or(&[] as &[Part], |last| &self.parts[..last]);
        directory.iter().any(|part| matches!(part, Part::Field(..)))
    }

    /// Returns the file name at `place`.
    pub fn expand(&self, place: Place<'_>) -> PathBuf {
        let mut name = Vec::new();
        for part in &self.parts {
            match part {
                Part::Text(text) => name.extend_from_slice(text),
                Part::Field(field, width) => {
                    let digits = usize::from(*width);
                    let text = match field {
                        Field::Rank => format!("{:0digits$}", place.rank.0),
                        Field::EvenRank => {
                            let last = place.ranks.saturating_sub(1).to_string();
                            format!("{:0digits$}", place.rank.0, digits = digits.max(last.len()))
                        }
                        Field::LocalRank => format!("{:0digits$}", place.local_rank.0),
                        Field::Node => format!("{:0digits$}", place.node.0),
                        Field::Host => place.host.split('.').next().unwrap_or_default().to_owned(),
                        Field::LaunchId => place.launch_id.to_owned(),
                        Field::Name | Field::User => written(*field, *width),
                    };
                    name.extend(text.bytes());
                }
            }
        }
        OsString::from_vec(name).into()
    }
}

/// Formats a field: `%r`, `%3r`.
fn written(field: Field, width: u8) -> String {
    let letter = LETTERS.iter().find(|(_, known)| *known == field).map_or(' ', |&(letter, _)| char::from(letter));
    if width == 0 { format!("%{letter}") } else { format!("%{width}{letter}") }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use proptest::prelude::*;

    use super::*;

    const PLACE: Place<'_> = Place {
        rank: Rank(17),
        ranks: 1001,
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

    /// With the local rank instead, ranks of different nodes would write to one file.
    #[test]
    fn letters_mean_what_they_mean_to_srun() {
        let check = |text: &str, expected: &str| {
            assert_eq!(template(text).expand(PLACE), Path::new(expected), "{text}");
        };
        check("%t", "17");
        check("%n", "8");
        check("%N", "node8");
        check("%j.%J.%s", "k3jq.k3jq.k3jq");
        check("%4t-%04t-%3n-%1t", "0017-0017-008-17");
        check("%8N.%8j", "node8.k3jq");
    }

    #[test]
    fn ranks_may_have_the_digits_of_the_last_one() {
        let of = |ranks| template("%R-%3R").expand(Place { ranks, ..PLACE });
        assert_eq!(of(18), Path::new("17-017"));
        assert_eq!(of(1000), Path::new("017-017"));
        assert_eq!(of(1001), Path::new("0017-0017"));
    }

    #[test]
    fn a_directory_with_a_field_is_known() {
        let check = |text: &str, expected| assert_eq!(template(text).has_field_in_directory(), expected, "{text}");
        check("out.%r", false);
        check("a/b/out.%r", false);
        check("/a/%j.%r", false);
        check("%j/out", true);
        check("a/%r/b/out.%r", true);
        check("a/rank.%R/stdout", true);
    }

    #[test]
    fn name_and_user_are_filled_in_once_for_all_ranks() {
        let of = |text: &str| template(text).of(OsStr::new("oc%an"), || "ada".to_owned());
        assert_eq!(of("/%u/%x.%3r.%u").expand(PLACE), Path::new("/ada/oc%an.017.ada"));
        assert_eq!(of("%x%r").to_text(), "oc%%an%r");
        assert_eq!(template("%x-%u").expand(PLACE), Path::new("%x-%u"));
        let nobody = template("%r").of(OsStr::new(""), || panic!("nobody asks for the user"));
        assert_eq!(nobody.expand(PLACE), Path::new("17"));
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
        assert_eq!(error("a%3"), TemplateError::Unfinished);
        assert_eq!(error("a%33t"), TemplateError::Width);
        assert_eq!(error("a%999t"), TemplateError::Width);
        assert_eq!(error("a%3%"), TemplateError::Unknown { found: b'%' });
        assert_eq!(error("a%A"), TemplateError::Unknown { found: b'A' });
        let words = error("a%A").to_string();
        assert!(words.starts_with("%A has no meaning") && words.contains("%r and %t are the rank"), "{words}");
    }

    proptest! {
        #[test]
        fn every_template_can_be_written_down_and_read_again(text in "([a-z/.]|%[0-9]?[rtRlnNjJsxu]|%%){1,20}") {
            let template = template(&text);
            prop_assert_eq!(Template::parse(&template.to_text()), Ok(template));
        }
    }
}
