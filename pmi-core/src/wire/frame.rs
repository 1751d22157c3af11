//! Splits a rank's byte stream into messages, independent of the boundaries of reads. Never holds more than the limit of one message.

use std::ops::Range;

use super::limits::VALUE_MAX;

/// One complete message, without its framing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frame<'a> {
    /// A PMI-1 line without its line end.
    Line(&'a [u8]),
    /// All blocks of a PMI-1 spawn, from the first `mcmd=spawn` to the last `endcmd`, including line ends.
    SpawnBlocks(&'a [u8]),
    /// A PMI-2 message without its length.
    Pmi2(&'a [u8]),
}

/// Error of a stream that is not PMI; the rest of it cannot be parsed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FrameError {
    /// A message begins with a byte that begins neither a PMI-1 nor a PMI-2 message.
    #[error("a message begins with {}; PMI-1 begins with `cmd=` or `mcmd=`, PMI-2 with a six-digit length", Quoted(.0))]
    NotPmi(Vec<u8>),
    /// The length of a PMI-2 message is not a number, or is 0.
    #[error("a PMI-2 message has the length {}; it is a number from 1 to {max}", Quoted(.0), max = FrameBuffer::MESSAGE_MAX)]
    BadLength(Vec<u8>),
    /// A message is longer than any real client sends.
    #[error("a message has more than {max} bytes")]
    TooLong {
        /// The limit, in bytes.
        max: usize,
    },
    /// The blocks of a PMI-1 spawn do not contain their total.
    #[error("block {block} of a spawn has no valid `totspawns`; it is a number from 1 to {max}", max = FrameBuffer::SPAWN_BLOCKS_MAX)]
    SpawnWithoutTotal {
        /// The block, counted from 1.
        block: usize,
    },
    /// Another message interrupts a spawn before its last block.
    #[error("block {block} of a spawn begins with {}, not `mcmd=spawn`", Quoted(found))]
    SpawnInterrupted {
        /// The block, counted from 1.
        block: usize,
        /// Its first line.
        found: Vec<u8>,
    },
}

/// The first bytes of a rank's message, printable in a message to the user.
pub(crate) struct Quoted<'a>(pub(crate) &'a [u8]);

impl std::fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        const SHOWN: usize = 48;
        let (shown, rest) = self.0.split_at(self.0.len().min(SHOWN));
        let dots = if rest.is_empty() { "" } else { "..." };
        write!(f, "\"{}\"{dots}", shown.escape_ascii())
    }
}

/// Collects a rank's bytes and returns complete messages.
///
/// ```
/// use pmi_core::wire::{Frame, FrameBuffer};
/// let mut frames = FrameBuffer::default();
/// frames.push(b"cmd=get_maxes\n    14cmd=kvs-f");
/// assert_eq!(frames.next(), Ok(Some(Frame::Line(b"cmd=get_maxes"))));
/// assert_eq!(frames.next(), Ok(None));
/// frames.push(b"ence;");
/// assert_eq!(frames.next(), Ok(Some(Frame::Pmi2(b"cmd=kvs-fence;"))));
/// ```
#[derive(Debug, Default)]
pub struct FrameBuffer {
    bytes: Vec<u8>,
    /// Start of the bytes that were not returned yet; `start <= scanned <= bytes.len()`.
    start: usize,
    /// All bytes before this were searched for the end of the message that begins at `start`.
    scanned: usize,
    spawn: SpawnProgress,
    current: Current,
}

/// The last returned message. Its bytes stay in place until the next `push`.
#[derive(Debug, Default)]
struct Current {
    kind: Kind,
    /// Range with the framing.
    raw: Range<usize>,
    /// Range without the framing.
    content: Range<usize>,
}

#[derive(Clone, Copy, Debug, Default)]
enum Kind {
    #[default]
    Line,
    SpawnBlocks,
    Pmi2,
}

/// Progress in the blocks of a spawn.
#[derive(Debug, Default)]
struct SpawnProgress {
    /// Complete blocks so far.
    blocks: usize,
    /// Expected blocks, once a `totspawns` line has arrived.
    total: Option<usize>,
    /// True if the next line begins a block.
    between_blocks: bool,
    /// Offset of the current line from the start of the message.
    line: usize,
}

