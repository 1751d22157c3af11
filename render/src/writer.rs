//! Writer threads: one for standard output, one for standard error, one for all files. The first piece starts each thread.
//!
//! ```text
//! Renderer ──(QUEUE pieces, then it waits)──> Writer thread ──write(2)──> terminal, pipe, files
//!     ^                                           │
//!     └────────────── Fault ──────────────────────┘
//! ```
//!
//! A thread blocks while its reader is slow. Its queue is short, so the renderer waits, then the session, and then the ranks. PMI servers do not
//! wait, and memory stays bounded. If the system refuses a thread, because ranks use all threads of the user, the renderer itself writes, and
//! waits for the reader.

use std::fmt;
use std::fs::File;
use std::io::{self, ErrorKind, IoSlice, Write};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;

use bytes::Bytes;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot, watch};

/// Capacity of the queue of a writer, in pieces of up to 64 KiB.
const QUEUE: usize = 64;

/// A place that failed. All further output for it is dropped.
#[derive(Debug)]
pub struct Fault {
    /// The place.
    pub place: PlaceName,
    /// Error of the system.
    pub error: io::Error,
}

impl Fault {
    /// True if standard output or standard error has no reader any more, as with `head`.
    pub fn is_hang_up(&self) -> bool {
        let ours = matches!(self.place, PlaceName::Stdout | PlaceName::Stderr);
        ours && self.error.kind() == ErrorKind::BrokenPipe
    }
}

/// Destination of output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PlaceName {
    /// Standard output of the launcher.
    Stdout,
    /// Standard error of the launcher.
    Stderr,
    /// A file.
    File(PathBuf),
}

impl fmt::Display for PlaceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stdout => f.write_str("standard output"),
            Self::Stderr => f.write_str("standard error"),
            Self::File(path) => path.display().fmt(f),
        }
    }
}

/// An open file, and its name in messages.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) name: PlaceName,
    pub(crate) file: File,
}

/// Sender for a writer thread, which starts with the first piece.
#[derive(Debug)]
pub(crate) struct Writer {
    queue: mpsc::Sender<(usize, Bytes)>,
    done: oneshot::Receiver<()>,
    idle: Option<WriterThread>,
}

/// A writer thread that has not started.
#[derive(Debug)]
struct WriterThread {
    /// `None` for a place that has failed.
    places: Vec<Option<Place>>,
    pieces: mpsc::Receiver<(usize, Bytes)>,
    faults: mpsc::UnboundedSender<Fault>,
    ended: oneshot::Sender<()>,
}

impl Writer {
    /// Creates a writer for `places`. Reports each failed place once.
    pub(crate) fn new(places: Vec<Place>, faults: mpsc::UnboundedSender<Fault>) -> Self {
        let (queue, pieces) = mpsc::channel(QUEUE);
        let (ended, done) = oneshot::channel();
        let places = places.into_iter().map(Some).collect();
        Self { queue, done, idle: Some(WriterThread { places, pieces, faults, ended }) }
    }

    /// Queues `bytes` for the place at `index`. Waits while the queue is full, until `abandoned` becomes true.
    pub(crate) async fn write(&mut self, index: usize, bytes: Bytes, abandoned: &mut watch::Receiver<bool>) {
        self.idle = self.idle.take().and_then(WriterThread::start);
        if let Some(thread) = &mut self.idle {
            return write_run(&mut thread.places, &thread.faults, &[(index, bytes)]);
        }
        tokio::select! {
            // Without its thread, a writer has no place to write to.
            sent = self.queue.send((index, bytes)) => drop(sent),
            _ = abandoned.wait_for(|&abandoned| abandoned) => {}
        }
    }

    /// Waits until the queue is written completely, or `abandoned` becomes true.
    pub(crate) async fn finish(self, abandoned: &mut watch::Receiver<bool>) {
        if self.idle.is_some() {
            return;
        }
        drop(self.queue);
        tokio::select! {
            _ = self.done => {}
            _ = abandoned.wait_for(|&abandoned| abandoned) => {}
        }
    }
}

impl WriterThread {
    /// Starts the thread. Returns `self` if the system refuses to create a thread.
    fn start(self) -> Option<Self> {
        let idle = Arc::new(Mutex::new(Some(self)));
        let started = Arc::clone(&idle);
        let run = move || {
            let Some(Self { places, pieces, faults, ended }) = started.lock().take() else { return };
            write_all(places, pieces, &faults);
            // The receiver is gone if the launch ended without waiting for the writers.
            let _ = ended.send(());
        };
        match thread::Builder::new().name("writer".to_owned()).spawn(run) {
            Ok(_) => None,
            Err(_) => idle.lock().take(),
        }
    }
}

/// Writes until the queue is closed and empty.
fn write_all(
    mut places: Vec<Option<Place>>,
    mut pieces: mpsc::Receiver<(usize, Bytes)>,
    faults: &mpsc::UnboundedSender<Fault>,
) {
    let mut batch = Vec::with_capacity(QUEUE);
    while pieces.blocking_recv_many(&mut batch, QUEUE) > 0 {
        batch.chunk_by(|(one, _), (other, _)| one == other).for_each(|run| write_run(&mut places, faults, run));
        batch.clear();
    }
}

