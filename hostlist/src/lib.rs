//! Compact lists of names: `node[0-3,7],login` stands for five names, in this order.
//!
//! The protocol carries the names and addresses of a launch's nodes in this form, so that a message does not grow with the number of nodes.
//! [`expand`] also reads the forms that users write (several brackets in a name, text after a bracket), and is bounded before it allocates.
//! [`fold`] writes at most one bracket per name.
//!
//! ```text
//! 10.0.0.[2-65]:50052      64 addresses            rack[0-1]n[00-15]   32 names, rack0n00 first
//! node[08-11]              08 09 10 11             [fd00::7]:50052     itself: a bracket with a colon is an IPv6 address
//! ```

mod fold;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod hostfile;
mod natural_order;

pub use fold::fold;
pub use hostfile::{HostLine, HostfileFault, hostfile};
pub use natural_order::natural_order;

/// Maximum number of names in one list.
pub const NAMES_MAX: usize = 1 << 20;
/// Maximum length of a name, in bytes: a host name of 255 and a port.
pub const NAME_MAX: usize = 255 + ":65535".len();
/// Maximum length of a number in a bracket, in digits; it fits into 64 bits.
const DIGITS_MAX: usize = 18;

/// Error of a text that is not a list of names.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HostlistError {
    /// A name is missing between two commas, or at an end.
    #[error("a name is missing in the list {list:?}; commas stand between names")]
    MissingName {
        /// The list, truncated if it is long.
        list: String,
    },
    /// A bracket has no partner.
    #[error("{name:?} has a bracket without its partner")]
    Unbalanced {
        /// The name, with its brackets.
        name: String,
    },
    /// The text in a bracket is not a number, and not a range of two rising numbers.
    #[error("{range:?} in {name:?} is no range; write numbers and ranges such as 0-3 or 00-15")]
    BadRange {
        /// Text in place of a range.
        range: String,
        /// The name that contains it.
        name: String,
    },
    /// A name contains a character that no host name has.
    #[error("{name:?} holds {character:?}, which no name of a node does")]
    BadCharacter {
        /// The name.
        name: String,
        /// The first such character.
        character: char,
    },
    /// A name is longer than [`NAME_MAX`].
    #[error("{name:?}... is longer than {NAME_MAX} bytes")]
    LongName {
        /// Start of the name.
        name: String,
    },
    /// The list stands for too many names.
    #[error("the list {list:?} stands for more than {most} names")]
    TooMany {
        /// The list, truncated if it is long.
        list: String,
        /// Maximum number of names.
        most: usize,
    },
}

/// The names that `text` stands for, in order and with repetitions; none for an empty text.
///
/// # Errors
/// Fails if the text is not a list of names, or stands for more than [`NAMES_MAX`] names.
pub fn expand(text: &str) -> Result<Vec<String>, HostlistError> {
    expand_at_most(text, NAMES_MAX)
}

/// Like [`expand`], with another limit.
///
/// # Errors
/// Fails if the text is not a list of names, or stands for more than `most` names. Never creates more names than that.
pub fn expand_at_most(text: &str, most: usize) -> Result<Vec<String>, HostlistError> {
    if text.trim().is_empty() {
        return Ok(Vec::new());
    }
    let too_many = || HostlistError::TooMany { list: excerpt(text), most };
    let mut names = Vec::new();
    for item in items(text)? {
        let parts = parse_item(item)?;
        let count = parts.iter().try_fold(1_usize, |count, part| count.checked_mul(part.count()));
        let total = count.and_then(|count| count.checked_add(names.len()));
        if total.is_none_or(|total| total > most) {
            return Err(too_many());
        }
        append_names(&parts, &mut names);
    }
    Ok(names)
}

/// Splits at the commas outside of brackets.
fn items(text: &str) -> Result<Vec<&str>, HostlistError> {
    let items: Vec<&str> = parts(text).map(str::trim).collect();
    match items.iter().any(|item| item.is_empty()) {
        true => Err(HostlistError::MissingName { list: excerpt(text) }),
        false => Ok(items),
    }
}

