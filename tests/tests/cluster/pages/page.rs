//! The lines of a page that a user types, and the output that the page shows for each.

use std::collections::HashMap;

use super::shown;

/// A line to type.
pub(super) struct Line {
    /// With the lines that belong to it: of a here-document, or of a shell that the line starts.
    pub(super) words: String,
    shown: Vec<String>,
}

/// Output and exit code of a typed line.
pub(super) struct Typed {
    output: String,
    code: i32,
}

impl Typed {
    /// Marks in the output of the script, as `printf` writes them.
    pub(super) const BEGIN: &str = "\\036";
    pub(super) const END: &str = "\\037";
}

/// Text of the blocks of a language.
fn blocks<'a>(text: &'a str, language: &str) -> impl Iterator<Item = (&'a str, &'a str)> {
    let mark = format!("```{language}\n");
    let starts: Vec<usize> = text.match_indices(&mark).map(|(at, _)| at).collect();
    starts.into_iter().filter_map(move |at| {
        let block = text[at + mark.len()..].split_once("\n```")?.0;
        Some((&text[..at], block))
    })
}

/// Files of the page: a block after "Save this as `NAME`", and the scripts that `cat NAME` shows.
pub(super) fn files(text: &str) -> Vec<(String, String)> {
    let saved = blocks(text, "c").filter_map(|(before, block)| {
        let (_, sentence) = before.rsplit_once("Save this as `")?;
        Some((sentence.split_once('`')?.0.to_owned(), format!("{block}\n")))
    });
    let shown = lines(text).into_iter().filter_map(|line| {
        let name = line.words.strip_prefix("cat ")?.to_owned();
        line.shown.first().filter(|first| first.starts_with("#!"))?;
        Some((name, line.shown.join("\n") + "\n"))
    });
    saved.chain(shown).collect()
}

/// The lines of all blocks with a prompt.
pub(super) fn lines(text: &str) -> Vec<Line> {
    blocks(text, "console").flat_map(|(_, block)| of_block(block)).collect()
}

fn of_block(block: &str) -> Vec<Line> {
    let mut found: Vec<Line> = Vec::new();
    for text in block.lines() {
        match (text.strip_prefix("$ "), text.strip_prefix("# "), found.last_mut()) {
            (Some("exit"), _, _) => end_of_shell(&mut found),
            (Some(words), _, _) => found.push(Line { words: words.to_owned(), shown: Vec::new() }),
            // The prompt of root in a shell that the line before it starts.
            (_, Some(inner), Some(line)) => {
                if let Some(begun) = line.words.strip_suffix("\nTYPED") {
                    line.words = format!("{begun}\n{inner}\nTYPED");
                } else {
                    line.words += &format!(" <<'TYPED'\n{inner}\nTYPED");
                }
            }
            (_, _, Some(line)) if line.words.contains("<<") && !line.words.contains("<<'TYPED'") => {
                line.words += &format!("\n{text}");
            }
            (_, _, Some(line)) if line.words.ends_with('\\') => line.words += &format!("\n{text}"),
            (_, _, Some(line)) if !text.is_empty() => line.shown.push(text.to_owned()),
            _ => {}
        }
    }
    found
}

/// Makes the lines since the last one that starts a shell the input of that shell.
fn end_of_shell(lines: &mut Vec<Line>) {
    let starts = |line: &Line| {
        ["alloc shell", "lattice start"].iter().any(|part| line.words.contains(part)) && !line.words.contains(" -- ")
    };
    let Some(at) = lines.iter().rposition(starts) else { return };
    let typed: Vec<String> = lines.drain(at + 1..).map(|line| line.words + "\n").collect();
    lines[at].words += &format!(" <<'TYPED'\n{}TYPED", typed.concat());
}

/// Output and exit code of each line by its number, from the output of the script.
pub(super) fn typed(output: &str) -> HashMap<usize, Typed> {
    let of_line = |part: &str| -> Option<(usize, Typed)> {
        let (number, rest) = part.split_once('\n')?;
        let (output, code) = rest.split_once('\u{1f}')?;
        let code = code.lines().next()?.parse().ok()?;
        Some((number.parse().ok()?, Typed { output: output.to_owned(), code }))
    };
    output.split('\u{1e}').skip(1).filter_map(of_line).collect()
}

impl Line {
    /// Difference between the page and a run; `None` if the line succeeds, and prints the lines that the page shows, except those with a part
    /// of `left_out`.
    pub(super) fn complaint(&self, typed: Option<&Typed>, left_out: &[(&str, &str)]) -> Option<String> {
        let Some(Typed { output, code }) = typed else {
            return Some(format!("$ {}\nwas not typed, or did not end", self.words));
        };
        let actual: Vec<&str> = output.lines().collect();
        let is_compared = |shown: &str| shown != "..." && !left_out.iter().any(|(part, _)| shown.contains(part));
        let is_missing =
            |shown: &&String| is_compared(shown) && !actual.iter().any(|actual| shown::is_like(shown, actual));
        let missing: Vec<&String> = self.shown.iter().filter(is_missing).collect();
        (!missing.is_empty() || *code != 0)
            .then(|| format!("$ {}\nexited with {code}; missing: {missing:#?}; it printed:\n{output}", self.words))
    }
}
