//! Words that make texts hard to read, counted in documents, help texts, messages and comments. The table of kinds and packages is printed, and
//! a kind with more such words than the budget is a failure. CONTRIBUTING.md has the rules that the list stands for.

mod source;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use self::source::{Text, texts};
use crate::shell::repository;

/// Words that are used of programs as if they were people, and idioms that need two readings.
const BANNED: [&str; 33] = [
    "who",
    "whom",
    "whose",
    "whoever",
    "nobody",
    "somebody",
    "anybody",
    "everybody",
    "tell",
    "tells",
    "told",
    "telling",
    "hear",
    "hears",
    "heard",
    "hearing",
    "say",
    "says",
    "said",
    "saying",
    "bear",
    "bears",
    "borne",
    "heed",
    "heeds",
    "heeded",
    "shall",
    "mended",
    "behind",
    "chooses nothing",
    "for ever",
    "an only one",
    "goes before",
];

/// Number of banned words in 1,000 words that each kind of text may have.
const BUDGET: f64 = 1.0;

/// Directories that hold no text of the project, at any level.
const LEFT_OUT: [&str; 4] = ["target", ".git", "generated", "testdata"];

/// Packages whose strings are no messages to users.
const WITHOUT_MESSAGES: [&str; 6] = ["tests", "benches", "xtask", "fuzz", "simulation", "examples"];

/// A kind of text.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, clap::ValueEnum)]
pub(crate) enum Kind {
    /// Pages in Markdown.
    Documents,
    /// Documentation of command-line arguments, which `--help` and the manual pages print.
    Help,
    /// Strings of production code that have several words.
    Messages,
    /// All other comments.
    Comments,
}

impl Kind {
    const ALL: [Self; 4] = [Self::Documents, Self::Help, Self::Messages, Self::Comments];
}

/// Words of one kind in one package.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Count {
    words: usize,
    banned: usize,
}

impl Count {
    fn of(text: &str) -> Self {
        let words: Vec<String> = words(text).map(str::to_lowercase).collect();
        let begins = |index: usize| {
            let is_here = |banned: &str| {
                banned.split(' ').enumerate().all(|(at, word)| words.get(index + at).is_some_and(|have| have == word))
            };
            BANNED.iter().any(|banned| is_here(banned))
        };
        Self { words: words.len(), banned: (0..words.len()).filter(|&index| begins(index)).count() }
    }

    fn add(&mut self, other: Self) {
        self.words += other.words;
        self.banned += other.banned;
    }

    fn per_thousand(self) -> f64 {
        1000.0 * self.banned as f64 / self.words.max(1) as f64
    }
}

/// Words of a text: letters, with apostrophes within.
fn words(text: &str) -> impl Iterator<Item = &str> {
    let pieces = text.split(|letter: char| !letter.is_alphabetic() && letter != '\'');
    pieces.map(|word| word.trim_matches('\'')).filter(|word| !word.is_empty())
}

/// A format string without the names between braces.
fn without_arguments(format: &str) -> String {
    format
        .split('{')
        .enumerate()
        .map(|(index, piece)| if index == 0 { piece } else { piece.split_once('}').map_or(piece, |(_, rest)| rest) })
        .collect()
}

/// Counts the words of the repository, prints the table, and with `list` each text of that kind that has a banned word.
///
/// # Errors
/// Fails if a kind of text is over the budget.
pub(crate) fn check(list: Option<Kind>) -> Result<()> {
    let mut counts = BTreeMap::<(Kind, String), Count>::new();
    let mut files = Vec::new();
    collect(repository(), &mut files)?;
    for file in &files {
        let content = fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
        let name = file.strip_prefix(repository()).unwrap_or(file);
        let package = name.iter().next().unwrap_or_default().to_string_lossy().into_owned();
        for (kind, text) in texts_of(name, &content) {
            let count = match kind {
                Kind::Messages => Count::of(&without_arguments(&text.words)),
                Kind::Documents | Kind::Help | Kind::Comments => Count::of(&text.words),
            };
            if list == Some(kind) && count.banned > 0 {
                println!("{}:{}: {}", name.display(), text.line, text.words.trim());
            }
            counts.entry((kind, package.clone())).or_default().add(count);
        }
    }
    report(&counts)
}

/// All Markdown pages and Rust files.
pub(crate) fn collect(directory: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    let entries = fs::read_dir(directory).with_context(|| format!("cannot read {}", directory.display()))?;
    for entry in entries {
        let path = entry?.path();
        let is_text = path.extension().is_some_and(|extension| extension == "md" || extension == "rs");
        if path.is_symlink() || LEFT_OUT.iter().any(|name| path.ends_with(name)) {
            continue;
        } else if path.is_dir() {
            collect(&path, files)?;
        } else if is_text {
            files.push(path);
        }
    }
    Ok(())
}