impl FrameBuffer {
    /// Maximum length of a line or PMI-2 message in bytes: the longest stored value, and 1 KiB for its key and the names around it. So a
    /// rank with a slightly too long value receives an error. Real clients stay far below.
    pub const MESSAGE_MAX: usize = VALUE_MAX + 1024;
    /// Maximum length of a spawn in bytes, with all its blocks.
    pub const SPAWN_MAX: usize = 1024 * 1024;
    /// Maximum number of blocks of one spawn.
    pub const SPAWN_BLOCKS_MAX: usize = 1024;

    /// Capacity in bytes up to which an empty buffer keeps its memory.
    const KEPT: usize = 1024;

    /// Appends received bytes. Call [`FrameBuffer::next`] until it returns no message before the next `push`. Then the buffer never holds
    /// more than one incomplete message and the bytes of one read.
    pub fn push(&mut self, bytes: &[u8]) {
        if self.start == self.bytes.len() {
            self.reset();
        } else if self.start > 0 {
            self.bytes.drain(..self.start);
            self.scanned -= self.start;
            self.start = 0;
            self.current = Current::default();
        }
        self.bytes.extend_from_slice(bytes);
    }

    /// The number of bytes that wait for the rest of their message.
    pub fn pending(&self) -> usize {
        self.bytes.len() - self.start
    }

