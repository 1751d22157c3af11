//! Rates of lines: the number of lines that a user, or an address, may cause. A line of a kind passes while the user has an allowance of that
//! kind; further lines are left out and counted.
//!
//! A line counts for the user or the address in its field `caller`, `from` or `uid`. Its kind is its place in the code and its field `action`.
//! Lines without such a field share one allowance for each place, which is large enough for the start of a cluster. Lines of the levels `debug`
//! and `trace`, which only a filter enables, always pass.

use std::collections::HashMap;
use std::fmt;
use std::time::{Duration, Instant};

use tracing::field::{Field, Visit};
use tracing::{Event, Level};

use super::fields::cut;

/// Maximum number of pairs of user and kind that are counted separately. Further pairs share one allowance.
const KEYS_MAX: usize = 4096;
/// Number of significant characters of a user's name.
const NAME_MAX: usize = 64;

/// The kind that further pairs share.
const OTHERS: &str = "others";
/// Interval between two searches for kinds to remove, each of which visits all kinds.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Lines of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Allowance {
    /// Maximum number of lines at once.
    most: u32,
    /// Time after which one more line is allowed.
    every: Duration,
}

/// Allowance of refusals, which a user causes at no cost.
const REFUSALS: Allowance = Allowance { most: 16, every: Duration::from_secs(1) };
/// Allowance of changes in audit records, each of which costs its user some work.
const CHANGES: Allowance = Allowance { most: 256, every: Duration::from_millis(20) };

/// Allowance of lines without a user.
const OTHER_LINES: Allowance = Allowance { most: 2048, every: Duration::from_millis(10) };

/// Use of the allowance of each user and kind.
#[derive(Debug, Default)]
pub(super) struct Rates {
    by_kind: HashMap<String, Bucket>,
    /// Time of the last search for kinds to remove.
    looked_at: Option<Instant>,
}

#[derive(Debug)]
struct Bucket {
    allowance: Allowance,
    /// Time at which the whole allowance is available again.
    full_at: Instant,
    left_out: u64,
}

impl Rates {
    /// Returns true if a line passes.
    pub(super) fn admit(&mut self, event: &Event<'_>, now: Instant) -> bool {
        let place = event.metadata();
        if *place.level() > Level::INFO {
            return true;
        }
        let mut line = Line::default();
        event.record(&mut line);
        let allowance = match (&line.who, line.is_change) {
            (None, _) => OTHER_LINES,
            (Some(_), true) => CHANGES,
            (Some(_), false) => REFUSALS,
        };
        let who = line.who.map(|who| format!(" of {who}")).unwrap_or_default();
        let action = line.action.map(|action| format!(" {action}")).unwrap_or_default();
        let kind = format!("{}:{}{who}{action}", place.target(), place.line().unwrap_or_default());
        self.admit_kind(kind, allowance, now)
    }

    fn admit_kind(&mut self, kind: String, allowance: Allowance, now: Instant) -> bool {
        let kind = if self.by_kind.len() < KEYS_MAX || self.by_kind.contains_key(&kind) {
            kind
        } else {
            self.spare(kind, now)
        };
        let bucket = self.by_kind.entry(kind).or_insert(Bucket { allowance, full_at: now, left_out: 0 });
        let full_at = bucket.full_at.max(now) + bucket.allowance.every;
        let passes = full_at <= now + bucket.allowance.every * bucket.allowance.most;
        if passes {
            bucket.full_at = full_at;
        } else {
            bucket.left_out += 1;
        }
        passes
    }

    /// Removes kinds with a whole allowance. Returns the kind itself if there is room now, else the shared one.
    fn spare(&mut self, kind: String, now: Instant) -> String {
        if self.looked_at.is_some_and(|looked_at| now.saturating_duration_since(looked_at) < LOOK_EVERY) {
            return OTHERS.to_owned();
        }
        self.looked_at = Some(now);
        self.by_kind.retain(|_, bucket| bucket.full_at > now || bucket.left_out > 0);
        if self.by_kind.len() < KEYS_MAX { kind } else { OTHERS.to_owned() }
    }

    /// Reports of the lines that were left out since the last call, one for each kind.
    pub(super) fn left_out(&mut self) -> Vec<String> {
        let some = self.by_kind.iter_mut().filter(|(_, bucket)| bucket.left_out > 0);
        some.map(|(kind, bucket)| format!("{} lines were left out: {kind}\n", std::mem::take(&mut bucket.left_out)))
            .collect()
    }
}

/// Fields of a line that determine its user and its kind.
#[derive(Debug, Default)]
struct Line {
    who: Option<String>,
    action: Option<String>,
    is_change: bool,
}

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        match field.name() {
            "caller" | "from" | "uid" => self.who = Some(cut(value, NAME_MAX)),
            "action" => self.action = Some(cut(value, NAME_MAX)),
            // The format of audit records.
            "outcome" => self.is_change = cut(value, NAME_MAX).starts_with("\"done"),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_has_so_many_lines_of_a_kind_and_the_rest_is_counted() {
        let (mut rates, start) = (Rates::default(), Instant::now());
        let passed = |rates: &mut Rates, kind: &str, count: usize, now| {
            (0..count).filter(|_| rates.admit_kind(kind.to_owned(), REFUSALS, now)).count()
        };
        assert_eq!(passed(&mut rates, "refusal of user 1", 1000, start), 16);
        assert_eq!(passed(&mut rates, "refusal of user 2", 3, start), 3);
        assert_eq!(rates.left_out(), ["984 lines were left out: refusal of user 1\n"]);
        assert!(rates.left_out().is_empty());
        let later = start + Duration::from_secs(10);
        assert_eq!(passed(&mut rates, "refusal of user 1", 1000, later), 10, "one for each second");
    }

    #[test]
    fn names_without_number_take_bounded_memory() {
        let (mut rates, start) = (Rates::default(), Instant::now());
        let passed = (0..100_000).filter(|name| rates.admit_kind(name.to_string(), REFUSALS, start)).count();
        assert_eq!(passed, KEYS_MAX + 16);
        assert_eq!(rates.by_kind.len(), KEYS_MAX + 1);
        let later = start + Duration::from_secs(100);
        rates.left_out();
        assert!(rates.admit_kind("new".to_owned(), REFUSALS, later));
        assert_eq!(rates.by_kind.len(), 1, "those whose allowance is whole again are forgotten");
    }
}
