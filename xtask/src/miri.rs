//! `unsafe` code under Miri: all code that dereferences pointers without system calls.

use anyhow::Result;

use crate::shell::{cargo, command, run, works};

/// Packages, and their tests that Miri can run. The other tests call the system or C libraries, which Miri does not
/// support.
const TESTS: [(&str, &[&str]); 3] = [
    // Pointers from callers in C, and memory that is returned to them.
    ("pmi-c-abi", &[]),
    // Bytes of other processes that are parsed as records.
    ("job-memory", &["layout::tests::a_record", "layout::tests::an_index"]),
    // Structures that the system fills in.
    ("rank-spawner", &["system_v::", "elf::", "arguments::", "exec_string::"]),
];

/// Runs the tests. Installs a nightly toolchain with Miri if there is none.
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
