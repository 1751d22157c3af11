//! What the comparison programs in `benches/` have in common: launchers that take turns, samples with their medians and
//! intervals, and the one line that says on which machine a table was made.
//!
//! A figure of one machine says little on another; a ratio between two programs measured in turns says more.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

pub mod launcher;
pub mod machine;
pub mod picture;
pub mod pmix_client;
pub mod sample;
pub mod turns;

/// The launcher to measure: the program in `LATTICE_BIN`, else the one built beside `program`; or why there is none.
pub fn lattice_binary(program: &str) -> Result<PathBuf, String> {
    let beside = || OsString::from(Path::new(program).with_file_name("lattice"));
    let file: PathBuf = std::env::var_os("LATTICE_BIN").unwrap_or_else(beside).into();
    if file.exists() {
        Ok(file)
    } else {
        Err(format!("no {}; build it with --release, or name it in LATTICE_BIN", file.display()))
    }
}

/// Whether this is a measurement (`cargo bench`); else it only shows that the program works (`cargo test --benches`).
pub fn is_measured() -> bool {
    let is_given = |word: &str| std::env::args().any(|given| given == word);
    is_given("--bench") && !is_given("--test")
}
