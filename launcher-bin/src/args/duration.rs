//! Durations as people type them on a command line: `30`, `30s`, `500ms`, `5m`, `1h30m`.

use std::time::Duration;

/// Why a text is no duration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub(super) enum DurationError {
    /// The text is not a sequence of numbers with units.
    #[error("not a duration; 30, 30s, 500ms, 5m and 1h30m are")]
    Syntax,
    /// A number is followed by something that is no unit.
    #[error("{unit:?} is no unit of time; ms, s, m, h and d are")]
    Unit {
        /// What stands where the unit should be.
        unit: String,
    },
    /// A unit is not smaller than the one before it, as in `30m1h`.
    #[error("{unit:?} must come before the smaller units")]
    Order {
        /// The unit that comes too late.
        unit: String,
    },
    /// The duration is longer than can be counted.
    #[error("longer than can be counted")]
    TooLong,
}

/// Units in milliseconds, largest first.
const UNITS: [(&str, u64); 5] = [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];

/// Reads a whole number of seconds, or whole numbers with units, the larger units first.
///
/// # Errors
/// Refuses every other text, and says what is possible.
pub(super) fn parse(text: &str) -> Result<Duration, DurationError> {
    if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
        return text.parse().map(Duration::from_secs).map_err(|_| DurationError::TooLong);
    }
    let mut rest = text;
    let mut larger_units = 0;
    let mut milliseconds = 0_u64;
    while !rest.is_empty() || larger_units == 0 {
        let (number, after) = split_while(rest, |c| c.is_ascii_digit());
        let (unit, after) = split_while(after, char::is_alphabetic);
        if number.is_empty() || unit.is_empty() {
            return Err(DurationError::Syntax);
        }
        let Some(index) = UNITS.iter().position(|(name, _)| *name == unit) else {
            return Err(DurationError::Unit { unit: unit.to_owned() });
        };
        if index < larger_units {
            return Err(DurationError::Order { unit: unit.to_owned() });
        }
        let count: u64 = number.parse().map_err(|_| DurationError::TooLong)?;
        let part = count.checked_mul(UNITS[index].1).ok_or(DurationError::TooLong)?;
        milliseconds = milliseconds.checked_add(part).ok_or(DurationError::TooLong)?;
        larger_units = index + 1;
        rest = after;
    }
    Ok(Duration::from_millis(milliseconds))
}

fn split_while(text: &str, belongs: impl Fn(char) -> bool) -> (&str, &str) {
    text.split_at(text.find(|c| !belongs(c)).unwrap_or(text.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_as_people_write_them() {
        let check = |text, milliseconds| assert_eq!(parse(text), Ok(Duration::from_millis(milliseconds)), "{text}");
        check("30", 30_000);
        check("0", 0);
        check("30s", 30_000);
        check("500ms", 500);
        check("5m", 300_000);
        check("1h30m", 5_400_000);
        check("1d2h3m4s5ms", 93_784_005);
    }

    #[test]
    fn anything_else_is_refused_with_what_is_possible() {
        let unit = |unit: &str| DurationError::Unit { unit: unit.to_owned() };
        let check = |text, error| assert_eq!(parse(text), Err(error), "{text}");
        check("", DurationError::Syntax);
        check("abc", DurationError::Syntax);
        check("-5", DurationError::Syntax);
        check("1.5s", DurationError::Syntax);
        check("1h30", DurationError::Syntax);
        check("5 m", DurationError::Syntax);
        check("5min", unit("min"));
        check("3ä", unit("ä"));
        check("30m1h", DurationError::Order { unit: "h".to_owned() });
        check("1s1s", DurationError::Order { unit: "s".to_owned() });
        check("99999999999999999999", DurationError::TooLong);
        check("999999999999999d", DurationError::TooLong);
    }
}
