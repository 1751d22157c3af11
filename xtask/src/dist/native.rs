//! The .deb and the .rpm, by cargo-deb and rpmbuild. Their descriptions are generated from the tree.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use toml::{Table, Value, toml};

use super::NAME;
use super::tree::{self, PackagedFile};
use crate::shell::{command, repository, run};

const DESCRIPTION: &str = "Starts MPI programs on one machine or a cluster, without SSH";

/// Builds the .deb of this version.
pub(super) fn deb(tools: &Path, dist: &Path, version: &str, glibc: &str) -> Result<PathBuf> {
    let files = tree::files(&dist.join("tree"))?;
    let assets = |file: &PackagedFile| {
        let words = [&file.source.display().to_string(), &file.installed, &file.mode];
        Value::Array(words.map(|word| Value::String(word.clone())).to_vec())
    };
    let configuration = files.iter().filter(|file| file.is_configuration());
    let mut package = toml! {
        section = "net"
        priority = "optional"
    };
    package.insert("maintainer".into(), "The Lattice developers".into());
    package.insert("copyright".into(), "The Lattice developers".into());
    package.insert("depends".into(), format!("libc6 (>= {glibc}), libgcc-s1").into());
    package.insert("maintainer-scripts".into(), scripts().display().to_string().into());
    package.insert("conf-files".into(), configuration.map(|file| file.installed.clone()).collect::<Vec<_>>().into());
    package.insert("assets".into(), files.iter().map(assets).collect::<Vec<_>>().into());
    let manifest = manifest(dist, version, package)?;
    let path = dist.join(format!("{NAME}_{version}_{}.deb", debian_architecture()));
    let mut cargo_deb = command(tools.join("bin/cargo-deb"), "--no-build --no-strip --fast --manifest-path");
    run(cargo_deb.arg(&manifest).arg("--output").arg(&path))?;
    Ok(path)
}

/// Builds the .rpm of this version.
pub(super) fn rpm(dist: &Path, version: &str, glibc: &str) -> Result<PathBuf> {
    let tree = dist.join("tree");
    let script = |name: &str| {
        let path = scripts().join(name);
        fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))
    };
    let file = |file: &PackagedFile| {
        let kind = if file.is_configuration() { "%config(noreplace) " } else { "" };
        format!("{kind}%attr({}, root, root) {}\n", file.mode, file.installed)
    };
    let files = tree::files(&tree)?;
    let listed: String = files.iter().map(file).chain(own_directories(&files)).collect();
    // The payload is compressed as fast as possible, since the programs are small. No step after the installation changes the files of the tree, and no requirement is guessed.
    let specification = format!(
        "%global debug_package %{{nil}}\n%global __os_install_post %{{nil}}\n%global _build_id_links none\n\
         %global _binary_payload w1.zstdio\n\
         Name: {NAME}\nVersion: {version}\nRelease: 1\nSummary: {DESCRIPTION}\nLicense: Apache-2.0 OR MIT\n\
         AutoReqProv: no\nRequires: glibc >= {glibc}, libgcc\n\
         %description\n{DESCRIPTION}.\n%install\ncp -R {}/. %{{buildroot}}/\n\
         %post\n{}%preun\n{}%files\n{listed}",
        tree.display(),
        script("postinst")?,
        script("prerm")?,
    );
    let path = dist.join(format!("{NAME}.spec"));
    fs::write(&path, specification).with_context(|| format!("cannot write {}", path.display()))?;
    let define = |name: &str, directory: &Path| format!("{name} {}", directory.display());
    let mut build = command("rpmbuild", "-bb --quiet --define");
    build.arg(define("_topdir", &dist.join("rpm"))).arg("--define").arg(define("_rpmdir", dist));
    run(build.args(["--define", "_build_name_fmt %%{NAME}-%%{VERSION}-%%{RELEASE}.%%{ARCH}.rpm"]).arg(&path))?;
    Ok(dist.join(format!("{NAME}-{version}-1.{}.rpm", std::env::consts::ARCH)))
}

/// Lines of an .rpm for the directories that belong to this package alone, so that its removal removes them.
fn own_directories(files: &[PackagedFile]) -> BTreeSet<String> {
    let above = files.iter().flat_map(|file| Path::new(&file.installed).ancestors().skip(1));
    let own = above.filter(|path| path.iter().any(|part| part == "lattice"));
    own.map(|path| format!("%dir {}\n", path.display())).collect()
}

/// Scripts of the packages, which serve both formats.
fn scripts() -> PathBuf {
    repository().join("packaging/scripts")
}

/// Writes the manifest of an empty crate, with the package's metadata for cargo-deb.
fn manifest(dist: &Path, version: &str, metadata: Table) -> Result<PathBuf> {
    let directory = dist.join("manifest");
    fs::create_dir_all(&directory).with_context(|| format!("cannot make {}", directory.display()))?;
    let mut manifest = toml! {
        [package]
        edition = "2021"
        license = "Apache-2.0 OR MIT"
        authors = ["The Lattice developers"]
        [lib]
        path = "lib.rs"
        [workspace]
    };
    let package = manifest["package"].as_table_mut().context("it has a package")?;
    package.insert("name".into(), NAME.into());
    package.insert("version".into(), version.into());
    package.insert("description".into(), DESCRIPTION.into());
    let metadata = Table::from_iter([("deb".to_owned(), Value::Table(metadata))]);
    package.insert("metadata".into(), metadata.into());
    fs::write(directory.join("lib.rs"), "")?;
    let path = directory.join("Cargo.toml");
    fs::write(&path, toml::to_string(&manifest)?).with_context(|| format!("cannot write {}", path.display()))?;
    Ok(path)
}

/// Debian's name of this machine's architecture.
fn debian_architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}
