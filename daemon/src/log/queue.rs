//! Lines on their way to the thread that writes them. Records of the audit have a queue of their own, so that no other line takes their
//! room. Both queues are bounded in bytes; a line beyond is dropped and counted.
//!
//! The thread is made by [`Queue::start`] or for the first line. Where the system makes none, lines are dropped and the process goes on.

use std::collections::VecDeque;
use std::io::Write;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Bytes that wait at most in each queue, with their bookkeeping.
const BYTES_MAX: usize = 1 << 20;

/// Charge for a line that waits, in bytes, beside its length.
const LINE_OVERHEAD: usize = 64;

/// Time for lines that wait when the process ends.
const LAST_WITHIN: Duration = Duration::from_secs(1);

/// Time between two counts of lines that were left out.
const COUNT_EVERY: Duration = Duration::from_secs(1);

/// Stack of the thread, in bytes.
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
    /// Number of the next line, by which lines of both queues are written in their order.
    next: u64,
    thread: Thread,
    is_writing: bool,
    /// Lines were left out that are not counted in the log yet.
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

    /// Makes the thread, unless there is one.
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

    /// Returns true if there is a thread that writes.
    pub(super) fn is_started(&self) -> bool {
        self.state().thread == Thread::Runs
    }

    /// Adds a line; it waits for nothing.
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

    /// A line was left out; a count of such lines is written within some seconds.
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

    /// Writes lines for ever, and counts of those that were left out.
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
            // A failure to write the log can be reported nowhere.
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

    /// The line that comes next, after those about lines that were dropped.
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

    /// A disk whose writes wait until the test lets them go on.
    struct Slow {
        asked: Sender<Vec<u8>>,
        go_on: Receiver<()>,
    }

    impl Write for Slow {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.asked.send(bytes.to_vec()).expect("the test looks");
            // The end of the test lets everything pass.
            let _ = self.go_on.recv();
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// A log of long lines in front of a disk that stands still is bounded in bytes, and takes records of the audit all the same.
    #[test]
    fn a_sink_that_stands_still_holds_up_nothing_and_the_audit_has_room_of_its_own() {
        let queue: &'static Queue = Box::leak(Box::new(Queue::new()));
        queue.finish();
        let ((asked, lines), (proceed, go_on)) = (channel(), channel());
        queue.start(|| Slow { asked, go_on }, Vec::new);
        queue.start(|| -> io::Sink { panic!("there is one") }, Vec::new);
        queue.push(Lane::Rest, b"first\n");
        assert_eq!(lines.recv().expect("written"), b"first\n");
        // The thread stands in its write now: none of these writes waits.
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

    /// The count of lines that were left out comes without a further line.
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
