//! Everything that happens in a run, line by line: a hash of it always, the lines themselves if somebody wants to read them.

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
    /// `None` if nobody reads them.
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
        // A string takes everything.
        let _ = write!(line, "{now} {what}");
        self.events += 1;
        self.hash(line.as_bytes());
        if let Some(lines) = &mut self.lines {
            lines.push(line.clone());
        }
        self.line = line;
    }

    /// Counts bytes of a message in.
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
