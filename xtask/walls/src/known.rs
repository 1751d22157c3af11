//! `walls.toml`: allowed arrows between crates, exceptions from rules with their reasons, and remaining circles.
//!
//! Every entry must be necessary: an unused exception is a problem too, so that the lists shrink.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::Deserialize;

use crate::circles::Circle;
use crate::layout::Member;
use crate::rules::{Finding, Rule};

/// The file's content.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Known {
    /// Members that build and check the other members. Of the arrows and rules only `unsafe` applies to them.
    pub(crate) tools: BTreeSet<String>,
    /// By member, the members that it imports.
    pub(crate) arrows: BTreeMap<String, BTreeSet<String>>,
    print: Vec<Exception>,
    exit: Vec<Exception>,
    protobuf: Vec<Exception>,
    r#unsafe: Vec<Exception>,
    circle: Vec<KnownCircle>,
}

/// An exception from a rule.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Exception {
    /// A file, or a directory with all files below it.
    path: PathBuf,
    reason: String,
}

/// A remaining circle.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct KnownCircle {
    #[serde(rename = "crate")]
    member: String,
    modules: BTreeSet<String>,
    reason: String,
}

impl Known {
    pub(crate) fn read(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        toml::from_str(&text).with_context(|| format!("cannot parse {}", path.display()))
    }

    /// Compares the arrows of the manifests with the allowed arrows.
    pub(crate) fn check_arrows(&self, members: &[Member]) -> Vec<String> {
        let mut problems = Vec::new();
        for member in members.iter().filter(|member| !self.tools.contains(&member.directory)) {
            let name = &member.directory;
            let Some(allowed) = self.arrows.get(name) else {
                problems.push(format!("{name} has no line in [arrows]"));
                continue;
            };
            let upward = member.dependencies.difference(allowed);
            problems
                .extend(upward.map(|other| format!("{name} imports {other}; the table of arrows does not allow it")));
            let unused = allowed.difference(&member.dependencies);
            problems.extend(unused.map(|other| format!("{name} no longer imports {other}: remove the arrow")));
        }
        let is_member = |name: &&String| members.iter().any(|member| member.directory == **name);
        let gone = self.arrows.keys().chain(&self.tools).filter(|name| !is_member(name));
        problems.extend(gone.map(|name| format!("{name} is no member of the workspace")));
        problems
    }

    /// Returns the findings without an exception, and the unused exceptions.
    pub(crate) fn check_rules(&self, findings: &[Finding]) -> Vec<String> {
        let mut problems = Vec::new();
        for rule in Rule::ALL {
            let list = self.exceptions(rule);
            let found: Vec<&Finding> = findings.iter().filter(|finding| finding.rule == rule).collect();
            problems.extend(unexcused(&found, list).map(|(finding, more)| {
                let place = format!("{}:{}", finding.path.display(), finding.line);
                let more = if more == 0 { String::new() } else { format!(" (and {more} more places of this file)") };
                format!("{place}: {} is not in the list [[{}]]{more}", finding.seen, rule.name())
            }));
            for exception in list {
                let path = exception.path.display();
                if !found.iter().any(|finding| finding.path.starts_with(&exception.path)) {
                    problems.push(format!("[[{}]] {path}: nothing there needs it; remove the entry", rule.name()));
                }
                if exception.reason.is_empty() {
                    problems.push(format!("[[{}]] {path}: the reason is missing", rule.name()));
                }
            }
        }
        problems
    }

    fn exceptions(&self, rule: Rule) -> &[Exception] {
        match rule {
            Rule::Print => &self.print,
            Rule::Exit => &self.exit,
            Rule::Protobuf => &self.protobuf,
            Rule::Unsafe => &self.r#unsafe,
        }
    }

    /// Returns the circles of `member` that are not in the list; `describe` formats one.
    pub(crate) fn check_circles(
        &self,
        member: &str,
        circles: &[Circle],
        describe: impl Fn(&Circle) -> String,
    ) -> Vec<String> {
        let known = || self.circle.iter().filter(|known| known.member == member);
        let mut problems = Vec::new();
        for circle in circles {
            if !known().any(|known| circle.modules.is_subset(&known.modules)) {
                let modules = Vec::from_iter(circle.modules.iter().map(String::as_str)).join(", ");
                problems.push(format!("{member}: circle of {modules}\n{}", describe(circle)));
            }
        }
        for known in known() {
            let gone =
                known.modules.iter().filter(|module| !circles.iter().any(|circle| circle.modules.contains(*module)));
            let gone = Vec::from_iter(gone.map(String::as_str)).join(", ");
            if !gone.is_empty() {
                problems.push(format!("[[circle]] {member}: {gone}: no longer in a circle; remove from the entry"));
            }
            if known.reason.is_empty() {
                problems.push(format!("[[circle]] {member}: the reason is missing"));
            }
        }
        problems
    }

    /// Compares the arrows with the diagram in ARCHITECTURE.md.
    pub(crate) fn check_map(&self, architecture: &str) -> Vec<String> {
        let drawn = drawn_arrows(architecture);
        if drawn == self.arrows {
            return Vec::new();
        }
        let mut problems = Vec::new();
        for name in drawn.keys().chain(self.arrows.keys()).collect::<BTreeSet<_>>() {
            let (drawn, allowed) = (drawn.get(name), self.arrows.get(name));
            if drawn != allowed {
                let show = |list: Option<&BTreeSet<String>>| list.map_or("no line".to_owned(), show_names);
                problems.push(format!("ARCHITECTURE.md: {name} -> {}; walls.toml: {}", show(drawn), show(allowed)));
            }
        }
        problems
    }
}