/// Writes consecutive pieces for one place. A place that fails becomes `None`.
fn write_run(places: &mut [Option<Place>], faults: &mpsc::UnboundedSender<Fault>, run: &[(usize, Bytes)]) {
    let Some(place) = run.first().and_then(|&(index, _)| places.get_mut(index)) else { return };
    let Some(open) = place else { return };
    let slices: Vec<IoSlice<'_>> = run.iter().map(|(_, bytes)| IoSlice::new(bytes)).collect();
    if let Err(error) = write_slices(&mut open.file, slices) {
        let fault = Fault { place: open.name.clone(), error };
        *place = None;
        // The receiver is gone if the launch ended without waiting for the writers.
        let _ = faults.send(fault);
    }
}

fn write_slices(file: &mut File, mut slices: Vec<IoSlice<'_>>) -> io::Result<()> {
    let mut rest = slices.as_mut_slice();
    // Removes empty slices at the front: a write of 0 bytes would otherwise look like a failure.
    IoSlice::advance_slices(&mut rest, 0);
    while !rest.is_empty() {
        match file.write_vectored(rest) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(written) => IoSlice::advance_slices(&mut rest, written),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            // Standard output is shared with other programs, and one of them may have made it non-blocking.
            Err(error) if error.kind() == ErrorKind::WouldBlock => wait_until_writable(file)?,
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn wait_until_writable(file: &File) -> io::Result<()> {
    match poll(&mut [PollFd::new(file.as_fd(), PollFlags::POLLOUT)], PollTimeout::NONE) {
        Ok(_) | Err(nix::Error::EINTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    fn place(name: &str, file: File) -> Place {
        Place { name: PlaceName::File(name.into()), file }
    }

    fn block_on<T>(future: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
    }

    #[test]
    fn a_thread_is_started_for_something_to_write_alone() {
        let mut file = tempfile::tempfile().unwrap();
        let places = || vec![place("file", file.try_clone().unwrap())];
        let (faults, _reported) = mpsc::unbounded_channel();
        let (_keep, mut abandoned) = watch::channel(false);
        let (unused, mut used) = (Writer::new(places(), faults.clone()), Writer::new(places(), faults));
        block_on(async {
            unused.finish(&mut abandoned).await;
            assert!(used.idle.is_some());
            used.write(0, "x".into(), &mut abandoned).await;
            assert!(used.idle.is_none());
            used.finish(&mut abandoned).await;
        });
        io::Seek::rewind(&mut file).unwrap();
        let mut text = String::new();
        file.read_to_string(&mut text).unwrap();
        assert_eq!(text, "x");
    }

    #[test]
    fn everything_is_written_before_the_end() {
        let mut files = [tempfile::tempfile().unwrap(), tempfile::tempfile().unwrap()];
        let places = files.iter().map(|file| place("file", file.try_clone().unwrap())).collect();
        let (faults, mut reported) = mpsc::unbounded_channel();
        let (_keep, mut abandoned) = watch::channel(false);
        block_on(async {
            let mut writer = Writer::new(places, faults);
            for number in 0..1000 {
                writer.write(number % 2, format!("{number}\n").into(), &mut abandoned).await;
            }
            writer.write(0, Bytes::new(), &mut abandoned).await;
            writer.finish(&mut abandoned).await;
        });
        for (parity, file) in files.iter_mut().enumerate() {
            let mut text = String::new();
            io::Seek::rewind(file).unwrap();
            file.read_to_string(&mut text).unwrap();
            let expected: String = (0..1000).filter(|n| n % 2 == parity).map(|n| format!("{n}\n")).collect();
            assert_eq!(text, expected);
        }
        assert!(reported.try_recv().is_err());
    }

    #[test]
    fn a_full_disk_is_reported_once_and_the_other_places_go_on() {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let mut good = tempfile::tempfile().unwrap();
        let places = vec![place("full", full), place("good", good.try_clone().unwrap())];
        let (faults, mut reported) = mpsc::unbounded_channel();
        let (_keep, mut abandoned) = watch::channel(false);
        block_on(async {
            let mut writer = Writer::new(places, faults);
            for _ in 0..200 {
                writer.write(0, Bytes::from_static(b"lost"), &mut abandoned).await;
                writer.write(1, Bytes::from_static(b"kept"), &mut abandoned).await;
            }
            writer.finish(&mut abandoned).await;
        });
        let fault = reported.try_recv().unwrap();
        assert_eq!((fault.place.to_string(), fault.error.kind()), ("full".to_owned(), ErrorKind::StorageFull));
        assert!(reported.try_recv().is_err());
        let mut text = String::new();
        io::Seek::rewind(&mut good).unwrap();
        good.read_to_string(&mut text).unwrap();
        assert_eq!(text, "kept".repeat(200));
    }

    #[test]
    fn a_reader_that_never_reads_can_be_abandoned() {
        let (reader, writer) = io::pipe().unwrap();
        let places = vec![place("pipe", std::os::fd::OwnedFd::from(writer).into())];
        let (faults, _reported) = mpsc::unbounded_channel();
        let (abandon, mut abandoned) = watch::channel(false);
        block_on(async {
            let mut writer = Writer::new(places, faults);
            let flood = async {
                for _ in 0..4 * QUEUE {
                    writer.write(0, vec![b'x'; 64 << 10].into(), &mut abandoned).await;
                }
                writer.finish(&mut abandoned).await;
            };
            let give_up = async { abandon.send(true).unwrap() };
            tokio::join!(flood, give_up);
        });
        drop(reader);
    }
}
