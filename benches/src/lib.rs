//! Common parts of the comparison programs in `benches/`: launchers that take turns, samples with their medians and intervals, comparisons with
//! the rule for goals, and the line that describes the machine. Each bench owns its scenarios and its table.

use std::path::{Path, PathBuf};

pub mod comparison;
pub mod launcher;
pub mod machine;
pub mod picture;
pub mod pmix_client;
pub mod sample;
pub mod turns;

/// Returns the launcher to measure: the program in `LATTICE_BIN`, or else the launcher in the build directory of this bench (cargo stores
/// benches in its subdirectory `deps`). Returns the reason if there is none.
pub fn lattice_binary() -> Result<PathBuf, String> {
    let file = match std::env::var_os("LATTICE_BIN") {
        Some(file) => PathBuf::from(file),
        None => {
            let this =
                std::env::current_exe().map_err(|error| format!("cannot find the path of this program: {error}"))?;
            built_with(&this, "lattice")
        }
    };
    if file.exists() {
        Ok(file)
    } else {
        Err(format!("no {}; build it with --release, or name it in LATTICE_BIN", file.display()))
    }
}

/// Returns the path at which cargo stores a program when it builds the bench, test or program `this`.
fn built_with(this: &Path, program: &str) -> PathBuf {
    let beside = this.parent().unwrap_or(Path::new("."));
    let directory = if beside.ends_with("deps") { beside.parent().unwrap_or(beside) } else { beside };
    directory.join(program)
}

/// Returns true if this is a measurement (`cargo bench`). Otherwise the program only proves that it works (`cargo test --benches`).
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