/// Returns the first finding of each file without an exception, and the number of further findings there.
fn unexcused<'a>(found: &[&'a Finding], list: &[Exception]) -> impl Iterator<Item = (&'a Finding, usize)> {
    let mut by_file: BTreeMap<&Path, (&Finding, usize)> = BTreeMap::new();
    for finding in found {
        if !list.iter().any(|exception| finding.path.starts_with(&exception.path)) {
            by_file.entry(&finding.path).and_modify(|(_, more)| *more += 1).or_insert((finding, 0));
        }
    }
    by_file.into_values()
}

fn show_names(names: &BTreeSet<String>) -> String {
    if names.is_empty() { "nothing".to_owned() } else { Vec::from_iter(names.iter().map(String::as_str)).join(", ") }
}

/// Parses lines such as `a, b -> c (why), d` and `a, b import nothing of ours` in the Markdown's code blocks.
fn drawn_arrows(architecture: &str) -> BTreeMap<String, BTreeSet<String>> {
    let mut arrows = BTreeMap::new();
    let mut in_block = false;
    let names = |list: &str| -> BTreeSet<String> {
        list.split(',').map(|name| name.trim().to_owned()).filter(|name| !name.is_empty()).collect()
    };
    for line in architecture.lines() {
        in_block ^= line.starts_with("```");
        if !in_block {
            continue;
        }
        let line = without_parentheses(line);
        let pair = match line.split_once(" import nothing of ours") {
            Some((left, _)) => Some((left, "")),
            None => line.split_once(" -> "),
        };
        // Other diagrams have arrows too. The left side of these arrows only has names of members.
        let is_name = |name: &String| name.chars().all(|c| matches!(c, 'a'..='z' | '0'..='9' | '-' | '/'));
        if let Some((left, right)) = pair
            && names(left).iter().all(is_name)
        {
            arrows.extend(names(left).into_iter().map(|name| (name, names(right))));
        }
    }
    arrows
}

fn without_parentheses(line: &str) -> String {
    let mut depth = 0;
    line.chars()
        .filter(|&c| {
            if c == '(' {
                depth += 1;
            }
            let keep = depth == 0;
            if c == ')' {
                depth -= 1;
            }
            keep
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(text: &str) -> Known {
        toml::from_str(text).unwrap()
    }

    fn member(directory: &str, dependencies: &[&str]) -> Member {
        let dependencies = dependencies.iter().map(|name| (*name).to_owned()).collect();
        Member { directory: directory.to_owned(), import_name: directory.to_owned(), targets: Vec::new(), dependencies }
    }

    fn check(problems: &[String], expected: &[&str]) {
        assert_eq!(problems, expected);
    }

    #[test]
    fn an_import_upward_an_arrow_that_nothing_takes_and_a_new_member_are_problems() {
        let known = known("tools = ['chores', 'gone']\n[arrows]\nlow = []\nhigh = ['low', 'mid']");
        let members =
            [member("low", &["high"]), member("high", &["low"]), member("new", &[]), member("chores", &["high"])];
        check(
            &known.check_arrows(&members),
            &[
                "low imports high; the table of arrows does not allow it",
                "high no longer imports mid: remove the arrow",
                "new has no line in [arrows]",
                "gone is no member of the workspace",
            ],
        );
    }

    #[test]
    fn a_finding_needs_an_excuse_and_an_excuse_a_finding() {
        let known =
            known("[[print]]\npath = 'a/src/output'\nreason = 'x'\n[[exit]]\npath = 'a/src/main.rs'\nreason = ''");
        let finding = |path: &str| Finding { rule: Rule::Print, path: path.into(), line: 3, seen: "println!".into() };
        check(
            &known.check_rules(&[
                finding("a/src/output/text.rs"),
                finding("a/src/output.rs"),
                finding("a/src/output.rs"),
            ]),
            &[
                "a/src/output.rs:3: println! is not in the list [[print]] (and 1 more places of this file)",
                "[[exit]] a/src/main.rs: nothing there needs it; remove the entry",
                "[[exit]] a/src/main.rs: the reason is missing",
            ],
        );
    }

    #[test]
    fn a_known_circle_may_shrink_and_must_be_written_so() {
        let known = known("[[circle]]\ncrate = 'a'\nmodules = ['x', 'y', 'z']\nreason = 'old'");
        let circle = |modules: &[&str]| Circle {
            modules: modules.iter().map(|name| (*name).to_owned()).collect(),
            round: Vec::new(),
        };
        let problems = |circle| known.check_circles("a", &[circle], |_| "way".to_owned());
        check(&problems(circle(&["x", "y", "z"])), &[]);
        check(&problems(circle(&["x", "y"])), &["[[circle]] a: z: no longer in a circle; remove from the entry"]);
        check(&problems(circle(&["w", "x", "y", "z"])), &["a: circle of w, x, y, z\nway"]);
    }

    #[test]
    fn the_map_is_read_with_its_remarks_left_out() {
        let text = "a -> b\n```text\na, b     import nothing of ours\nc -> a (ids), b\n  queue --> Server\n```\n";
        let known = known("[arrows]\na = []\nb = []\nc = ['a']");
        check(&known.check_map(text), &["ARCHITECTURE.md: c -> a, b; walls.toml: a"]);
    }
}
