//! `libpmi.so.0` and `libpmi2.so.0`: built for release, and installed with headers and pkg-config files.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::shell::{self, cargo, repository, target_directory};

/// Maximum size of an installed library, in bytes.
const SIZE_MAX: u64 = 200 * 1024;

/// Profile of the libraries. The directory of the build has the same name.
const PROFILE: &str = "client-library";

/// The boundary between C and Lattice, below `pmi-client/c-abi`.
const SOURCES: &str = "pmi-client/c-abi";

/// Packages that are built without `std`, if no package around them has it.
pub(crate) const PACKAGES: [&str; 3] = ["lattice-libpmi", "lattice-libpmi2", "pmi-c-abi"];

/// Returns a cargo command for both libraries in their installed form: without `std`.
pub(crate) fn command(name: &str) -> Command {
    let mut command = cargo(&format!("{name} --profile {PROFILE} --no-default-features"));
    command.args(PACKAGES.iter().flat_map(|package| ["--package", package]));
    command
}

/// Builds both libraries. Returns the directory with `liblattice_pmi.so` and `liblattice_pmi2.so`.
pub(crate) fn build() -> Result<PathBuf> {
    shell::run(&mut command("build"))?;
    Ok(target_directory()?.join(PROFILE))
}

/// Builds both libraries and installs them below `prefix`.
pub(crate) fn install(prefix: &Path) -> Result<()> {
    let directory = build()?;
    let [libraries, headers, for_slurm, packages] =
        ["lib/lattice", "include/lattice", "include/lattice/slurm", "lib/pkgconfig"].map(|path| prefix.join(path));
    for directory in [&libraries, &headers, &for_slurm, &packages] {
        fs::create_dir_all(directory).with_context(|| format!("cannot make {}", directory.display()))?;
    }
    let sources = repository().join(SOURCES);
    for name in ["pmi", "pmi2"] {
        let built = directory.join(format!("liblattice_{name}.so"));
        let size = fs::metadata(&built).with_context(|| format!("{} was not built", built.display()))?.len();
        ensure!(size <= SIZE_MAX, "{} has {size} bytes, more than {SIZE_MAX}", built.display());
        let soname = format!("lib{name}.so.0");
        copy(&built, &libraries.join(&soname))?;
        link(&soname, &libraries.join(format!("lib{name}.so")))?;
        for header in [format!("{name}.h"), format!("slurm/{name}.h")] {
            copy(&sources.join("include").join(&header), &headers.join(&header))?;
        }
        if name == "pmi" {
            copy(&sources.join("include/pmi_ext.h"), &headers.join("pmi_ext.h"))?;
        }
        let package = format!("lattice-{name}.pc");
        copy(&sources.join("pkgconfig").join(&package), &packages.join(&package))?;
        eprintln!("{}: {size} bytes", libraries.join(soname).display());
    }
    Ok(())
}

/// A program that has the old file open keeps using it.
fn copy(from: &Path, to: &Path) -> Result<()> {
    let new = to.with_extension("new");
    let copied = fs::copy(from, &new).and_then(|_| fs::rename(&new, to));
    copied.with_context(|| format!("cannot copy {} to {}", from.display(), to.display()))
}

fn link(target: &str, path: &Path) -> Result<()> {
    let new = path.with_extension("new");
    let _ = fs::remove_file(&new);
    let linked = symlink(target, &new).and_then(|()| fs::rename(&new, path));
    linked.with_context(|| format!("cannot make {}", path.display()))
}
