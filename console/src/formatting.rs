//! Formats of numbers, times, names and lines to type in tables and messages, and of durations on the command line: one form each, for all commands.
//!
//! [`jiff`] parses durations. It does not format them, because its printer has no form with at most two units (`1 h 2 min`, with a tenth below
//! ten seconds). Rounding to such a form is the whole task. Sizes need one division in a loop, which does not justify another crate in the
//! build.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use jiff::fmt::temporal::DateTimePrinter;
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Span, SpanRelativeTo, Timestamp};
pub use lattice_session::count::counted as count;
use nix::unistd::{Uid, User};

/// Format of dates for users.
const DATE: DateTimePrinter = DateTimePrinter::new().separator(b' ').precision(Some(0));

/// A text is not a valid duration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a duration of at most 366 days; 30, 30s, 500ms, 5m, 1h30m and 2d are; srun's MIN:SEC is for --time")]
pub struct NotADuration;

/// Longest duration that is accepted. Code that uses durations need not support longer ones.
pub const TIME_MAX: Duration = Duration::from_secs(366 * 86_400);

/// Parses a whole number of seconds, or numbers with units, larger units first: `30`, `500ms`, `1h30m`. A day has 24 hours.
///
/// # Errors
/// Refuses every other text, negative durations, durations above [`TIME_MAX`], and units longer than a week.
pub fn parse_duration(text: &str) -> Result<Duration, NotADuration> {
    let read = if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
        text.parse().map(Duration::from_secs).map_err(|_| NotADuration)
    } else {
        with_units(text)
    };
    read.and_then(|duration| if duration <= TIME_MAX { Ok(duration) } else { Err(NotADuration) })
}

fn with_units(text: &str) -> Result<Duration, NotADuration> {
    let span: Span = text.parse().map_err(|_| NotADuration)?;
    let duration: SignedDuration = span.to_duration(SpanRelativeTo::days_are_24_hours()).map_err(|_| NotADuration)?;
    duration.try_into().map_err(|_| NotADuration)
}

/// A duration in its two largest units, with tenths below ten seconds: `0.4 s`, `5 s`, `3 min 5 s`, `2 d 7 h`.
pub fn duration(time: Duration) -> String {
    const UNITS: [(&str, u64); 4] = [("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1)];
    let tenths = (time.as_millis() + 50) / 100;
    if tenths < 100 {
        return match tenths % 10 {
            0 => format!("{} s", tenths / 10),
            tenth => format!("{}.{tenth} s", tenths / 10),
        };
    }
    let seconds = time.as_secs().max(10);
    let first = UNITS.iter().position(|&(_, length)| seconds >= length).unwrap_or(UNITS.len() - 1);
    let mut rest = seconds;
    let mut parts = Vec::new();
    for (unit, length) in UNITS.iter().skip(first).take(2) {
        if rest / length > 0 {
            parts.push(format!("{} {unit}", rest / length));
        }
        rest %= length;
    }
    parts.join(" ")
}

/// Like [`duration`], for times that are compared with each other, with a resolution of milliseconds below ten seconds: `43 ms`, `3.804 s`.
pub fn short_duration(time: Duration) -> String {
    match time.as_millis() {
        ms @ 0..1_000 => format!("{ms} ms"),
        ms @ 1_000..10_000 => format!("{}.{:03} s", ms / 1_000, ms % 1_000),
        _ => duration(time),
    }
}

/// Time since `seconds` (Unix time). A time in the future counts as now.
pub fn ago(seconds: u64) -> String {
    let now = u64::try_from(Timestamp::now().as_second()).unwrap_or_default();
    format!("{} ago", duration(Duration::from_secs(now.saturating_sub(seconds))))
}

/// A size in its largest unit: `512 B`, `62.8 GiB`.
pub fn size(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64 / 1024.0;
    let mut unit = 0;
    while value >= 1024.0 {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.1} {}", UNITS[unit])
}

/// RFC 3339 form of a Unix time.
pub fn rfc3339(seconds: u64) -> String {
    let seconds = i64::try_from(seconds).unwrap_or(i64::MAX);
    Timestamp::from_second(seconds).map_or_else(|_| seconds.to_string(), |time| time.to_string())
}

/// Date and time of a Unix time in `zone`.
pub fn date(seconds: u64, zone: &TimeZone) -> String {
    let seconds = i64::try_from(seconds).unwrap_or(i64::MAX);
    Timestamp::from_second(seconds)
        .map_or_else(|_| seconds.to_string(), |time| DATE.datetime_to_string(&zone.to_datetime(time)))
}

/// Name of a user; the number, if the user has no name on this machine.
pub fn user(uid: u32) -> String {
    User::from_uid(Uid::from_raw(uid)).ok().flatten().map_or_else(|| uid.to_string(), |user| user.name)
}

/// Name with the smallest edit distance to `typed`; `None` if there are no names.
pub fn nearest<'a>(typed: &str, known: impl IntoIterator<Item = &'a String>) -> Option<&'a str> {
    let nearest = known.into_iter().min_by_key(|known| strsim::damerau_levenshtein(typed, known));
    nearest.map(String::as_str)
}

