//! Circles between the files of a crate, by two counts.
//!
//! With [`Family::One`], imports between a module and its ancestors are left out: no such circle is allowed. With [`Family::Apart`] each file
//! counts for itself, and a module that its parent uses must not import the parent. `xtask/sizes.txt` has the remaining circles.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::PathBuf;

use crate::resolve::{Destination, Resolver};
use crate::tree::Tree;

/// An import from one file in another file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Arrow {
    pub(crate) from: usize,
    pub(crate) to: usize,
    /// Line in `from`.
    pub(crate) line: usize,
}

/// Imports between files, by file index, with the first line of each.
#[derive(Debug, Default)]
pub(crate) struct Graph {
    arrows: BTreeMap<usize, BTreeMap<usize, usize>>,
}

/// Files that all reach each other.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Circle {
    /// Names of the modules, sorted.
    pub(crate) modules: BTreeSet<String>,
    /// A shortest cycle through some of them.
    pub(crate) round: Vec<Arrow>,
}

/// Treatment of a module and its ancestors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Family {
    /// They count as one.
    One,
    /// Each file counts for itself.
    Apart,
}

/// Collects the imports between files.
pub(crate) fn graph(resolver: &Resolver<'_>, family: Family) -> Graph {
    let tree = resolver.tree;
    let mut graph = Graph::default();
    for (module, paths) in resolver.paths.iter().enumerate() {
        for path in paths.imports.iter().map(|import| &import.path).chain(&paths.inline) {
            let Some(Destination::Module(target) | Destination::Item(target)) = resolver.resolve(module, path) else {
                continue;
            };
            let (from, to) = (tree.modules[module].file, tree.modules[target].file);
            let is_family = is_ancestor(tree, from, to) || is_ancestor(tree, to, from);
            if from != to && (family == Family::Apart || !is_family) {
                graph.arrows.entry(from).or_default().entry(to).or_insert(path.line);
            }
        }
    }
    graph
}

/// Returns true if a file is the other one, or an ancestor of it.
fn is_ancestor(tree: &Tree, above: usize, below: usize) -> bool {
    name_parts(tree, below).starts_with(name_parts(tree, above))
}

fn name_parts(tree: &Tree, file: usize) -> &[String] {
    &tree.modules[tree.files[file].module].path
}

/// Returns the name of the module in a file.
pub(crate) fn module_name(tree: &Tree, file: usize) -> String {
    name_parts(tree, file).join("::")
}

/// Finds all circles.
pub(crate) fn circles(tree: &Tree, graph: &Graph) -> Vec<Circle> {
    let reach: Vec<BTreeSet<usize>> = (0..tree.files.len()).map(|file| graph.reachable(file)).collect();
    let mut placed: BTreeSet<usize> = BTreeSet::new();
    let mut circles = Vec::new();
    for file in 0..tree.files.len() {
        if !reach[file].contains(&file) || placed.contains(&file) {
            continue;
        }
        let members: BTreeSet<usize> =
            reach[file].iter().copied().filter(|&other| reach[other].contains(&file)).collect();
        placed.extend(&members);
        let rounds = members.iter().filter_map(|&file| graph.shortest_round(file));
        let round = rounds.min_by_key(Vec::len).unwrap_or_default();
        circles.push(Circle { modules: members.iter().map(|&file| module_name(tree, file)).collect(), round });
    }
    circles
}

impl Graph {
    fn next(&self, file: usize) -> impl Iterator<Item = (usize, usize)> {
        self.arrows.get(&file).into_iter().flatten().map(|(&to, &line)| (to, line))
    }

    /// Returns the files that `file` reaches by at least one import.
    fn reachable(&self, file: usize) -> BTreeSet<usize> {
        let mut reached = BTreeSet::new();
        let mut open = vec![file];
        while let Some(file) = open.pop() {
            open.extend(self.next(file).map(|(to, _)| to).filter(|&to| reached.insert(to)));
        }
        reached
    }

