//! Common parts of the comparison programs in `benches/`: launchers that take turns, samples with their medians and intervals, comparisons with the
//! rule for goals, and the line that describes the machine. Each bench owns its scenarios and its table.

use std::path::{Path, PathBuf};

pub mod comparison;
pub mod launcher;
pub mod machine;
pub mod picture;
pub mod pmix_client;
pub mod sample;
pub mod turns;

/// Returns the launcher to measure: the program in `LATTICE_BIN`, else the one in the directory that this bench was built into (cargo
/// keeps benches in `deps` below it); or why there is none.
pub fn lattice_binary() -> Result<PathBuf, String> {
    let file = match std::env::var_os("LATTICE_BIN") {
        Some(file) => PathBuf::from(file),
        None => {
            let this =
                std::env::current_exe().map_err(|error| format!("cannot tell where this program is: {error}"))?;
            built_with(&this, "lattice")
        }
    };
    if file.exists() {
        Ok(file)
    } else {
        Err(format!("no {}; build it with --release, or name it in LATTICE_BIN", file.display()))
    }
}

/// Where cargo puts a program when it builds the bench, test or program `this`.
fn built_with(this: &Path, program: &str) -> PathBuf {
    let beside = this.parent().unwrap_or(Path::new("."));
    let directory = if beside.ends_with("deps") { beside.parent().unwrap_or(beside) } else { beside };
    directory.join(program)
}

/// Whether this is a measurement (`cargo bench`); else it only shows that the program works (`cargo test --benches`).
pub fn is_measured() -> bool {
    let is_given = |word: &str| std::env::args().any(|given| given == word);
    is_given("--bench") && !is_given("--test")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bench_finds_the_launcher_that_was_built_with_it() {
        for this in ["/t/release/deps/call_times-0a1b", "/t/release/call_times"] {
            assert_eq!(built_with(Path::new(this), "lattice"), Path::new("/t/release/lattice"), "{this}");
        }
    }
}
