//! Pure retry policy: the meaning of each HTTP status, and the pause before the next try.
//!
//! The crate `backon` was considered and rejected. Its loop sleeps and counts by itself. The loop of this crate has a deadline for tries
//! and pauses, includes the service's `Retry-After`, renews a token once, and uses a clock that tests provide. Then only
//! [`Backoff::pause`] is left of a back-off, with full jitter; `backon` adds jitter to the whole pause.

use std::time::Duration;

use crate::wire::Method;

/// Meaning of an HTTP status for the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Disposition {
    /// The call was carried out.
    Done,
    /// The resource does not exist, which is a valid answer.
    Absent,
    /// The resource exists already.
    Conflict,
    /// The credentials are rejected; a token may be stale.
    Unauthorised,
    /// Transient: a retry may succeed.
    Retry,
    /// Permanent: a retry would fail in the same way.
    Permanent,
}

/// Classifies a status. Connections that fail or break are treated like 503.
pub(crate) fn classify(method: Method, status: u16) -> Disposition {
    match (status, method) {
        (200..=299, _) => Disposition::Done,
        (401 | 403, _) => Disposition::Unauthorised,
        (404 | 410, Method::Get | Method::Delete) => Disposition::Absent,
        (409, Method::Post) => Disposition::Conflict,
        (408 | 429 | 500 | 502 | 503 | 504, _) => Disposition::Retry,
        _ => Disposition::Permanent,
    }
}

/// Exponential back-off with full jitter: a pause is drawn uniformly from zero to a limit that doubles with every try. Clients that failed
/// together therefore do not retry together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Backoff {
    /// Limit after the first try.
    pub(crate) first: Duration,
    /// Maximum of the limit.
    pub(crate) ceiling: Duration,
}

impl Default for Backoff {
    fn default() -> Self {
        Self { first: Duration::from_millis(100), ceiling: Duration::from_secs(5) }
    }
}

impl Backoff {
    /// Pause after try number `tries` (from 1): jitter in addition to the pause `asked` by the service.
    pub(crate) fn pause(&self, tries: u32, asked: Option<Duration>, random: &mut fastrand::Rng) -> Duration {
        let doubled = self.first.saturating_mul(1_u32.checked_shl(tries.saturating_sub(1)).unwrap_or(u32::MAX));
        let jitter = doubled.min(self.ceiling).mul_f64(random.f64());
        asked.unwrap_or_default().saturating_add(jitter)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table() {
        use Disposition::{Absent, Conflict, Done, Permanent, Retry, Unauthorised};
        use Method::{Delete, Get, Post};
        let table = [
            (Post, [200, 201, 202, 204].as_slice(), Done),
            (Get, &[401, 403], Unauthorised),
            (Get, &[404, 410], Absent),
            (Delete, &[404, 410], Absent),
            (Post, &[404], Permanent),
            (Post, &[409], Conflict),
            (Delete, &[409], Permanent),
            (Post, &[408, 429, 500, 502, 503, 504], Retry),
            (Delete, &[408, 429, 500, 502, 503, 504], Retry),
            (Post, &[100, 301, 302, 400, 405, 415, 422, 501, 505], Permanent),
        ];
        for (method, statuses, expected) in table {
            for status in statuses {
                assert_eq!(classify(method, *status), expected, "{method:?} {status}");
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
}
