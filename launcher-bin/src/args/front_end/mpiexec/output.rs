//! Open MPI's `--output`: what stands before lines, and files for them.
//!
//! ```text
//! --output tag,timestamp         directives, each of which may be shortened
//! --output file=NAME:nocopy      qualifiers behind a colon
//! ```
//! The files are named as those of prterun, NAME.NAMESPACE.RANK.out and .err, and nothing of them is copied to the terminal (measured
//! with Open MPI 5.0.11).

use std::ffi::OsStr;

use super::super::Refusal;
use super::super::line::Line;

const FLAG: &str = "--output";

/// The directives, as prterun names them.
const DIRECTIVES: [&str; 9] = [
    "tag",
    "tag-detailed",
    "tag-fullname",
    "rank",
    "timestamp",
    "xml",
    "merge-stderr-to-stdout",
    "directory",
    "filename",
];

/// Translates the directives and qualifiers.
pub(super) fn output(line: &mut Line, value: &OsStr) -> Result<(), Refusal> {
    let value = value.to_string_lossy();
    let refused = |word: &str, reason: &str| {
        Err(Refusal::Value { flag: FLAG, value: word.to_owned(), reason: reason.to_owned() })
    };
    let (directives, qualifiers) = value.split_once(':').unwrap_or((&value, ""));
    for qualifier in qualifiers.split([',', ':']).filter(|word| !word.is_empty()) {
        match qualifier {
            "nocopy" => {}
            "raw" => line.add_to_launch("--unbuffered=pipe", None),
            other => return refused(other, "nocopy and raw are the qualifiers"),
        }
    }
    let words: Vec<(&str, &str)> =
        directives.split(',').map(|word| word.split_once('=').unwrap_or((word, ""))).collect();
    let merges = words.iter().any(|(word, _)| named(word) == Some("merge-stderr-to-stdout"));
    for (word, value) in words {
        match named(word) {
            Some("tag" | "tag-detailed" | "tag-fullname" | "rank") => line.add_to_launch("--label", None),
            Some("timestamp") => line.add_to_launch("--timestamp", None),
            Some("filename") if value.is_empty() => return refused(word, "type file=NAME"),
            Some("filename") => to_files(line, value, merges),
            Some("directory") => return refused(word, "type file=NAME, whose directory exists"),
            Some("merge-stderr-to-stdout") if directives.contains("file") => {}
            Some("merge-stderr-to-stdout") => return refused(word, "type 2>&1 behind the line"),
            _ => return refused(word, "type tag, timestamp or file=NAME"),
        }
    }
    Ok(())
}

/// Open MPI's older `--output-filename NAME`, with the same qualifiers.
pub(super) fn output_filename(line: &mut Line, value: &OsStr) -> Result<(), Refusal> {
    output(line, format!("file={}", value.to_string_lossy()).as_ref())
}

/// prterun's `--stream-buffering`.
pub(super) fn stream_buffering(line: &mut Line, value: &OsStr) -> Result<(), Refusal> {
    match value.to_str() {
        Some("0") => line.add_to_launch("--unbuffered", None),
        Some("1" | "2") => {
            line.note("--stream-buffering is ignored but for 0: output is passed on by whole lines".to_owned());
        }
        _ => {
            let reason = "type 0 for output as it comes, 1 or 2 for whole lines".to_owned();
            let value = value.to_string_lossy().into_owned();
            return Err(Refusal::Value { flag: "--stream-buffering", value, reason });
        }
    }
    Ok(())
}

/// The directive that a word stands for: itself, or the only one that begins so.
fn named(word: &str) -> Option<&'static str> {
    let exact = DIRECTIVES.into_iter().find(|directive| *directive == word);
    let mut beginning = DIRECTIVES.into_iter().filter(|directive| !word.is_empty() && directive.starts_with(word));
    exact.or_else(|| beginning.next().filter(|_| beginning.next().is_none()))
}

fn to_files(line: &mut Line, name: &str, merges: bool) {
    let name = name.replace('%', "%%");
    let file = |stream: &str| format!("{name}.%j.%r.{stream}");
    line.add_to_launch(FLAG, Some(file("out").as_ref()));
    line.add_to_launch("--error", Some(file(if merges { "out" } else { "err" }).as_ref()));
}