/// The line `lattice COMMAND REST...` to type, quoted for a shell.
pub fn typed_line(command: &str, rest: &[OsString]) -> String {
    let mut line = format!("lattice {command}");
    for word in rest {
        line += " ";
        line += &quoted(word);
    }
    line
}

fn quoted(word: &OsStr) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./:=,+@%".contains(&byte);
    let text = word.to_string_lossy();
    match !word.is_empty() && word.as_bytes().iter().copied().all(is_plain) {
        true => text.into_owned(),
        false => format!("'{}'", text.replace('\'', r"'\''")),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn durations_are_read_as_people_write_them() {
        let check = |text, milliseconds| {
            assert_eq!(parse_duration(text), Ok(Duration::from_millis(milliseconds)), "{text}");
        };
        check("30", 30_000);
        check("0", 0);
        check("30s", 30_000);
        check("500ms", 500);
        check("5m", 300_000);
        check("5min", 300_000);
        check("1.5s", 1_500);
        check("1h30m", 5_400_000);
        check("1h 30m", 5_400_000);
        check("1d2h3m4s5ms", 93_784_005);
    }

    #[test]
    fn anything_else_is_refused_with_what_is_possible() {
        for text in [
            "",
            "abc",
            "-5",
            "-5s",
            "1h30",
            "3ä",
            "10:00",
            "30m1h",
            "1s1s",
            "5 parsecs",
            "1mo",
            "99999999999999999999d",
        ] {
            assert_eq!(parse_duration(text), Err(NotADuration), "{text}");
        }
        assert_eq!(
            NotADuration.to_string(),
            "not a duration of at most 366 days; 30, 30s, 500ms, 5m, 1h30m and 2d are; srun's MIN:SEC is for --time"
        );
    }

    #[test]
    fn times_are_rounded_to_what_matters() {
        let check = |milliseconds, expected: &str| assert_eq!(duration(Duration::from_millis(milliseconds)), expected);
        check(0, "0 s");
        check(40, "0 s");
        check(500, "0.5 s");
        check(1_250, "1.3 s");
        check(5_003, "5 s");
        check(9_949, "9.9 s");
        check(9_990, "10 s");
        check(30_400, "30 s");
        check(59_900, "59 s");
        check(60_000, "1 min");
        check(3_600_000, "1 h");
        check(3_725_000, "1 h 2 min");
        check(86_400_000 + 60_000, "1 d");
        check(90_061_000, "1 d 1 h");
    }

    #[test]
    fn short_times_have_milliseconds() {
        let check = |micros, expected: &str| assert_eq!(short_duration(Duration::from_micros(micros)), expected);
        check(900, "0 ms");
        check(43_999, "43 ms");
        check(1_000_000, "1.000 s");
        check(3_804_200, "3.804 s");
        check(9_999_999, "9.999 s");
        check(10_000_000, "10 s");
        check(3_725_000_000, "1 h 2 min");
    }

    #[test]
    fn sizes_have_one_decimal() {
        let check = |bytes, expected: &str| assert_eq!(size(bytes), expected);
        check(0, "0 B");
        check(1023, "1023 B");
        check(1024, "1.0 KiB");
        check(1536, "1.5 KiB");
        check(67_430_000_000, "62.8 GiB");
        check(u64::MAX, "16.0 EiB");
    }

    #[test]
    fn a_line_can_be_typed_as_it_is_shown() {
        let words = ["-n", "4", "./a b", "it's", "", "$HOME"].map(OsString::from);
        assert_eq!(typed_line("launch", &words), r"lattice launch -n 4 './a b' 'it'\''s' '' '$HOME'");
    }

    #[test]
    fn one_thing_is_not_many() {
        let check = |number: u32, expected: &str| assert_eq!(count(number, "node"), expected);
        check(0, "0 nodes");
        check(1, "1 node");
        check(2, "2 nodes");
    }

    #[test]
    fn times_of_day_and_users_are_named() {
        assert_eq!(rfc3339(1_795_183_742), "2026-11-20T14:09:02Z");
        assert_eq!(date(1_795_183_742, &TimeZone::UTC), "2026-11-20 14:09:02");
        assert_eq!(date(u64::MAX, &TimeZone::UTC), i64::MAX.to_string(), "no such date");
        assert_eq!(ago(u64::MAX), "0 s ago");
        assert_eq!((user(0), user(3_999_999_999)), ("root".to_owned(), "3999999999".to_owned()));
    }

    proptest! {
        /// The shown time differs from the time by at most its second unit.
        #[test]
        fn a_time_that_is_shown_is_close_to_the_time(milliseconds in 0..10_000_000_000_u64) {
            let time = Duration::from_millis(milliseconds);
            let shown = duration(time);
            let read = parse_duration(&shown.replace(' ', "")).unwrap();
            let units = [86_400_000_u64, 3_600_000, 60_000];
            let coarse = units.iter().position(|&unit| milliseconds >= unit).map_or(1_000, |first| {
                *units.get(first + 1).unwrap_or(&1_000)
            });
            prop_assert!(read.abs_diff(time) <= Duration::from_millis(coarse), "{milliseconds} ms is shown as {shown}");
        }

        #[test]
        fn no_text_of_a_user_panics(text in ".{0,20}") {
            let _ = parse_duration(&text);
        }
    }
}
