//! Steps of a long chore: the time of each step, and the counts of its test programs.

use std::fmt;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::failed_once::FailedOnce;

/// Completed steps, in order.
#[derive(Debug, Default)]
pub(crate) struct Steps {
    taken: Vec<(&'static str, Duration)>,
    tests: TestCount,
    /// Lines of tests for the end of the chore: [`REMARKS`].
    remarks: Vec<String>,
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
    /// Runs a step; a failure ends the chore.
    pub(crate) fn take(&mut self, name: &'static str, step: impl FnOnce() -> Result<()>) -> Result<()> {
        let start = Instant::now();
        let result = step();
        self.taken.push((name, start.elapsed()));
        result
    }

    /// Runs a step of test programs. If few tests fail, `repeat` runs them again alone. The step fails if a test fails twice, or if it failed
    /// once in the week before ([`FailedOnce`]).
    pub(crate) fn take_tests(
        &mut self,
        name: &'static str,
        step: impl FnOnce() -> Result<TestRun>,
        failed_once: &FailedOnce,
        repeat: impl FnOnce(&[String]) -> Result<TestRun>,
    ) -> Result<()> {
        let mut taken = TestRun::default();
        let result = self.take(name, || {
            taken = step()?;
            ensure!(taken.is_whole(), "a test program died before its last test; its last lines are above");
            if taken.failures.is_empty() {
                ensure!(taken.succeeded, "the tests could not be run");
                return Ok(());
            }
            taken.check_again(failed_once, repeat).with_context(|| {
                let failed = taken.failures.len();
                format!("{failed} tests failed\n{}", taken.reports())
            })
        });
        self.tests.add(taken.count);
        self.remarks.extend(taken.remarks);
        result
    }
}

/// Maximum number of failing tests that are run again. More failures have a common cause.
const REPEATED_MAX: usize = 5;

/// Prefixes of lines from tests that libtest counts as passed. The first marks a test that cannot run here. The second marks a test that was
/// repeated after a fault of another launcher or MPI library, which also occurs without Lattice (`tests/src/peer_faults.rs`).
const REMARKS: [&str; 2] = ["not tried here: ", "fault of a peer: "];

/// Maximum number of characters of a remark at the end of a chore. The whole line, with the command of the test, is in the output before.
const REMARK_MAX: usize = 300;

/// Outcome of test programs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct TestRun {
    pub(crate) count: TestCount,
    /// Number of started test programs. `count` has the number of completed ones.
    begun: usize,
    /// Names of the tests that failed.
    pub(crate) failures: Vec<String>,
    /// The panic of each test that failed.
    panics: Vec<String>,
    /// True inside a section of `panics`.
    in_panic: bool,
    /// Lines with a prefix of [`REMARKS`].
    remarks: Vec<String>,
    /// True if every program succeeded.
    pub(crate) succeeded: bool,
}

impl TestRun {
    /// Parses the output of test programs.
    pub(crate) fn of(output: &[u8], succeeded: bool) -> Self {
        let mut run = Self { succeeded, ..Self::default() };
        String::from_utf8_lossy(output).lines().for_each(|line| run.add_line(line));
        run
    }

    /// Adds a line of a test program's output.
    pub(crate) fn add_line(&mut self, line: &str) {
        self.count.add_line(line);
        self.begun += usize::from(begins_a_program(line));
        if let Some(name) = line.strip_prefix("test ").and_then(|rest| rest.strip_suffix(" ... FAILED")) {
            self.failures.push(name.to_owned());
        }
        if REMARKS.iter().any(|beginning| line.starts_with(beginning)) {
            self.remarks.push(line.chars().take(REMARK_MAX).collect());
        }
        self.add_panic_line(line);
    }

