//! Each line of a newcomer's trial, run by the real `lattice` on one machine: it works, or it is refused with a line to type.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

/// The lines, each with its result. The file describes its format.
const TABLE: &str = include_str!("../testdata/newcomers.txt");

/// Files that the lines name.
fn write_files(directory: &Path) {
    for (name, text, mode) in [
        ("hosts", "localhost slots=4\n", 0o644),
        ("elsewhere", "node1 slots=2 max_slots=3\n", 0o644),
        ("programs", "0 echo first\n1 echo second\n", 0o644),
        ("config", "-n 1 echo a\n", 0o644),
        ("job.sh", "#!/bin/sh\n", 0o755),
        ("script.py", "print(1)\n", 0o755),
        ("plain", "#!/bin/sh\n", 0o644),
        ("exports", "#!/bin/sh\necho export FROM_PROLOG=1\necho print staged\n", 0o755),
        ("empty", "# no host\n", 0o644),
    ] {
        let path = directory.join(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
    }
}

fn typed(line: &str, directory: &Path) -> Output {
    let words = shlex::split(line).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_lattice"));
    command.current_dir(directory).stdin(Stdio::null());
    for variable in ["LATTICE_ALLOC_ID", "LATTICE_API_URL", "UNSET_VARIABLE", "VAR"] {
        command.env_remove(variable);
    }
    // The lines must not find launches, sets and presets of the testing user.
    for variable in ["XDG_RUNTIME_DIR", "XDG_CONFIG_HOME", "LATTICE_SETS"] {
        command.env(variable, directory);
    }
    let at = words.iter().position(|word| word == "lattice").expect("a line of lattice");
    command.envs(words[..at].iter().filter_map(|word| word.split_once('='))).args(&words[at + 1..]);
    command.output().unwrap()
}

/// True if the message ends with a line to type.
fn ends_with_a_way(said: &str) -> bool {
    let last = said.lines().last().unwrap_or_default();
    ["try", "tip:", "--", "possible", "Usage:"].iter().any(|word| last.contains(word))
}

/// Difference between the result of a line and the table.
fn difference(line: &str, expected: &str, directory: &Path) -> Option<String> {
    let output = typed(line, directory);
    let [stdout, stderr] = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned());
    let code = output.status.code();
    let (kind, text) = expected.split_once(' ').unwrap_or((expected, ""));
    let is_right = match kind {
        "=" => {
            let lines: Vec<&str> = stdout.lines().collect();
            code == Some(0) && lines.join(" ") == text && stderr.is_empty()
        }
        "~" => code == Some(0) && stdout.contains(text),
        "?" => code == Some(0) && stderr.contains(text),
        refused => {
            let is_ours = stderr.lines().all(|line| line.starts_with("lattice: "));
            code == refused.parse().ok()
                && stdout.is_empty()
                && stderr.contains(text)
                && is_ours
                && ends_with_a_way(&stderr)
        }
    };
    (!is_right).then(|| format!("{line}\n    {expected}\n  but {code:?}\n{stdout}{stderr}\n"))
}

#[test]
fn each_line_of_a_newcomer_works_or_is_refused_with_what_to_type() {
    let directory = tempfile::tempdir().unwrap();
    // Required mode for a directory of sets.
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o700)).unwrap();
    write_files(directory.path());
    let lines: Vec<&str> = TABLE.lines().filter(|line| !line.is_empty() && !line.starts_with('#')).collect();
    assert!(lines.len() > 300, "{} lines", lines.len());
    let differences: String =
        lines.chunks(2).filter_map(|pair| difference(pair[0], pair.get(1)?.trim(), directory.path())).collect();
    assert!(differences.is_empty(), "these do something else:\n{differences}");
}
