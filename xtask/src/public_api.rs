//! Documentation as JSON, and the lists of public items from it.
//!
//! For JSON rustdoc reports the same errors as for pages, so that this is also the check of the documentation. The format is unstable: this
//! program replaces rustdoc, and enables the flags. If cargo's environment had the variable for this, a hundred crates would be rebuilt.

use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};

use crate::shell::{cargo, run, target_directory};

/// Variable that marks a call of this program in place of rustdoc.
const MARK: &str = "LATTICE_RUSTDOC_JSON";

/// Any example. With an example cargo resolves features as for `--all-targets`, including the features of development dependencies. Without
/// it a hundred external crates would be checked again.
pub(crate) const SAME_DEPENDENCIES: &str = "--example pmi_ring";

/// Action for a list that differs from its crate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lists {
    Checked,
    Written,
}

/// Documents the libraries of all crates; a warning is a failure.
pub(crate) fn document() -> Result<()> {
    let this = std::env::current_exe().context("cannot find the path of this program")?;
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

/// Compares the lists with the documentation of [`document`] in this directory, with the program from the common build.
pub(crate) fn compare(documentation: PathBuf) -> Result<()> {
    run(Command::new(target_directory()?.join("debug/public-api-lists")).arg(documentation))
}

/// Executes rustdoc, if cargo called this program in its place.
///
/// # Errors
/// Fails if rustdoc cannot be executed.
pub(crate) fn become_rustdoc() -> Result<()> {
    if std::env::var_os(MARK).is_none() {
        return Ok(());
    }
    let mut rustdoc = Command::new("rustdoc");
    let error = rustdoc.args(std::env::args_os().skip(1)).env_remove(MARK).env("RUSTC_BOOTSTRAP", "1").exec();
    Err(error).context("cannot run rustdoc")
}