/// A piece of a name.
enum Part<'a> {
    Text(&'a str),
    Ranges(Vec<Range>),
}

/// The numbers from `first` to `last`, written with at least `width` digits.
struct Range {
    first: u64,
    last: u64,
    width: usize,
}

impl Part<'_> {
    fn count(&self) -> usize {
        match self {
            Self::Text(_) => 1,
            Self::Ranges(ranges) => ranges.iter().fold(0, |count, range| count.saturating_add(range.count())),
        }
    }

    /// Length of its longest text, in bytes.
    fn longest(&self) -> usize {
        match self {
            Self::Text(text) => text.len(),
            Self::Ranges(ranges) => ranges.iter().map(Range::longest).max().unwrap_or(0),
        }
    }
}

impl Range {
    /// Length of the longest number, in digits.
    fn longest(&self) -> usize {
        self.width.max(self.last.checked_ilog10().unwrap_or(0) as usize + 1)
    }

    fn count(&self) -> usize {
        usize::try_from(self.last - self.first).unwrap_or(usize::MAX).saturating_add(1)
    }
}

fn parse_item(item: &str) -> Result<Vec<Part<'_>>, HostlistError> {
    let unbalanced = || HostlistError::Unbalanced { name: excerpt(item) };
    let mut parts = Vec::new();
    let mut rest = item;
    while !rest.is_empty() {
        let end = rest.find(['[', ']']).unwrap_or(rest.len());
        let (text, from_bracket) = rest.split_at(end);
        if !text.is_empty() {
            parts.push(Part::Text(checked(text, item)?));
        }
        rest = from_bracket;
        if let Some(inside) = rest.strip_prefix('[') {
            let (inside, after) = inside.split_once(']').ok_or_else(unbalanced)?;
            if is_address(inside) {
                let literal = &rest[..inside.len() + "[]".len()];
                parts.push(Part::Text(checked(literal, item)?));
            } else {
                let ranges = inside.split(',').map(|range| parse_range(range.trim(), item));
                parts.push(Part::Ranges(ranges.collect::<Result<_, _>>()?));
            }
            rest = after;
        } else if !rest.is_empty() {
            return Err(unbalanced());
        }
    }
    // Checked before the names are multiplied: a long name must not be written a million times.
    let longest = parts.iter().fold(0_usize, |longest, part| longest.saturating_add(part.longest()));
    if longest > NAME_MAX {
        return Err(HostlistError::LongName { name: excerpt(item) });
    }
    Ok(parts)
}

/// True if a bracket holds an IPv6 address and no ranges. A bracket or a comma within it would hide the end of the name in a list.
fn is_address(inside: &str) -> bool {
    inside.contains(':') && !inside.contains(['[', ','])
}

fn checked<'a>(text: &'a str, item: &str) -> Result<&'a str, HostlistError> {
    match text.chars().find(|character| character.is_whitespace() || character.is_control()) {
        Some(character) => Err(HostlistError::BadCharacter { name: excerpt(item), character }),
        None => Ok(text),
    }
}

fn parse_range(text: &str, item: &str) -> Result<Range, HostlistError> {
    let bad = || HostlistError::BadRange { range: excerpt(text), name: excerpt(item) };
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let range =
        Range { first: number(first).ok_or_else(bad)?, last: number(last).ok_or_else(bad)?, width: first.len() };
    // "[1-08]" is ambiguous.
    let ambiguous = last.starts_with('0') && last.len() != first.len();
    if range.first > range.last || ambiguous { Err(bad()) } else { Ok(range) }
}

fn number(digits: &str) -> Option<u64> {
    let plain = !digits.is_empty() && digits.len() <= DIGITS_MAX && digits.bytes().all(|byte| byte.is_ascii_digit());
    if plain { digits.parse().ok() } else { None }
}

