//! Module tree of one target: the files of `mod` declarations, parsed, without items that only tests compile.
//!
//! An inline `mod a { .. }` is a separate module in the file of its parent.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use syn::spanned::Spanned;
use syn::{Attribute, Item, Meta};

/// A parsed file, with its lines that only tests compile.
#[derive(Debug)]
pub(crate) struct SourceFile {
    /// Path below the repository's root.
    pub(crate) path: PathBuf,
    pub(crate) text: String,
    /// Module of the whole file.
    pub(crate) module: usize,
    /// First and last line of each test-only item, counted from 1.
    pub(crate) test_lines: Vec<(usize, usize)>,
}

/// A module: a file, or an inline part of one.
pub(crate) struct Module {
    /// Names from the crate's root down; empty for the root.
    pub(crate) path: Vec<String>,
    pub(crate) parent: Option<usize>,
    /// Index into [`Tree::files`].
    pub(crate) file: usize,
    /// Child modules by name.
    pub(crate) children: HashMap<String, usize>,
    /// Items of production code, without child modules.
    pub(crate) items: Vec<Item>,
}

/// All modules of one library or binary.
#[derive(Default)]
pub(crate) struct Tree {
    pub(crate) modules: Vec<Module>,
    pub(crate) files: Vec<SourceFile>,
    /// Files that only tests compile: path and number of lines.
    pub(crate) test_files: Vec<(PathBuf, usize)>,
}

/// Source of the files: a directory, or a table in the checker's own tests.
pub(crate) type ReadSource<'a> = dyn Fn(&Path) -> Option<String> + 'a;

impl Tree {
    /// Reads the target with the root file `root`.
    pub(crate) fn read(root: &Path, read: &ReadSource<'_>) -> Result<Self> {
        let mut tree = Self::default();
        let directory = root.parent().unwrap_or(Path::new("")).to_owned();
        tree.add_file(root, &directory, Vec::new(), None, read)?;
        Ok(tree)
    }

    /// Adds the module in the file `path`. Files of its children are below `directory`.
    fn add_file(
        &mut self,
        path: &Path,
        directory: &Path,
        names: Vec<String>,
        parent: Option<usize>,
        read: &ReadSource<'_>,
    ) -> Result<usize> {
        let text = read(path).with_context(|| format!("cannot read {}", path.display()))?;
        let parsed = syn::parse_file(&text).with_context(|| format!("cannot parse {}", path.display()))?;
        let (file, module) = (self.files.len(), self.modules.len());
        self.files.push(SourceFile { path: path.to_owned(), text, module, test_lines: Vec::new() });
        let own = Module { path: names, parent, file, children: HashMap::new(), items: Vec::new() };
        self.modules.push(own);
        self.add_items(module, parsed.items, directory, read)?;
        Ok(module)
    }

    fn add_items(&mut self, module: usize, items: Vec<Item>, directory: &Path, read: &ReadSource<'_>) -> Result<()> {
        let file = self.modules[module].file;
        for item in items {
            let test_only = attributes(&item).is_some_and(is_test_only);
            if test_only {
                let span = item.span();
                self.files[file].test_lines.push((span.start().line, span.end().line));
            }
            match item {
                Item::Mod(declaration) if declaration.content.is_none() => {
                    let Some((path, below)) = find_file(&declaration, &self.files[file].path, directory, read) else {
                        anyhow::bail!("{}: no file for module {}", self.files[file].path.display(), declaration.ident);
                    };
                    if test_only {
                        self.add_test_file(&path, &below, read);
                        continue;
                    }
                    let names = self.names_of_child(module, &declaration.ident);
                    let child = self.add_file(&path, &below, names, Some(module), read)?;
                    self.modules[module].children.insert(declaration.ident.to_string(), child);
                }
                _ if test_only => {}
                Item::Mod(declaration) => {
                    let path = self.names_of_child(module, &declaration.ident);
                    let child = self.modules.len();
                    let inline =
                        Module { path, parent: Some(module), file, children: HashMap::new(), items: Vec::new() };
                    self.modules.push(inline);
                    let name = declaration.ident.to_string();
                    let items = declaration.content.map(|(_, items)| items).unwrap_or_default();
                    self.add_items(child, items, &directory.join(&name), read)?;
                    self.modules[module].children.insert(name, child);
                }
                item => self.modules[module].items.push(item),
            }
        }
        Ok(())
    }

    fn names_of_child(&self, parent: usize, child: &syn::Ident) -> Vec<String> {
        let parent = self.modules[parent].path.iter().cloned();
        parent.chain([child.to_string()]).collect()
    }