    /// Returns the next complete message, or `None` until more bytes arrive.
    ///
    /// # Errors
    /// As [`FrameBuffer::advance`].
    #[allow(clippy::should_implement_trait, reason = "a lending iterator: the frame borrows the buffer")]
    pub fn next(&mut self) -> Result<Option<Frame<'_>>, FrameError> {
        Ok(if self.advance()? { Some(self.frame()) } else { None })
    }

    /// Advances to the next complete message; returns false until more bytes arrive.
    ///
    /// # Errors
    /// Fails where the stream is not PMI or a message is too long. The stream then has no next message, and the rest cannot be parsed.
    pub fn advance(&mut self) -> Result<bool, FrameError> {
        let Some(&first) = self.bytes.get(self.start) else { return Ok(false) };
        match first {
            b'c' => self.line(),
            b'm' => self.spawn_blocks(),
            b' ' | b'0'..=b'9' => self.pmi2(),
            _ => Err(FrameError::NotPmi(self.opening())),
        }
    }

    /// Returns the message of the last successful [`FrameBuffer::advance`].
    pub fn frame(&self) -> Frame<'_> {
        let content = &self.bytes[self.current.content.clone()];
        match self.current.kind {
            Kind::Line => Frame::Line(content),
            Kind::SpawnBlocks => Frame::SpawnBlocks(content),
            Kind::Pmi2 => Frame::Pmi2(content),
        }
    }

    /// Steps back before that message, so that the next [`FrameBuffer::advance`] returns to it. Must be called only once, before the next
    /// `push`.
    pub(crate) fn go_back(&mut self) {
        self.start = self.current.raw.start;
        self.scanned = self.start;
    }

    /// Returns the same message as received, with its framing.
    pub fn raw(&self) -> &[u8] {
        &self.bytes[self.current.raw.clone()]
    }

    /// Returns the beginning of the current message, for an error.
    fn opening(&self) -> Vec<u8> {
        let rest = &self.bytes[self.start..];
        rest[..rest.len().min(64)].to_vec()
    }

    fn reset(&mut self) {
        self.bytes.clear();
        if self.bytes.capacity() > Self::KEPT {
            self.bytes = Vec::new();
        }
        self.start = 0;
        self.scanned = 0;
        self.current = Current::default();
    }

    /// Returns the message that ends before `end`.
    fn hand_out(&mut self, kind: Kind, content: Range<usize>, end: usize) -> bool {
        self.current = Current { kind, raw: self.start..end, content };
        self.start = end;
        self.scanned = end;
        self.spawn = SpawnProgress::default();
        true
    }

    /// Returns the position of the next line end in the bytes that were not searched before.
    fn next_line_end(&mut self, message_max: usize) -> Result<Option<usize>, FrameError> {
        let found = memchr::memchr(b'\n', &self.bytes[self.scanned..]).map(|ahead| self.scanned + ahead);
        let end = found.unwrap_or(self.bytes.len());
        if end - self.start > message_max {
            return Err(FrameError::TooLong { max: message_max });
        }
        if found.is_none() {
            self.scanned = end;
        }
        Ok(found)
    }

    fn line(&mut self) -> Result<bool, FrameError> {
        let Some(end) = self.next_line_end(Self::MESSAGE_MAX)? else { return Ok(false) };
        Ok(self.hand_out(Kind::Line, self.start..end, end + 1))
    }

    fn pmi2(&mut self) -> Result<bool, FrameError> {
        let Some(prefix) = self.bytes.get(self.start..self.start + 6) else { return Ok(false) };
        let length = parse_length(prefix).ok_or_else(|| FrameError::BadLength(prefix.to_vec()))?;
        if length > Self::MESSAGE_MAX {
            return Err(FrameError::TooLong { max: Self::MESSAGE_MAX });
        }
        let content = self.start + 6..self.start + 6 + length;
        let end = content.end;
        Ok(end <= self.bytes.len() && self.hand_out(Kind::Pmi2, content, end))
    }

    /// Counts complete `endcmd` lines up to `totspawns`: an argument may look like `endcmd`, and MPICH up to 4.0 sends many writes.
    fn spawn_blocks(&mut self) -> Result<bool, FrameError> {
        if self.scanned == self.start {
            self.spawn = SpawnProgress { between_blocks: true, ..SpawnProgress::default() };
        }
        loop {
            let line_start = self.start + self.spawn.line;
            let Some(line_end) = self.next_line_end(Self::SPAWN_MAX)? else {
                // Only a message that begins a spawn may use the limit of a spawn.
                return if self.spawn.between_blocks {
                    self.spawn_opening(line_start).map(|()| false)
                } else {
                    Ok(false)
                };
            };
            self.scanned = line_end + 1;
            self.spawn.line = self.scanned - self.start;
            if self.spawn_line(line_start..line_end)? {
                return Ok(self.hand_out(Kind::SpawnBlocks, self.start..line_end + 1, line_end + 1));
            }
        }
    }

    /// Checks that the incomplete current line can become the first line of a block.
    fn spawn_opening(&self, line_start: usize) -> Result<(), FrameError> {
        let line = &self.bytes[line_start..];
        if SPAWN_OPENING.starts_with(line) { Ok(()) } else { Err(interrupted(self.spawn.blocks + 1, line)) }
    }

    /// Handles one line of a spawn; returns true for the last one.
    fn spawn_line(&mut self, line: Range<usize>) -> Result<bool, FrameError> {
        let line = &self.bytes[line];
        let block = self.spawn.blocks + 1;
        if self.spawn.between_blocks {
            self.spawn.between_blocks = false;
            if line != SPAWN_OPENING {
                return Err(interrupted(block, line));
            }
        } else if let Some(total) = line.strip_prefix(b"totspawns=") {
            let total = std::str::from_utf8(total).ok().and_then(|text| text.trim().parse().ok());
            self.spawn.total = total.filter(|total| (1..=Self::SPAWN_BLOCKS_MAX).contains(total));
        } else if line == b"endcmd" {
            let total = self.spawn.total.ok_or(FrameError::SpawnWithoutTotal { block })?;
            self.spawn.blocks = block;
            self.spawn.between_blocks = true;
            return Ok(block >= total);
        }
        Ok(false)
    }
}

/// The first line of each block of a spawn.
const SPAWN_OPENING: &[u8] = b"mcmd=spawn";

fn interrupted(block: usize, line: &[u8]) -> FrameError {
    FrameError::SpawnInterrupted { block, found: line[..line.len().min(64)].to_vec() }
}

