//! Figures of one crate: sizes, tests, documentation, and items that are too large.
//!
//! Lines include blank lines and comments. Test lines are lines below `#[cfg(test)]` and in `tests/`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{Attribute, FnArg, ImplItem, Item, Type, Visibility};

use crate::paths::NamedPath;
use crate::resolve::{Destination, Resolver};
use crate::sizes::{Kind, Large};
use crate::tree::{SourceFile, attributes, is_test_only};

/// First words of a documentation sentence without a subject.
const RIDDLES: &[&str] = &["What", "Whether", "Who", "Whom", "Whose", "How", "It", "They", "Those"];

/// A measured item and its place.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Measured {
    pub(crate) size: usize,
    /// File and line, or file alone, and a name.
    pub(crate) place: String,
}

/// Figures of a crate.
#[derive(Debug, Default)]
pub(crate) struct Figures {
    pub(crate) files: usize,
    pub(crate) lines: usize,
    pub(crate) test_lines: usize,
    pub(crate) public_items: usize,
    pub(crate) undocumented: Vec<String>,
    pub(crate) largest_file: Measured,
    pub(crate) largest_function: Measured,
    /// Items above a limit.
    pub(crate) large: Vec<Large>,
    /// Functions that take a bare `bool`.
    pub(crate) bool_functions: Vec<String>,
    /// Documentation that starts with one of [`RIDDLES`].
    pub(crate) riddles: Vec<String>,
}

impl Figures {
    /// Adds a target of the crate.
    pub(crate) fn add(&mut self, resolver: &Resolver<'_>) {
        let tree = resolver.tree;
        self.test_lines += tree.test_files.iter().map(|(_, lines)| lines).sum::<usize>();
        tree.files.iter().for_each(|file| self.add_file(file));
        let mut methods: BTreeMap<(usize, String), usize> = BTreeMap::new();
        for (index, module) in tree.modules.iter().enumerate() {
            let path = &tree.files[module.file].path;
            let mut items = Items { figures: self, path, methods: Vec::new() };
            module.items.iter().for_each(|item| items.visit_item(item));
            for (name, count) in items.methods {
                // The same name may refer to different types in different modules.
                let named = NamedPath { segments: vec![name.clone()], line: 0 };
                let home = match resolver.resolve(index, &named) {
                    Some(Destination::Item(home) | Destination::Module(home)) => home,
                    _ => index,
                };
                *methods.entry((home, name)).or_default() += count;
            }
        }
        for ((home, name), size) in methods {
            let path = tree.files[tree.modules[home].file].path.display();
            self.add_size(Kind::Methods, size, || format!("{path} {name}"));
        }
    }

    /// Adds the lines of a file below `tests/`.
    pub(crate) fn add_tests(&mut self, path: &Path, text: &str) {
        let lines = text.lines().count();
        self.test_lines += lines;
        self.add_size(Kind::File, lines, || path.display().to_string());
    }

    /// Adds a circle of modules, which the first of them names.
    pub(crate) fn add_circle(&mut self, directory: &str, modules: &BTreeSet<String>) {
        let first = modules.first().filter(|name| !name.is_empty()).map_or("crate", String::as_str);
        self.add_size(Kind::Circle, modules.len(), || format!("{directory} {first}"));
    }

    /// Number of items above the limit of `kind`.
    pub(crate) fn count_large(&self, kind: Kind) -> usize {
        self.large.iter().filter(|item| item.kind == kind).count()
    }

    fn add_size(&mut self, kind: Kind, size: usize, place: impl FnOnce() -> String) {
        if size > kind.limit() {
            self.large.push(Large { kind, size, place: place() });
        }
    }

    fn add_file(&mut self, file: &SourceFile) {
        let is_test = |line: usize| file.test_lines.iter().any(|&(first, last)| (first..=last).contains(&line));
        let mut lines = 0;
        let mut in_docs = false;
        for (number, line) in file.text.lines().enumerate().map(|(index, line)| (index + 1, line.trim_start())) {
            if is_test(number) {
                continue;
            }
            lines += 1;
            let docs = line.strip_prefix("///").or_else(|| line.strip_prefix("//!"));
            if let (Some(text), false) = (docs, in_docs) {
                let first = text.trim_start().split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default();
                if RIDDLES.contains(&first) {
                    self.riddles.push(format!("{}:{number}: {}", file.path.display(), text.trim()));
                }
            }
            in_docs = docs.is_some();
        }
        self.files += 1;
        self.lines += lines;
        self.test_lines += file.text.lines().count() - lines;
        let place = file.path.display().to_string();
        self.add_size(Kind::File, file.text.lines().count(), || place.clone());
        self.largest_file = std::mem::take(&mut self.largest_file).max(Measured { size: lines, place });
    }
}

/// Walks the items of one module.
struct Items<'a> {
    figures: &'a mut Figures,
    path: &'a Path,
    /// Type and number of methods, by `impl` block.
    methods: Vec<(String, usize)>,
}

