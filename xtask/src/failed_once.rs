//! The list `xtask/failed-once.txt`: tests that failed in a run of all tests and passed when they ran again, alone. A test that does so twice
//! within [`WEEK`] fails the second run.

use anyhow::{Context, Result, ensure};
use jiff::civil::Date;

/// Path of the list below the root of the repository, which is the working directory of chores.
const LIST: &str = "xtask/failed-once.txt";

/// Number of days for which an entry counts.
const WEEK: i32 = 7;

/// Entries of the list.
#[derive(Debug)]
pub(crate) struct FailedOnce {
    entries: Vec<(Date, String)>,
    today: Date,
}

impl FailedOnce {
    pub(crate) fn read() -> Result<Self> {
        let text = std::fs::read_to_string(LIST).with_context(|| format!("cannot read {LIST}"))?;
        Self::parse(&text, jiff::Zoned::now().date())
    }

    /// Parses lines of the form `2026-11-30 keys::a_key_is_where_it_belongs`; `#` begins a comment.
    pub(crate) fn parse(text: &str, today: Date) -> Result<Self> {
        let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
        let entries: Result<_> = lines
            .map(|line| {
                let (date, name) = line.split_once(' ').with_context(|| format!("{LIST}: {line:?} has no name"))?;
                let date = date.parse().with_context(|| format!("{LIST}: {date:?} is no date"))?;
                Ok((date, name.to_owned()))
            })
            .collect();
        Ok(Self { entries: entries?, today })
    }

    /// Fails if one of the tests is in the list with a date of the last days.
    pub(crate) fn check(&self, names: &[String]) -> Result<()> {
        let age = |date: Date| (self.today - date).get_days();
        let recent = |(date, name): &&(Date, String)| age(*date) <= WEEK && names.contains(name);
        let known: Vec<String> =
            self.entries.iter().filter(recent).map(|(date, name)| format!("{name} ({date})")).collect();
        ensure!(known.is_empty(), "failed again within {WEEK} days, and passed alone: {}", known.join(", "));
        Ok(())
    }

    /// Remark with the line that records the failure of a test.
    pub(crate) fn remark(&self, name: &str) -> String {
        format!("failed once, and passed alone; add to {LIST}: {} {name}", self.today)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_may_fail_once_in_a_week() {
        let today = "2026-11-30".parse().unwrap();
        let list = FailedOnce::parse("# Text.\n\n2026-11-22 a::b\n2026-11-23 c::d e\n", today).unwrap();
        let check = |names: &[&str]| {
            let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
            list.check(&names).map_err(|error| error.to_string())
        };
        assert_eq!(check(&["a::b", "f"]), Ok(()));
        assert_eq!(check(&["c::d e"]), Err("failed again within 7 days, and passed alone: c::d e (2026-11-23)".into()));
        let line = list.remark("f::g");
        let line = line.split_once(": ").unwrap().1;
        assert!(FailedOnce::parse(line, today).unwrap().check(&["f::g".to_owned()]).is_err());
    }

    #[test]
    fn a_line_that_is_no_entry_is_refused() {
        let today = "2026-11-30".parse().unwrap();
        let check = |text: &str, expected: &str| {
            assert_eq!(FailedOnce::parse(text, today).unwrap_err().to_string(), format!("{LIST}: {expected}"));
        };
        check("2026-11-31 a::b", "\"2026-11-31\" is no date");
        check("a::b", "\"a::b\" has no name");
    }
}
