//! Resolution of paths: to the module that defines the item, through re-exports, as far as possible by names
//! alone.
//!
//! Types are not inferred, so that method calls are not resolved. Names from macros are not resolved either.

use std::collections::HashSet;

use syn::Item;

use crate::paths::{self, NamedPath, Paths};
use crate::tree::Tree;

/// Maximum number of re-exports for one path, so that two re-exports of each other terminate.
const RE_EXPORTS_MAX: usize = 16;

/// Target of a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Destination {
    /// A module itself.
    Module(usize),
    /// An item that this module defines.
    Item(usize),
    /// A path into another crate.
    External(Vec<String>),
}

/// A module tree with the names of each module.
pub(crate) struct Resolver<'a> {
    pub(crate) tree: &'a Tree,
    /// Paths in each module, by the module's index.
    pub(crate) paths: Vec<Paths>,
    defined: Vec<HashSet<String>>,
}

impl<'a> Resolver<'a> {
    /// Reads the names of all modules.
    pub(crate) fn new(tree: &'a Tree) -> Self {
        let paths = tree.modules.iter().map(|module| paths::collect(&module.items)).collect();
        let defined = tree.modules.iter().map(|module| module.items.iter().filter_map(name_of).collect()).collect();
        Self { tree, paths, defined }
    }

    /// Resolves a path in `module`.
    pub(crate) fn resolve(&self, module: usize, path: &NamedPath) -> Option<Destination> {
        self.in_scope(module, &path.segments, RE_EXPORTS_MAX)
    }

    fn in_scope(&self, module: usize, segments: &[String], re_exports: usize) -> Option<Destination> {
        let (first, rest) = segments.split_first()?;
        match first.as_str() {
            "crate" => self.below(0, rest, re_exports),
            "self" => self.below(module, rest, re_exports),
            "super" => self.in_super(self.tree.modules[module].parent?, rest, re_exports),
            "Self" => None,
            _ => match self.below(module, segments, re_exports) {
                None if rest.is_empty() => None,
                None => Some(Destination::External(segments.to_vec())),
                found => found,
            },
        }
    }

    fn in_super(&self, module: usize, segments: &[String], re_exports: usize) -> Option<Destination> {
        match segments.split_first() {
            Some((first, rest)) if first == "super" => {
                self.in_super(self.tree.modules[module].parent?, rest, re_exports)
            }
            _ => self.below(module, segments, re_exports),
        }
    }

    /// Resolves segments that are names in `module`.
    fn below(&self, module: usize, segments: &[String], re_exports: usize) -> Option<Destination> {
        let Some((name, rest)) = segments.split_first() else { return Some(Destination::Module(module)) };
        if let Some(&child) = self.tree.modules[module].children.get(name) {
            return self.below(child, rest, re_exports);
        }
        if self.defined[module].contains(name) {
            return Some(Destination::Item(module));
        }
        let re_exports = re_exports.checked_sub(1)?;
        let imports = &self.paths[module].imports;
        let named = imports.iter().filter(|import| import.name == *name && import.path.segments != segments[..1]);
        let by_name = named.filter_map(|import| self.imported(module, &import.path, rest, re_exports)).next();
        by_name.or_else(|| {
            let globs = imports.iter().filter(|import| import.name == "*");
            let mut modules = globs.filter_map(|import| self.module_of(module, &import.path, re_exports));
            modules.find_map(|other| self.below(other, segments, re_exports))
        })
    }

    /// Resolves an import of `module`, and then `rest`.
    fn imported(&self, module: usize, path: &NamedPath, rest: &[String], re_exports: usize) -> Option<Destination> {
        match self.in_scope(module, &path.segments, re_exports) {
            Some(Destination::Module(other)) => self.below(other, rest, re_exports),
            Some(Destination::External(path)) => Some(Destination::External([&path, rest].concat())),
            None if path.segments.len() == 1 => Some(Destination::External([&path.segments, rest].concat())),
            found => found,
        }
    }

    fn module_of(&self, module: usize, path: &NamedPath, re_exports: usize) -> Option<usize> {
        match self.in_scope(module, &path.segments, re_exports)? {
            Destination::Module(other) if other != module => Some(other),
            _ => None,
        }
    }
}

/// Returns the name that an item defines in its module.
fn name_of(item: &Item) -> Option<String> {
    let ident = match item {
        Item::Const(item) => &item.ident,
        Item::Enum(item) => &item.ident,
        Item::Fn(item) => &item.sig.ident,
        Item::Macro(item) => item.ident.as_ref()?,
        Item::Static(item) => &item.ident,
        Item::Struct(item) => &item.ident,
        Item::Trait(item) => &item.ident,
        Item::Type(item) => &item.ident,
        Item::Union(item) => &item.ident,
        _ => return None,
    };
    Some(ident.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::sample;

    const FILES: &[(&str, &str)] = &[
        ("lib.rs", "mod a; mod b; pub use a::inner::Deep; use serde::de as other;"),
        ("a.rs", "pub mod inner; pub(crate) use inner::Deep as Renamed; pub use self::inner::*;"),
        ("a/inner.rs", "pub struct Deep; pub enum Choice { One }"),
        ("b.rs", "use super::a; fn f() {}"),
    ];

    /// Resolves `path` in module `b` and formats the result.
    fn check(path: &str, expected: &str) {
        let tree = sample(FILES);
        let resolver = Resolver::new(&tree);
        let from = tree.modules.iter().position(|module| module.path == ["b"]).unwrap();
        let named = NamedPath { segments: path.split("::").map(str::to_owned).collect(), line: 1 };
        let name = |module: usize| tree.modules[module].path.join("::");
        let shown = match resolver.resolve(from, &named) {
            Some(Destination::Module(module)) => format!("module {}", name(module)),
            Some(Destination::Item(module)) => format!("item of {}", name(module)),
            Some(Destination::External(path)) => format!("external {}", path.join("::")),
            None => "nowhere".to_owned(),
        };
        assert_eq!(shown, expected, "{path}");
    }

    #[test]
    fn a_path_leads_to_where_its_item_is_defined() {
        check("crate::a::inner::Deep", "item of a::inner");
        check("super::a::inner", "module a::inner");
        check("a::inner::Choice::One", "item of a::inner");
        check("self::f", "item of b");
    }

    #[test]
    fn re_exports_are_followed() {
        check("crate::Deep", "item of a::inner");
        check("crate::a::Renamed", "item of a::inner");
        check("a::Choice", "item of a::inner");
        check("crate::other::Error", "external serde::de::Error");
    }

    #[test]
    fn other_crates_and_unknown_names_are_told_apart() {
        check("tokio::sync::mpsc", "external tokio::sync::mpsc");
        check("crate::nothing", "nowhere");
        check("Self::new", "nowhere");
    }

    #[test]
    fn re_exports_in_a_circle_come_to_an_end() {
        let tree =
            sample(&[("lib.rs", "mod a; mod b;"), ("a.rs", "pub use crate::b::x;"), ("b.rs", "pub use crate::a::x;")]);
        let segments = ["crate", "a", "x"].map(str::to_owned).to_vec();
        assert_eq!(Resolver::new(&tree).resolve(0, &NamedPath { segments, line: 1 }), None);
    }
}
