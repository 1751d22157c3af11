//! Comments and strings of a Rust file, found by its lexical rules.

/// Place of a text in the language.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// `///` or `//!`.
    Documentation,
    /// Any other comment.
    Comment,
    /// A string of several words.
    String,
}

/// A text, and the line that it begins on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Text {
    pub(super) line: usize,
    pub(super) words: String,
}

impl Text {
    pub(super) fn new(line: usize, words: &str) -> Self {
        Self { line, words: words.to_owned() }
    }
}

/// Comments and strings in their order, with the byte that each begins at.
pub(super) fn texts(source: &str) -> Vec<(Kind, usize, Text)> {
    let mut found = Vec::new();
    let (mut at, mut line) = (0, 1);
    while at < source.len() {
        let rest = &source[at..];
        let (length, text) = token(rest, source[..at].chars().next_back());
        if let Some((kind, words)) = text {
            found.push((kind, at, Text::new(line, words)));
        }
        line += rest[..length].matches('\n').count();
        at += length;
    }
    found
}

/// Length of the first token of `rest`, and its text if it has one.
fn token(rest: &str, before: Option<char>) -> (usize, Option<(Kind, &str)>) {
    let until = |end: &str| rest.find(end).unwrap_or(rest.len());
    if rest.starts_with("//") {
        let comment = &rest[..until("\n")];
        let is_documentation =
            (comment.starts_with("///") && !comment.starts_with("////")) || comment.starts_with("//!");
        let kind = if is_documentation { Kind::Documentation } else { Kind::Comment };
        return (comment.len(), Some((kind, comment.trim_start_matches(['/', '!']))));
    }
    if rest.starts_with("/*") {
        let length = (until("*/") + 2).min(rest.len());
        return (length, Some((Kind::Comment, &rest[..length])));
    }
    if rest.starts_with('"') {
        return string(rest, 1, "\"", true);
    }
    let is_word = before.is_some_and(|letter| letter.is_alphanumeric() || letter == '_');
    if rest.starts_with('r') && (!is_word || before == Some('b')) {
        let hashes = rest[1..].bytes().take_while(|&byte| byte == b'#').count();
        if rest[1 + hashes..].starts_with('"') {
            return string(rest, hashes + 2, &format!("\"{}", "#".repeat(hashes)), false);
        }
    }
    if rest.starts_with('\'') {
        return (character(rest), None);
    }
    (rest.chars().next().map_or(1, char::len_utf8), None)
}

/// A string whose text begins at `begin`, and ends before `end`.
fn string<'a>(rest: &'a str, begin: usize, end: &str, has_escapes: bool) -> (usize, Option<(Kind, &'a str)>) {
    let mut length = begin;
    while length < rest.len() && !rest[length..].starts_with(end) {
        let letters = if has_escapes && rest[length..].starts_with('\\') { 2 } else { 1 };
        length += rest[length..].chars().take(letters).map(char::len_utf8).sum::<usize>();
    }
    let words = &rest[begin..length];
    ((length + end.len()).min(rest.len()), words.contains(' ').then_some((Kind::String, words)))
}

/// Length of a character; 1 for the quote of a lifetime.
fn character(rest: &str) -> usize {
    let mut letters = rest.char_indices().skip(1);
    let end = match letters.next() {
        Some((_, '\\')) => rest[3..].find('\'').map(|at| at + 3),
        Some(_) => letters.next().filter(|&(_, letter)| letter == '\'').map(|(at, _)| at),
        None => None,
    };
    end.map_or(1, |end| end + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_strings_are_found() {
        let source = "//! one\n/// two\nfn f<'a>(c: &'a str) { // three\n    let _ = ['\"', '\\'', '\\u{1}']; /* four\n five */ g(\"six \\\" \
                      seven\", \"word\");\n    h(r#\"eight \" nine\"#, br\"ten // eleven\"); }\n//// twelve\n";
        let found: Vec<(Kind, usize, String)> =
            texts(source).into_iter().map(|(kind, _, text)| (kind, text.line, text.words)).collect();
        let text = |kind, line, words: &str| (kind, line, words.to_owned());
        let expected = [
            text(Kind::Documentation, 1, " one"),
            text(Kind::Documentation, 2, " two"),
            text(Kind::Comment, 3, " three"),
            text(Kind::Comment, 4, "/* four\n five */"),
            text(Kind::String, 5, "six \\\" seven"),
            text(Kind::String, 6, "eight \" nine"),
            text(Kind::String, 6, "ten // eleven"),
            text(Kind::Comment, 7, " twelve"),
        ];
        assert_eq!(found, expected);
    }
}
