//! Times in the forms of `srun --time`: a plain number is minutes.

use std::time::Duration;

use lattice_console::formatting::{TIME_MAX, parse_duration};

/// Error for a text that is no time limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "not a time limit; 10 (minutes), 10:30, 1:10:30, 2-12 (days-hours), 2-12:30, 30s, 1h30m and UNLIMITED are; at most 366 days"
)]
pub struct NotATimeLimit;

/// Name of a value that is a time of srun: a plain number is minutes.
pub const VALUE_NAME: &str = "MINUTES|TIME";

/// Words for no limit.
const NO_LIMIT: [&str; 2] = ["UNLIMITED", "INFINITE"];

/// Parses the forms of srun(1), `--time`: `minutes`, `minutes:seconds`, `hours:minutes:seconds`, `days-hours`, `days-hours:minutes` and
/// `days-hours:minutes:seconds`. Times with units, such as `90s`, are also accepted. No limit, which is 0 or a word in srun, is
/// [`Duration::ZERO`].
///
/// # Errors
/// Refuses every other text.
pub fn parse(text: &str) -> Result<Duration, NotATimeLimit> {
    if NO_LIMIT.iter().any(|word| text.eq_ignore_ascii_case(word)) {
        return Ok(Duration::ZERO);
    }
    if text.bytes().any(|byte| byte.is_ascii_alphabetic()) {
        return parse_duration(text).map_err(|_| NotATimeLimit);
    }
    let (days, rest) = match text.split_once('-') {
        Some((days, rest)) => (Some(number(days)?), rest),
        None => (None, text),
    };
    let parts = rest.split(':').map(number).collect::<Result<Vec<_>, _>>()?;
    let (hours, minutes, seconds) = match (days.is_some(), parts.as_slice()) {
        (false, &[minutes]) => (0, minutes, 0),
        (false, &[minutes, seconds]) => (0, minutes, seconds),
        (true, &[hours]) => (hours, 0, 0),
        (true, &[hours, minutes]) => (hours, minutes, 0),
        (_, &[hours, minutes, seconds]) => (hours, minutes, seconds),
        _ => return Err(NotATimeLimit),
    };
    let seconds = [(days.unwrap_or(0), 86_400), (hours, 3_600), (minutes, 60), (seconds, 1)]
        .into_iter()
        .try_fold(0_u64, |sum, (count, unit)| sum.checked_add(u64::from(count) * unit));
    seconds.map(Duration::from_secs).filter(|&limit| limit <= TIME_MAX).ok_or(NotATimeLimit)
}

/// Parses the time limit of an allocation: at least 1 s, or no limit.
///
/// # Errors
/// Refuses every other text.
pub fn allocation_limit(text: &str) -> Result<Duration, String> {
    match parse(text).map_err(|error| error.to_string())? {
        limit if !limit.is_zero() && limit < Duration::from_secs(1) => {
            Err("an allocation runs for 1 s at least".to_owned())
        }
        limit => Ok(limit),
    }
}

fn number(text: &str) -> Result<u32, NotATimeLimit> {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if is_number { text.parse().map_err(|_| NotATimeLimit) } else { Err(NotATimeLimit) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_of_srun_is_read() {
        for (text, seconds) in [
            ("10", 600),
            ("0", 0),
            ("UNLIMITED", 0),
            ("infinite", 0),
            ("10:30", 630),
            ("1:10:30", 4230),
            ("2-12", 216_000),
            ("2-12:30", 217_800),
            ("2-12:30:15", 217_815),
            ("90s", 90),
            ("1h30m", 5400),
            ("527040", 366 * 86_400),
        ] {
            assert_eq!(parse(text), Ok(Duration::from_secs(seconds)), "{text}");
        }
    }

    #[test]
    fn nothing_else_is() {
        for text in [
            "",
            ":",
            "-",
            "1-",
            "-1",
            "1:",
            "1:2:3:4",
            "1-2:3:4:5",
            "1.5",
            "+1",
            "NEVER",
            "527041",
            "367-0",
            "4294967295",
            "99999999999",
        ] {
            assert_eq!(parse(text), Err(NotATimeLimit), "{text}");
        }
    }
}
