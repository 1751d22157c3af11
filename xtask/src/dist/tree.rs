//! The tree of packaged files, with the paths of an installed system.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::{VERSION, client_libraries};
use crate::shell::{command, repository, run};

/// Files of the repository, with their path in the tree.
const COPIED: &[(&str, &str)] = &[
    ("packaging/systemd/lattice-api.service", "usr/lib/systemd/system/lattice-api.service"),
    ("packaging/systemd/lattice-agent.service", "usr/lib/systemd/system/lattice-agent.service"),
    ("packaging/sysusers.d/lattice.conf", "usr/lib/sysusers.d/lattice.conf"),
    ("packaging/tmpfiles.d/lattice.conf", "usr/lib/tmpfiles.d/lattice.conf"),
    ("packaging/oci/lattice.json", "usr/share/lattice/oci/lattice.json"),
    ("packaging/config/api.toml", "etc/lattice/api.toml"),
    ("packaging/config/agent.toml", "etc/lattice/agent.toml"),
    ("packaging/config/config.toml", "usr/share/lattice/config.toml"),
    ("packaging/pam.d/lattice", "etc/pam.d/lattice"),
    ("README.md", "usr/share/doc/lattice/README.md"),
    ("CHANGELOG.md", "usr/share/doc/lattice/CHANGELOG.md"),
    ("LICENSE-APACHE", "usr/share/doc/lattice/LICENSE-APACHE"),
    ("LICENSE-MIT", "usr/share/doc/lattice/LICENSE-MIT"),
];

/// Programs, with their path in the tree.
const PROGRAMS: [(&str, &str); 2] = [("lattice", "usr/bin/lattice"), ("lattice-agent", "usr/bin/lattice-agent")];

/// Completion scripts: shell, and path in the tree.
const COMPLETIONS: [(&str, &str); 3] = [
    ("bash", "usr/share/bash-completion/completions/lattice"),
    ("zsh", "usr/share/zsh/site-functions/_lattice"),
    ("fish", "usr/share/fish/vendor_completions.d/lattice.fish"),
];

/// A file of the tree.
#[derive(Debug)]
pub(super) struct PackagedFile {
    pub(super) source: PathBuf,
    /// Absolute path on an installed system.
    pub(super) installed: String,
    /// Permissions, such as `755`.
    pub(super) mode: String,
}

impl PackagedFile {
    /// Returns true for a file that an upgrade must not replace after a change.
    pub(super) fn is_configuration(&self) -> bool {
        self.installed.starts_with("/etc/")
    }
}

/// Makes the tree anew, with the programs in `built`.
pub(super) fn stage(tree: &Path, built: &Path) -> Result<()> {
    if tree.exists() {
        fs::remove_dir_all(tree).with_context(|| format!("cannot remove {}", tree.display()))?;
    }
    for (name, path) in PROGRAMS {
        let program = tree.join(path);
        copy(&built.join(name), &program, 0o755)?;
        // Debuggers find the ranks by these symbols.
        run(command("strip", "--strip-all --wildcard --keep-symbol=MPIR_*").arg(&program))?;
    }
    for (source, path) in COPIED {
        copy(&repository().join(source), &tree.join(path), 0o644)?;
    }
    let module = format!("usr/share/modulefiles/lattice/{VERSION}");
    copy(&repository().join("packaging/modulefiles/lattice"), &tree.join(module), 0o644)?;
    client_libraries::install(&tree.join("usr"))?;
    let lattice = tree.join(PROGRAMS[0].1);
    for (shell, path) in COMPLETIONS {
        write(&tree.join(path), &output(command(&lattice, "completions").arg(shell))?)?;
    }
    man_pages(tree, &tree.join("usr/share/man/man1"))
}

fn man_pages(tree: &Path, directory: &Path) -> Result<()> {
    fs::create_dir_all(directory)?;
    for (_, program) in PROGRAMS {
        run(command(tree.join(program), "man --all").arg(directory))?;
    }
    let pages: Vec<PathBuf> = below(directory)?;
    ensure!(pages.len() > 20, "there are only {} man pages", pages.len());
    run(command("gzip", "--best --no-name --force").args(&pages))
}

/// The files of a tree, in the order of their paths. Links count as files.
pub(super) fn files(tree: &Path) -> Result<Vec<PackagedFile>> {
    let packaged = |source: PathBuf| {
        let installed = format!("/{}", source.strip_prefix(tree)?.display());
        let mode = format!("{:o}", fs::metadata(&source)?.permissions().mode() & 0o777);
        Ok(PackagedFile { source, installed, mode })
    };
    below(tree)?.into_iter().map(packaged).collect()
}

fn below(directory: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(directory).with_context(|| format!("cannot read {}", directory.display()))? {
        let path = entry?.path();
        if path.is_dir() { files.extend(below(&path)?) } else { files.push(path) }
    }
    files.sort();
    Ok(files)
}

fn copy(from: &Path, to: &Path, mode: u32) -> Result<()> {
    write(to, &fs::read(from).with_context(|| format!("cannot read {}", from.display()))?)?;
    Ok(fs::set_permissions(to, Permissions::from_mode(mode))?)
}

fn write(path: &Path, content: &[u8]) -> Result<()> {
    let directory = path.parent().context("a path in the tree has a directory")?;
    fs::create_dir_all(directory).with_context(|| format!("cannot make {}", directory.display()))?;
    fs::write(path, content).with_context(|| format!("cannot write {}", path.display()))
}

fn output(command: &mut Command) -> Result<Vec<u8>> {
    let output = command.output().with_context(|| format!("cannot run {command:?}"))?;
    ensure!(output.status.success(), "{command:?} ended with {}", output.status);
    Ok(output.stdout)
}