/// Reads the six bytes before a PMI-2 message: digits with spaces on the left (MPICH 4.1 and later, Hydra) or on the
/// right (Slurm).
fn parse_length(prefix: &[u8]) -> Option<usize> {
    let text = std::str::from_utf8(prefix).ok()?.trim_matches(' ');
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    digits.then(|| text.parse().ok()).flatten().filter(|&length| length > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq, Eq)]
    enum Owned {
        Line(String),
        Spawn(String),
        Pmi2(String),
    }

    /// Pushes `bytes` in pieces of `step`. Returns all messages, and the error that ended the stream.
    fn frames(bytes: &[u8], step: usize) -> (Vec<Owned>, Option<FrameError>) {
        let mut buffer = FrameBuffer::default();
        let mut seen = Vec::new();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        for piece in bytes.chunks(step) {
            buffer.push(piece);
            loop {
                match buffer.next() {
                    Ok(None) => break,
                    Ok(Some(Frame::Line(line))) => seen.push(Owned::Line(text(line))),
                    Ok(Some(Frame::SpawnBlocks(blocks))) => seen.push(Owned::Spawn(text(blocks))),
                    Ok(Some(Frame::Pmi2(message))) => seen.push(Owned::Pmi2(text(message))),
                    Err(error) => return (seen, Some(error)),
                }
            }
        }
        (seen, None)
    }

    #[test]
    fn any_split_gives_the_same_messages() {
        let spawn = "mcmd=spawn\ntotspawns=2\narg1=endcmd\nargcnt=1\nendcmd\nmcmd=spawn\ntotspawns=2\nendcmd\n";
        let stream = format!("cmd=init pmi_version=2\n14    cmd=kvs-fence;{spawn}     9cmd=abort cmd=finalize\n");
        let stream = stream.replace("     9cmd=abort ", "     9cmd=abort");
        for step in 1..=stream.len() {
            let (seen, error) = frames(stream.as_bytes(), step);
            assert_eq!(error, None);
            assert_eq!(
                seen,
                [
                    Owned::Line("cmd=init pmi_version=2".into()),
                    Owned::Pmi2("cmd=kvs-fence;".into()),
                    Owned::Spawn(spawn.into()),
                    Owned::Pmi2("cmd=abort".into()),
                    Owned::Line("cmd=finalize".into()),
                ],
                "in pieces of {step}"
            );
        }
    }

    #[test]
    fn what_is_not_pmi_ends_the_stream() {
        let check = |bytes: &[u8], expected: &str| {
            let (seen, error) = frames(bytes, bytes.len());
            assert_eq!(seen, []);
            let error = error.map(|error| error.to_string()).unwrap_or_default();
            assert!(error.contains(expected), "{error:?} does not contain {expected:?}");
        };
        check(b"GET / HTTP/1.1\r\n", "GET / HTTP");
        check(b"\0\0\0", "\\x00\\x00");
        check(b"     0", "\"     0\"");
        check(b"1 2   cmd", "\"1 2   \"");
        check(b"999999", "more than 66560 bytes");
        check(&[b"cmd=put value=".as_slice(), &[b'x'; 70_000]].concat(), "more than 66560 bytes");
        check(b"mcmd=put key=", "block 1 of a spawn begins with \"mcmd=put");
        check(b"mcmd=spawn\nendcmd\n", "no valid `totspawns`");
        check(b"mcmd=spawn\ntotspawns=0\nendcmd\n", "no valid `totspawns`");
        check(b"mcmd=spawn\ntotspawns=2\nendcmd\ncmd=get_maxes\n", "block 2 of a spawn begins with \"cmd=get_maxes\"");
    }

    #[test]
    fn an_idle_buffer_holds_no_memory() {
        let mut buffer = FrameBuffer::default();
        buffer.push(&[b"cmd=x value=".as_slice(), &[b'v'; 60_000], b"\n"].concat());
        assert!(matches!(buffer.next(), Ok(Some(Frame::Line(_)))));
        buffer.push(b"cmd=finalize\n");
        assert!(matches!(buffer.next(), Ok(Some(Frame::Line(b"cmd=finalize")))));
        assert!(buffer.bytes.capacity() <= FrameBuffer::KEPT);
    }
}
