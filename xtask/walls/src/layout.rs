//! Members of the workspace, according to their manifests: directory, package, targets, dependencies on each other.
//!
//! Reads manifests only; [`crate::tree`] reads sources.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use toml::{Table, Value};

/// One member of the workspace.
#[derive(Debug)]
pub(crate) struct Member {
    /// Directory below the repository's root; the name of the member in `walls.toml` and in ARCHITECTURE.md.
    pub(crate) directory: String,
    /// Name of the library in imports.
    pub(crate) import_name: String,
    /// Root files of the library and of the binaries, the library first.
    pub(crate) targets: Vec<Target>,
    /// Directories of the members on which it depends, except dependencies of tests only.
    pub(crate) dependencies: BTreeSet<String>,
}

/// A library or a binary of a member.
#[derive(Debug)]
pub(crate) struct Target {
    /// Path below the repository's root.
    pub(crate) root: PathBuf,
    pub(crate) kind: TargetKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TargetKind {
    Library,
    Binary,
}

/// Reads all members of the workspace at `repository`, in the order of its manifest.
pub(crate) fn read(repository: &Path) -> Result<Vec<Member>> {
    let manifest = manifest(&repository.join("Cargo.toml"))?;
    let workspace =
        manifest.get("workspace").and_then(Value::as_table).context("the root manifest has no workspace")?;
    let directories: Vec<String> = strings(workspace.get("members")).collect();
    let mut packages = Vec::new();
    for directory in &directories {
        packages.push(self::manifest(&repository.join(directory).join("Cargo.toml"))?);
    }
    let by_name: BTreeMap<&str, &str> =
        packages.iter().zip(&directories).map(|(package, directory)| (name(package), directory.as_str())).collect();
    let members = packages.iter().zip(&directories);
    Ok(members.map(|(package, directory)| member(repository, directory, package, &by_name)).collect())
}

fn member(repository: &Path, directory: &str, package: &Table, by_name: &BTreeMap<&str, &str>) -> Member {
    let library = package.get("lib").and_then(Value::as_table);
    let import_name = library.and_then(|library| library.get("name")?.as_str()).unwrap_or(name(package));
    let dependencies = ["dependencies", "build-dependencies"]
        .into_iter()
        .filter_map(|kind| package.get(kind)?.as_table())
        .flat_map(Table::keys)
        .filter_map(|dependency| by_name.get(dependency.as_str()))
        .map(|&directory| directory.to_owned())
        .collect();
    Member {
        directory: directory.to_owned(),
        import_name: import_name.replace('-', "_"),
        targets: targets(repository, directory, package),
        dependencies,
    }
}

/// Returns the existing root files, at the default paths of Cargo.
fn targets(repository: &Path, directory: &str, package: &Table) -> Vec<Target> {
    let given = |table: &Value| Some(table.as_table()?.get("path")?.as_str()?.to_owned());
    let library = package.get("lib").and_then(given).unwrap_or_else(|| "src/lib.rs".to_owned());
    let mut binaries = BTreeSet::from(["src/main.rs".to_owned()]);
    binaries.extend(package.get("bin").and_then(Value::as_array).into_iter().flatten().filter_map(given));
    let more = repository.join(directory).join("src/bin").read_dir().into_iter().flatten().flatten();
    binaries.extend(more.map(|entry| format!("src/bin/{}", entry.file_name().display())));
    let library = std::iter::once((library, TargetKind::Library));
    let all = library.chain(binaries.into_iter().map(|path| (path, TargetKind::Binary)));
    let rooted = all.map(|(path, kind)| Target { root: Path::new(directory).join(path), kind });
    rooted.filter(|target| repository.join(&target.root).is_file()).collect()
}

fn manifest(path: &Path) -> Result<Table> {
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    text.parse().with_context(|| format!("cannot parse {}", path.display()))
}

fn name(package: &Table) -> &str {
    package.get("package").and_then(|package| package.get("name")?.as_str()).unwrap_or_default()
}

fn strings(list: Option<&Value>) -> impl Iterator<Item = String> {
    list.and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str).map(str::to_owned)
}
