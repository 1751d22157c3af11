//! Operations that are only allowed in the places of `walls.toml`: printing, exits, raw protobuf, `unsafe`.

use std::path::PathBuf;

use proc_macro2::{TokenStream, TokenTree};
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{ImplItem, Item};

use crate::resolve::{Destination, Resolver};
use crate::tree::{attributes, is_test_only};

/// An operation that is restricted to listed places.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Rule {
    /// `println!` and similar macros, and the handles of stdout and stderr.
    Print,
    /// Exit of the process.
    Exit,
    /// Generated protobuf types, and the library for them.
    Protobuf,
    /// The keyword.
    Unsafe,
}

impl Rule {
    pub(crate) const ALL: [Self; 4] = [Self::Print, Self::Exit, Self::Protobuf, Self::Unsafe];

    /// Name of the rule's list in `walls.toml`.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Print => "print",
            Self::Exit => "exit",
            Self::Protobuf => "protobuf",
            Self::Unsafe => "unsafe",
        }
    }
}

/// A place with a restricted operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Finding {
    pub(crate) rule: Rule,
    pub(crate) path: PathBuf,
    pub(crate) line: usize,
    /// Its text, shortened to its name.
    pub(crate) seen: String,
}

const PRINTING_MACROS: &[&str] = &["print", "println", "eprint", "eprintln"];
const PRINTING_PATHS: &[&[&str]] = &[&["std", "io", "stdout"], &["std", "io", "stderr"]];
const EXITING_PATHS: &[&[&str]] = &[&["std", "process", "exit"], &["std", "process", "abort"]];
const PROTOBUF_PATHS: &[&[&str]] = &[&["pmi_transport", "proto"], &["prost"]];
/// Module of the crate `pmi_transport` that its users import by the first of [`PROTOBUF_PATHS`].
const PROTOBUF_MODULE: &str = "proto";

/// Finds all places in a target of the crate `import_name`.
pub(crate) fn find(resolver: &Resolver<'_>, import_name: &str) -> Vec<Finding> {
    let tree = resolver.tree;
    let mut findings = Vec::new();
    for (index, module) in tree.modules.iter().enumerate() {
        let path = &tree.files[module.file].path;
        let mut add = |rule, line, seen: String| findings.push(Finding { rule, path: path.clone(), line, seen });
        let mut words = Words::default();
        module.items.iter().for_each(|item| words.visit_item(item));
        words.found.into_iter().for_each(|(rule, line, seen)| add(rule, line, seen));

        let paths = &resolver.paths[index];
        for path in paths.imports.iter().map(|import| &import.path).chain(&paths.inline) {
            let full = match resolver.resolve(index, path) {
                Some(Destination::External(full)) => full,
                Some(Destination::Module(target) | Destination::Item(target)) => {
                    [&[import_name.to_owned()], tree.modules[target].path.as_slice()].concat()
                }
                None => continue,
            };
            let inside = import_name == PROTOBUF_PATHS[0][0]
                && module.path.first().is_some_and(|first| first == PROTOBUF_MODULE);
            if let Some(rule) = rule_of(&full)
                && !(rule == Rule::Protobuf && inside)
            {
                add(rule, path.line, path.segments.join("::"));
            }
        }
    }
    findings
}

fn rule_of(path: &[String]) -> Option<Rule> {
    let lists = [(Rule::Print, PRINTING_PATHS), (Rule::Exit, EXITING_PATHS), (Rule::Protobuf, PROTOBUF_PATHS)];
    let begins = |prefix: &[&str]| path.len() >= prefix.len() && path.iter().zip(prefix).all(|(a, b)| a == b);
    lists.into_iter().find(|(_, prefixes)| prefixes.iter().any(|prefix| begins(prefix))).map(|(rule, _)| rule)
}

/// Macro calls that print, and the keyword `unsafe`, also inside macro calls.
#[derive(Debug, Default)]
struct Words {
    found: Vec<(Rule, usize, String)>,
}

impl Words {
    fn add_unsafe(&mut self, keyword: &impl Spanned) {
        self.found.push((Rule::Unsafe, keyword.span().start().line, "unsafe".to_owned()));
    }

