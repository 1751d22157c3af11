//! The log of a process of Lattice, on its standard error.
//!
//! Messages are lines. [`start`] makes each of them be written by the thread that says it. A daemon then calls [`write_apart`], once it
//! may have threads: from then on a thread of its own writes, as a file system or a journal that stands still holds up whoever writes
//! there, and a daemon must go on.
//!
//! ```text
//! tracing ──line──> channel of 4,096 lines ──> thread `log` ──> standard error
//!                     full: dropped, counted        └─ "N lines of the log were dropped", before the next line
//! ```
//!
//! Of a process that is made for one piece of work, [`start_when_needed`] makes that thread for the first line.

mod when_needed;

use std::borrow::Cow;
use std::io::{self, Stderr, Write};
use std::sync::OnceLock;

use tracing_appender::non_blocking::{ErrorCounter, NonBlocking, NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use self::when_needed::WhenNeeded;
use crate::printable::printable;

/// Name of the variable with a filter, as `debug` or `info,lattice_agent=debug`.
const FILTER_VARIABLE: &str = "LATTICE_LOG";

/// Lines that wait at most for the thread that writes. A line has some 200 bytes.
const LINES_MAX: usize = 4096;

/// Way to the thread that writes, once there is one.
static APART: OnceLock<NonBlocking> = OnceLock::new();

/// Way to the thread that the first line made.
static WHEN_NEEDED: WhenNeeded = WhenNeeded::new();

/// Starts to log what the filter in `LATTICE_LOG` lets through; without a filter, messages of the level `usual` and above. Logs nothing, and
/// costs nothing, if there is neither. A filter that cannot be read, or lets nothing through, is told on standard error and counts as none.
///
/// # Panics
/// Panics when the process logs already.
pub fn start(usual: Option<LevelFilter>) {
    let text = std::env::var(FILTER_VARIABLE).unwrap_or_default();
    let wanted = filter(&text).unwrap_or_else(|| {
        eprintln!("{FILTER_VARIABLE}={text}: no filter; a level such as debug, or info,lattice_agent=debug, is one");
        None
    });
    let Some(filter) = wanted.or_else(|| usual.map(|level| Targets::new().with_default(level))) else { return };
    let lines = tracing_subscriber::fmt::layer().with_writer(line);
    tracing_subscriber::registry().with(lines).with(filter).init();
}

/// The same for a process of a daemon that has told already what is wrong with the filter. A thread writes, which is made for the first line,
/// so that a pipe that is full holds up nobody; the process must not need to have one thread any more. What is waiting when the result is
/// dropped is written for a second at most.
///
/// # Panics
/// Panics when the process logs already.
#[must_use = "the end of the log waits for its last lines"]
pub fn start_when_needed(usual: LevelFilter) -> Lines {
    let text = std::env::var(FILTER_VARIABLE).unwrap_or_default();
    let filter = filter(&text).flatten().unwrap_or_else(|| Targets::new().with_default(usual));
    let lines = tracing_subscriber::fmt::layer().with_writer(|| Needed);
    tracing_subscriber::registry().with(lines).with(filter).init();
    Lines(())
}

/// The log of a process whose first line makes the thread that writes.
#[derive(Debug)]
pub struct Lines(());

impl Drop for Lines {
    fn drop(&mut self) {
        WHEN_NEEDED.finish();
    }
}

/// One line's way to the thread that the first one makes.
struct Needed;

impl Write for Needed {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        WHEN_NEEDED.write(&one_line(bytes), io::stderr);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The filter of this text, `None` for an empty one; no result for a text that is none, or that names targets without a level: to those,
/// which may be words like `banana`, everything would be logged, and nothing else.
fn filter(text: &str) -> Option<Option<Targets>> {
    let is_named = |part: &str| part.contains('=') || part.parse::<LevelFilter>().is_ok();
    match text.trim() {
        "" => Some(None),
        text if text.split(',').all(|part| !part.trim().is_empty() && is_named(part.trim())) => {
            text.parse().ok().map(Some)
        }
        _ => None,
    }
}

/// Has a thread write the log from now on, until the result is dropped; whoever logs then waits for nobody. What is waiting at the end is
/// written for a second at most.
///
/// To be called once, and only when the process needs no threads of its own, for instance to fork or to change its user, any more.
#[must_use = "the log ends when this is dropped"]
pub fn write_apart() -> WorkerGuard {
    let (apart, guard) = apart(io::stderr(), LINES_MAX, || APART.get());
    // A second call changes nothing: who logs goes on with the first thread.
    let _ = APART.set(apart);
    guard
}

/// A thread that writes to `sink`, for which up to `lines_max` lines wait; `own` finds the way to it.
fn apart<S, F>(sink: S, lines_max: usize, own: F) -> (NonBlocking, WorkerGuard)
where
    S: Write + Send + 'static,
    F: Fn() -> Option<&'static NonBlocking> + Send + 'static,
{
    let told = move || own().map(NonBlocking::error_counter);
    NonBlockingBuilder::default().buffered_lines_limit(lines_max).thread_name("log").finish(WithGaps {
        sink,
        dropped: told,
        told: 0,
    })
}

/// One line's way.
enum Line {
    Here(Stderr),
    Apart(NonBlocking),
}

/// A message, which comes with the end of its line, as one line: what it quotes of others stands there in letters where it would end the line or
/// move a cursor, so that nobody can write a line of his own.
fn one_line(message: &[u8]) -> Cow<'_, [u8]> {
    let text = String::from_utf8_lossy(message.strip_suffix(b"\n").unwrap_or(message));
    match (printable(&text), &text) {
        (Cow::Borrowed(_), Cow::Borrowed(_)) => Cow::Borrowed(message),
        (shown, _) => Cow::Owned([shown.as_bytes(), b"\n"].concat()),
    }
}

fn line() -> Line {
    APART.get().map_or_else(|| Line::Here(io::stderr()), |apart| Line::Apart(apart.clone()))
}

impl Write for Line {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let line = one_line(bytes);
        match self {
            Self::Here(stderr) => stderr.write_all(&line),
            Self::Apart(apart) => apart.write_all(&line),
        }
        .map(|()| bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Here(stderr) => stderr.flush(),
            Self::Apart(apart) => apart.flush(),
        }
    }
}

