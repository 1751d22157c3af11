//! This program accepts each command line of the book.

use std::fs;
use std::path::{Path, PathBuf};

use clap::error::ErrorKind;

use super::*;

/// Pages of the book, and README.
fn pages() -> Vec<PathBuf> {
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    let entries = |directory: PathBuf| fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    let parts = entries(root.join("docs")).filter(|path| path.is_dir());
    let pages = parts.flat_map(entries).chain([root.join("README.md"), root.join("docs/introduction.md")]);
    pages.filter(|path| path.extension().is_some_and(|extension| extension == "md")).collect()
}

/// Lines to type: lines of console blocks with a prompt, joined after a backslash at the end. Lines followed by an error of this program are
/// omitted.
fn typed(page: &str) -> Vec<String> {
    let blocks =
        page.split("```console\n").skip(1).filter_map(|rest| Some(rest.split_once("```")?.0.replace("\\\n", " ")));
    let of_block = |block: String| -> Vec<String> {
        let lines: Vec<&str> = block.lines().collect();
        let is_error = |index: usize| {
            lines
                .get(index + 1)
                .is_some_and(|next| ["lattice: ", "error: "].iter().any(|begin| next.starts_with(begin)))
        };
        let typed = lines.iter().enumerate().filter(|(index, _)| !is_error(*index));
        typed.filter_map(|(_, line)| line.strip_prefix("$ ").or(line.strip_prefix("# "))).map(str::to_owned).collect()
    };
    blocks.flat_map(of_block).collect()
}

/// Commands of a shell line, as words. Command substitutions are included, and are the word `X` in the command around them.
fn commands(line: &str) -> Vec<Vec<String>> {
    let mut line = line.to_owned();
    let mut found = Vec::new();
    while let Some((before, rest)) = line.split_once("$(") {
        let Some((inner, after)) = rest.split_once(')') else { break };
        found.extend(commands(inner));
        line = format!("{before}1{after}");
    }
    let (mut words, mut word, mut quote, mut is_file) = (Vec::new(), None::<String>, None, false);
    for letter in line.chars().chain([';']) {
        match (quote, letter) {
            (Some(open), letter) if letter == open => quote = None,
            (None, '\'' | '"') => {
                quote = Some(letter);
                word.get_or_insert_default();
            }
            (None, ' ' | '|' | ';' | '&' | '<' | '>' | '#') if letter != '#' || word.is_none() => {
                let is_stream =
                    matches!(letter, '<' | '>') && word.as_ref().is_some_and(|word| word.parse::<u8>().is_ok());
                if let Some(word) = word.take()
                    && !std::mem::take(&mut is_file)
                    && !is_stream
                {
                    words.push(word);
                }
                match letter {
                    '#' => break,
                    '<' | '>' => is_file = true,
                    ' ' => {}
                    '&' if is_file => {}
                    _ => found.push(std::mem::take(&mut words)),
                }
            }
            (_, letter) => word.get_or_insert_default().push(letter),
        }
    }
    found.push(words);
    found
}

/// The command from the name of this program on; `None` for other programs.
fn own(words: &[String]) -> Option<&[String]> {
    let is_prefix = |word: &String| ["sudo", "env", "time", "exec", "eval"].contains(&&**word) || word.contains('=');
    let begin = words.iter().position(|word| !is_prefix(word))?;
    Path::new(&words[begin]).ends_with("lattice").then_some(&words[begin..])
}

#[test]
fn lines_of_the_book_are_accepted() {
    let mut count = 0;
    let mut refused = Vec::new();
    for page in pages() {
        for line in typed(&fs::read_to_string(&page).unwrap()) {
            for command in commands(&line).iter().filter_map(|words| own(words)) {
                count += 1;
                let is_help = |kind| matches!(kind, ErrorKind::DisplayHelp | ErrorKind::DisplayVersion);
                if let Err(error) = parse(command.iter().map(OsString::from))
                    && !is_help(error.kind())
                {
                    refused.push(format!("{}: {line}\n{error}", page.display()));
                }
            }
        }
    }
    assert!(refused.is_empty(), "{}", refused.join("\n"));
    assert!(count > 100, "{count} lines");
}

#[test]
fn commands_of_a_line_are_taken_apart() {
    let words = |line: &str| -> Vec<String> {
        let commands = commands(line);
        commands.iter().filter_map(|words| own(words)).map(|words| words.join("|")).collect()
    };
    for (line, expected) in [
        ("lattice launch -n 2 sh -c 'a | b' # c", &["lattice|launch|-n|2|sh|-c|a | b"][..]),
        (
            "eval \"$(lattice alloc create -N 2)\" && sudo A=b target/demo/lattice nodes >x; cat a/lattice | lattice queue 2>&1",
            &["lattice|alloc|create|-N|2", "target/demo/lattice|nodes", "lattice|queue"],
        ),
        ("mpicc -o a a.c && srun lattice", &[]),
    ] {
        assert_eq!(words(line), expected, "{line}");
    }
}
