//! Lines on their way to the thread that writes them. Audit records have a separate queue, so that no other line takes their room. Both queues
//! are bounded in bytes; excess lines are dropped and counted.
//!
//! [`Queue::start`] or the first line creates the thread. If the system creates none, lines are dropped and the process continues.

use std::collections::VecDeque;
use std::io::Write;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Maximum number of bytes that wait in each queue, including their bookkeeping.
const BYTES_MAX: usize = 1 << 20;

/// Charge for a waiting line in bytes, in addition to its length.
const LINE_OVERHEAD: usize = 64;

/// Time limit for waiting lines when the process ends.
const LAST_WITHIN: Duration = Duration::from_secs(1);

/// Interval between two counts of lines that were left out.
const COUNT_EVERY: Duration = Duration::from_secs(1);

/// Stack size of the thread, in bytes.
const STACK: usize = 64 * 1024;

/// Queue that a line waits in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lane {
    Audit,
    Rest,
}

/// The queues, and the state of the thread that writes.
pub(super) struct Queue {
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    audit: Waiting,
    rest: Waiting,
    /// Number of the next line, which keeps the order of lines across both queues.
    next: u64,
    thread: Thread,
    is_writing: bool,
    /// Lines were left out that the log has no count of yet.
    has_left_out: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Thread {
    NotMade,
    Runs,
    Refused,
}

/// Lines that wait in one queue.
struct Waiting {
    lines: VecDeque<(u64, Vec<u8>)>,
    bytes: usize,
    dropped: usize,
}

impl Waiting {
    const fn new() -> Self {
        Self { lines: VecDeque::new(), bytes: 0, dropped: 0 }
    }

    fn push(&mut self, number: u64, line: &[u8]) {
        let cost = line.len() + LINE_OVERHEAD;
        if self.bytes + cost > BYTES_MAX {
            self.dropped += 1;
        } else {
            self.bytes += cost;
            self.lines.push_back((number, line.to_vec()));
        }
    }

    fn pop(&mut self) -> Option<Vec<u8>> {
        let (_, line) = self.lines.pop_front()?;
        self.bytes -= line.len() + LINE_OVERHEAD;
        Some(line)
    }

    fn first(&self) -> Option<u64> {
        self.lines.front().map(|(number, _)| *number)
    }
}

impl Queue {
    pub(super) const fn new() -> Self {
        let state = State {
            audit: Waiting::new(),
            rest: Waiting::new(),
            next: 0,
            thread: Thread::NotMade,
            is_writing: false,
            has_left_out: false,
        };
        Self { state: Mutex::new(state), changed: Condvar::new() }
    }

    /// Creates the thread, unless it exists.
    pub(super) fn start<S: Write + Send + 'static>(
        &'static self,
        sink: impl FnOnce() -> S,
        left_out: fn() -> Vec<String>,
    ) {
        let mut state = self.state();
        if state.thread == Thread::NotMade {
            let (queue, sink) = (self, sink());
            let thread = thread::Builder::new().name("log".to_owned()).stack_size(STACK);
            let made = thread.spawn(move || queue.run(sink, left_out));
            state.thread = if made.is_ok() { Thread::Runs } else { Thread::Refused };
        }
    }

    /// Returns true if the thread that writes exists.
    pub(super) fn is_started(&self) -> bool {
        self.state().thread == Thread::Runs
    }

    /// Adds a line; never waits.
    pub(super) fn push(&self, lane: Lane, line: &[u8]) {
        let mut state = self.state();
        let number = state.next;
        state.next += 1;
        match lane {
            Lane::Audit => state.audit.push(number, line),
            Lane::Rest => state.rest.push(number, line),
        }
        self.changed.notify_all();
    }

    /// Records that a line was left out; a count of such lines is written within a few seconds.
    pub(super) fn leave_out(&self) {
        let mut state = self.state();
        if !state.has_left_out {
            state.has_left_out = true;
            self.changed.notify_all();
        }
    }

    /// Waits until everything is written, for a second at most.
    pub(super) fn finish(&self) {
        let state = self.state();
        if state.thread == Thread::Runs {
            // The process ends in either case.
            let _ = self.changed.wait_timeout_while(state, LAST_WITHIN, |state| !state.is_idle());
        }
    }

