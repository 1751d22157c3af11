//! Foreign text for a terminal or a log: names, commands, causes and messages from users, ranks and other machines. The output of ranks passes
//! unchanged.

use std::borrow::Cow;
use std::fmt::Write;

/// `text` with escapes, such as `\n`, `\x1b` or `\u{202e}`, for characters that a terminal interprets as commands, or does not show. So the
/// result is one line, moves no cursor, and imitates no other text.
pub fn printable(text: &str) -> Cow<'_, str> {
    if !text.chars().any(is_hidden) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 8);
    for character in text.chars() {
        match character {
            '\n' => shown.push_str("\\n"),
            '\t' => shown.push_str("\\t"),
            hidden if is_hidden(hidden) => {
                let code = u32::from(hidden);
                // Writing to a `String` does not fail.
                let _ = if code < 0x100 { write!(shown, "\\x{code:02x}") } else { write!(shown, "\\u{{{code:x}}}") };
            }
            seen => shown.push(seen),
        }
    }
    Cow::Owned(shown)
}

/// Returns true for control characters of ASCII and of ISO 6429 (C1, which start commands as ESC does), and for invisible characters of Unicode:
/// line ends, marks and overrides of the writing direction (CVE-2021-42574), and spaces without width.
fn is_hidden(character: char) -> bool {
    character.is_control()
        || matches!(character,
            '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_would_obey_is_shown_in_letters() {
        let check = |text: &str, expected: &str| assert_eq!(printable(text), expected);
        check("sleep 9 \x1b[31mEVIL\x1b]0;title\x07 two\nlines", "sleep 9 \\x1b[31mEVIL\\x1b]0;title\\x07 two\\nlines");
        check("tab\there\r", "tab\\there\\x0d");
        check("\u{9b}2J \x7f", "\\x9b2J \\x7f");
        check("a\u{202e}b\u{2066}", "a\\u{202e}b\\u{2066}");
        check("gr\u{fc}n \u{4e2d} \\x1b", "gr\u{fc}n \u{4e2d} \\x1b");
        check("", "");
    }

    #[test]
    fn what_is_harmless_is_not_copied() {
        assert!(matches!(printable("node[0-3] k\u{f6}ln"), Cow::Borrowed(_)));
    }

    proptest::proptest! {
        #[test]
        fn no_text_moves_a_cursor(text in "\\PC{0,20}|.{0,20}|[\\x00-\\x1f\\x7f-\\u{9f}]{0,20}") {
            let shown = printable(&text);
            proptest::prop_assert!(!shown.chars().any(is_hidden));
            proptest::prop_assert_eq!(printable(&shown), shown.as_ref());
        }
    }
}
