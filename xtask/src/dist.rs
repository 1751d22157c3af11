//! Packages of the programs: a tarball, a .deb, an .rpm and a Python wheel in `target/dist`. All are made from one tree of files.
//!
//! ```text
//! build ──> tree (target/dist/tree) ──┬──> tarball
//!                                     ├──> .deb, .rpm     installed, upgraded and removed in a clean root by `--check`
//!                                     ├──> wheel
//!                                     └──> image          by podman and packaging/Containerfile
//! ```

mod check;
mod glibc;
mod native;
mod tree;
mod wheel;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::shell::{cargo, command, run, target_directory};
use crate::{client_libraries, setup};

/// Name of the packages. The registries of Rust and Python have other packages with the name `lattice`.
const NAME: &str = "lattice-mpi";
/// Version of the packages.
const VERSION: &str = env!("CARGO_PKG_VERSION");
/// Oldest glibc that the released programs run on, which is that of Enterprise Linux 8.
const GLIBC: &str = "2.28";

/// Programs to pack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Programs {
    /// Optimised, for [`GLIBC`] or newer.
    Released,
    /// The build of the tests, for the glibc of this machine.
    Tested,
}

/// Result of a packaging run.
#[derive(Debug)]
struct Packages {
    /// Directory of the makers of packages.
    tools: PathBuf,
    /// Version of glibc that the programs need.
    glibc: String,
    deb: PathBuf,
    rpm: PathBuf,
    wheel: PathBuf,
}

/// Builds the programs and all packages; prints the paths of the packages.
///
/// # Errors
/// Fails if a tool cannot be installed, a build fails, or the programs need a newer glibc than [`GLIBC`].
pub(crate) fn build() -> Result<()> {
    pack(Programs::Released).map(drop)
}

/// Builds the packages from the programs of the tests. Installs, upgrades and removes the .deb and the .rpm in a clean Debian system. Builds the
/// image, and installs the wheel in a Python environment.
///
/// # Errors
/// Fails if a launch with the installed programs fails, or if files remain after the removal.
pub(crate) fn check() -> Result<()> {
    let packages = pack(Programs::Tested)?;
    check::run_all(&target_directory()?.join("dist"), &packages)
}

fn pack(programs: Programs) -> Result<Packages> {
    let dist = target_directory()?.join("dist");
    let tools = setup::packager()?;
    let directory = compile(programs, &tools)?;
    let tree = dist.join("tree");
    tree::stage(&tree, &directory)?;
    let needed = glibc::newest(&[tree.join("usr/bin/lattice"), tree.join("usr/bin/lattice-agent")])?;
    ensure!(
        programs == Programs::Tested || glibc::is_at_most(&needed, GLIBC),
        "the programs need glibc {needed}; {GLIBC} is the limit"
    );
    let packages = Packages {
        deb: native::deb(&tools, &dist, VERSION, &needed)?,
        rpm: native::rpm(&dist, VERSION, &needed)?,
        wheel: wheel::build(&tools, &dist, &needed)?,
        glibc: needed,
        tools,
    };
    let archive = tarball(&dist)?;
    for file in [&archive, &packages.deb, &packages.rpm, &packages.wheel] {
        let size = fs::metadata(file).with_context(|| format!("{} was not made", file.display()))?.len();
        println!("{} ({} KiB)", file.display(), size / 1024);
    }
    Ok(packages)
}

/// Compiles the programs; returns their directory.
fn compile(programs: Programs, tools: &Path) -> Result<PathBuf> {
    match programs {
        Programs::Tested => {
            // The same command as that of the tests, so that nothing is built twice.
            run(&mut cargo("build --workspace --all-targets"))?;
            Ok(target_directory()?.join("debug"))
        }
        Programs::Released => {
            let packages = "--package lattice-mpi --package lattice-agent";
            let target = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
            let path = std::env::join_paths(
                [tools.join("bin")]
                    .into_iter()
                    .chain(std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default())),
            )?;
            let mut build = cargo(&format!("zigbuild --release --locked {packages} --bins --target {target}.{GLIBC}"));
            // zig removes all symbols if any are to be removed. The tree keeps those for debuggers only.
            run(build.env("PATH", path).env("CARGO_PROFILE_RELEASE_STRIP", "none"))?;
            Ok(target_directory()?.join(target).join("release"))
        }
    }
}

/// Packs the tree for any prefix: `bin`, `lib`, `share`, `include`, and `etc` with the configuration.
fn tarball(dist: &Path) -> Result<PathBuf> {
    let name = format!("lattice-{VERSION}");
    let archive = dist.join(format!("{name}-{}-linux-gnu.tar.gz", std::env::consts::ARCH));
    let mut tar = command("tar", "--create --gzip --sort=name --owner=0 --group=0 --numeric-owner --mtime=@0 --file");
    tar.arg(&archive).arg("--directory").arg(dist.join("tree"));
    tar.arg(format!("--transform=s,^usr/,{name}/,")).arg(format!("--transform=s,^etc/,{name}/etc/,"));
    run(tar.args(["usr", "etc"]))?;
    Ok(archive)
}
