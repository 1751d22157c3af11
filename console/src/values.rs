//! Values that flags of several commands take: their parsers, and the errors for invalid values.

use std::num::NonZeroU32;
use std::ops::RangeInclusive;
use std::time::Duration;

use clap::builder::{OsStringValueParser, TypedValueParser};
use hostlist::HostlistError;
use lattice_session::template::Template;

use crate::formatting::{duration, parse_duration, short_duration};

/// Name of a value that is a time of Lattice: a plain number is seconds.
pub const TIME: &str = "SECONDS|TIME";

/// Parser of a time from `least` to `most`.
pub fn time(least: Duration, most: Duration) -> impl Fn(&str) -> Result<Duration, String> + Clone {
    move |text| match parse_duration(text).map_err(|error| error.to_string())? {
        time if time < least => Err(format!("the shortest time is {}", short_duration(least))),
        time if time > most => Err(format!("the longest time is {}", duration(most))),
        time => Ok(time),
    }
}

/// Parser of a whole number in a range. The error names the bounds.
pub fn whole(range: RangeInclusive<u32>) -> impl Fn(&str) -> Result<u32, String> + Clone {
    move |text| {
        let number = text.parse::<u32>().ok().filter(|number| range.contains(number));
        number.ok_or_else(|| format!("a whole number from {} to {} is possible", range.start(), range.end()))
    }
}

/// Parses a whole number from 1 on.
///
/// # Errors
/// Returns the bounds, for any other text.
pub fn positive(text: &str) -> Result<NonZeroU32, String> {
    text.parse().map_err(|_| format!("a whole number from 1 to {} is possible", u32::MAX))
}

/// Parser of a file name with fields such as `%r`.
pub fn template() -> impl TypedValueParser<Value = Template> {
    OsStringValueParser::new().try_map(|text| Template::parse(&text))
}

/// Error for an invalid list of nodes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NodeListError {
    /// The text is no hostlist.
    #[error(transparent)]
    List(#[from] HostlistError),
    /// The list is empty, for example from an unset variable of a script. It must not mean all nodes.
    #[error("it names no node; a list such as node[0-3,7] does")]
    Empty,
}

/// Checks a list of nodes, and returns it unchanged.
///
/// # Errors
/// Fails for an invalid list, and for an empty one.
pub fn node_list(text: &str) -> Result<String, NodeListError> {
    if hostlist::expand(text)?.is_empty() { Err(NodeListError::Empty) } else { Ok(text.to_owned()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_nodes_is_checked_and_left_as_it_is() {
        assert_eq!(node_list("node[0-3,7]"), Ok("node[0-3,7]".to_owned()));
        assert_eq!(node_list(""), Err(NodeListError::Empty));
        assert!(matches!(node_list("node[3-1]"), Err(NodeListError::List(_))));
        assert!(matches!(node_list("node[3"), Err(NodeListError::List(_))));
    }
}
