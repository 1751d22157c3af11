//! Lines that a thread writes which is made for the first of them: for processes that are short, many, and say nothing as a rule. Where no thread
//! can be made, lines are lost and the process goes on; `tracing_appender` would end it.

use std::io::Write;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;

/// Lines that wait at most for the thread.
const LINES_MAX: usize = 256;

/// Time for what is waiting at the end.
const LAST_WITHIN: Duration = Duration::from_secs(1);

/// Stack of the thread, in bytes.
const STACK: usize = 64 * 1024;

/// Way to the thread, once there is a line.
pub(super) struct WhenNeeded(OnceLock<Option<Way>>);

struct Way {
    lines: SyncSender<Said>,
    dropped: Arc<AtomicUsize>,
}

enum Said {
    Line(Vec<u8>),
    /// All lines before are written when the other end is dropped.
    Last(SyncSender<()>),
}

impl WhenNeeded {
    pub(super) const fn new() -> Self {
        Self(OnceLock::new())
    }

    /// Has a line written to the sink of the first one. Where the system makes no thread for it, or too many lines wait, it is dropped.
    pub(super) fn write<S: Write + Send + 'static>(&self, line: &[u8], sink: impl FnOnce() -> S) {
        if let Some(way) = self.0.get_or_init(|| Way::to(sink())) {
            way.write(line);
        }
    }

    /// Waits until everything is written, for a second at most.
    pub(super) fn finish(&self) {
        let Some(Some(way)) = self.0.get() else { return };
        let (last, written) = sync_channel(0);
        if way.lines.try_send(Said::Last(last)).is_ok() {
            let _ = written.recv_timeout(LAST_WITHIN);
        }
    }
}

impl Way {
    fn to(mut sink: impl Write + Send + 'static) -> Option<Self> {
        let (lines, said) = sync_channel(LINES_MAX);
        let dropped = Arc::<AtomicUsize>::default();
        let counted = Arc::clone(&dropped);
        let write = move || {
            for said in said {
                let line = match said {
                    Said::Line(line) => line,
                    Said::Last(written) => {
                        drop(written);
                        continue;
                    }
                };
                let dropped = counted.swap(0, Ordering::Relaxed);
                if dropped > 0 {
                    let _ = writeln!(sink, "{dropped} lines of the log were dropped, as nobody took them in time");
                }
                // Nobody could be told.
                let _ = sink.write_all(&line);
            }
        };
        let thread = thread::Builder::new().name("log".to_owned()).stack_size(STACK).spawn(write);
        thread.is_ok().then_some(Self { lines, dropped })
    }

    fn write(&self, line: &[u8]) {
        if let Err(TrySendError::Full(_)) = self.lines.try_send(Said::Line(line.to_vec())) {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::mpsc::channel;

    use super::super::tests::Slow;
    use super::*;

    #[test]
    fn a_full_pipe_holds_up_nobody_and_the_end_waits_for_what_was_said() {
        let log = WhenNeeded::new();
        log.finish();
        let ((asked, lines), (proceed, go_on)) = (channel(), channel());
        log.write(b"first\n", || Slow { asked, go_on });
        assert_eq!(lines.recv().expect("written"), b"first\n");
        // The thread stands in its write now: none of these writes waits.
        for _ in 0..LINES_MAX + 7 {
            log.write(b"next\n", || -> io::Sink { panic!("there is one") });
        }
        log.finish();
        drop(proceed);
        let all: Vec<_> = std::iter::from_fn(|| lines.recv_timeout(LAST_WITHIN).ok()).take(LINES_MAX + 3).collect();
        let text = String::from_utf8(all.concat()).expect("text");
        assert!(text.starts_with("7 lines of the log were dropped"), "{text}");
        log.write(b"last\n", io::sink);
        log.finish();
        assert_eq!(lines.try_iter().last().expect("written before the end"), b"last\n");
    }
}
