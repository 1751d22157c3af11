//! Differences between the committed list of a crate and its public items.

use std::collections::BTreeSet;
use std::fmt::Write;

/// Items that are in only one of two lists.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Comparison<'a> {
    removed: Vec<&'a str>,
    added: Vec<&'a str>,
}

impl<'a> Comparison<'a> {
    /// Compares the old list with the present one. The order of lines is ignored.
    pub(crate) fn of(before: &'a str, now: &'a str) -> Self {
        let [old, new] = [before, now].map(|list| list.lines().collect::<BTreeSet<&str>>());
        Self { removed: old.difference(&new).copied().collect(), added: new.difference(&old).copied().collect() }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.removed.is_empty() && self.added.is_empty()
    }

    /// Returns a report for the author of the change: the items, and the next step.
    pub(crate) fn report(&self, name: &str) -> String {
        let mut text = String::new();
        for (sign, items) in [('-', &self.removed), ('+', &self.added)] {
            items.iter().for_each(|item| writeln!(text, "{sign} {item}").expect("a text takes all"));
        }
        let (gone, new) = (self.removed.len(), self.added.len());
        let todo = "`cargo xtask public-api --write` writes the list; say in CHANGELOG.md what embedders have to do";
        writeln!(text, "public-api: the public API of {name} has changed ({gone} items gone, {new} new): {todo}")
            .expect("a text takes all");
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEFORE: &str = "pub fn a::f()\npub fn a::g()\n";

    #[test]
    fn equal_lists_have_nothing_to_report() {
        assert!(Comparison::of(BEFORE, BEFORE).is_empty());
        assert!(Comparison::of(BEFORE, "pub fn a::g()\npub fn a::f()").is_empty());
    }

    #[test]
    fn a_report_names_what_is_gone_and_what_is_new() {
        let check = |now: &str, lines: &[&str], counts: &str| {
            let report = Comparison::of(BEFORE, now).report("a");
            let (shown, last) = report.trim_end().rsplit_once('\n').unwrap();
            assert_eq!(shown.lines().collect::<Vec<_>>(), lines);
            assert!(last.contains(&format!("the public API of a has changed ({counts})")), "{last}");
        };
        check("pub fn a::f()\npub fn a::g()\npub fn a::h()\n", &["+ pub fn a::h()"], "0 items gone, 1 new");
        check("pub fn a::f()\n", &["- pub fn a::g()"], "1 items gone, 0 new");
        check("pub fn a::f()\npub fn a::g(u8)\n", &["- pub fn a::g()", "+ pub fn a::g(u8)"], "1 items gone, 1 new");
    }
}
