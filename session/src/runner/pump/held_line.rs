//! Output that was read and not passed on: where it is cut, and when an incomplete line is passed on. Pure.
//!
//! Whole lines are passed on at once. If output is shown as it arrives, a carriage return also ends a piece, because progress bars use
//! it to overwrite a line. No byte is then held longer than the time that the launch sets.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use memchr::memrchr;
use tokio::time::Instant;

use crate::event::Output;

/// Minimum time for which output without a pause is collected.
const COLLECT: Duration = Duration::from_millis(10);

/// Held bytes: the beginning of a line.
pub(super) struct HeldLine {
    /// Empty without memory while nothing is held: most ranks are silent most of the time.
    bytes: BytesMut,
    /// Arrival of the first held byte.
    since: Option<Instant>,
    /// Maximum time for which a byte is held; `None` waits for the end of the line.
    longest: Option<Duration>,
}

impl HeldLine {
    pub(super) fn new(longest: Option<Duration>) -> Self {
        Self { bytes: BytesMut::new(), since: None, longest }
    }

    /// Returns the room after the held bytes, to read into. [`HeldLine::next_piece`] must follow.
    pub(super) fn room(&mut self) -> &mut BytesMut {
        if self.bytes.capacity() - self.bytes.len() < 512 {
            self.bytes.reserve(if self.bytes.len() >= 4096 { Output::PIECE_MAX } else { 4096 });
        }
        &mut self.bytes
    }

    /// Returns the bytes that are passed on at once: whole lines, a line that is too long, and bytes that were held too long.
    pub(super) fn next_piece(&mut self, now: Instant) -> Option<Bytes> {
        let piece = self.whole().map(|end| self.bytes.split_to(end).freeze());
        if piece.is_some() {
            // The remaining bytes arrived with the end of the piece.
            self.since = None;
        }
        if self.bytes.is_empty() {
            (self.bytes, self.since) = (BytesMut::new(), None);
            return piece;
        }
        let since = *self.since.get_or_insert(now);
        let is_overdue = self.longest.is_some_and(|longest| now >= since + longest.max(COLLECT));
        piece.or_else(|| (is_overdue || self.bytes.len() >= Output::PIECE_MAX).then(|| self.take()))
    }

    /// Returns the length up to the last end of a line, if any. A carriage return as the last byte is no end: a line end may follow.
    fn whole(&self) -> Option<usize> {
        let line_end = memrchr(b'\n', &self.bytes);
        let before_last = self.bytes.len().saturating_sub(1);
        let returned = self.longest.and_then(|_| memrchr(b'\r', &self.bytes[..before_last]));
        line_end.max(returned).map(|end| end + 1)
    }

    /// Returns the time at which held bytes are passed on if nothing follows; `None` without held bytes, or for whole lines.
    pub(super) fn due(&self) -> Option<Instant> {
        Some(self.since? + self.longest?)
    }

    /// Returns all held bytes, and holds none.
    pub(super) fn take(&mut self) -> Bytes {
        self.since = None;
        std::mem::take(&mut self.bytes).freeze()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONGEST: Duration = Duration::from_millis(100);

    /// Returns the pieces of texts that arrive at these milliseconds, each with the millisecond at which it is passed on.
    fn passed(longest: Option<Duration>, texts: &[(u64, &str)]) -> Vec<(u64, String)> {
        let start = Instant::now();
        let at = |milliseconds| start + Duration::from_millis(milliseconds);
        let mut line = HeldLine::new(longest);
        let mut pieces = Vec::new();
        let mut take_due = |line: &mut HeldLine, until: Option<Instant>| {
            if let Some(due) = line.due().filter(|&due| until.is_none_or(|until| due <= until)) {
                let milliseconds = due.duration_since(start).as_millis() as u64;
                pieces.push((milliseconds, String::from_utf8(line.take().to_vec()).unwrap()));
            }
        };
        let mut all = Vec::new();
        for &(milliseconds, text) in texts {
            take_due(&mut line, Some(at(milliseconds)));
            line.room().extend_from_slice(text.as_bytes());
            while let Some(piece) = line.next_piece(at(milliseconds)) {
                all.push((milliseconds, String::from_utf8(piece.to_vec()).unwrap()));
            }
        }
        take_due(&mut line, None);
        all.extend(pieces);
        all.sort_by_key(|&(milliseconds, _)| milliseconds);
        all
    }

    #[test]
    fn output_is_cut_where_a_reader_sees_no_difference_and_held_no_longer_than_allowed() {
        let check = |longest: Option<Duration>, texts: &[(u64, &str)], expected: &[(u64, &str)]| {
            let passed = passed(longest, texts);
            let passed: Vec<(u64, &str)> = passed.iter().map(|(time, text)| (*time, text.as_str())).collect();
            assert_eq!(passed, expected, "{texts:?}");
        };
        let live = Some(LONGEST);
        check(live, &[(0, "one\ntwo\nthr"), (50, "ee\n")], &[(0, "one\ntwo\n"), (50, "three\n")]);
        check(live, &[(0, "name? ")], &[(100, "name? ")]);
        // Dots: the time of the first one counts.
        let dots: Vec<(u64, &str)> = (0..10).map(|number| (number * 30, ".")).collect();
        check(live, &dots, &[(100, "...."), (220, "...."), (340, "..")]);
        // Bars that end with a carriage return, and bars that begin with one.
        check(live, &[(0, "10%\r"), (30, "20%\r"), (60, "30%\r")], &[(30, "10%\r"), (60, "20%\r"), (160, "30%\r")]);
        check(live, &[(0, "\r 10%"), (30, "\r 20%")], &[(0, "\r"), (30, " 10%\r"), (130, " 20%")]);
        check(live, &[(0, "a\r"), (10, "\nb\r\n")], &[(10, "a\r\nb\r\n")]);
        // Whole lines.
        check(None, &[(0, "10%\r"), (500, "20%\r"), (900, "done\n")], &[(900, "10%\r20%\rdone\n")]);
        check(None, &[(0, "name? ")], &[]);
        // Each byte as it arrives.
        check(Some(Duration::ZERO), &[(0, "a"), (1, "b\nc")], &[(0, "a"), (1, "b\n"), (1, "c")]);
    }

    #[test]
    fn a_line_that_comes_without_a_pause_is_passed_on_in_time() {
        let texts: Vec<(u64, &str)> = (0..1000).map(|number| (number, "x")).collect();
        let passed = passed(Some(LONGEST), &texts);
        assert!(passed.iter().all(|(_, text)| text.len() <= 101), "{passed:?}");
    }
}
