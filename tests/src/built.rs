//! Paths of the binaries of this build: next to the test itself, in the same profile and target directory.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// Returns the `lattice` of this build.
///
/// # Panics
/// Panics if it was not built: cargo does not build a binary for the tests of another package.
pub fn lattice() -> PathBuf {
    existing(profile_directory().join("lattice"), "cargo build --workspace --bins")
}

/// Returns the agent of the next version.
///
/// # Panics
/// Panics if it was not built.
pub fn next_agent() -> PathBuf {
    existing(profile_directory().join("lattice-agent-next"), "cargo build --workspace --bins")
}

/// Returns the program that sends malformed input.
///
/// # Panics
/// Panics if it was not built.
pub fn attacker() -> PathBuf {
    existing(profile_directory().join("malformed"), "cargo build --workspace --bins")
}

/// Returns an example program of this build.
///
/// # Panics
/// Panics if it was not built.
pub fn example(name: &str) -> PathBuf {
    existing(profile_directory().join("examples").join(name), &format!("cargo build --example {name}"))
}

/// Returns Lattice's C library for calls between launches, from this build.
///
/// # Panics
/// Panics if it was not built.
pub fn overlay_library() -> PathBuf {
    existing(profile_directory().join("liblattice_overlay_c.so"), "cargo build --workspace")
}

/// Returns Lattice's `libpmi.so.0` or `libpmi2.so.0`, under its soname; `name` is `pmi` or `pmi2`. The library is from this build, or from
/// the directory in `LATTICE_TEST_CLIENT_LIBRARIES`. `cargo xtask test` sets this to the directory of the installed libraries, without
/// `std`.
///
/// # Panics
/// Panics if it was not built.
pub fn client_library(name: &str) -> PathBuf {
    let directory = std::env::var_os("LATTICE_TEST_CLIENT_LIBRARIES").map_or_else(profile_directory, PathBuf::from);
    let built = existing(directory.join(format!("liblattice_{name}.so")), "cargo build --workspace");
    let directory = target_directory("client-libraries");
    let (library, new) = (directory.join(soname(name)), directory.join(format!("{name}.{}", std::process::id())));
    // Other tests create the same link, in this process and in other processes.
    static LINKING: Mutex<()> = Mutex::new(());
    let _linking = LINKING.lock().unwrap_or_else(PoisonError::into_inner);
    std::os::unix::fs::symlink(built, &new).and_then(|()| std::fs::rename(&new, &library)).expect("a link can be made");
    library
}

/// Returns the soname of the client library `name`.
pub fn soname(name: &str) -> String {
    format!("lib{name}.so.0")
}

/// Returns a directory with this name at the root of the target directory; creates it if it is missing.
pub(crate) fn target_directory(name: &str) -> PathBuf {
    // With `--target` there is one more level. The developer's tasks use the directory on the first level.
    let found = profile_directory().ancestors().skip(1).take(2).map(|root| root.join(name)).find(|path| path.is_dir());
    found.unwrap_or_else(|| {
        let path = profile_directory().with_file_name(name);
        std::fs::create_dir_all(&path).unwrap_or_else(|error| panic!("cannot make {}: {error}", path.display()));
        path
    })
}

/// Returns `target/debug` or a similar directory. The test is in its subdirectory `deps`.
fn profile_directory() -> PathBuf {
    let test = std::env::current_exe().expect("a running program can be named");
    let directory = test.ancestors().nth(2).map(Path::to_owned);
    directory.unwrap_or_else(|| panic!("{} is not in a target directory", test.display()))
}

fn existing(path: PathBuf, command: &str) -> PathBuf {
    assert!(path.exists(), "{} is missing; build it with `{command}`, or run `cargo xtask test`", path.display());
    path
}