    /// Adds a line to the panic of a test. libtest prints the panics after the last test: `---- NAME stdout ----`, then the output of the test.
    fn add_panic_line(&mut self, line: &str) {
        if line.starts_with("---- ") && line.ends_with(" ----") {
            self.panics.push(String::new());
            self.in_panic = true;
        } else if line == "failures:" || line == "stack backtrace:" {
            self.in_panic = false;
        }
        if let Some(panic) = self.panics.last_mut().filter(|_| self.in_panic && !line.is_empty()) {
            panic.push_str(line);
            panic.push('\n');
        }
    }

    /// Runs the failing tests again. A test that passes then gets a remark.
    fn check_again(&mut self, failed_once: &FailedOnce, repeat: impl FnOnce(&[String]) -> Result<Self>) -> Result<()> {
        let failed = self.failures.len();
        ensure!(failed <= REPEATED_MAX, "too many to run them again");
        println!("{}", self.reports());
        let again = repeat(&self.failures)?;
        let passed = again.is_whole() && again.succeeded && again.count.passed >= failed;
        ensure!(passed, "{} of them failed again", again.failures.len());
        failed_once.check(&self.failures)?;
        self.remarks.extend(self.failures.iter().map(|name| failed_once.remark(name)));
        Ok(())
    }

    /// Returns the panics of all tests, each without its middle if it is long.
    fn reports(&self) -> String {
        self.panics.iter().map(|panic| without_middle(panic)).collect()
    }

    /// Returns true if each test program completed. A program that crashes names no test.
    fn is_whole(&self) -> bool {
        self.begun <= self.count.programs
    }
}

/// Maximum number of characters of a panic at the end of a chore, before and after the part that is left out.
const PANIC_HEAD: usize = 500;
const PANIC_TAIL: usize = 1000;

fn without_middle(panic: &str) -> String {
    let length = panic.chars().count();
    if length <= PANIC_HEAD + PANIC_TAIL {
        return panic.to_owned();
    }
    let head: String = panic.chars().take(PANIC_HEAD).collect();
    let tail: String = panic.chars().skip(length - PANIC_TAIL).collect();
    format!("{head} [...] {tail}")
}

/// Returns true for `running 3 tests`, the first line of a test program.
fn begins_a_program(line: &str) -> bool {
    let Some(rest) = line.strip_prefix("running ") else { return false };
    rest.strip_suffix(" tests").or(rest.strip_suffix(" test")).is_some_and(|count| count.parse::<usize>().is_ok())
}

impl fmt::Display for Steps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all: Duration = self.taken.iter().map(|(_, time)| *time).sum();
        for (name, time) in self.taken.iter().copied().chain([("all", all)]) {
            let seconds = time.as_secs();
            writeln!(f, "{name:<24} {:>3} min {:>2} s", seconds / 60, seconds % 60)?;
        }
        for remark in &self.remarks {
            writeln!(f, "{remark}")?;
        }
        let TestCount { passed, failed, ignored, programs } = self.tests;
        writeln!(f, "tests: {passed} passed, {failed} failed, {ignored} ignored, in {programs} programs")
    }
}

impl TestCount {
    /// Adds the counts in a line of a test program's output, if the line has them.
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

    fn run_of(lines: &[&str], succeeded: bool) -> TestRun {
        TestRun::of(lines.join("\n").as_bytes(), succeeded)
    }

    /// Takes a step of tests, with an empty list of tests that failed once. Returns the text of the error.
    fn take(steps: &mut Steps, run: TestRun, again: TestRun) -> Result<(), String> {
        let none = FailedOnce::parse("", "2026-11-30".parse().unwrap()).unwrap();
        steps.take_tests("tests", || Ok(run), &none, |_| Ok(again)).map_err(|error| format!("{error:#}"))
    }

    const FAILED: [&str; 2] = ["test c::d ... FAILED", "test result: FAILED. 0 passed; 1 failed; 0 ignored"];

