//! Documentation as JSON, and the lists of public items that are made of it.
//!
//! rustdoc says of JSON what it says of pages, so that this is also the check of the documentation. The form is unstable: this program is in
//! rustdoc's place, and lets it take the flags. In the environment of cargo, the variable for that would have a hundred crates built anew.

use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};

use crate::shell::{cargo, run, target_directory};

/// Tells this program that it is called in the place of rustdoc.
const MARK: &str = "LATTICE_RUSTDOC_JSON";

/// Any example: with one cargo resolves features as for `--all-targets`, with those that development dependencies ask for. Without,
/// it would check a hundred crates once more for others.
pub(crate) const SAME_DEPENDENCIES: &str = "--example pmi_ring";

/// Treatment of a list that is not what its crate offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lists {
    Checked,
    Written,
}

/// Documents the libraries of all crates; a warning is a failure.
pub(crate) fn document() -> Result<()> {
    let this = std::env::current_exe().context("cannot tell where this program is")?;
    let words = format!("doc --workspace --no-deps --lib {SAME_DEPENDENCIES}");
    let flags = "-D warnings -Zunstable-options --output-format json";
    run(cargo(&words).env("RUSTDOC", this).env(MARK, "1").env("RUSTDOCFLAGS", flags))
}

/// Compares the lists with the crates, or writes them.
pub(crate) fn check(lists: Lists) -> Result<()> {
    document()?;
    let mut compare = cargo("run --quiet --package public-api-lists --");
    compare.arg(target_directory()?.join("doc"));
    if lists == Lists::Written {
        compare.arg("write");
    }
    run(&mut compare)
}

/// Compares the lists with the documentation that [`document`] made in this directory, by the program as it was built with all others.
pub(crate) fn compare(documentation: PathBuf) -> Result<()> {
    run(Command::new(target_directory()?.join("debug/public-api-lists")).arg(documentation))
}

/// Becomes rustdoc, if cargo called this program in its place.
///
/// # Errors
/// Fails if rustdoc cannot be run.
pub(crate) fn become_rustdoc() -> Result<()> {
    if std::env::var_os(MARK).is_none() {
        return Ok(());
    }
    let mut rustdoc = Command::new("rustdoc");
    let error = rustdoc.args(std::env::args_os().skip(1)).env_remove(MARK).env("RUSTC_BOOTSTRAP", "1").exec();
    Err(error).context("cannot run rustdoc")
}
