//! All events of a run, line by line: always a hash of them, and on request the lines themselves.

use std::fmt::{self, Write};
use std::mem;

use crate::time::Time;

/// Record of a run.
#[derive(Debug)]
pub(crate) struct Journal {
    /// FNV-1a of all lines so far.
    hash: u64,
    events: u64,
    line: String,
    /// `None` unless the lines are requested.
    lines: Option<Vec<String>>,
}

impl Journal {
    pub(crate) fn new(keeps_lines: bool) -> Self {
        let lines = keeps_lines.then(Vec::new);
        Self { hash: 0xcbf2_9ce4_8422_2325, events: 0, line: String::new(), lines }
    }

    pub(crate) fn note(&mut self, now: Time, what: fmt::Arguments<'_>) {
        let mut line = mem::take(&mut self.line);
        line.clear();
        // A write to a string cannot fail.
        let _ = write!(line, "{now} {what}");
        self.events += 1;
        self.hash(line.as_bytes());
        if let Some(lines) = &mut self.lines {
            lines.push(line.clone());
        }
        self.line = line;
    }

    /// Adds the bytes of a message to the hash.
    pub(crate) fn hash(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.hash = (self.hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }

    pub(crate) fn digest(&self) -> u64 {
        self.hash
    }

    pub(crate) fn events(&self) -> u64 {
        self.events
    }

    pub(crate) fn into_lines(self) -> Vec<String> {
        self.lines.unwrap_or_default()
    }
}
