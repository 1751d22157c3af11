//! Enforces the walls of ARCHITECTURE.md: `cargo xtask walls`.
//!
//! Fails on a circle between the modules of a crate, and on an import that the table of arrows does not allow. Also fails on
//! printing, exits, raw protobuf and `unsafe` outside listed places. Prints the table of crates, so that drift is visible. `cargo
//! xtask walls list` lists the items that the table only counts. `xtask/walls.toml` has the exceptions and their reasons.

mod circles;
mod known;
mod layout;
mod measure;
mod paths;
mod resolve;
mod rules;
mod sizes;
mod table;
mod tree;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, anyhow};

use crate::circles::Family;
use crate::known::Known;
use crate::layout::{Member, TargetKind};
use crate::measure::Figures;
use crate::resolve::Resolver;
use crate::rules::{Finding, Rule};
use crate::sizes::Sizes;
use crate::tree::Tree;

fn main() -> Result<ExitCode> {
    let repository = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    let mut report = check(repository)?;
    let argument = std::env::args().nth(1).unwrap_or_default();
    if argument == "list" {
        print!("{}", report.details());
    }
    report.problems.extend(check_sizes(&repository.join("xtask/sizes.txt"), &report.crates, argument == "write")?);
    println!("{}", table::render(&report.crates));
    for problem in &report.problems {
        println!("walls: {problem}");
    }
    println!("walls: {} problems", report.problems.len());
    Ok(if report.problems.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// All findings.
#[derive(Debug, Default)]
struct Report {
    crates: Vec<(String, Figures)>,
    problems: Vec<String>,
}

fn check(repository: &Path) -> Result<Report> {
    let known = Known::read(&repository.join("xtask/walls.toml"))?;
    let architecture = repository.join("ARCHITECTURE.md");
    let architecture = std::fs::read_to_string(&architecture).context("cannot read ARCHITECTURE.md")?;
    let members = layout::read(repository)?;
    let mut report = Report::default();
    report.problems.extend(known.check_arrows(&members));
    report.problems.extend(known.check_map(&architecture));
    let mut findings = Vec::new();
    for member in &members {
        let figures = check_member(repository, member, &known, &mut findings, &mut report.problems)?;
        report.crates.push((member.directory.clone(), figures));
    }
    report.problems.extend(known.check_rules(&findings));
    Ok(report)
}

/// Compares the items above a limit with the list in `file`, which `writes` lowers first.
fn check_sizes(file: &Path, crates: &[(String, Figures)], writes: bool) -> Result<Vec<String>> {
    let text = std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    let mut listed = Sizes::parse(&text).map_err(|line| anyhow!("{}: no entry: {line}", file.display()))?;
    let measured: Sizes = crates.iter().flat_map(|(_, figures)| &figures.large).collect();
    if writes {
        listed = listed.lowered(&measured);
        std::fs::write(file, listed.render()).with_context(|| format!("cannot write {}", file.display()))?;
    }
    Ok(listed.check(&measured))
}

/// Checks the sources of one member.
fn check_member(
    repository: &Path,
    member: &Member,
    known: &Known,
    findings: &mut Vec<Finding>,
    problems: &mut Vec<String>,
) -> Result<Figures> {
    let is_tool = known.tools.contains(&member.directory);
    let mut figures = Figures::default();
    let mut circles = Vec::new();
    let mut described = Vec::new();
    let read = |path: &Path| std::fs::read_to_string(repository.join(path)).ok();
    for target in &member.targets {
        let tree = Tree::read(&target.root, &read)?;
        let resolver = Resolver::new(&tree);
        figures.add(&resolver);
        let found = rules::find(&resolver, &member.import_name);
        findings.extend(found.into_iter().filter(|finding| !is_tool || finding.rule == Rule::Unsafe));
        // The modules of a binary are a separate crate.
        if target.kind == TargetKind::Library || tree.files.len() > 1 {
            for circle in circles::circles(&tree, &circles::graph(&resolver, Family::One)) {
                described.push(circle.describe(&tree));
                circles.push(circle);
            }
            for circle in circles::circles(&tree, &circles::graph(&resolver, Family::Apart)) {
                figures.add_circle(&member.directory, &circle.modules);
            }
        }
    }
    problems.extend(known.check_circles(&member.directory, &circles, |circle| {
        let index = circles.iter().position(|other| other == circle);
        index.map_or_else(String::new, |index| described[index].clone())
    }));
    for path in rust_files(&repository.join(&member.directory).join("tests")) {
        let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        figures.add_tests(path.strip_prefix(repository).unwrap_or(&path), &text);
    }
    Ok(figures)
}

/// Returns the Rust sources below a directory; none if it does not exist.
fn rust_files(directory: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in directory.read_dir().into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            files.extend(rust_files(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    files
}

impl Report {
    /// Returns the items that the table counts, one per line.
    fn details(&self) -> String {
        let mut text = String::new();
        let mut add = |what: &str, line: String| text.push_str(&format!("{what}: {line}\n"));
        for (_, figures) in &self.crates {
            figures.undocumented.iter().for_each(|line| add("no docs", line.clone()));
            figures.riddles.iter().for_each(|line| add("riddle", line.clone()));
            figures.bool_functions.iter().for_each(|line| add("takes bool", line.clone()));
            figures.large.iter().for_each(|item| add("large", item.to_string()));
        }
        text
    }
}
