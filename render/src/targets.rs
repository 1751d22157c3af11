//! Targets for the output of a launch, each with its own order of lines.
//!
//! If standard output and standard error are the same file (a terminal, `2>&1`), they are one target. Only then does no stream split a line of
//! the other stream.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, IsTerminal};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::time::Instant;

use bytes::Bytes;
use lattice_session::event::{Output, Stream};
use pmi_core::ids::Rank;
use tokio::sync::{mpsc, watch};

use super::decoration::{Decoration, LineEnds};
use super::files::Files;
use super::hold::{LineHold, Piece, Source, Step};
use super::writer::{Fault, Place, PlaceName, Writer};

/// Target of standard output.
const STDOUT: usize = 0;

/// All targets of a launch, and their writer threads.
#[derive(Debug)]
pub(crate) struct Targets {
    targets: Vec<Target>,
    /// Target of standard error; [`STDOUT`] if both are the same file.
    stderr: usize,
    /// Targets of the streams that go to files.
    routes: HashMap<(Rank, Stream), usize>,
    decoration: Decoration,
    writers: Writers,
    /// Earliest time at which a target can need a tick.
    next_tick: Option<Instant>,
    /// True if the last line on the terminal is a progress line. The next write erases it.
    shows_progress: bool,
    abandoned: watch::Receiver<bool>,
    steps: Vec<Step>,
    bytes: Vec<Bytes>,
}

/// Erases the last line of the terminal.
const ERASE_LINE: &[u8] = b"\r\x1b[K";

#[derive(Debug)]
struct Target {
    hold: LineHold,
    /// Writer thread of the target, and index of its place there.
    writer: WriterName,
    place: usize,
    line_ends: LineEnds,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WriterName {
    Stdout,
    Stderr,
    Files,
}

/// A writer is `None` if it has no place, or after it has written everything.
#[derive(Debug, Default)]
struct Writers {
    stdout: Option<Writer>,
    stderr: Option<Writer>,
    files: Option<Writer>,
}

impl Writers {
    fn get(&mut self, name: WriterName) -> &mut Option<Writer> {
        match name {
            WriterName::Stdout => &mut self.stdout,
            WriterName::Stderr => &mut self.stderr,
            WriterName::Files => &mut self.files,
        }
    }
}

impl Targets {
    /// Prepares writers for standard output, standard error and `files`. No writer waits for its reader once `abandoned` is true.
    ///
    /// # Errors
    /// Fails if standard output or standard error cannot be used.
    pub(crate) fn start(
        files: Files,
        decoration: Decoration,
        faults: &mpsc::UnboundedSender<Fault>,
        abandoned: watch::Receiver<bool>,
    ) -> io::Result<Self> {
        let stdout = File::from(io::stdout().as_fd().try_clone_to_owned()?);
        let stderr = File::from(io::stderr().as_fd().try_clone_to_owned()?);
        let mut targets = vec![Target::new(WriterName::Stdout, 0)];
        let mut writers = Writers::default();
        if !same_file(&stdout, &stderr)? {
            targets.push(Target::new(WriterName::Stderr, 0));
            writers.stderr = Some(writer(PlaceName::Stderr, stderr, faults));
        }
        writers.stdout = Some(writer(PlaceName::Stdout, stdout, faults));
        let stderr = targets.len() - 1;
        let first_file = targets.len();
        if !files.places.is_empty() {
            targets.extend((0..files.places.len()).map(|place| Target::new(WriterName::Files, place)));
            writers.files = Some(Writer::new(files.places, faults.clone()));
        }
        let routes = files.routes.into_iter().map(|(stream, file)| (stream, first_file + file)).collect();
        Ok(Self {
            targets,
            stderr,
            routes,
            decoration,
            writers,
            next_tick: None,
            shows_progress: false,
            abandoned,
            steps: Vec::new(),
            bytes: Vec::new(),
        })
    }

    /// Adds carriage returns to line ends on the terminal from now on, because it is raw.
    pub(crate) fn write_to_raw_terminal(&mut self) {
        for (target, is_terminal) in [(STDOUT, io::stdout().is_terminal()), (self.stderr, io::stderr().is_terminal())] {
            if is_terminal {
                self.targets[target].line_ends = LineEnds::WithReturn;
            }
        }
    }

    /// True if this stream of `rank` goes to a file.
    pub(crate) fn is_file(&self, rank: Rank, stream: Stream) -> bool {
        self.routes.contains_key(&(rank, stream))
    }

    /// Writes output of a rank to its file, if it has one.
    pub(crate) async fn write_to_file(&mut self, Output { rank, stream, bytes }: Output, now: Instant) {
        if let Some(&index) = self.routes.get(&(rank, stream)) {
            self.push(index, Piece { source: Source::Rank(rank, stream), bytes }, now).await;
        }
    }

