//! Steps of a long chore: how long each took, and what the test programs among them counted.

use std::fmt;
use std::time::{Duration, Instant};

use anyhow::Result;

/// Steps that were taken, in order.
#[derive(Debug, Default)]
pub(crate) struct Steps {
    taken: Vec<(&'static str, Duration)>,
    tests: TestCount,
}

/// Sum of the `test result:` lines of test programs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TestCount {
    pub(crate) passed: usize,
    pub(crate) failed: usize,
    pub(crate) ignored: usize,
    pub(crate) programs: usize,
}

impl Steps {
    /// Takes a step; a failure ends the chore.
    pub(crate) fn take(&mut self, name: &'static str, step: impl FnOnce() -> Result<()>) -> Result<()> {
        let start = Instant::now();
        let result = step();
        self.taken.push((name, start.elapsed()));
        result
    }

    /// Takes a step that runs test programs.
    pub(crate) fn take_tests(&mut self, name: &'static str, step: impl FnOnce() -> Result<TestCount>) -> Result<()> {
        let mut counted = TestCount::default();
        let result = self.take(name, || step().map(|count| counted = count));
        self.tests.add(counted);
        result
    }
}

impl fmt::Display for Steps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all: Duration = self.taken.iter().map(|(_, time)| *time).sum();
        for (name, time) in self.taken.iter().copied().chain([("all", all)]) {
            let seconds = time.as_secs();
            writeln!(f, "{name:<24} {:>3} min {:>2} s", seconds / 60, seconds % 60)?;
        }
        let TestCount { passed, failed, ignored, programs } = self.tests;
        writeln!(f, "tests: {passed} passed, {failed} failed, {ignored} ignored, in {programs} programs")
    }
}

impl TestCount {
    /// Adds what a line of a test program's output says, if it is the one that counts.
    pub(crate) fn add_line(&mut self, line: &str) {
        let Some(counts) = line.strip_prefix("test result: ") else { return };
        // `ok. 3 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s`
        let count = |what: &str| {
            let counts = counts.split([';', '.']).map(str::trim);
            counts.filter_map(|count| count.strip_suffix(what)).find_map(|count| count.trim().parse().ok()).unwrap_or(0)
        };
        let (passed, failed, ignored) = (count("passed"), count("failed"), count("ignored"));
        self.add(Self { passed, failed, ignored, programs: 1 });
    }

    fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.ignored += other.ignored;
        self.programs += other.programs;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn result_lines_of_test_programs_are_added_up() {
        let mut count = TestCount::default();
        let output = [
            "running 2 tests",
            "test result: ok. 12 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.01s",
            "test result: FAILED. 3 passed; 2 failed; 0 ignored; 0 measured; 4 filtered out; finished in 1.50s",
            "a rank printed: test result: ok. 7 passed",
        ];
        output.iter().for_each(|line| count.add_line(line));
        assert_eq!(count, TestCount { passed: 15, failed: 2, ignored: 1, programs: 2 });
    }

    #[test]
    fn a_step_that_fails_is_listed_too() {
        let mut steps = Steps::default();
        steps.take("format", || Ok(())).unwrap();
        steps.take_tests("tests", || anyhow::bail!("a test failed")).unwrap_err();
        let shown = steps.to_string();
        let names: Vec<&str> = shown.lines().filter_map(|line| line.split_whitespace().next()).collect();
        assert_eq!(names, ["format", "tests", "all", "tests:"], "{shown}");
    }
}