    fn add_tokens(&mut self, tokens: TokenStream) {
        let mut tokens = tokens.into_iter().peekable();
        while let Some(token) = tokens.next() {
            match token {
                TokenTree::Ident(ident) if ident == "unsafe" => self.add_unsafe(&ident),
                TokenTree::Ident(ident) if PRINTING_MACROS.iter().any(|name| ident == name) => {
                    if matches!(tokens.peek(), Some(TokenTree::Punct(punct)) if punct.as_char() == '!') {
                        self.found.push((Rule::Print, ident.span().start().line, format!("{ident}!")));
                    }
                }
                TokenTree::Group(group) => self.add_tokens(group.stream()),
                _ => {}
            }
        }
    }
}

impl<'ast> Visit<'ast> for Words {
    fn visit_item(&mut self, item: &'ast Item) {
        if !attributes(item).is_some_and(is_test_only) {
            visit::visit_item(self, item);
        }
    }

    fn visit_impl_item(&mut self, item: &'ast ImplItem) {
        if !matches!(item, ImplItem::Fn(function) if is_test_only(&function.attrs)) {
            visit::visit_impl_item(self, item);
        }
    }

    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        if let Some(last) = call.path.segments.last()
            && PRINTING_MACROS.iter().any(|name| last.ident == name)
        {
            self.found.push((Rule::Print, last.ident.span().start().line, format!("{}!", last.ident)));
        }
        self.add_tokens(call.tokens.clone());
    }

    fn visit_expr_unsafe(&mut self, block: &'ast syn::ExprUnsafe) {
        self.add_unsafe(&block.unsafe_token);
        visit::visit_expr_unsafe(self, block);
    }

    fn visit_signature(&mut self, signature: &'ast syn::Signature) {
        signature.unsafety.iter().for_each(|keyword| self.add_unsafe(keyword));
        visit::visit_signature(self, signature);
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        item.unsafety.iter().for_each(|keyword| self.add_unsafe(keyword));
        visit::visit_item_impl(self, item);
    }

    fn visit_item_foreign_mod(&mut self, item: &'ast syn::ItemForeignMod) {
        item.unsafety.iter().for_each(|keyword| self.add_unsafe(keyword));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::sample;

    fn check(source: &str, expected: &[(Rule, &str)]) {
        let tree = sample(&[("lib.rs", source)]);
        let found = find(&Resolver::new(&tree), "some_crate");
        let found: Vec<(Rule, &str)> = found.iter().map(|finding| (finding.rule, finding.seen.as_str())).collect();
        assert_eq!(found, expected, "{source}");
    }

    #[test]
    fn printing_is_found_wherever_it_hides() {
        check("fn f() { println!(\"x\"); }", &[(Rule::Print, "println!")]);
        check("fn f() { select! { _ = a => { std::eprintln!(\"x\") } } }", &[(Rule::Print, "eprintln!")]);
        check("use std::io; fn f() { io::stderr(); }", &[(Rule::Print, "io::stderr")]);
        check("fn f() { write!(text, \"println\").ok(); }", &[]);
    }

    #[test]
    fn the_end_of_the_process_is_found_through_an_import() {
        check("use std::process; fn f() { process::exit(1) }", &[(Rule::Exit, "process::exit")]);
        check("use std::process::exit; fn f() { exit(1) }", &[(Rule::Exit, "std::process::exit")]);
        check("use std::process::Command; fn f() { status.process.exit(1) }", &[]);
    }

    #[test]
    fn raw_protobuf_is_found_by_type_and_by_trait() {
        check(
            "use pmi_transport::proto::v1; fn f(x: v1::Event) {}",
            &[(Rule::Protobuf, "pmi_transport::proto::v1"), (Rule::Protobuf, "v1::Event")],
        );
        check("fn f(x: &impl prost::Message) {}", &[(Rule::Protobuf, "prost::Message")]);
        check("use pmi_transport::connect;", &[]);
    }

    #[test]
    fn unsafe_is_found_in_blocks_functions_and_implementations() {
        let found = [(Rule::Unsafe, "unsafe")];
        check("fn f() { unsafe { g() } }", &found);
        check("unsafe fn f() {}", &found);
        check("unsafe impl Send for A {}", &found);
        check("fn f() { let unsafe_code = \"unsafe\"; }", &[]);
    }

    #[test]
    fn tests_may_do_all_of_it() {
        check("#[cfg(test)] mod tests { fn f() { println!(\"x\"); unsafe { g() } std::process::exit(1) } }", &[]);
    }
}
