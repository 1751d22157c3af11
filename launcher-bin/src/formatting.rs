//! Numbers as people read them in tables: times, sizes, names of users and states.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use jiff::tz::TimeZone;
use nix::unistd::{Uid, User};

/// A time in its two largest units: `0.4 s`, `12 s`, `3 min 5 s`, `2 d 7 h`.
pub(crate) fn duration(time: Duration) -> String {
    const UNITS: [(&str, u64); 4] = [("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1)];
    let seconds = time.as_secs();
    if seconds < 10 {
        return format!("{:.1} s", time.as_secs_f64());
    }
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

/// How long ago a time was, given in seconds since 1970.
pub(crate) fn ago(seconds: u64) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    format!("{} ago", duration(Duration::from_secs(now.as_secs().saturating_sub(seconds))))
}

/// A size in its largest unit: `512 B`, `62.8 GiB`.
pub(crate) fn size(bytes: u64) -> String {
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

/// The time as RFC 3339 writes it, from seconds since 1970.
pub(crate) fn rfc3339(seconds: u64) -> String {
    let seconds = i64::try_from(seconds).unwrap_or(i64::MAX);
    jiff::Timestamp::from_second(seconds).map_or_else(|_| seconds.to_string(), |time| time.to_string())
}

/// The time on a clock of `zone`, from seconds since 1970.
pub(crate) fn date(seconds: u64, zone: &TimeZone) -> String {
    let seconds = i64::try_from(seconds).unwrap_or(i64::MAX);
    jiff::Timestamp::from_second(seconds).map_or_else(
        |_| seconds.to_string(),
        |time| time.to_zoned(zone.clone()).strftime("%Y-%m-%d %H:%M:%S").to_string(),
    )
}

/// The name of a user; the number of one who has none here.
pub(crate) fn user(uid: u32) -> String {
    User::from_uid(Uid::from_raw(uid)).ok().flatten().map_or_else(|| uid.to_string(), |user| user.name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_as_short_as_they_can_be() {
        let check = |seconds: f64, expected: &str| assert_eq!(duration(Duration::from_secs_f64(seconds)), expected);
        check(0.04, "0.0 s");
        check(9.96, "10.0 s");
        check(59.9, "59 s");
        check(60.0, "1 min");
        check(3_725.0, "1 h 2 min");
        check(90_061.0, "1 d 1 h");
        assert_eq!(rfc3339(1_795_183_742), "2026-11-20T14:09:02Z");
    }

    #[test]
    fn sizes_have_one_decimal() {
        let check = |bytes, expected: &str| assert_eq!(size(bytes), expected);
        check(1023, "1023 B");
        check(1536, "1.5 KiB");
        check(67_430_000_000, "62.8 GiB");
        check(u64::MAX, "16.0 EiB");
        assert_eq!((user(0), user(3_999_999_999)), ("root".to_owned(), "3999999999".to_owned()));
    }
}
