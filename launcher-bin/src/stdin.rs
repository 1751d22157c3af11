//! Source of the ranks' standard input.
//!
//! A file, a pipe or a socket is passed to the reading rank. The rank reads at its own speed, and unread input remains for the next command of a
//! script. A terminal cannot be passed, because a rank is not in the terminal's foreground group and would be stopped by a read. Input for all
//! ranks cannot be passed either. In both cases a thread reads, one piece ahead of the ranks.

use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, OwnedFd};
use std::thread;
use std::time::Duration;

use bytes::Bytes;
use lattice_console::terminal::is_background;
use lattice_session::session_io::StdinSource;
use lattice_session::settings::StdinTarget;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use nix::unistd::{isatty, read};
use tokio::runtime::Handle;
use tokio::sync::mpsc;

/// Bytes of one read.
const PIECE: usize = 64 << 10;
/// Interval of checks that this process is in the foreground again. No event reports it.
const FOREGROUND_CHECK: Duration = Duration::from_millis(200);

/// Part of the launcher's own standard input that `target` requires. Must be called within a tokio runtime.
///
/// # Errors
/// Fails if the system has no descriptor or thread left.
pub(crate) fn source(target: &StdinTarget) -> io::Result<StdinSource> {
    match target {
        StdinTarget::None | StdinTarget::File(_) => Ok(StdinSource::Empty),
        StdinTarget::Rank(_) => {
            let input = io::stdin().as_fd().try_clone_to_owned()?;
            if is_terminal(&input) { stream(input).map(StdinSource::Stream) } else { Ok(StdinSource::Direct(input)) }
        }
        StdinTarget::All | StdinTarget::Terminal(_) => pieces().map(StdinSource::Stream),
    }
}

/// The launcher's own standard input in pieces, for ranks on other machines. Up to two pieces may be read that no rank reads. These are lost for
/// the next command of a script.
///
/// # Errors
/// Fails if the system has no descriptor or thread left.
pub(crate) fn pieces() -> io::Result<mpsc::Receiver<Bytes>> {
    stream(io::stdin().as_fd().try_clone_to_owned()?)
}

fn is_terminal(input: &OwnedFd) -> bool {
    isatty(input).unwrap_or(false)
}

fn stream(input: OwnedFd) -> io::Result<mpsc::Receiver<Bytes>> {
    let (pieces, stream) = mpsc::channel(1);
    let runtime = Handle::current();
    thread::Builder::new().name("stdin".to_owned()).spawn(move || pass_on(&input, &pieces, &runtime))?;
    Ok(stream)
}

/// Reads `input` to its end. Reads a piece only after the previous piece was taken.
fn pass_on(input: &OwnedFd, pieces: &mpsc::Sender<Bytes>, runtime: &Handle) {
    // A read in the background then fails, and does not stop the whole launcher.
    let mut background_reads = SigSet::empty();
    background_reads.add(Signal::SIGTTIN);
    if background_reads.thread_block().is_err() && is_terminal(input) {
        return;
    }
    let mut buffer = vec![0; PIECE];
    // Ends when the receiver is closed.
    while let Ok(room) = runtime.block_on(pieces.reserve()) {
        match read_once(input, &mut buffer) {
            Ok(0) | Err(_) => return,
            Ok(len) => room.send(Bytes::copy_from_slice(&buffer[..len])),
        }
    }
}

/// Reads when input is available and a read is permitted: in the foreground, if `input` is this process's terminal.
fn read_once(input: &OwnedFd, buffer: &mut [u8]) -> io::Result<usize> {
    loop {
        wait_for_foreground(input);
        match read(input, buffer) {
            Ok(len) => return Ok(len),
            Err(Errno::EINTR) => {}
            // This process was moved to the background during the read.
            Err(Errno::EIO) if is_background(input) => {}
            Err(Errno::EAGAIN) => wait_until_readable(input)?,
            Err(errno) => return Err(errno.into()),
        }
    }
}

fn wait_for_foreground(input: &OwnedFd) {
    while is_background(input) {
        thread::sleep(FOREGROUND_CHECK);
    }
}

fn wait_until_readable(input: &OwnedFd) -> io::Result<()> {
    match poll(&mut [PollFd::new(input.as_fd(), PollFlags::POLLIN)], PollTimeout::NONE) {
        Ok(_) => Ok(()),
        Err(errno) => match io::Error::from(errno) {
            error if error.kind() == ErrorKind::Interrupted => Ok(()),
            error => Err(error),
        },
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn ten_megabytes_arrive_whole() {
        let (reader, mut writer) = io::pipe().unwrap();
        let sent: Vec<u8> = (0..10_000_000_u32).flat_map(|number| number.to_le_bytes().into_iter().take(1)).collect();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let received = thread::scope(|scope| {
            scope.spawn(|| {
                writer.write_all(&sent).unwrap();
                drop(writer);
            });
            runtime.block_on(async {
                let mut pieces = stream(reader.into()).unwrap();
                let mut received = Vec::new();
                while let Some(piece) = pieces.recv().await {
                    received.extend_from_slice(&piece);
                }
                received
            })
        });
        assert!(received == sent);
    }

    #[test]
    fn one_piece_is_read_ahead_and_no_more() {
        let (reader, mut writer) = io::pipe().unwrap();
        let rest = OwnedFd::from(reader.try_clone().unwrap());
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let pieces = stream(reader.into()).unwrap();
            writer.write_all(b"one").unwrap();
            while pieces.is_empty() {
                tokio::task::yield_now().await;
            }
            writer.write_all(b"two").unwrap();
            drop(pieces);
        });
        let mut buffer = [0; 8];
        let len = read(&rest, &mut buffer).unwrap();
        assert_eq!(&buffer[..len], b"two");
    }
}