/// Writes lines, and says before the next one how many were dropped.
struct WithGaps<S, F> {
    sink: S,
    dropped: F,
    /// Dropped lines that the log tells of already.
    told: usize,
}

impl<S: Write, F: Fn() -> Option<ErrorCounter>> Write for WithGaps<S, F> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let dropped = (self.dropped)().map_or(0, |counter| counter.dropped_lines());
        if dropped > self.told {
            writeln!(self.sink, "{} lines of the log were dropped, as nobody took them in time", dropped - self.told)?;
            self.told = dropped;
        }
        self.sink.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.sink.flush()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};

    use super::*;

    #[test]
    fn what_a_message_quotes_ends_no_line_and_moves_no_cursor() {
        let check = |message: &str, expected: &str| assert_eq!(one_line(message.as_bytes()), expected.as_bytes());
        check("INFO audit: done\n", "INFO audit: done\n");
        check("ERROR no /x\nINFO audit: forged\x1b[2J\n", "ERROR no /x\\nINFO audit: forged\\x1b[2J\n");
        assert!(matches!(one_line(b"plain\n"), Cow::Borrowed(_)));
        assert_eq!(&*one_line(b"\xff\n"), "\u{fffd}\n".as_bytes());
    }

    /// A disk that takes each write when it is told to.
    pub(super) struct Slow {
        pub(super) asked: Sender<Vec<u8>>,
        pub(super) go_on: Receiver<()>,
    }

    impl Write for Slow {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.asked.send(bytes.to_vec()).expect("the test looks");
            // An end of the test lets everything pass.
            let _ = self.go_on.recv();
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_filter_has_levels() {
        assert!(filter(" ").unwrap().is_none());
        for text in ["debug", "off", "info,lattice_agent=debug", "lattice_agent=trace", "warn, h2=off"] {
            assert!(filter(text).unwrap().is_some(), "{text}");
        }
        for text in ["banana", "info,", "info,banana", "info,x=banana", ","] {
            assert!(filter(text).is_none(), "{text}");
        }
    }

    #[test]
    fn a_sink_that_stands_still_holds_up_nobody_and_the_gap_is_told() {
        let own: &'static OnceLock<NonBlocking> = Box::leak(Box::default());
        let (asked, lines) = channel();
        let (proceed, go_on) = channel();
        let (mut log, guard) = apart(Slow { asked, go_on }, 4, move || own.get());
        own.set(log.clone()).expect("once");

        log.write_all(b"first\n").expect("taken");
        assert_eq!(lines.recv().expect("written"), b"first\n");
        // The thread stands in its write now: four lines wait, six are dropped, and none of these writes waits.
        for number in 0..10 {
            log.write_all(format!("{number}\n").as_bytes()).expect("taken");
        }
        drop(proceed);
        drop(guard);
        drop(log);
        let rest: Vec<u8> = lines.try_iter().flatten().collect();
        let text = String::from_utf8(rest).expect("text");
        assert!(text.starts_with("6 lines of the log were dropped"), "{text}");
        assert!(text.ends_with("\n0\n1\n2\n3\n"), "{text}");
    }
}
