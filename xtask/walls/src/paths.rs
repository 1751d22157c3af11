//! Paths in the code of one module: imports, inline paths, and paths inside macro calls.
//!
//! [`crate::resolve`] resolves them.

use proc_macro2::{TokenStream, TokenTree};
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{Item, UseTree};

use crate::tree::{attributes, is_test_only};

/// A path in the source, with a `use` group split; `["crate", "kvs", "Segment"]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NamedPath {
    pub(crate) segments: Vec<String>,
    pub(crate) line: usize,
}

/// A name that a `use` adds to the scope of a module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Import {
    /// Name in the importing module, `*` for all names of a module.
    pub(crate) name: String,
    pub(crate) path: NamedPath,
}

/// All paths in the items of one module.
#[derive(Debug, Default)]
pub(crate) struct Paths {
    pub(crate) imports: Vec<Import>,
    /// Inline paths of at least two segments.
    pub(crate) inline: Vec<NamedPath>,
}

/// Collects the paths of a module's items.
pub(crate) fn collect(items: &[Item]) -> Paths {
    let mut paths = Paths::default();
    items.iter().for_each(|item| paths.visit_item(item));
    paths
}

impl Paths {
    fn add_use(&mut self, prefix: &[String], tree: &UseTree) {
        let line = tree.span().start().line;
        let mut add = |name: String, last: Option<String>| {
            let segments = prefix.iter().cloned().chain(last).collect();
            self.imports.push(Import { name, path: NamedPath { segments, line } });
        };
        match tree {
            UseTree::Path(path) => {
                let prefix: Vec<String> = prefix.iter().cloned().chain([path.ident.to_string()]).collect();
                self.add_use(&prefix, &path.tree);
            }
            // `use a::{self}` adds `a`.
            UseTree::Name(name) if name.ident == "self" => add(prefix.last().cloned().unwrap_or_default(), None),
            UseTree::Name(name) => add(name.ident.to_string(), Some(name.ident.to_string())),
            UseTree::Rename(rename) if rename.ident == "self" => add(rename.rename.to_string(), None),
            UseTree::Rename(rename) => add(rename.rename.to_string(), Some(rename.ident.to_string())),
            UseTree::Glob(_) => add("*".to_owned(), None),
            UseTree::Group(group) => group.items.iter().for_each(|tree| self.add_use(prefix, tree)),
        }
    }

    /// Finds `a::b::c` among the tokens of a macro call.
    fn add_tokens(&mut self, tokens: TokenStream) {
        let mut segments: Vec<String> = Vec::new();
        let (mut line, mut colons) = (0, 0);
        for token in tokens {
            match token {
                TokenTree::Ident(ident) => {
                    if colons != 2 {
                        self.end_path(&mut segments, line);
                        line = ident.span().start().line;
                    }
                    segments.push(ident.to_string());
                    colons = 0;
                }
                TokenTree::Punct(punct) if punct.as_char() == ':' => colons += 1,
                other => {
                    self.end_path(&mut segments, line);
                    colons = 0;
                    if let TokenTree::Group(group) = other {
                        self.add_tokens(group.stream());
                    }
                }
            }
        }
        self.end_path(&mut segments, line);
    }

    fn end_path(&mut self, segments: &mut Vec<String>, line: usize) {
        let segments = std::mem::take(segments);
        if segments.len() > 1 {
            self.inline.push(NamedPath { segments, line });
        }
    }
}

impl<'ast> Visit<'ast> for Paths {
    fn visit_item(&mut self, item: &'ast Item) {
        if !attributes(item).is_some_and(is_test_only) {
            visit::visit_item(self, item);
        }
    }

    fn visit_impl_item(&mut self, item: &'ast syn::ImplItem) {
        let test_only = match item {
            syn::ImplItem::Fn(function) => is_test_only(&function.attrs),
            syn::ImplItem::Const(constant) => is_test_only(&constant.attrs),
            _ => false,
        };
        if !test_only {
            visit::visit_impl_item(self, item);
        }
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        self.add_use(&[], &item.tree);
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let mut segments: Vec<String> = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        self.end_path(&mut segments, path.span().start().line);
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        self.visit_path(&call.path);
        self.add_tokens(call.tokens.clone());
    }

    // `pub(in crate::a)` and attributes import nothing.
    fn visit_visibility(&mut self, _: &'ast syn::Visibility) {}

    fn visit_attribute(&mut self, _: &'ast syn::Attribute) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(source: &str) -> Paths {
        collect(&syn::parse_file(source).unwrap().items)
    }

    fn names(paths: &[NamedPath]) -> Vec<String> {
        paths.iter().map(|path| path.segments.join("::")).collect()
    }

    #[test]
    fn a_group_of_imports_is_taken_apart() {
        let found = paths("use crate::{a::{self, B as C}, d::*};");
        let shown: Vec<_> =
            found.imports.iter().map(|import| (import.name.as_str(), import.path.segments.join("::"))).collect();
        let expected = [("a", "crate::a"), ("C", "crate::a::B"), ("*", "crate::d")];
        assert_eq!(shown, expected.map(|(name, path)| (name, path.to_owned())));
    }

    #[test]
    fn inline_paths_are_found_in_types_expressions_and_macro_calls() {
        let found = paths("fn f(x: super::A) -> u8 { crate::b::g(); assert!(crate::c::D == x, \"{}\", self::e(1)) }");
        assert_eq!(names(&found.inline), ["super::A", "crate::b::g", "crate::c::D", "self::e"]);
    }

    #[test]
    fn what_only_tests_compile_is_left_out() {
        let found = paths("#[cfg(test)] use crate::a; impl X { #[cfg(test)] fn f() { crate::b::c() } }");
        assert_eq!((found.imports.len(), found.inline.len()), (0, 0), "{found:?}");
    }
}
