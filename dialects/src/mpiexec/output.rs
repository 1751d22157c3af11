//! Open MPI's `--output` and `--output-filename`: labels for lines, and output files.
//!
//! ```text
//!                          files                                                      on the terminal as well
//! --output file=NAME       NAME.LAUNCH.RANK.out and .err                              no
//! --output dir=DIR         DIR/LAUNCH/rank.RANK/stdout and stderr                     no
//! --output-filename DIR    DIR/1/rank.RANK/stdout and stderr; without 1 for :nojobid  yes, unless :nocopy
//! ```
//! Measured with prterun of Open MPI 5.0.11, and mpirun of 4.1.8 for the last one. RANK has as many digits as the last rank. Directives may be
//! abbreviated. Qualifiers follow a colon.

use std::ffi::OsStr;

use super::super::flag::Refusal;
use super::super::line::Line;

const FLAG: &str = "--output";

/// The directives of prterun.
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
    let (directives, qualifiers) = split(&value);
    for qualifier in qualifiers {
        match qualifier {
            "nocopy" => {}
            "raw" => line.add_to_launch("--unbuffered=pipe", None),
            other => return refused(other, "nocopy and raw are the qualifiers"),
        }
    }
    let words: Vec<(&str, &str)> =
        directives.split(',').map(|word| word.split_once('=').unwrap_or((word, ""))).collect();
    let has = |directive| words.iter().any(|(word, _)| named(word) == Some(directive));
    let merges = has("merge-stderr-to-stdout");
    let has_files = has("filename") || has("directory");
    for &(word, value) in &words {
        match named(word) {
            Some("tag" | "tag-detailed" | "tag-fullname" | "rank") => line.add_to_launch("--label", None),
            Some("timestamp") => line.add_to_launch("--timestamp", None),
            Some("filename") if value.is_empty() => return refused(word, "type file=NAME"),
            Some("filename") => to_files(line, &format!("{}.%j.%R.", literal(value)), ["out", "err"], merges),
            Some("directory") if value.is_empty() => return refused(word, "type dir=DIRECTORY"),
            Some("directory") => to_tree(line, &format!("{}/%j", literal(value)), merges),
            Some("merge-stderr-to-stdout") if has_files => {}
            Some("merge-stderr-to-stdout") => return refused(word, "type 2>&1 after the line"),
            _ => return refused(word, "type tag, timestamp, file=NAME or dir=DIRECTORY"),
        }
    }
    Ok(())
}

/// Open MPI's older `--output-filename DIR`.
pub(super) fn output_filename(line: &mut Line, value: &OsStr) -> Result<(), Refusal> {
    let value = value.to_string_lossy();
    let (directory, qualifiers) = split(&value);
    let (mut is_copied, mut job) = (true, "/1");
    for qualifier in qualifiers {
        match qualifier.to_ascii_lowercase().as_str() {
            "nocopy" => is_copied = false,
            "nojobid" => job = "",
            _ => {
                let reason = "nocopy and nojobid are the qualifiers".to_owned();
                return Err(Refusal::Value { flag: "--output-filename", value: qualifier.to_owned(), reason });
            }
        }
    }
    if directory.is_empty() {
        let reason = "type the name of a directory".to_owned();
        return Err(Refusal::Value { flag: "--output-filename", value: value.into_owned(), reason });
    }
    to_tree(line, &format!("{}{job}", literal(directory)), false);
    if is_copied {
        line.add_to_launch("--tee", None);
    }
    Ok(())
}

/// A value, and the qualifiers after its colon.
fn split(value: &str) -> (&str, impl Iterator<Item = &str>) {
    let (value, qualifiers) = value.split_once(':').unwrap_or((value, ""));
    (value, qualifiers.split([',', ':']).filter(|word| !word.is_empty()))
}

/// A name with escaped percent signs.
fn literal(name: &str) -> String {
    name.replace('%', "%%")
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

/// The directive of a word: the exact match, or the only directive that starts with the word.
fn named(word: &str) -> Option<&'static str> {
    let exact = DIRECTIVES.into_iter().find(|directive| *directive == word);
    let mut beginning = DIRECTIVES.into_iter().filter(|directive| !word.is_empty() && directive.starts_with(word));
    exact.or_else(|| beginning.next().filter(|_| beginning.next().is_none()))
}

/// Adds a directory for each rank below `directory`.
fn to_tree(line: &mut Line, directory: &str, merges: bool) {
    to_files(line, &format!("{directory}/rank.%R/"), ["stdout", "stderr"], merges);
}

/// Adds a file for each stream, with a name that starts with `prefix`; one file for both if standard error is merged.
fn to_files(line: &mut Line, prefix: &str, [stdout, stderr]: [&str; 2], merges: bool) {
    line.add_to_launch(FLAG, Some(format!("{prefix}{stdout}").as_ref()));
    let stderr = if merges { stdout } else { stderr };
    line.add_to_launch("--error", Some(format!("{prefix}{stderr}").as_ref()));
}

#[cfg(test)]
mod tests {
    use super::*;

    type Flag = fn(&mut Line, &OsStr) -> Result<(), Refusal>;

    fn words(flag: Flag, value: &str) -> Result<String, String> {
        let mut line = Line::default();
        flag(&mut line, value.as_ref()).map_err(|refusal| refusal.to_string())?;
        let words = line.finish().words;
        Ok(words.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" "))
    }

    #[test]
    fn files_are_named_as_open_mpi_names_them() {
        let check = |flag: Flag, value: &str, expected: &str| {
            assert_eq!(words(flag, value).as_deref(), Ok(expected), "{value}");
        };
        let tree = |directory: &str| format!("--output={directory}/rank.%R/stdout --error={directory}/rank.%R/stderr");
        check(output_filename, "d", &(tree("d/1") + " --tee"));
        check(output_filename, "a/b%r/d", &(tree("a/b%%r/d/1") + " --tee"));
        check(output_filename, "d:nojobid", &(tree("d") + " --tee"));
        check(output_filename, "d:NOCOPY", &tree("d/1"));
        check(output_filename, "d:nojobid,nocopy", &tree("d"));
        check(output, "dir=d", &tree("d/%j"));
        check(output, "directory=d:nocopy", &tree("d/%j"));
        check(output, "file=d", "--output=d.%j.%R.out --error=d.%j.%R.err");
        check(output, "merge,file=d", "--output=d.%j.%R.out --error=d.%j.%R.out");
        check(output, "dir=d,merge", "--output=d/%j/rank.%R/stdout --error=d/%j/rank.%R/stdout");
        check(output, "tag,timestamp", "--label --timestamp");
    }

    #[test]
    fn other_qualifiers_and_directives_are_refused() {
        let check = |flag: Flag, value: &str, expected: &str| {
            let refusal = words(flag, value).unwrap_err();
            assert!(refusal.contains(expected), "{value}: {refusal}");
        };
        check(output_filename, "d:merge", "nocopy and nojobid");
        check(output_filename, ":nocopy", "name of a directory");
        check(output, "file=d:nojobid", "nocopy and raw");
        check(output, "dir", "dir=DIRECTORY");
        check(output, "merge", "2>&1");
        check(output, "xml", "file=NAME or dir=DIRECTORY");
    }
}