    /// Writes output of a rank to the same stream of the launcher.
    pub(crate) async fn write_to_stream(&mut self, Output { rank, stream, bytes }: Output, now: Instant) {
        let index = match stream {
            Stream::Stdout => STDOUT,
            Stream::Stderr => self.stderr,
        };
        self.push(index, Piece { source: Source::Rank(rank, stream), bytes }, now).await;
    }

    /// Writes whole lines of Lattice to standard output.
    pub(crate) async fn print(&mut self, lines: Bytes, now: Instant) {
        self.push(STDOUT, Piece { source: Source::Lattice, bytes: lines }, now).await;
    }

    /// Writes whole lines of Lattice to standard error.
    pub(crate) async fn say(&mut self, lines: Bytes, now: Instant) {
        self.push(self.stderr, Piece { source: Source::Lattice, bytes: lines }, now).await;
    }

    /// Shows `text` on the last line of the terminal at standard error, until the next write there. An empty text removes the line. Does nothing
    /// while a line of a rank is open there.
    pub(crate) async fn show_progress(&mut self, text: &str) {
        let Target { hold, writer, place, .. } = &self.targets[self.stderr];
        if !hold.is_clean() || (text.is_empty() && !self.shows_progress) {
            return;
        }
        let before = if self.shows_progress { ERASE_LINE } else { b"" };
        self.shows_progress = !text.is_empty();
        if let Some(writer) = self.writers.get(*writer) {
            let line = [before, text.as_bytes()].concat();
            writer.write(*place, line.into(), &mut self.abandoned).await;
        }
    }

    /// Records that `rank` writes no further output.
    pub(crate) async fn rank_ended(&mut self, rank: Rank, now: Instant) {
        let routed = [Stream::Stdout, Stream::Stderr].map(|stream| self.routes.get(&(rank, stream)).copied());
        for index in [Some(STDOUT), Some(self.stderr)].into_iter().chain(routed).flatten() {
            self.targets[index].hold.rank_ended(rank, now, &mut self.steps);
            self.carry_out(index).await;
        }
    }

    /// Deadline for [`Targets::tick`].
    pub(crate) fn next_tick(&self) -> Option<Instant> {
        self.next_tick
    }

    /// Writes the pieces that have waited long enough.
    pub(crate) async fn tick(&mut self, now: Instant) {
        self.next_tick = None;
        for index in 0..self.targets.len() {
            self.targets[index].hold.tick(now, &mut self.steps);
            self.carry_out(index).await;
        }
    }

    /// Writes all pieces that wait for the end of an open line.
    pub(crate) async fn release_all(&mut self, now: Instant) {
        for index in 0..self.targets.len() {
            self.targets[index].hold.finish(now, &mut self.steps);
            self.carry_out(index).await;
        }
    }

    /// Waits until a writer has written its queue, and ends its thread.
    pub(crate) async fn close(&mut self, name: WriterName) {
        if let Some(writer) = self.writers.get(name).take() {
            writer.finish(&mut self.abandoned).await;
        }
    }

    /// True if standard error is a target of its own.
    pub(crate) fn has_own_stderr(&self) -> bool {
        self.stderr != STDOUT
    }

    async fn push(&mut self, index: usize, piece: Piece, now: Instant) {
        self.targets[index].hold.push(piece, now, &mut self.steps);
        self.carry_out(index).await;
    }

    /// Writes the steps from the hold of a target.
    async fn carry_out(&mut self, index: usize) {
        let Target { hold, writer, place, line_ends } = &self.targets[index];
        self.next_tick = [self.next_tick, hold.deadline()].into_iter().flatten().min();
        for step in self.steps.drain(..) {
            self.decoration.apply(step, *line_ends, &mut self.bytes);
        }
        if index == self.stderr && self.shows_progress && !self.bytes.is_empty() {
            self.shows_progress = false;
            self.bytes.insert(0, Bytes::from_static(ERASE_LINE));
        }
        let writer = self.writers.get(*writer);
        for bytes in self.bytes.drain(..) {
            if let Some(writer) = writer {
                writer.write(*place, bytes, &mut self.abandoned).await;
            }
        }
    }
}

impl Target {
    fn new(writer: WriterName, place: usize) -> Self {
        Self { hold: LineHold::default(), writer, place, line_ends: LineEnds::AsTheyAre }
    }
}

fn writer(name: PlaceName, file: File, faults: &mpsc::UnboundedSender<Fault>) -> Writer {
    Writer::new(vec![Place { name, file }], faults.clone())
}

fn same_file(one: &File, other: &File) -> io::Result<bool> {
    let (one, other) = (one.metadata()?, other.metadata()?);
    Ok((one.dev(), one.ino()) == (other.dev(), other.ino()))
}
