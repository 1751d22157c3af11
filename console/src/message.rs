//! Standard streams of this program. This module prints everything except the output of ranks, and defines the prefix of messages. The module
//! `output` writes the output of ranks, and uses the same prefix.

use std::io::{self, IsTerminal, Write};
use std::sync::OnceLock;

use bytes::Bytes;
use clap::builder::StyledStr;
use lattice_daemon::printable;
use nix::sys::signal::Signal;
use serde::Serialize;

use crate::exit;

/// Amount of messages from Lattice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Verbosity {
    /// Errors only.
    Quiet,
    /// Warnings too.
    #[default]
    Normal,
    /// Also settings, starts and ends of ranks.
    Verbose,
}

/// Converts `text` to message lines. Each line starts with `lattice: `, no line is empty, and control characters are shown in letters. On a
/// terminal, the word for the kind of a line has a colour.
pub fn message(text: &str) -> Bytes {
    static HAS_COLOURS: OnceLock<bool> = OnceLock::new();
    lines_of_ours(text, *HAS_COLOURS.get_or_init(|| has_colours(&io::stderr()))).into()
}

/// True if a stream is a terminal with colours, and the user has not disabled them (no-color.org).
fn has_colours(stream: &impl IsTerminal) -> bool {
    is_screen(stream) && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// True if standard error is a terminal with escape sequences.
pub fn obeys_escapes() -> bool {
    is_screen(&io::stderr())
}

fn is_screen(stream: &impl IsTerminal) -> bool {
    stream.is_terminal() && std::env::var_os("TERM").is_none_or(|kind| kind != "dumb")
}

/// A text of clap for standard output, with its styles if that is a terminal with colours.
pub fn styled(text: &StyledStr) -> String {
    if has_colours(&io::stdout()) { text.ansi().to_string() } else { text.to_string() }
}

/// Words at the start of a line for its kind, with the numbers of their colours (ECMA-48, SGR).
const COLOURED: [(&str, u8); 5] = [("warning:", 33), ("note:", 36), ("try:", 32), ("tip:", 32), ("Usage:", 32)];

fn lines_of_ours(text: &str, has_colours: bool) -> String {
    let line = |line: &str| {
        let line = printable(line);
        let start = line.trim_start();
        let word = COLOURED.iter().filter(|_| has_colours).find(|(word, _)| start.starts_with(word));
        match word {
            Some((word, colour)) => {
                let (blank, rest) = (&line[..line.len() - start.len()], &start[word.len()..]);
                format!("lattice: {blank}\x1b[{colour}m{word}\x1b[0m{rest}\n")
            }
            None => format!("lattice: {line}\n"),
        }
    };
    text.lines().filter(|line| !line.is_empty()).map(line).collect()
}

/// Writes `text` to standard error as a message of Lattice.
pub fn report(text: &str) {
    write_stderr(&message(text));
}

/// Confirms a request of a user at a terminal: one message, unless quiet. Scripts and pipes get none.
pub fn confirm(text: &str, verbosity: Verbosity) {
    if verbosity > Verbosity::Quiet && io::stderr().is_terminal() {
        report(text);
    }
}

/// Writes to standard error without a prefix. Ignores an error, because there is no place to report it.
pub fn write_stderr(bytes: &[u8]) {
    let _ = io::stderr().write_all(bytes);
}

/// Standard output cannot be written to. For example, the device is full.
#[derive(Debug, thiserror::Error)]
#[error("cannot write to standard output: {0}")]
pub struct OutputError(#[from] io::Error);

/// Writes to standard output. Returns the exit code: 0, or that of SIGPIPE if the reader is gone, as with `head`.
///
/// # Errors
/// Returns every other error of the stream.
pub fn print(bytes: &[u8]) -> Result<u8, OutputError> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(bytes).and_then(|()| stdout.flush()) {
        Ok(()) => Ok(0),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(exit::by_signal(Signal::SIGPIPE as i32)),
        Err(error) => Err(error.into()),
    }
}

/// Writes lines to standard output, with control characters shown in letters; see [`print()`].
pub fn print_lines(lines: &[String]) -> Result<u8, OutputError> {
    print(shown(lines).as_bytes())
}

/// True if a program reads standard output for an interactive user, as a shell does for `$(...)`.
pub fn is_captured() -> bool {
    io::stderr().is_terminal() && !io::stdout().is_terminal()
}

/// Lines in their printed form.
pub fn shown(lines: &[String]) -> String {
    lines.iter().map(|line| format!("{}\n", printable(line))).collect()
}

/// Writes `value` to standard output as JSON on lines of its own; see [`print()`].
pub fn print_json(value: &impl Serialize) -> Result<u8, OutputError> {
    print(json(value).as_bytes())
}

/// JSON on separate lines. `value` contains only numbers, texts and maps with text keys.
pub fn json(value: &impl Serialize) -> String {
    let mut text =
        serde_json::to_string_pretty(value).expect("numbers, texts and maps with text keys always become JSON");
    text.push('\n');
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_of_ours_is_marked_and_none_is_empty() {
        let check = |text: &str, expected: &str| assert_eq!(lines_of_ours(text, false), expected);
        check("one\n\ntwo", "lattice: one\nlattice: two\n");
        check("one\n", "lattice: one\n");
        check("rank 0 aborted: \x1b[2J\ntwo", "lattice: rank 0 aborted: \\x1b[2J\nlattice: two\n");
        check("", "");
    }

    #[test]
    fn what_a_line_is_has_a_colour_on_a_terminal() {
        let check = |text: &str, expected: &str| assert_eq!(lines_of_ours(text, true), expected);
        check("warning: it is hot", "lattice: \x1b[33mwarning:\x1b[0m it is hot\n");
        check(
            "it failed\n  tip: type ls\x1b[2J",
            "lattice: it failed\nlattice:   \x1b[32mtip:\x1b[0m type ls\\x1b[2J\n",
        );
        check("a note: of music", "lattice: a note: of music\n");
    }

    #[test]
    fn a_document_ends_with_its_line() {
        assert_eq!(json(&["a"]), "[\n  \"a\"\n]\n");
    }
}