    /// Returns a shortest cycle from `file`.
    fn shortest_round(&self, file: usize) -> Option<Vec<Arrow>> {
        let mut came_by: BTreeMap<usize, Arrow> = BTreeMap::new();
        let mut open = VecDeque::from([file]);
        while let Some(from) = open.pop_front() {
            for (to, line) in self.next(from) {
                if let std::collections::btree_map::Entry::Vacant(entry) = came_by.entry(to) {
                    entry.insert(Arrow { from, to, line });
                    open.push_back(to);
                }
            }
        }
        let mut round = vec![came_by.get(&file)?.clone()];
        while round[round.len() - 1].from != file {
            let from = round[round.len() - 1].from;
            round.push(came_by.get(&from)?.clone());
        }
        round.reverse();
        Some(round)
    }
}

impl Circle {
    /// Returns the cycle, one import per line.
    pub(crate) fn describe(&self, tree: &Tree) -> String {
        let line = |arrow: &Arrow| {
            let path: &PathBuf = &tree.files[arrow.from].path;
            format!("      {}:{} imports {}", path.display(), arrow.line, module_name(tree, arrow.to))
        };
        self.round.iter().map(line).collect::<Vec<_>>().join("\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::sample;

    fn check(files: &[(&str, &str)], expected: &[&[&str]]) {
        let tree = sample(files);
        let resolver = Resolver::new(&tree);
        let found = circles(&tree, &graph(&resolver, Family::One));
        let found: Vec<Vec<&str>> =
            found.iter().map(|circle| circle.modules.iter().map(String::as_str).collect()).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn two_files_that_import_each_other_are_a_circle() {
        check(
            &[("lib.rs", "mod a; mod b;"), ("a.rs", "use crate::b::B; struct A;"), ("b.rs", "struct B(super::a::A);")],
            &[&["a", "b"]],
        );
    }

    #[test]
    fn imports_in_one_direction_are_none() {
        check(&[("lib.rs", "mod a; mod b;"), ("a.rs", "use crate::b::B;"), ("b.rs", "pub struct B;")], &[]);
    }

    #[test]
    fn a_parent_and_its_child_may_import_each_other() {
        check(
            &[
                ("lib.rs", "mod a; use a::A; struct R;"),
                ("a.rs", "mod b; use b::B; use super::R; struct A;"),
                ("a/b.rs", "use super::A; use crate::R; struct B;"),
            ],
            &[],
        );
    }

    #[test]
    fn a_parent_and_its_child_are_a_circle_where_each_counts_for_itself() {
        let tree = sample(&[
            ("lib.rs", "mod a; mod c; use a::A;"),
            ("a.rs", "mod b; use b::B; pub struct A;"),
            ("a/b.rs", "use super::A; pub struct B;"),
            ("c.rs", "mod d; use d::D;"),
            ("c/d.rs", "pub struct D;"),
        ]);
        let found = circles(&tree, &graph(&Resolver::new(&tree), Family::Apart));
        let found: Vec<Vec<&String>> = found.iter().map(|circle| circle.modules.iter().collect()).collect();
        assert_eq!(found, [["a", "a::b"]]);
    }

    #[test]
    fn a_re_export_leads_to_the_file_that_defines() {
        // Through the root both files would only import the root.
        check(
            &[
                ("lib.rs", "mod a; mod b; pub use a::A; pub use b::B;"),
                ("a.rs", "use crate::B; pub struct A;"),
                ("b.rs", "use crate::A; pub struct B;"),
            ],
            &[&["a", "b"]],
        );
    }

    #[test]
    fn tests_may_import_what_they_like() {
        check(
            &[
                ("lib.rs", "mod a; mod b;"),
                ("a.rs", "use crate::b::B; struct A;"),
                ("b.rs", "struct B; #[cfg(test)] mod tests { use crate::a::A; }"),
            ],
            &[],
        );
    }

    #[test]
    fn the_way_round_is_the_shortest() {
        let tree = sample(&[
            ("lib.rs", "mod a; mod b; mod c;"),
            ("a.rs", "use crate::b;\nuse crate::c;"),
            ("b.rs", "use crate::c;"),
            ("c.rs", "use crate::a;"),
        ]);
        let resolver = Resolver::new(&tree);
        let found = circles(&tree, &graph(&resolver, Family::One));
        assert_eq!(found[0].modules.len(), 3);
        assert_eq!(found[0].describe(&tree), "      a.rs:2 imports c\n      c.rs:1 imports a");
    }
}
