//! `unsafe` code under Miri: all that follows pointers without the system's help.

use anyhow::Result;

use crate::shell::{cargo, command, run, works};

/// Packages, and those of their tests that Miri can run: the others call the system or C libraries, which it does not know.
const TESTS: [(&str, &[&str]); 3] = [
    // Pointers of callers in C, and what is handed out to them.
    ("pmi-c-abi", &[]),
    // Bytes of other processes that are read as records.
    ("job-memory", &["layout::tests::a_record", "layout::tests::an_index"]),
    // Structures that the system fills in.
    ("rank-spawner", &["system_v::", "elf::", "arguments::", "exec_string::"]),
];

/// Runs them; a nightly toolchain with Miri is installed if there is none.
pub(crate) fn check() -> Result<()> {
    if !works(&mut cargo("+nightly miri --version")) {
        run(&mut command("rustup", "toolchain install nightly --profile minimal --component miri,rust-src"))?;
    }
    for (package, tests) in TESTS {
        let mut miri = cargo(&format!("+nightly miri test --package {package} --lib --"));
        // Files, clocks and the environment are those of this machine.
        run(miri.args(tests).env("MIRIFLAGS", "-Zmiri-disable-isolation"))?;
    }
    Ok(())
}
