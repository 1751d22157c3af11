//! Maintains the lists of public items: `cargo xtask public-api`.
//!
//! Each crate for embedders has a committed list, so that a change of the interface is visible in review. This program reads rustdoc's JSON,
//! which `cargo xtask public-api` creates first. It leaves out implementations of auto traits, and blanket and derived implementations.

mod comparison;

use std::fs;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use public_api::Builder;

use crate::comparison::Comparison;

/// Directories of the crates for embedders.
const CRATES: [&str; 7] = ["cxi-fabric", "overlay", "pmi-client", "pmi-core", "pmix-core", "rank-spawner", "session"];

/// Directories with crates of a different name, and these names.
const NAMES: [(&str, &str); 2] = [("overlay", "lattice-overlay"), ("session", "lattice-session")];

/// Action for a list that differs from the crate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lists {
    Checked,
    Written,
}

fn main() -> Result<ExitCode> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (documentation, lists) = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [documentation] => (documentation, Lists::Checked),
        [documentation, "write"] => (documentation, Lists::Written),
        _ => bail!("usage: public-api-lists DIRECTORY-OF-JSON [write]"),
    };
    let repository = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    let mut changed = 0;
    for directory in CRATES {
        let name = NAMES.iter().find(|(other, _)| *other == directory).map_or(directory, |(_, name)| name);
        let json = Path::new(documentation).join(format!("{}.json", name.replace('-', "_")));
        let file = repository.join(directory).join("public-api.txt");
        changed += usize::from(treat(name, &json, &file, lists)?);
    }
    println!("public-api: {} lists, {changed} of them other than the crate", CRATES.len());
    Ok(if changed == 0 || lists == Lists::Written { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Compares a crate with its list, or writes the list. Returns true if they differed.
fn treat(name: &str, json: &Path, file: &Path, lists: Lists) -> Result<bool> {
    let offered = offered(json)?;
    let committed = fs::read_to_string(file).unwrap_or_default();
    let comparison = Comparison::of(&committed, &offered);
    if comparison.is_empty() {
        return Ok(false);
    }
    print!("{}", comparison.report(name));
    if lists == Lists::Written {
        fs::write(file, offered).with_context(|| format!("cannot write {}", file.display()))?;
    }
    Ok(true)
}

/// Returns the public items of a crate, sorted, one per line.
fn offered(json: &Path) -> Result<String> {
    let builder = Builder::from_rustdoc_json(json).omit_blanket_impls(true).omit_auto_trait_impls(true);
    let api = builder.omit_auto_derived_impls(true).build().with_context(|| {
        format!("cannot read {}: the crate public-api must be of the version that knows this rustdoc", json.display())
    })?;
    Ok(api.items().map(|item| format!("{item}\n")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_crate_with_a_list_is_a_member_of_the_workspace() {
        let repository = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
        for directory in CRATES {
            let manifest = fs::read_to_string(repository.join(directory).join("Cargo.toml")).unwrap();
            let name = NAMES.iter().find(|(other, _)| *other == directory).map_or(directory, |(_, name)| name);
            assert!(manifest.contains(&format!("name = \"{name}\"")), "{directory}");
            assert!(repository.join(directory).join("public-api.txt").exists(), "{directory} has no list");
        }
    }
}