/// Texts of a file, with their kinds.
fn texts_of(name: &Path, content: &str) -> Vec<(Kind, Text)> {
    if name.extension().is_some_and(|extension| extension == "md") {
        return lines_of_page(content).map(|(line, words)| (Kind::Documents, Text::new(line, words))).collect();
    }
    let first = name.iter().next().unwrap_or_default().to_string_lossy();
    let is_test = name.iter().any(|part| part == "tests") || name.ends_with("tests.rs");
    let is_help = !is_test && name.iter().any(|part| part == "args" || part == "args.rs");
    let has_messages = !is_test && !WITHOUT_MESSAGES.contains(&&*first);
    let production = content.find("#[cfg(test)]\nmod tests {").unwrap_or(content.len());
    let kind = |source: source::Kind, at: usize| match source {
        source::Kind::String => (has_messages && at < production).then_some(Kind::Messages),
        source::Kind::Documentation if is_help && at < production => Some(Kind::Help),
        source::Kind::Documentation | source::Kind::Comment => Some(Kind::Comments),
    };
    texts(content).into_iter().filter_map(|(source, at, text)| Some((kind(source, at)?, text))).collect()
}

/// Lines of a page outside of code blocks, with their numbers.
pub(crate) fn lines_of_page(page: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut is_code = false;
    page.lines().enumerate().map(|(index, line)| (index + 1, line)).filter(move |(_, line)| {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        !is_code && !is_fence
    })
}

/// Prints the table; fails if a kind is over the budget.
fn report(counts: &BTreeMap<(Kind, String), Count>) -> Result<()> {
    let mut over = Vec::new();
    for kind in Kind::ALL {
        let of_kind = counts.iter().filter(|((counted, _), _)| *counted == kind);
        let mut sum = Count::default();
        for ((_, package), count) in of_kind {
            sum.add(*count);
            if count.banned > 0 {
                println!(
                    "{:10} {package:24} {:7} words {:5} banned {:6.2}",
                    "",
                    count.words,
                    count.banned,
                    count.per_thousand()
                );
            }
        }
        let name = format!("{kind:?}").to_lowercase();
        let (words, banned, rate) = (sum.words, sum.banned, sum.per_thousand());
        println!("{name:10} {:24} {words:7} words {banned:5} banned {rate:6.2} of {BUDGET} per 1,000", "all");
        if rate > BUDGET {
            over.push(format!("{name} have {rate:.2} banned words per 1,000, budget {BUDGET}"));
        }
    }
    ensure!(over.is_empty(), "{}\ntry: cargo xtask prose --list KIND", over.join("\n"));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_and_phrases_are_counted() {
        for (text, words, banned) in [
            ("A rank that sends nothing is reported.", 7, 0),
            ("Who says so? Whoever's first.", 5, 2),
            ("It waits for ever, and is told so", 8, 2),
            ("forever behindhand essay", 3, 0),
        ] {
            assert_eq!(Count::of(text), Count { words, banned }, "{text}");
        }
        assert_eq!(without_arguments("{who} ended: {0:?}, {}"), " ended: , ");
    }

    #[test]
    fn texts_have_the_kind_of_their_place() {
        let content =
            "//! a\n/// b\nconst C: &str = \"d e\"; // f\n#[cfg(test)]\nmod tests {\n/// g\nconst H: &str = \"i j\"; }";
        let kinds = |name: &str| -> Vec<(Kind, String)> {
            let texts = texts_of(Path::new(name), content).into_iter();
            texts.map(|(kind, text)| (kind, text.words.trim().to_owned())).collect()
        };
        let (help, comment, message) = (Kind::Help, Kind::Comments, Kind::Messages);
        let all = |first: Kind| [(first, "a"), (first, "b"), (message, "d e"), (comment, "f"), (comment, "g")];
        let owned = |expected: &[(Kind, &str)]| -> Vec<(Kind, String)> {
            expected.iter().map(|(kind, text)| (*kind, (*text).to_owned())).collect()
        };
        assert_eq!(kinds("launcher-bin/src/args/launch.rs"), owned(&all(help)));
        assert_eq!(kinds("session/src/lib.rs"), owned(&all(comment)));
        let of_tests = [(comment, "a"), (comment, "b"), (comment, "f"), (comment, "g")];
        assert_eq!(kinds("session/tests/all.rs"), owned(&of_tests));
        let page = texts_of(Path::new("README.md"), "A\n```\ncode\n```\nb\n");
        assert_eq!(
            page.iter().map(|(kind, text)| (*kind, text.line)).collect::<Vec<_>>(),
            [(Kind::Documents, 1), (Kind::Documents, 5)]
        );
    }
}
