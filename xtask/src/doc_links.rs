//! Links between the pages of the documentation. Links to other hosts are not checked.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use crate::prose::{collect, lines_of_page};
use crate::shell::repository;

/// All pages of the repository.
fn pages() -> Vec<PathBuf> {
    let mut files = Vec::new();
    collect(repository(), &mut files).unwrap();
    files.into_iter().filter(|path| path.extension().is_some_and(|extension| extension == "md")).collect()
}

/// Fragments of a page's headings, as GitHub makes them: lower case, without punctuation, with hyphens for spaces; a repeated one is numbered.
fn fragments(page: &str) -> BTreeSet<String> {
    let mut seen = BTreeMap::<String, usize>::new();
    let headings = lines_of_page(page)
        .filter_map(|(_, line)| line.trim_start_matches('#').strip_prefix(' ').filter(|_| line.starts_with('#')));
    let fragment = |heading: &str| -> String {
        let kept = heading.trim().chars().filter(|letter| letter.is_alphanumeric() || " -_".contains(*letter));
        kept.flat_map(char::to_lowercase).map(|letter| if letter == ' ' { '-' } else { letter }).collect()
    };
    let numbered = |heading| {
        let fragment = fragment(heading);
        let count = seen.entry(fragment.clone()).or_default();
        *count += 1;
        if *count == 1 { fragment } else { format!("{fragment}-{}", *count - 1) }
    };
    headings.map(numbered).collect()
}

/// Targets of a page's links and pictures.
fn targets(page: &str) -> Vec<&str> {
    let is_here = |target: &&str| !target.contains("://") && !target.starts_with("mailto:");
    let of_line = |(_, line)| str::split(line, "](").skip(1).filter_map(|rest| Some(rest.split_once(')')?.0));
    lines_of_page(page).flat_map(of_line).filter(is_here).collect()
}

/// Returns the error of a link from the page `from`; `None` if it resolves.
fn fault(from: &Path, target: &str) -> Option<String> {
    let (file, fragment) = target.split_once('#').map_or((target, None), |(file, fragment)| (file, Some(fragment)));
    let file = if file.is_empty() { from.to_owned() } else { from.parent()?.join(file) };
    let missing = |part| Some(format!("{}: {target}: no such {part}", from.display()));
    if !file.exists() {
        return missing("file");
    }
    let is_page = file.extension().is_some_and(|extension| extension == "md");
    let fragment = fragment.filter(|_| is_page)?;
    if fragments(&fs::read_to_string(file).ok()?).contains(fragment) { None } else { missing("heading") }
}

/// Maximum words of all pages of the book.
const BOOK_WORDS_MAX: usize = 45_000;

#[test]
fn the_book_is_short() {
    let book = repository().join("docs");
    let is_of_book = |page: &PathBuf| page.starts_with(&book) && !page.ends_with("SUMMARY.md");
    let words = |page: PathBuf| fs::read_to_string(page).unwrap().split_whitespace().count();
    let count: usize = pages().into_iter().filter(is_of_book).map(words).sum();
    assert!(count <= BOOK_WORDS_MAX, "the book has {count} words; {BOOK_WORDS_MAX} is the limit");
}

#[test]
fn links_between_pages_resolve() {
    let pages = pages();
    assert!(pages.iter().any(|page| page.ends_with("docs/dev/performance.md")), "{pages:?}");
    let faults = |page: &PathBuf| -> Vec<String> {
        let text = fs::read_to_string(page).unwrap();
        targets(&text).into_iter().filter_map(|target| fault(page, target)).collect()
    };
    let faults: Vec<String> = pages.iter().flat_map(faults).collect();
    assert!(faults.is_empty(), "{faults:#?}");
}

#[test]
fn a_link_to_a_missing_file_or_heading_is_reported() {
    let page = repository().join("README.md");
    for target in ["docs/dev/performance.md", "docs/dev/performance.md#goals", "docs/dev/fence-scaling.svg", "#install"]
    {
        assert_eq!(fault(&page, target), None, "{target}");
    }
    for (target, part) in [("docs/none.md", "file"), ("docs/dev/performance.md#none", "heading"), ("#none", "heading")]
    {
        assert!(fault(&page, target).is_some_and(|fault| fault.ends_with(&format!("no such {part}"))), "{target}");
    }
    let text = "# A `b`: c\n## Same\n## Same\n```\n# code\n[x](y)\n```\n[t](u#v) ![p](q.svg) [w](https://w)";
    assert_eq!(fragments(text), ["a-b-c", "same", "same-1"].map(String::from).into());
    assert_eq!(targets(text), ["u#v", "q.svg"]);
}
