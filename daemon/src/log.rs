//! The log of a process of Lattice, on its standard error.
//!
//! Messages are lines. After [`start`], the thread that logs a message writes it. A daemon then calls [`write_apart`], once it may have threads.
//! From then on a separate thread writes, because a blocked file system or journal must not block a daemon.
//!
//! ```text
//! tracing ──> rates ──> fields ──line──> queue of 1 MiB, one more for the audit ──> thread `log` ──> standard error
//!              a user's lines  cut at     full: dropped, counted
//!              of each kind    256 characters
//! ```
//!
//! In a process for one piece of work, [`start_when_needed`] creates that thread for the first line.

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

/// Environment variable with a filter, such as `debug` or `info,lattice_agent=debug`.
const FILTER_VARIABLE: &str = "LATTICE_LOG";

/// Target of audit records.
const AUDIT: &str = "audit";

/// Queue to the thread that writes.
static QUEUE: Queue = Queue::new();

/// Rates of the lines that users cause.
static RATES: LazyLock<Mutex<Rates>> = LazyLock::new(Mutex::default);

/// Starts to log the messages that the filter in `LATTICE_LOG` admits; without a filter, messages of the level `usual` and above. Without both,
/// logs nothing at no cost. An invalid filter, or one that admits nothing, is reported on standard error and ignored.
///
/// # Panics
/// Panics if the process already logs.
pub fn start(usual: Option<LevelFilter>) {
    let text = std::env::var(FILTER_VARIABLE).unwrap_or_default();
    let wanted = filter(&text).unwrap_or_else(|| {
        eprintln!("{FILTER_VARIABLE}={text}: no filter; a level such as debug, or info,lattice_agent=debug, is one");
        None
    });
    let Some(filter) = wanted.or_else(|| usual.map(|level| Targets::new().with_default(level))) else { return };
    install(filter, ThreadIs::Started);
}

/// Like [`start`], for a process of a daemon that has already reported an invalid filter. A thread writes, which the first line creates, so that
/// a full pipe blocks nothing. The process must no longer need to have one thread. Dropping the result writes the waiting lines, for a second at
/// most.
///
/// # Panics
/// Panics if the process already logs.
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

/// Makes a separate thread write the log from now on, so that logging never waits. Dropping the result writes the waiting lines, for a second at
/// most.
///
/// Must be called only when the process no longer needs to have one thread, for instance to fork or to change its user.
#[must_use = "the end of the log waits for its last lines"]
pub fn write_apart() -> Lines {
    QUEUE.start(io::stderr, left_out);
    Lines(())
}

fn install(filter: Targets, thread: ThreadIs) {
    let lines = tracing_subscriber::fmt::layer().fmt_fields(fields::bounded()).with_writer(thread);
    tracing_subscriber::registry().with(lines).with(Rated).with(filter).init();
}

/// The filter in this text; `Some(None)` for an empty text. `None` for an invalid text, or one with a target without a level: such a target may
/// be any word, as `banana`, and would be logged entirely, and nothing else.
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

/// Drops lines beyond the rate of the user that they are about.
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

/// Start of the thread that writes. Lines before it are written where they are logged, or create the thread.
#[derive(Clone, Copy, Debug)]
enum ThreadIs {
    Started,
    Made,
}

/// Destination of one line.
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

/// A message with the end of its line, as one line. Quoted characters that would end the line or move a cursor are escaped, so that no user can
/// forge a line.
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