impl Items<'_> {
    fn place(&self, spanned: impl Spanned) -> String {
        format!("{}:{}", self.path.display(), spanned.span().start().line)
    }

    fn add_public(&mut self, visibility: &Visibility, name: &syn::Ident, attributes: &[Attribute]) {
        if !matches!(visibility, Visibility::Public(_)) {
            return;
        }
        self.figures.public_items += 1;
        if !attributes.iter().any(|attribute| attribute.path().is_ident("doc")) {
            let place = self.place(name);
            self.figures.undocumented.push(format!("{place} {name}"));
        }
    }

    /// Adds a function with its body, if it has one.
    fn add_function(&mut self, signature: &syn::Signature, whole: &impl Spanned) {
        let place = format!("{} {}", self.place(&signature.ident), signature.ident);
        let takes_bool = |argument: &FnArg| match argument {
            FnArg::Typed(typed) => matches!(&*typed.ty, Type::Path(path) if path.path.is_ident("bool")),
            FnArg::Receiver(_) => false,
        };
        if signature.inputs.iter().any(takes_bool) {
            self.figures.bool_functions.push(place.clone());
        }
        let size = whole.span().end().line + 1 - signature.fn_token.span().start().line;
        let path = self.path.display();
        self.figures.add_size(Kind::Function, size, || format!("{path} {}", signature.ident));
        let largest = &mut self.figures.largest_function;
        *largest = std::mem::take(largest).max(Measured { size, place });
    }
}

impl<'ast> Visit<'ast> for Items<'_> {
    fn visit_item(&mut self, item: &'ast Item) {
        if attributes(item).is_some_and(is_test_only) {
            return;
        }
        match item {
            Item::Const(item) => self.add_public(&item.vis, &item.ident, &item.attrs),
            Item::Enum(item) => self.add_public(&item.vis, &item.ident, &item.attrs),
            Item::Fn(item) => self.add_public(&item.vis, &item.sig.ident, &item.attrs),
            Item::Static(item) => self.add_public(&item.vis, &item.ident, &item.attrs),
            Item::Struct(item) => self.add_public(&item.vis, &item.ident, &item.attrs),
            Item::Trait(item) => self.add_public(&item.vis, &item.ident, &item.attrs),
            Item::Type(item) => self.add_public(&item.vis, &item.ident, &item.attrs),
            _ => {}
        }
        visit::visit_item(self, item);
    }

    fn visit_item_fn(&mut self, function: &'ast syn::ItemFn) {
        self.add_function(&function.sig, &function.block);
        visit::visit_item_fn(self, function);
    }

    fn visit_item_struct(&mut self, item: &'ast syn::ItemStruct) {
        let path = self.path.display();
        self.figures.add_size(Kind::Fields, item.fields.len(), || format!("{path} {}", item.ident));
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        let functions = item.items.iter().filter_map(|item| match item {
            ImplItem::Fn(function) if !is_test_only(&function.attrs) => Some(function),
            _ => None,
        });
        let functions: Vec<&syn::ImplItemFn> = functions.collect();
        for function in &functions {
            if item.trait_.is_none() {
                self.add_public(&function.vis, &function.sig.ident, &function.attrs);
            }
            self.add_function(&function.sig, &function.block);
            visit::visit_block(self, &function.block);
        }
        if let (Type::Path(path), None) = (&*item.self_ty, &item.trait_)
            && let Some(name) = path.path.segments.last()
        {
            self.methods.push((name.ident.to_string(), functions.len()));
        }
    }

    fn visit_trait_item_fn(&mut self, function: &'ast syn::TraitItemFn) {
        self.add_function(&function.sig, &function);
        visit::visit_trait_item_fn(self, function);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::sample;

    fn figures(files: &[(&str, &str)]) -> Figures {
        let tree = sample(files);
        let mut figures = Figures::default();
        figures.add(&Resolver::new(&tree));
        figures
    }

    #[test]
    fn lines_of_tests_are_apart_from_the_others() {
        let found = figures(&[("lib.rs", "fn f() {\n}\n\n#[cfg(test)]\nmod tests {\n}\n")]);
        assert_eq!((found.lines, found.test_lines, found.largest_function.size), (3, 3, 2));
    }

    #[test]
    fn public_items_without_documentation_are_named() {
        let source =
            "/// A.\npub struct A;\nimpl A {\n/// F.\npub fn f(&self) {}\npub fn g(&self) {}\nfn h(&self) {} }";
        let found = figures(&[("lib.rs", source)]);
        assert_eq!((found.public_items, found.undocumented.as_slice()), (3, &["lib.rs:6 g".to_owned()][..]));
    }

    #[test]
    fn documentation_without_a_subject_is_quoted() {
        let source = "//! It is.\n\n/// What a rank does.\n/// Who.\nfn f() {}\n/// Whoever. \nfn g() {}\n/// Number of ranks.\nfn h() {}";
        let found = figures(&[("lib.rs", source)]);
        assert_eq!(found.riddles, ["lib.rs:1: It is.", "lib.rs:3: What a rank does."]);
    }

    #[test]
    fn bare_bools_are_found_and_others_are_not() {
        let source =
            "fn f(a: bool) {} fn g(a: Option<bool>, b: &mut bool) -> bool {} impl A { fn h(&self, b: bool) {} }";
        assert_eq!(figures(&[("lib.rs", source)]).bool_functions, ["lib.rs:1 f", "lib.rs:1 h"]);
    }

    #[test]
    fn methods_of_one_type_are_added_up_over_files() {
        let methods = |count: usize| (0..count).map(|i| format!("fn m{i}(&self) {{}} ")).collect::<String>();
        let here = format!("mod a; struct Big; impl Big {{ {} }}", methods(20));
        let there =
            format!("use super::Big; struct Small; impl Big {{ {} }} impl Small {{ {} }}", methods(16), methods(30));
        let found = figures(&[("lib.rs", &here), ("a.rs", &there)]);
        assert_eq!(found.large, [Large { kind: Kind::Methods, size: 36, place: "lib.rs Big".to_owned() }]);
    }
}
