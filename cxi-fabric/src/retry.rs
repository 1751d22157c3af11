//! What follows from an answer: the one table, and how long to pause before the next try. Pure.

use std::time::{Duration, SystemTime};

use crate::wire::Method;

/// What to do about an HTTP status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Judgement {
    /// It was done.
    Done,
    /// It is not there, which is an answer.
    Absent,
    /// It is there already.
    Conflict,
    /// Our token may be stale.
    Stale,
    /// Later it may go well.
    Again,
    /// It will never go well.
    Never,
}

/// The table. Connections that fail or break are as 503.
pub(crate) fn judge(method: Method, status: u16) -> Judgement {
    match (status, method) {
        (200..=299, _) => Judgement::Done,
        (401 | 403, _) => Judgement::Stale,
        (404 | 410, Method::Get | Method::Delete) => Judgement::Absent,
        (409, Method::Post) => Judgement::Conflict,
        (408 | 429 | 500 | 502 | 503 | 504, _) => Judgement::Again,
        _ => Judgement::Never,
    }
}

/// Exponential back-off with full jitter: a pause is drawn evenly from nothing to a limit that doubles with every try. Clients
/// that failed together do not come back together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Backoff {
    /// The limit after the first try.
    pub(crate) first: Duration,
    /// What the limit never exceeds.
    pub(crate) ceiling: Duration,
}

impl Default for Backoff {
    fn default() -> Self {
        Self { first: Duration::from_millis(100), ceiling: Duration::from_secs(5) }
    }
}

impl Backoff {
    /// The pause after try number `tries` (from 1). Never shorter than what the service asked for, and jittered beyond it.
    pub(crate) fn pause(&self, tries: u32, asked: Option<Duration>, random: &mut fastrand::Rng) -> Duration {
        let doubled = self.first.saturating_mul(1_u32.checked_shl(tries.saturating_sub(1)).unwrap_or(u32::MAX));
        let jitter = doubled.min(self.ceiling).mul_f64(random.f64());
        asked.unwrap_or_default().saturating_add(jitter)
    }
}

/// Reads a `Retry-After` header: seconds, or a date, which is compared with the service's own `Date`, as our time of day may be
/// wrong. `None` if it makes no sense.
pub(crate) fn retry_after(header: &str, date: Option<&str>) -> Option<Duration> {
    if let Ok(seconds) = header.trim().parse() {
        return Some(Duration::from_secs(seconds));
    }
    let parse = |text: &str| -> Option<SystemTime> { httpdate::parse_http_date(text).ok() };
    let (then, now) = (parse(header)?, parse(date?)?);
    Some(then.duration_since(now).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table() {
        use Judgement::{Absent, Again, Conflict, Done, Never, Stale};
        use Method::{Delete, Get, Post};
        let table = [
            (Post, [200, 201, 202, 204].as_slice(), Done),
            (Get, &[401, 403], Stale),
            (Get, &[404, 410], Absent),
            (Delete, &[404, 410], Absent),
            (Post, &[404], Never),
            (Post, &[409], Conflict),
            (Delete, &[409], Never),
            (Post, &[408, 429, 500, 502, 503, 504], Again),
            (Delete, &[408, 429, 500, 502, 503, 504], Again),
            (Post, &[100, 301, 302, 400, 405, 415, 422, 501, 505], Never),
        ];
        for (method, statuses, expected) in table {
            for status in statuses {
                assert_eq!(judge(method, *status), expected, "{method:?} {status}");
            }
        }
    }

    #[test]
    fn a_pause_stays_below_its_limit_and_above_what_was_asked() {
        let backoff = Backoff { first: Duration::from_millis(100), ceiling: Duration::from_secs(1) };
        let mut random = fastrand::Rng::with_seed(7);
        for tries in 1..100 {
            let pause = backoff.pause(tries, None, &mut random);
            assert!(
                pause <= Duration::from_millis(100 << (tries - 1).min(4)).min(backoff.ceiling),
                "{tries}: {pause:?}"
            );
            let asked = Duration::from_secs(9);
            assert!(backoff.pause(tries, Some(asked), &mut random) >= asked);
        }
        let longest = (0..1000).map(|_| backoff.pause(9, None, &mut random)).max().expect("a thousand");
        assert!(longest > Duration::from_millis(900), "jitter is not full: {longest:?}");
    }

    #[test]
    fn retry_after_is_seconds_or_a_date_of_the_services_own_clock() {
        assert_eq!(retry_after("7", None), Some(Duration::from_secs(7)));
        let (date, later) = ("Sun, 06 Nov 1994 08:49:37 GMT", "Sun, 06 Nov 1994 08:50:07 GMT");
        assert_eq!(retry_after(later, Some(date)), Some(Duration::from_secs(30)));
        assert_eq!(retry_after(date, Some(later)), Some(Duration::ZERO));
        assert_eq!(retry_after(later, None), None);
        assert_eq!(retry_after("soon", Some(date)), None);
    }
}
