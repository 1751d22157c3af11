//! The end of a command, and assertions on it. A failed assertion shows the whole outcome.

use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::Duration;

/// The end of a command. The assertions return it, so that they can be chained.
#[derive(Debug)]
pub struct Outcome {
    pub(crate) command: String,
    pub(crate) status: ExitStatus,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: Vec<u8>,
    pub(crate) wall: Duration,
}

/// Maximum number of bytes of the start, and of the end, of a stream in the message of a failed assertion.
const SHOWN: usize = 4000;

impl Outcome {
    /// All of standard output.
    pub fn stdout(&self) -> &[u8] {
        &self.stdout
    }

    /// Standard output as text.
    #[track_caller]
    pub fn text(&self) -> &str {
        str::from_utf8(&self.stdout).unwrap_or_else(|error| self.fail(&format!("standard output is no text: {error}")))
    }

    /// Standard error as text.
    #[track_caller]
    pub fn errors(&self) -> &str {
        str::from_utf8(&self.stderr).unwrap_or_else(|error| self.fail(&format!("standard error is no text: {error}")))
    }

    /// The lines of standard output, sorted, because lines of different ranks arrive in any order.
    #[track_caller]
    pub fn sorted_lines(&self) -> Vec<&str> {
        let mut lines: Vec<&str> = self.text().lines().collect();
        lines.sort_unstable();
        lines
    }

    /// Time from start to end.
    pub fn wall(&self) -> Duration {
        self.wall
    }

    /// Checks that the command exited with this code.
    #[track_caller]
    pub fn exits(&self, code: i32) -> &Self {
        self.check(self.status.code() == Some(code), || format!("should have exited with {code}"))
    }

    /// Checks that the command was killed by this signal.
    #[track_caller]
    pub fn killed_by(&self, signal: i32) -> &Self {
        self.check(self.status.signal() == Some(signal), || format!("should have been killed by signal {signal}"))
    }

    /// Checks that standard output is these lines, in any order.
    #[track_caller]
    pub fn prints_lines<S: AsRef<str>>(&self, lines: impl IntoIterator<Item = S>) -> &Self {
        let mut expected: Vec<String> = lines.into_iter().map(|line| line.as_ref().to_owned()).collect();
        expected.sort_unstable();
        self.check(self.sorted_lines() == expected, || format!("should have printed the lines {expected:?}"))
    }

    /// Checks that standard output contains this text.
    #[track_caller]
    pub fn prints(&self, text: &str) -> &Self {
        self.check(self.text().contains(text), || format!("should have printed {text:?}"))
    }

    /// Checks that standard error contains this text.
    #[track_caller]
    pub fn says(&self, text: &str) -> &Self {
        self.check(self.errors().contains(text), || format!("should have said {text:?}"))
    }

    /// Checks that standard error does not contain this text.
    #[track_caller]
    pub fn does_not_say(&self, text: &str) -> &Self {
        self.check(!self.errors().contains(text), || format!("should not have said {text:?}"))
    }

    /// Checks that standard error has no line of `lattice` and no warning.
    #[track_caller]
    pub fn warns_of_nothing(&self) -> &Self {
        let warns = |line: &str| line.contains("lattice:") || line.contains("warning");
        self.check(!self.errors().lines().any(warns), || "should have warned of nothing".to_owned())
    }

    /// Checks that standard error is empty, except for the note about the number of cores of this machine.
    #[track_caller]
    pub fn says_nothing(&self) -> &Self {
        let is_of_machine = |line: &str| line.starts_with("lattice: note: ") && line.contains(" cores of node");
        self.check(self.errors().lines().all(is_of_machine), || "should have said nothing".to_owned())
    }

    /// Fails with `what` unless `holds`.
    #[track_caller]
    pub fn check(&self, holds: bool, what: impl FnOnce() -> String) -> &Self {
        if !holds {
            self.fail(&what());
        }
        self
    }

    #[track_caller]
    fn fail(&self, what: &str) -> ! {
        panic!(
            "{}\n{what}\n--- {} after {:?}\n--- stdout\n{}\n--- stderr\n{}",
            self.command,
            self.status,
            self.wall,
            excerpt(&self.stdout),
            excerpt(&self.stderr)
        )
    }
}

fn excerpt(bytes: &[u8]) -> String {
    if bytes.len() <= 2 * SHOWN {
        return String::from_utf8_lossy(bytes).into_owned();
    }
    let (head, tail) = (&bytes[..SHOWN], &bytes[bytes.len() - SHOWN..]);
    let left_out = bytes.len() - 2 * SHOWN;
    format!("{}\n[{left_out} bytes]\n{}", String::from_utf8_lossy(head), String::from_utf8_lossy(tail))
}