    /// Counts a test file and the files that it declares.
    fn add_test_file(&mut self, path: &Path, directory: &Path, read: &ReadSource<'_>) {
        let Some(text) = read(path) else { return };
        self.test_files.push((path.to_owned(), text.lines().count()));
        let Ok(parsed) = syn::parse_file(&text) else { return };
        for item in parsed.items {
            if let Item::Mod(declaration) = item
                && declaration.content.is_none()
                && let Some((path, below)) = find_file(&declaration, path, directory, read)
            {
                self.add_test_file(&path, &below, read);
            }
        }
    }
}

/// Returns the file of a module that is declared in `declaring`, and the directory of its children.
fn find_file(
    declaration: &syn::ItemMod,
    declaring: &Path,
    directory: &Path,
    read: &ReadSource<'_>,
) -> Option<(PathBuf, PathBuf)> {
    if let Some(path) = given_path(&declaration.attrs) {
        let path = declaring.parent()?.join(path);
        let below = path.parent()?.to_owned();
        return Some((path, below));
    }
    let name = declaration.ident.to_string();
    let below = directory.join(name.trim_start_matches("r#"));
    let candidates = [below.with_extension("rs"), below.join("mod.rs")];
    let found = candidates.into_iter().find(|path| read(path).is_some())?;
    Some((found, below))
}

/// Returns the path of `#[path = ".."]`.
fn given_path(attributes: &[Attribute]) -> Option<String> {
    attributes.iter().find_map(|attribute| match &attribute.meta {
        Meta::NameValue(pair) if pair.path.is_ident("path") => match &pair.value {
            syn::Expr::Lit(syn::ExprLit { lit: syn::Lit::Str(path), .. }) => Some(path.value()),
            _ => None,
        },
        _ => None,
    })
}

/// Returns true for attributes that make an item part of test builds only: `#[test]`, `#[cfg(test)]`, `#[cfg(all(test, ..))]`.
pub(crate) fn is_test_only(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| match &attribute.meta {
        Meta::Path(path) => path.is_ident("test"),
        Meta::List(list) if list.path.is_ident("cfg") => {
            list.parse_args::<Meta>().is_ok_and(|condition| requires_test(&condition))
        }
        _ => false,
    })
}

fn requires_test(condition: &Meta) -> bool {
    match condition {
        Meta::Path(path) => path.is_ident("test"),
        Meta::List(list) if list.path.is_ident("all") => {
            let parts = list.parse_args_with(syn::punctuated::Punctuated::<Meta, syn::Token![,]>::parse_terminated);
            parts.is_ok_and(|parts| parts.iter().any(requires_test))
        }
        _ => false,
    }
}

/// Returns the attributes of an item; `None` for an item without attributes in the grammar.
pub(crate) fn attributes(item: &Item) -> Option<&[Attribute]> {
    Some(match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::ExternCrate(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::ForeignMod(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::TraitAlias(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Union(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => return None,
    })
}

/// Returns the tree of a library with these files.
#[cfg(test)]
pub(crate) fn sample(files: &[(&str, &str)]) -> Tree {
    let read = |path: &Path| files.iter().find(|(name, _)| path == Path::new(name)).map(|(_, text)| (*text).to_owned());
    Tree::read(Path::new("lib.rs"), &read).unwrap()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_are_found_in_files_directories_and_inline() {
        let tree = sample(&[
            ("lib.rs", "mod a; mod b { pub mod c; } #[path = \"elsewhere.rs\"] mod d;"),
            ("a.rs", "mod e;"),
            ("a/e/mod.rs", ""),
            ("b/c.rs", ""),
            ("elsewhere.rs", ""),
        ]);
        let names: Vec<String> = tree.modules.iter().map(|module| module.path.join("::")).collect();
        assert_eq!(names, ["", "a", "a::e", "b", "b::c", "d"]);
    }

    #[test]
    fn test_code_is_counted_and_left_out() {
        let tree = sample(&[
            ("lib.rs", "fn f() {}\n#[cfg(test)]\nmod tests {\n}\n#[cfg(all(test, unix))] mod more;\n"),
            ("more.rs", "fn g() {}\nmod again;\n"),
            ("more/again.rs", "\n\n\n"),
        ]);
        assert_eq!(tree.modules[0].items.len(), 1);
        assert_eq!(tree.files[0].test_lines, [(2, 4), (5, 5)]);
        let counted: usize = tree.test_files.iter().map(|(_, lines)| lines).sum();
        assert_eq!(counted, 5);
    }

    #[test]
    fn a_condition_that_other_builds_meet_too_is_not_test_only() {
        let tree = sample(&[("lib.rs", "#[cfg(any(test, feature = \"x\"))] fn f() {}\n#[cfg(not(test))] fn g() {}")]);
        assert_eq!(tree.modules[0].items.len(), 2);
    }
}
