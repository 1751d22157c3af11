//! Facts about the source and the compiler, for `src/build.rs`.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

/// Fact that cannot be found.
const UNKNOWN: &str = "unknown";

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let rustc = env::var("RUSTC").unwrap_or_else(|_| "rustc".to_owned());
    let compiler = output(Command::new(rustc).arg("--version")).unwrap_or_else(|| UNKNOWN.to_owned());
    println!("cargo::rustc-env=LATTICE_COMPILER={compiler}");
    let root = Path::new(&env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default()).join("..");
    // A published package can be below the repository of another project.
    let commit = root.join(".git").exists().then(|| git(&root, &["show", "-s", "--format=%H %cs", "HEAD"])).flatten();
    let commit = commit.unwrap_or_default();
    let (commit, date) = commit.split_once(' ').unwrap_or((UNKNOWN, UNKNOWN));
    println!("cargo::rustc-env=LATTICE_COMMIT={commit}");
    println!("cargo::rustc-env=LATTICE_COMMIT_DATE={date}");
    // A debug build does not follow commits: each would compile all programs again.
    if env::var("PROFILE").is_ok_and(|profile| profile == "release") && commit != UNKNOWN {
        followed(&root).iter().for_each(|file| println!("cargo::rerun-if-changed={}", file.display()));
    }
}

/// Files of git that change with the commit: `HEAD`, and its reference.
fn followed(root: &Path) -> Vec<PathBuf> {
    let reference = git(root, &["symbolic-ref", "-q", "HEAD"]).unwrap_or_default();
    let names = ["HEAD", "packed-refs", &reference].into_iter().filter(|name| !name.is_empty());
    let files = names.filter_map(|name| git(root, &["rev-parse", "--git-path", name])).map(|file| root.join(file));
    // Cargo runs this program each time if a file does not exist.
    files.filter(|file| fs::exists(file).unwrap_or(false)).collect()
}

fn git(root: &Path, words: &[&str]) -> Option<String> {
    output(Command::new("git").arg("-C").arg(root).args(words))
}

/// Output of a command that succeeds.
fn output(command: &mut Command) -> Option<String> {
    let output = command.output().ok().filter(|output| output.status.success())?;
    Some(String::from_utf8(output.stdout).ok()?.trim().to_owned())
}
