//! Maintains the lists of public items: `cargo xtask public-api`.
//!
//! Each crate for embedders has a committed list, so that a change of the interface is visible in review. This program reads rustdoc's JSON,
//! which `cargo xtask public-api` creates first. It leaves out implementations of auto traits, blanket and derived implementations, and
//! generated code.

mod comparison;

use std::fs;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use public_api::Builder;

use crate::comparison::Comparison;

/// Directories of the crates for embedders.
const CRATES: [&str; 11] = [
    "cxi-fabric",
    "hostlist",
    "inventory",
    "job-memory",
    "overlay",
    "pmi-client",
    "pmi-core",
    "pmi-transport",
    "pmix-core",
    "rank-spawner",
    "session",
];

/// Directories with crates of a different name, and these names.
const NAMES: [(&str, &str); 3] =
    [("inventory", "lattice-inventory"), ("overlay", "lattice-overlay"), ("session", "lattice-session")];

/// Prefix of paths of generated code, which has a separate list: `pmi-transport/testdata/lattice.v1.txt` has the messages.
const GENERATED: &str = "pmi_transport::proto::v1::";

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
    let offered = offered(name, json)?;
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
fn offered(name: &str, json: &Path) -> Result<String> {
    let builder = Builder::from_rustdoc_json(json).omit_blanket_impls(true).omit_auto_trait_impls(true);
    let api = builder.omit_auto_derived_impls(true).build().with_context(|| {
        format!("cannot read {}: the crate public-api must be of the version that knows this rustdoc", json.display())
    })?;
    let items = api.items().map(ToString::to_string).filter(|item| !is_generated(name, item));
    Ok(items.map(|item| item + "\n").collect())
}

/// Returns true for items of generated code, including implementations for its types. The first path of the crate in such an item is a generated
/// one.
fn is_generated(name: &str, item: &str) -> bool {
    let first = item.find("pmi_transport::").filter(|_| name == "pmi-transport");
    first.is_some_and(|first| item[first..].starts_with(GENERATED))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generated_messages_are_listed_elsewhere() {
        let is_ours = |item| !is_generated("pmi-transport", item);
        assert!(!is_ours("pub struct pmi_transport::proto::v1::LinkFrame"));
        assert!(!is_ours("impl prost::message::Message for pmi_transport::proto::v1::LinkFrame"));
        assert!(is_ours("pub mod pmi_transport::proto::v1"));
        assert!(is_ours("pub fn pmi_transport::fence::send(pmi_transport::proto::v1::LinkFrame)"));
        let of_another = "pub fn lattice_session::wire::read(pmi_transport::proto::v1::LaunchSpec)";
        assert!(!is_generated("lattice-session", of_another));
    }

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
