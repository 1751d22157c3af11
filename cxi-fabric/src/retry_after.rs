//! The HTTP header `Retry-After` (RFC 9110, 10.2.3).

use std::time::{Duration, SystemTime};

/// Parses the header: seconds, or a date. A date is compared with the service's own `Date`, since the local time of day may be wrong.
/// `None` for a malformed header.
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
    fn retry_after_is_seconds_or_a_date_of_the_services_own_clock() {
        assert_eq!(retry_after("7", None), Some(Duration::from_secs(7)));
        let (date, later) = ("Sun, 06 Nov 1994 08:49:37 GMT", "Sun, 06 Nov 1994 08:50:07 GMT");
        assert_eq!(retry_after(later, Some(date)), Some(Duration::from_secs(30)));
        assert_eq!(retry_after(date, Some(later)), Some(Duration::ZERO));
        assert_eq!(retry_after(later, None), None);
        assert_eq!(retry_after("soon", Some(date)), None);
    }
}
