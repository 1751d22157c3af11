//! Packages in their published form: complete metadata, the required files, and a small size.

use std::collections::BTreeSet;
use std::fs;

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;

use crate::shell::{cargo, run, target_directory};

/// Maximum size of a package, in bytes. The limit detects files that do not belong in a package; the registry accepts 10
/// MiB.
const SIZE_MAX: u64 = 1024 * 1024;

/// Files of every package in addition to its sources.
const FILES: [&str; 3] = ["README.md", "LICENSE-APACHE", "LICENSE-MIT"];

/// Directories for tests and benches, which no package has.
const LEFT_OUT: [&str; 3] = ["tests/", "testdata/", "benches/"];

/// Categories of the registry that packages use. The registry ignores a category that it does not have.
const CATEGORIES: [&str; 12] = [
    "authentication",
    "command-line-utilities",
    "config",
    "cryptography",
    "external-ffi-bindings",
    "hardware-support",
    "memory-management",
    "network-programming",
    "os::linux-apis",
    "parser-implementations",
    "science",
    "text-processing",
];

/// Extent of the check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Build {
    /// Each package is built only from its files and other packages, as in the registry; takes minutes.
    FromPackages,
    /// Packages are created, and not built.
    Left,
}

/// Metadata of cargo about the members of the workspace.
#[derive(Debug, Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

/// A member, by its manifest.
#[derive(Clone, Debug, Deserialize)]
struct Package {
    name: String,
    version: String,
    /// Registries; an empty list means `publish = false`.
    publish: Option<Vec<String>>,
    description: Option<String>,
    license: Option<String>,
    readme: Option<String>,
    rust_version: Option<String>,
    repository: Option<String>,
    homepage: Option<String>,
    documentation: Option<String>,
    keywords: Vec<String>,
    categories: Vec<String>,
    /// Settings of other programs: `[package.metadata]`.
    metadata: serde_json::Value,
}

/// Creates the package of every published member, and checks its contents.
pub(crate) fn check(build: Build) -> Result<()> {
    let output = cargo("metadata --no-deps --offline --format-version 1").output().context("cannot run cargo")?;
    ensure!(output.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&output.stderr));
    let metadata: Metadata = serde_json::from_slice(&output.stdout).context("cargo metadata is not what it was")?;
    let published: Vec<&Package> = metadata.packages.iter().filter(|package| package.is_published()).collect();
    let wrong: Vec<String> = published.iter().flat_map(|package| package.complaints()).collect();
    ensure!(wrong.is_empty(), "packages are not fit to be published:\n{}", wrong.join("\n"));

    // A dry run stores no packages.
    run(cargo("package --no-verify --allow-dirty --offline --quiet").args(selection(&published)))?;
    let mut publish = cargo("publish --dry-run --workspace --allow-dirty --quiet");
    match build {
        Build::FromPackages => run(&mut publish)?,
        Build::Left => run(publish.arg("--no-verify"))?,
    }
    let directory = target_directory()?.join("package");
    for package in &published {
        package.check_files()?;
        let file = directory.join(format!("{}-{}.crate", package.name, package.version));
        let size = fs::metadata(&file).with_context(|| format!("{} was not made", file.display()))?.len();
        ensure!(size <= SIZE_MAX, "the package of {} has {size} bytes, more than {SIZE_MAX}", package.name);
    }
    println!("{} packages can be published", published.len());
    Ok(())
}

/// Returns `--package NAME` for each package.
fn selection<'a>(packages: &[&'a Package]) -> Vec<&'a str> {
    packages.iter().flat_map(|package| ["--package", &package.name]).collect()
}

impl Package {
    fn is_published(&self) -> bool {
        self.publish.as_ref().is_none_or(|registries| !registries.is_empty())
    }

    /// Returns fields of the manifest that are missing, or that the registry would refuse.
    fn complaints(&self) -> Vec<String> {
        let given = |field: &Option<String>| field.as_ref().is_some_and(|text| !text.is_empty());
        let short = |word: &String| word.len() <= 20 && word.starts_with(|first: char| first.is_ascii_alphanumeric());
        let has_address = |field: &Option<String>| field.as_ref().is_some_and(|text| text.starts_with("https://"));
        let own_page = format!("https://docs.rs/{}", self.name);
        let rules = [
            (given(&self.description), "has no description"),
            (given(&self.license), "has no license"),
            (given(&self.readme), "has no README.md"),
            (given(&self.rust_version), "has no rust-version"),
            (has_address(&self.repository), "has no repository with https"),
            (has_address(&self.homepage), "has no homepage with https"),
            (self.documentation == Some(own_page), "must have docs.rs and its name as documentation"),
            (self.metadata["docs"]["rs"]["all-features"] == true, "must be documented with all features"),
            ((1..=5).contains(&self.keywords.len()), "must have one to five keywords"),
            (self.keywords.iter().all(short), "has a keyword that is no word of up to 20 bytes"),
            ((1..=5).contains(&self.categories.len()), "must have one to five categories"),
            (self.categories.iter().all(|category| CATEGORIES.contains(&category.as_str())), "has an unknown category"),
        ];
        rules.iter().filter(|(kept, _)| !kept).map(|(_, complaint)| format!("{} {complaint}", self.name)).collect()
    }

