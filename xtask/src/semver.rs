//! Breaking changes of the crates for embedders. cargo-semver-checks checks the crates with changed lists of public items.
//!
//! ```text
//! the last change of CHANGELOG.md ──── later commits ────> now
//!    breaks up to here are in CHANGELOG.md                  a break since then is not in it, and fails
//! ```

use std::path::Path;

use anyhow::{Context, Result, ensure};

use crate::shell::{command, run, tool, works};

/// Version for this toolchain: it must support the JSON of its rustdoc.
const VERSION: &str = "0.51.0";
/// File that lists breaking changes.
const TOLD: &str = "CHANGELOG.md";

/// Compares the crates with their state at `base`, or at the last change of CHANGELOG.md.
pub(crate) fn check(base: Option<&str>) -> Result<()> {
    // An archive of the sources has no history.
    if base.is_none() && !works(&mut command("git", "rev-parse --verify --quiet HEAD")) {
        println!("no history of this tree can be read: there is nothing to compare the interfaces with");
        return Ok(());
    }
    // The oldest commit of a shallow clone changes every file.
    if base.is_none() && git("rev-parse --is-shallow-repository")?.trim() == "true" {
        println!("this clone is shallow, so nothing was compared with the interfaces of before; git fetch --unshallow");
        return Ok(());
    }
    let base = match base {
        Some(base) => base.to_owned(),
        None => git(&format!("log --max-count=1 --format=%h -- {TOLD}"))?.trim().to_owned(),
    };
    ensure!(!base.is_empty(), "no commit has changed {TOLD}; name one: cargo xtask semver BASE");
    let changed = git(&format!("diff --name-only {base} -- */public-api.txt"))?;
    let crates =
        changed.lines().filter_map(|list| Path::new(list).parent()).map(package).collect::<Result<Vec<_>>>()?;
    if crates.is_empty() {
        println!(
            "since {base}, the last change of {TOLD} or the commit that was named, no list of public items has changed"
        );
        return Ok(());
    }
    let program = tool("cargo-semver-checks", VERSION, "")?;
    let mut compare = command(&program, &format!("semver-checks --baseline-rev {base}"));
    compare.args(crates.iter().flat_map(|name| ["--package", name]));
    run(&mut compare)
        .with_context(|| format!("an interface was broken since {base}; {TOLD} must say what embedders have to do"))
}

/// Returns the name of the package in a directory.
fn package(directory: &Path) -> Result<String> {
    let manifest = directory.join("Cargo.toml");
    let text = std::fs::read_to_string(&manifest).with_context(|| format!("cannot read {}", manifest.display()))?;
    let manifest: toml::Table = toml::from_str(&text)?;
    let name = manifest.get("package").and_then(|package| package.get("name")).and_then(toml::Value::as_str);
    Ok(name.context("a package has a name")?.to_owned())
}

/// Returns the output of git.
fn git(words: &str) -> Result<String> {
    let output = command("git", words).output().context("cannot run git")?;
    ensure!(output.status.success(), "git {words}: {}", String::from_utf8_lossy(&output.stderr).trim_end());
    Ok(String::from_utf8(output.stdout)?)
}
