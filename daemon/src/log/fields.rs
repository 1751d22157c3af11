//! Fields of lines: each is cut off, so that text of a user or of another machine cannot make a line long.

use std::fmt::{self, Write};

use tracing::field::Field;
use tracing_subscriber::field::MakeExt;
use tracing_subscriber::fmt::FormatFields;
use tracing_subscriber::fmt::format::{Writer, debug_fn};

/// Maximum number of characters of a field.
const FIELD_MAX: usize = 256;
/// Maximum number of characters of a message.
const MESSAGE_MAX: usize = 1024;

/// Writes the fields of a line: the message, and all other fields with their names.
pub(super) fn bounded() -> impl for<'writer> FormatFields<'writer> {
    let write = |writer: &mut Writer<'_>, field: &Field, value: &dyn fmt::Debug| match field.name() {
        "message" => write_cut(writer, value, MESSAGE_MAX),
        name => {
            write!(writer, "{}=", name.trim_start_matches("r#"))?;
            write_cut(writer, value, FIELD_MAX)
        }
    };
    debug_fn(write).delimited(" ")
}

/// The first characters of a value.
pub(super) fn cut(value: &dyn fmt::Debug, most: usize) -> String {
    let mut text = String::new();
    // Writing to a `String` does not fail.
    let _ = write_cut(&mut text, value, most);
    text
}

fn write_cut(writer: &mut dyn Write, value: &dyn fmt::Debug, most: usize) -> fmt::Result {
    let mut cut = Cut { writer, left: most, is_full: false };
    match write!(cut, "{value:?}") {
        Err(_) if cut.is_full => writer.write_str("..."),
        written => written,
    }
}

/// Forwards this number of characters, and fails at the next one, so that the rest is not even formatted.
struct Cut<'a> {
    writer: &'a mut dyn Write,
    left: usize,
    is_full: bool,
}

impl Write for Cut<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let Some((end, _)) = text.char_indices().nth(self.left) else {
            self.left -= text.chars().count();
            return self.writer.write_str(text);
        };
        (self.left, self.is_full) = (0, true);
        self.writer.write_str(&text[..end])?;
        Err(fmt::Error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_value_is_cut() {
        let check = |value: &dyn fmt::Debug, expected: &str| assert_eq!(cut(value, 8), expected);
        check(&format_args!("12345678"), "12345678");
        check(&format_args!("1234{}", "56789"), "12345678...");
        check(&"a\nbcdefgh", "\"a\\nbcde...");
        check(&format_args!("\u{202e}\u{202e}{}", "\u{202e}".repeat(1 << 20)), &("\u{202e}".repeat(8) + "..."));
        check(&format_args!(""), "");
    }
}