    fn check_files(&self) -> Result<()> {
        let list = format!("package --list --allow-dirty --offline --quiet --package {}", self.name);
        let output = cargo(&list).output().context("cannot run cargo")?;
        ensure!(output.status.success(), "cargo {list}: {}", String::from_utf8_lossy(&output.stderr));
        self.check_list(&String::from_utf8(output.stdout)?)
    }

    /// Fails if the list of `cargo package --list` lacks a required file, or contains an excluded one.
    fn check_list(&self, list: &str) -> Result<()> {
        let files: BTreeSet<&str> = list.lines().collect();
        for file in FILES {
            ensure!(files.contains(file), "the package of {} has no {file}", self.name);
        }
        if let Some(file) = files.iter().find(|file| LEFT_OUT.iter().any(|directory| file.starts_with(directory))) {
            bail!("{file} is in the package of {}, and for tests only: see `include` in Cargo.toml", self.name);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package() -> Package {
        let some = |text: &str| Some(text.to_owned());
        Package {
            name: "wires".to_owned(),
            version: "0.1.0".to_owned(),
            publish: None,
            description: some("Wires"),
            license: some("MIT"),
            readme: some("README.md"),
            rust_version: some("1.95"),
            repository: some("https://example.org/wires.git"),
            homepage: some("https://example.org/wires"),
            documentation: some("https://docs.rs/wires"),
            keywords: vec!["mpi".to_owned()],
            categories: vec!["science".to_owned()],
            metadata: serde_json::json!({ "docs": { "rs": { "all-features": true } } }),
        }
    }

    #[test]
    fn each_gap_in_a_manifest_is_named() {
        assert!(package().complaints().is_empty());
        let check =
            |package: Package, complaint: &str| assert_eq!(package.complaints(), [format!("wires {complaint}")]);
        check(Package { description: None, ..package() }, "has no description");
        check(Package { license: Some(String::new()), ..package() }, "has no license");
        check(Package { readme: None, ..package() }, "has no README.md");
        check(Package { rust_version: None, ..package() }, "has no rust-version");
        check(Package { repository: None, ..package() }, "has no repository with https");
        check(Package { homepage: Some("wires".to_owned()), ..package() }, "has no homepage with https");
        let other = Some("https://docs.rs/other".to_owned());
        check(Package { documentation: other, ..package() }, "must have docs.rs and its name as documentation");
        check(Package { metadata: serde_json::Value::Null, ..package() }, "must be documented with all features");
        check(Package { keywords: vec![], ..package() }, "must have one to five keywords");
        check(Package { keywords: vec!["mpi".to_owned(); 6], ..package() }, "must have one to five keywords");
        check(
            Package { keywords: vec!["-".to_owned()], ..package() },
            "has a keyword that is no word of up to 20 bytes",
        );
        check(Package { categories: vec![], ..package() }, "must have one to five categories");
        check(Package { categories: vec!["mpi".to_owned()], ..package() }, "has an unknown category");
    }

    #[test]
    fn members_that_are_not_published_are_left_out() {
        assert!(package().is_published());
        assert!(Package { publish: Some(vec!["crates-io".to_owned()]), ..package() }.is_published());
        assert!(!Package { publish: Some(vec![]), ..package() }.is_published());
    }

    #[test]
    fn a_package_has_its_licences_and_no_tests() {
        let all = "Cargo.toml\nLICENSE-APACHE\nLICENSE-MIT\nREADME.md\nsrc/lib.rs\nsrc/server/tests.rs";
        package().check_list(all).unwrap();
        let check = |list: &str, words: &str| {
            let error = package().check_list(list).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        };
        check(&all.replace("LICENSE-MIT", "COPYING"), "has no LICENSE-MIT");
        check(&format!("{all}\ntestdata/mpich.txt"), "testdata/mpich.txt is in the package of wires");
    }
}