/// Appends all combinations of the parts; the last bracket varies fastest.
fn append_names(parts: &[Part<'_>], names: &mut Vec<String>) {
    let mut combined = vec![String::new()];
    for part in parts {
        match part {
            Part::Text(text) => combined.iter_mut().for_each(|name| name.push_str(text)),
            Part::Ranges(ranges) => {
                combined = combined
                    .iter()
                    .flat_map(|name| ranges.iter().map(move |range| (name, range)))
                    .flat_map(|(name, range)| {
                        let width = range.width;
                        (range.first..=range.last).map(move |number| format!("{name}{number:0width$}"))
                    })
                    .collect();
            }
        }
    }
    names.append(&mut combined);
}

/// Start of a text, for messages.
fn excerpt(text: &str) -> String {
    text.chars().take(64).collect()
}

/// True if `text` is one name that stands for itself in a list: [`fold`] accepts it, and [`expand`] returns it.
pub fn is_name(text: &str) -> bool {
    expand_at_most(text, 1).is_ok_and(|names| names == [text])
}

/// Returns the parts of a text between commas, except for commas in brackets.
pub fn parts(text: &str) -> impl Iterator<Item = &str> {
    let mut depth = 0_u32;
    text.split(move |letter| {
        match letter {
            '[' => depth += 1,
            ']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        letter == ',' && depth == 0
    })
}

/// Returns true if two names may belong to one host: they are equal, or one is the other without its domain.
pub fn is_same_host(one: &str, other: &str) -> bool {
    let is_short_of = |short: &str, long: &str| long.split_once('.').is_some_and(|(first, _)| first == short);
    one == other || is_short_of(one, other) || is_short_of(other, one)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_host_is_known_with_its_domain_and_without() {
        for (one, other, expected) in [
            ("a", "a", true),
            ("a", "a.site", true),
            ("a.site", "a", true),
            ("a.site", "a.other", false),
            ("a", "ab.site", false),
            ("10.0.0.1", "10.0.0.2", false),
            ("", ".site", true),
        ] {
            assert_eq!(is_same_host(one, other), expected, "{one} {other}");
        }
    }

    #[test]
    fn lists_expand_in_their_order() {
        let check = |text: &str, expected: &[&str]| assert_eq!(expand(text).unwrap(), expected, "{text}");
        check("", &[]);
        check(" ", &[]);
        check("login", &["login"]);
        check("b, a ,b", &["b", "a", "b"]);
        check("node[0-3,7],login", &["node0", "node1", "node2", "node3", "node7", "login"]);
        check("n[3,1-2]", &["n3", "n1", "n2"]);
        check("n[08-11]", &["n08", "n09", "n10", "n11"]);
        check("n[98-101]", &["n98", "n99", "n100", "n101"]);
        check("r[0-1]n[00-01]-ib", &["r0n00-ib", "r0n01-ib", "r1n00-ib", "r1n01-ib"]);
        check("10.0.0.[2-3]:50052", &["10.0.0.2:50052", "10.0.0.3:50052"]);
        check("[fd00::7]:50052,a[1]", &["[fd00::7]:50052", "a1"]);
        check("[0-1]", &["0", "1"]);
        check("knötchen[1-2]", &["knötchen1", "knötchen2"]);
    }

    #[test]
    fn a_name_is_a_list_of_itself_alone() {
        for name in ["node0", "10.0.0.3:50052", "[fd00::7]:50052"] {
            assert!(is_name(name), "{name}");
        }
        for list in ["", "a,b", "a,", "n[0]", "n[0-1]", " a", "a b", "a[", "n[0-999999999999999999]"] {
            assert!(!is_name(list), "{list:?}");
        }
    }

    #[test]
    fn what_is_no_list_is_refused_with_its_reason() {
        let check = |text: &str, expected: &str| assert_eq!(expand(text).unwrap_err().to_string(), expected);
        check("a,,b", r#"a name is missing in the list "a,,b"; commas stand between names"#);
        check("a,", r#"a name is missing in the list "a,"; commas stand between names"#);
        check("a[0-1", r#""a[0-1" has a bracket without its partner"#);
        check("a0-1]", r#""a0-1]" has a bracket without its partner"#);
        let bad =
            |range, name| format!("{range:?} in {name:?} is no range; write numbers and ranges such as 0-3 or 00-15");
        check("a[]", &bad("", "a[]"));
        check("a[1,]", &bad("", "a[1,]"));
        check("a[3-1]", &bad("3-1", "a[3-1]"));
        check("a[1-08]", &bad("1-08", "a[1-08]"));
        check("a[x]", &bad("x", "a[x]"));
        check("a[[0]]", &bad("[0", "a[[0]]"));
        check("a[[0],b]", &bad("[0", "a[[0],b]"));
        check("[2:0.[2-3]:500[2-3]", &bad("2:0.[2-3", "[2:0.[2-3]:500[2-3]"));
        check("[fd00::7,8]", &bad("fd00::7", "[fd00::7,8]"));
        check("a[1-9999999999999999999]", &bad("1-9999999999999999999", "a[1-9999999999999999999]"));
        check("a b", r#""a b" holds ' ', which no name of a node does"#);
    }

    #[test]
    fn expansion_is_bounded_before_it_allocates() {
        let many = |text: &str| matches!(expand(text), Err(HostlistError::TooMany { .. }));
        assert_eq!(expand("n[1-1048576]").unwrap().len(), NAMES_MAX);
        assert!(many("n[0-1048576]"));
        assert!(many("a,n[1-1048576]"));
        assert!(many("n[0-999999999999999999]"));
        assert!(many(&"[0-9]".repeat(100)));
        assert_eq!(expand_at_most("n[0-3]", 4).unwrap().len(), 4);
        let error = expand_at_most("a,n[0-3]", 4).unwrap_err();
        assert_eq!(error.to_string(), r#"the list "a,n[0-3]" stands for more than 4 names"#);
        let long = |text: &str| matches!(expand(text), Err(HostlistError::LongName { .. }));
        assert!(long(&format!("{}[1-1048576]", "x".repeat(NAME_MAX + 1))));
        assert!(long(&"[0]".repeat(NAME_MAX + 1)));
        assert!(long(&format!("[1-1048576]{}", "[0]".repeat(1_000_000))), "a million names of a million digits");
        assert!(
            long(&format!("{}[9-10]", "x".repeat(NAME_MAX - 1)))
                && !long(&format!("{}[8-9]", "x".repeat(NAME_MAX - 1)))
        );
        assert!(!long(&"x".repeat(NAME_MAX)));
    }

    #[test]
    fn regular_names_fold_into_one_bracket() {
        let check = |names: &[&str], expected: &str| assert_eq!(fold(names), expected);
        check(&[], "");
        check(&["login"], "login");
        check(&["node7"], "node7");
        check(&["node9", "node10", "node11"], "node[9-11]");
        check(&["n09", "n10", "login", "n12"], "n[09-10],login,n12");
        check(&["n3", "n1", "n2", "n2"], "n[3,1-2,2]");
        check(&["n07", "n8", "n9"], "n[07,8-9]");
        check(&["10.0.0.2:50052", "10.0.0.3:50052", "10.0.1.1:50052"], "10.0.0.[2-3]:50052,10.0.1.1:50052");
        check(&["[fd00::1]:1", "[fd00::2]:1"], "[fd00::1]:1,[fd00::2]:1");
        check(&["a1b1", "a2b2"], "a1b1,a2b2");
        let names: Vec<String> = (0..16_384).map(|node| format!("node{node}")).collect();
        assert_eq!(fold(&names), "node[0-16383]");
    }

    fn name() -> impl Strategy<Value = String> {
        prop_oneof![
            "n[0-9]{1,3}",
            "r[0-2]n[0-9]{1,2}-ib",
            "10\\.0\\.[01]\\.[0-9]{1,3}:50052",
            "[a-z0-9é]{1,4}",
            "[0-9]{1,20}"
        ]
    }

    proptest! {
        #[test]
        fn what_is_folded_expands_to_itself(names in proptest::collection::vec(name(), 0..40)) {
            prop_assert_eq!(expand(&fold(&names)).unwrap(), names);
        }

        #[test]
        fn no_text_makes_expansion_panic(text in "[a\\[\\]0-3,:é -]{0,24}") {
            if let Ok(names) = expand(&text) {
                prop_assert_eq!(expand(&fold(&names)).unwrap(), names);
            }
        }
    }
}