    #[test]
    fn remarks_are_listed_at_the_end() {
        let remarks = ["not tried here: e::f: no root", "fault of a peer: it hangs"];
        let good = ["test a::b ... ok", remarks[0], remarks[1], "test result: ok. 1 passed; 0 failed; 0 ignored"];
        let mut steps = Steps::default();
        take(&mut steps, run_of(&good, true), TestRun::default()).unwrap();
        let end = format!("{}\n{}\ntests: 1 passed, 0 failed, 0 ignored, in 1 programs\n", remarks[0], remarks[1]);
        assert!(steps.to_string().ends_with(&end), "{steps}");
        let nothing = take(&mut steps, TestRun::default(), TestRun::default());
        assert_eq!(nothing, Err("the tests could not be run".to_owned()));
    }

    #[test]
    fn a_test_that_fails_twice_fails_the_step_and_one_that_fails_once_is_remarked() {
        let bad = run_of(&FAILED, false);
        assert_eq!(bad.failures, ["c::d"]);
        let twice = take(&mut Steps::default(), bad.clone(), bad.clone());
        assert_eq!(twice, Err("1 tests failed\n: 1 of them failed again".to_owned()));
        let unseen = take(&mut Steps::default(), bad.clone(), run_of(&["test result: ok. 0 passed; 0 failed"], true));
        assert_eq!(unseen, Err("1 tests failed\n: 0 of them failed again".to_owned()));
        let mut steps = Steps::default();
        take(&mut steps, bad.clone(), run_of(&["test result: ok. 1 passed; 0 failed; 0 ignored"], true)).unwrap();
        assert!(
            steps.to_string().contains("failed once") && steps.to_string().contains("2026-11-30 c::d\n"),
            "{steps}"
        );
        let many = run_of(&["test c::d ... FAILED"; REPEATED_MAX + 1], false);
        let many = take(&mut Steps::default(), many, TestRun::default()).unwrap_err();
        assert!(many.ends_with("too many to run them again"), "{many}");
    }

    #[test]
    fn the_panic_of_a_test_that_failed_is_repeated_at_the_end() {
        let long = "y".repeat(PANIC_HEAD + PANIC_TAIL);
        let output = [
            FAILED[0],
            "failures:",
            "---- c::d stdout ----",
            "",
            "thread 'c::d' panicked at x.rs:1:2:",
            &long,
            "stack backtrace:",
            "   0: main",
            "failures:",
            "    c::d",
            FAILED[1],
        ];
        let bad = run_of(&output, false);
        let error = take(&mut Steps::default(), bad.clone(), bad).unwrap_err();
        assert!(
            error.starts_with("1 tests failed\n---- c::d stdout ----\nthread 'c::d' panicked at x.rs:1:2:\nyyy"),
            "{error}"
        );
        assert!(error.contains("y [...] y") && error.ends_with("y\n: 1 of them failed again"), "{error}");
    }

    #[test]
    fn a_program_that_crashed_is_no_test_that_failed() {
        let mut lines = vec!["running 2 tests", "test c::d ... FAILED", "test result: FAILED. 1 passed; 1 failed"];
        lines.extend(["running 1 test", "running low, the rank said", "test e::f ... "]);
        let error = take(&mut Steps::default(), run_of(&lines, false), TestRun::default()).unwrap_err();
        assert!(error.contains("died before its last test"), "{error}");
    }

    #[test]
    fn a_step_that_fails_is_listed_too() {
        let mut steps = Steps::default();
        steps.take("format", || Ok(())).unwrap();
        let none = FailedOnce::parse("", "2026-11-30".parse().unwrap()).unwrap();
        let broken = || anyhow::bail!("no cargo");
        steps.take_tests("tests", broken, &none, |_| Ok(TestRun::default())).unwrap_err();
        let shown = steps.to_string();
        let names: Vec<&str> = shown.lines().filter_map(|line| line.split_whitespace().next()).collect();
        assert_eq!(names, ["format", "tests", "all", "tests:"], "{shown}");
    }
}
