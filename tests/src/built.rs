//! Where the binaries of this build are: beside the test itself, in the same profile and target directory.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// The `lattice` of this build.
///
/// # Panics
/// If it was not built: cargo does not build a binary for the tests of another package.
pub fn lattice() -> PathBuf {
    existing(profile_directory().join("lattice"), "cargo build --workspace --bins")
}

/// The agent of the next version.
///
/// # Panics
/// If it was not built.
pub fn next_agent() -> PathBuf {
    existing(profile_directory().join("lattice-agent-next"), "cargo build --workspace --bins")
}

/// The program that sends malformed input.
///
/// # Panics
/// If it was not built.
pub fn attacker() -> PathBuf {
    existing(profile_directory().join("malformed"), "cargo build --workspace --bins")
}

/// An example program of this build.
///
/// # Panics
/// If it was not built.
pub fn example(name: &str) -> PathBuf {
    existing(profile_directory().join("examples").join(name), &format!("cargo build --example {name}"))
}

/// Our library for calls between launches from C, of this build.
///
/// # Panics
/// If it was not built.
pub fn overlay_library() -> PathBuf {
    existing(profile_directory().join("liblattice_overlay_c.so"), "cargo build --workspace")
}

/// Our `libpmi.so.0` or `libpmi2.so.0`, under the name that programs look for; `name` is `pmi` or `pmi2`. It is the one of this build, or of
/// the directory in `LATTICE_TEST_CLIENT_LIBRARIES`: `cargo xtask test` names that of the libraries which are installed, without `std`.
///
/// # Panics
/// If it was not built.
pub fn client_library(name: &str) -> PathBuf {
    let directory = std::env::var_os("LATTICE_TEST_CLIENT_LIBRARIES").map_or_else(profile_directory, PathBuf::from);
    let built = existing(directory.join(format!("liblattice_{name}.so")), "cargo build --workspace");
    let directory = target_directory("client-libraries");
    let (library, new) = (directory.join(soname(name)), directory.join(format!("{name}.{}", std::process::id())));
    // Other tests make the same link, in this process and in others.
    static LINKING: Mutex<()> = Mutex::new(());
    let _linking = LINKING.lock().unwrap_or_else(PoisonError::into_inner);
    std::os::unix::fs::symlink(built, &new).and_then(|()| std::fs::rename(&new, &library)).expect("a link can be made");
    library
}

/// Name by which programs look for the client library `name`.
pub fn soname(name: &str) -> String {
    format!("lib{name}.so.0")
}

/// A directory of this name at the root of the target directory, whatever that is called; made if it is missing.
pub(crate) fn target_directory(name: &str) -> PathBuf {
    // With `--target` there is one level more, and the first is the one that the developer's chores use.
    let found = profile_directory().ancestors().skip(1).take(2).map(|root| root.join(name)).find(|path| path.is_dir());
    found.unwrap_or_else(|| {
        let path = profile_directory().with_file_name(name);
        std::fs::create_dir_all(&path).unwrap_or_else(|error| panic!("cannot make {}: {error}", path.display()));
        path
    })
}

/// `target/debug` or its like: the test is in `deps` below it.
fn profile_directory() -> PathBuf {
    let test = std::env::current_exe().expect("a running program can be named");
    let directory = test.ancestors().nth(2).map(Path::to_owned);
    directory.unwrap_or_else(|| panic!("{} is not in a target directory", test.display()))
}

fn existing(path: PathBuf, command: &str) -> PathBuf {
    assert!(path.exists(), "{} is missing; build it with `{command}`, or run `cargo xtask test`", path.display());
    path
}
