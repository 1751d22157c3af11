//! The log of a process of Lattice, on its standard error.
//!
//! Messages are lines. [`start`] has each of them written by the thread that logs it. A daemon then calls [`write_apart`], once it
//! may have threads: from then on a thread of its own writes, as a file system or a journal that stands still must not hold up a daemon.
//!
//! ```text
//! tracing ──> rates ──> fields ──line──> queue of 1 MiB, one more for the audit ──> thread `log` ──> standard error
//!              a user's lines  cut at     full: dropped, counted
//!              of each kind    256 characters
//! ```
//!
//! In a process that is made for one piece of work, [`start_when_needed`] makes that thread for the first line.

mod fields;
mod queue;
mod rates;

use std::borrow::Cow;
use std::io::{self, Write};
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::Instant;

use tracing::{Event, Metadata, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::{Context, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;

use self::queue::{Lane, Queue};
use self::rates::Rates;
use crate::printable::printable;

/// Name of the variable with a filter, as `debug` or `info,lattice_agent=debug`.
const FILTER_VARIABLE: &str = "LATTICE_LOG";

/// Target of the records of the audit.
const AUDIT: &str = "audit";

/// Way to the thread that writes.
static QUEUE: Queue = Queue::new();

/// Lines that users have caused.
static RATES: LazyLock<Mutex<Rates>> = LazyLock::new(Mutex::default);

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
    install(filter, ThreadIs::Started);
}

/// The same for a process of a daemon that has reported already what is wrong with the filter. A thread writes, which is made for the first
/// line, so that a full pipe holds up nothing; the process must not need to have one thread any more. What is waiting when the result is
/// dropped is written for a second at most.
///
/// # Panics
/// Panics when the process logs already.
#[must_use = "the end of the log waits for its last lines"]
pub fn start_when_needed(usual: LevelFilter) -> Lines {
    let text = std::env::var(FILTER_VARIABLE).unwrap_or_default();
    install(filter(&text).flatten().unwrap_or_else(|| Targets::new().with_default(usual)), ThreadIs::Made);
    Lines(())
}

/// The log of a process with a thread that writes it.
#[derive(Debug)]
pub struct Lines(());

impl Drop for Lines {
    fn drop(&mut self) {
        QUEUE.finish();
    }
}

/// Has a thread write the log from now on; whatever logs then waits for nothing. What is waiting when the result is dropped is written for a
/// second at most.
///
/// To be called only when the process needs no threads of its own, for instance to fork or to change its user, any more.
#[must_use = "the end of the log waits for its last lines"]
pub fn write_apart() -> Lines {
    QUEUE.start(io::stderr, left_out);
    Lines(())
}

fn install(filter: Targets, thread: ThreadIs) {
    let lines = tracing_subscriber::fmt::layer().fmt_fields(fields::bounded()).with_writer(thread);
    tracing_subscriber::registry().with(lines).with(Rated).with(filter).init();
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

/// Leaves out lines beyond the rate of the user that they are about.
struct Rated;

impl<S: Subscriber> Layer<S> for Rated {
    fn event_enabled(&self, event: &Event<'_>, _: Context<'_, S>) -> bool {
        let passes = RATES.lock().unwrap_or_else(PoisonError::into_inner).admit(event, Instant::now());
        if !passes {
            QUEUE.leave_out();
        }
        passes
    }
}

fn left_out() -> Vec<String> {
    RATES.lock().unwrap_or_else(PoisonError::into_inner).left_out()
}

/// When there is a thread that writes: lines that come before are written where they are logged, or make the thread.
#[derive(Clone, Copy, Debug)]
enum ThreadIs {
    Started,
    Made,
}

/// One line's way.
struct Line {
    thread: ThreadIs,
    lane: Lane,
}

impl<'a> MakeWriter<'a> for ThreadIs {
    type Writer = Line;

    fn make_writer(&'a self) -> Line {
        Line { thread: *self, lane: Lane::Rest }
    }

    fn make_writer_for(&'a self, line: &Metadata<'_>) -> Line {
        Line { thread: *self, lane: if line.target() == AUDIT { Lane::Audit } else { Lane::Rest } }
    }
}

impl Write for Line {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let line = one_line(bytes);
        match self.thread {
            ThreadIs::Made => QUEUE.start(io::stderr, left_out),
            ThreadIs::Started if QUEUE.is_started() => {}
            ThreadIs::Started => return io::stderr().write_all(&line).map(|()| bytes.len()),
        }
        QUEUE.push(self.lane, &line);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A message, which comes with the end of its line, as one line: what it quotes of others stands there in letters where it would end the line or
/// move a cursor, so that no user can write a line of its own.
fn one_line(message: &[u8]) -> Cow<'_, [u8]> {
    let text = String::from_utf8_lossy(message.strip_suffix(b"\n").unwrap_or(message));
    match (printable(&text), &text) {
        (Cow::Borrowed(_), Cow::Borrowed(_)) => Cow::Borrowed(message),
        (shown, _) => Cow::Owned([shown.as_bytes(), b"\n"].concat()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_message_quotes_ends_no_line_and_moves_no_cursor() {
        let check = |message: &str, expected: &str| assert_eq!(one_line(message.as_bytes()), expected.as_bytes());
        check("INFO audit: done\n", "INFO audit: done\n");
        check("ERROR no /x\nINFO audit: forged\x1b[2J\n", "ERROR no /x\\nINFO audit: forged\\x1b[2J\n");
        assert!(matches!(one_line(b"plain\n"), Cow::Borrowed(_)));
        assert_eq!(&*one_line(b"\xff\n"), "\u{fffd}\n".as_bytes());
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
}