    /// Writes lines, and counts of lines that were left out, indefinitely.
    fn run(&self, mut sink: impl Write, left_out: fn() -> Vec<String>) {
        let mut counted_at = Instant::now();
        loop {
            let idle = |state: &mut State| !state.has_lines() && !state.has_left_out;
            let mut state = self.changed.wait_while(self.state(), idle).unwrap_or_else(PoisonError::into_inner);
            if !state.has_lines() {
                let left = COUNT_EVERY.saturating_sub(counted_at.elapsed());
                let waited = self.changed.wait_timeout_while(state, left, |state| !state.has_lines());
                state = waited.unwrap_or_else(PoisonError::into_inner).0;
            }
            let mut text = state.take();
            state.is_writing = true;
            drop(state);
            if counted_at.elapsed() >= COUNT_EVERY {
                counted_at = Instant::now();
                self.state().has_left_out = false;
                text.extend(left_out().concat().into_bytes());
            }
            // A failure to write the log cannot be reported.
            let _ = sink.write_all(&text);
            self.state().is_writing = false;
            self.changed.notify_all();
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn has_lines(&self) -> bool {
        self.audit.first().is_some() || self.rest.first().is_some()
    }

    fn is_idle(&self) -> bool {
        !self.has_lines() && !self.is_writing
    }

    /// The next line, after the notices of dropped lines.
    fn take(&mut self) -> Vec<u8> {
        let mut text = Vec::new();
        for (waiting, name) in [(&mut self.audit, "records of the audit"), (&mut self.rest, "lines of the log")] {
            let dropped = std::mem::take(&mut waiting.dropped);
            if dropped > 0 {
                text.extend(format!("{dropped} {name} were dropped, as they were not written in time\n").into_bytes());
            }
        }
        let is_audit = match (self.audit.first(), self.rest.first()) {
            (Some(audit), Some(rest)) => audit < rest,
            (audit, _) => audit.is_some(),
        };
        let line = if is_audit { self.audit.pop() } else { self.rest.pop() };
        text.extend(line.unwrap_or_default());
        text
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::mpsc::{Receiver, Sender, channel};

    use super::*;

    /// A disk with writes that wait for the test.
    struct Slow {
        asked: Sender<Vec<u8>>,
        go_on: Receiver<()>,
    }

    impl Write for Slow {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.asked.send(bytes.to_vec()).expect("the test looks");
            // The end of the test releases all writes.
            let _ = self.go_on.recv();
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// With a blocked disk, a log of long lines is bounded in bytes, and still takes audit records.
    #[test]
    fn a_sink_that_stands_still_holds_up_nothing_and_the_audit_has_room_of_its_own() {
        let queue: &'static Queue = Box::leak(Box::new(Queue::new()));
        queue.finish();
        let ((asked, lines), (proceed, go_on)) = (channel(), channel());
        queue.start(|| Slow { asked, go_on }, Vec::new);
        queue.start(|| -> io::Sink { panic!("there is one") }, Vec::new);
        queue.push(Lane::Rest, b"first\n");
        assert_eq!(lines.recv().expect("written"), b"first\n");
        // The thread blocks in its write now: none of these calls waits.
        let long = [vec![b'x'; 100_000 - LINE_OVERHEAD], vec![b'\n']].concat();
        for _ in 0..1000 {
            queue.push(Lane::Rest, &long);
        }
        queue.push(Lane::Audit, b"audit: done\n");
        let state = queue.state();
        assert_eq!((state.rest.lines.len(), state.rest.dropped, state.audit.lines.len()), (10, 990, 1));
        drop(state);
        drop(proceed);
        queue.finish();
        let text = String::from_utf8(lines.try_iter().flatten().collect()).expect("text");
        assert!(text.starts_with("990 lines of the log were dropped"), "{}", &text[..80]);
        assert!(text.ends_with("x\naudit: done\n"), "the order is kept");
    }

    /// The count of lines that were left out needs no further line.
    #[test]
    fn lines_that_were_left_out_are_counted_after_a_second() {
        let queue: &'static Queue = Box::leak(Box::new(Queue::new()));
        let ((asked, lines), (proceed, go_on)) = (channel(), channel());
        drop(proceed);
        queue.start(|| Slow { asked, go_on }, || vec!["7 lines\n".to_owned()]);
        queue.leave_out();
        assert_eq!(lines.recv().expect("written"), b"7 lines\n");
    }
}
