//! Dependencies: the checks of cargo-deny, and the list of the components of each program.

use std::fs;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::setup;
use crate::shell::{cargo, run, target_directory};

/// Packages of the programs.
const PROGRAMS: [&str; 2] = ["lattice-mpi", "lattice-agent"];

/// Selects whether known vulnerabilities are checked as well, which requires the download of a database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Advisories {
    Fetched,
    Left,
}

/// Checks licences, sources and bans according to `deny.toml`.
pub(crate) fn check(advisories: Advisories) -> Result<()> {
    // Dependencies of other platforms as well, which no build here has fetched.
    run(&mut cargo("fetch --locked"))?;
    let mut deny = crate::shell::command(setup::dependency_checker()?, "");
    match advisories {
        Advisories::Fetched => deny.args(["--all-features", "check"]),
        Advisories::Left => deny.args(["--offline", "--all-features", "check", "licenses", "sources", "bans"]),
    };
    run(&mut deny)
}

#[derive(Debug, Deserialize)]
struct Lock {
    package: Vec<Locked>,
}

/// One package of `Cargo.lock`.
#[derive(Debug, Deserialize)]
struct Locked {
    name: String,
    version: String,
    checksum: Option<String>,
}

/// Writes a list of the components of each program, in the format of CycloneDX 1.6, to the target directory.
pub(crate) fn list() -> Result<()> {
    let lock: Lock = toml::from_str(&fs::read_to_string("Cargo.lock").context("cannot read Cargo.lock")?)?;
    let directory = target_directory()?.join("sbom");
    fs::create_dir_all(&directory)?;
    for program in PROGRAMS {
        let list = components(program, &lock)?;
        let file = directory.join(format!("{program}.cdx.json"));
        fs::write(&file, serde_json::to_string_pretty(&list)? + "\n")?;
        println!("{}", file.display());
    }
    Ok(())
}

/// Returns the components of a program: its normal dependencies, direct and transitive.
fn components(program: &str, lock: &Lock) -> Result<Value> {
    let tree =
        format!("tree --locked --package {program} --edges normal --prefix none --no-dedupe --format {{p}}|{{l}}");
    let output = cargo(&tree).output().context("cannot run cargo tree")?;
    ensure!(output.status.success(), "cargo tree: {}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout)?;
    let mut lines: Vec<&str> = text.lines().collect();
    lines.sort_unstable();
    lines.dedup();
    let all = lines.iter().filter_map(|line| component(line, lock));
    let (own, others): (Vec<Value>, Vec<Value>) = all.partition(|component| component["name"] == program);
    Ok(json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": { "component": own.first() },
        "components": others,
    }))
}

/// Parses one line of `cargo tree`: `name vVERSION (where)|licence`.
fn component(line: &str, lock: &Lock) -> Option<Value> {
    let (package, licence) = line.split_once('|')?;
    let mut words = package.split_whitespace();
    let (name, version) = (words.next()?, words.next()?.strip_prefix('v')?);
    let locked = lock.package.iter().find(|locked| locked.name == name && locked.version == version)?;
    let hashes = locked.checksum.iter().map(|sum| json!({ "alg": "SHA-256", "content": sum }));
    Some(json!({
        "type": if PROGRAMS.contains(&name) { "application" } else { "library" },
        "name": name,
        "version": version,
        "purl": format!("pkg:cargo/{name}@{version}"),
        // Older packages separate alternatives by a slash, which is not valid in an SPDX expression.
        "licenses": [{ "expression": licence.replace('/', " OR ") }],
        "hashes": hashes.collect::<Vec<_>>(),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_the_tree_is_a_component_with_its_checksum() {
        let locked = Locked { name: "bytes".to_owned(), version: "1.12.1".to_owned(), checksum: Some("ab".to_owned()) };
        let lock = Lock { package: vec![locked] };
        let bytes = component("bytes v1.12.1|MIT", &lock).unwrap();
        assert_eq!(bytes["purl"], "pkg:cargo/bytes@1.12.1");
        assert_eq!(bytes["hashes"][0]["content"], "ab");
        assert_eq!(bytes["licenses"][0]["expression"], "MIT");
        assert!(component("bytes v9.9.9|MIT", &lock).is_none(), "that is not locked");
        assert!(component("", &lock).is_none());
    }
}
