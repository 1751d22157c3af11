//! Guarantees of the notation: expanding a written list returns its names, in order and within the limits.

use hostlist::{HostlistError, NAME_MAX, NAMES_MAX, expand, expand_at_most, fold};
use proptest::collection::vec;
use proptest::prelude::*;

/// A name with one bracket: the text before, ranges of numbers with a width, and the text after.
#[derive(Clone, Debug)]
struct Bracketed {
    prefix: String,
    ranges: Vec<(u32, u32, usize)>,
    suffix: String,
}

impl Bracketed {
    fn written(&self) -> String {
        let range = |&(first, len, width): &(u32, u32, usize)| match len {
            0 => format!("{first:0width$}"),
            _ => format!("{first:0width$}-{:0width$}", first + len),
        };
        let ranges: Vec<String> = self.ranges.iter().map(range).collect();
        format!("{}[{}]{}", self.prefix, ranges.join(","), self.suffix)
    }

    fn names(&self) -> Vec<String> {
        let numbers = self
            .ranges
            .iter()
            .flat_map(|&(first, len, width)| (first..=first + len).map(move |number| format!("{number:0width$}")));
        numbers.map(|number| format!("{}{number}{}", self.prefix, self.suffix)).collect()
    }
}

fn bracketed() -> impl Strategy<Value = Bracketed> {
    let range = (0_u32..1100, 0_u32..20, 1_usize..6);
    ("[a-z]{1,5}", vec(range, 1..4), "(-ib|\\.site|:50052)?").prop_map(|(prefix, ranges, suffix)| Bracketed {
        prefix,
        ranges,
        suffix,
    })
}

proptest! {
    #[test]
    fn a_list_stands_for_the_numbers_that_are_written_in_it(items in vec(bracketed(), 1..5)) {
        let text: Vec<String> = items.iter().map(Bracketed::written).collect();
        let names: Vec<String> = items.iter().flat_map(Bracketed::names).collect();
        prop_assert_eq!(expand(&text.join(",")), Ok(names));
    }

    #[test]
    fn blanks_around_names_and_ranges_mean_nothing(items in vec(bracketed(), 1..4)) {
        let text = items.iter().map(Bracketed::written).collect::<Vec<_>>().join(",");
        let spaced = format!(" {} ", text.replace(',', " , "));
        prop_assert_eq!(expand(&spaced), expand(&text));
    }

    #[test]
    fn folding_never_makes_a_list_longer_and_folding_again_changes_nothing(items in vec(bracketed(), 1..4)) {
        let names: Vec<String> = items.iter().flat_map(Bracketed::names).collect();
        let folded = fold(&names);
        // At worst, a bracket of two numbers with one digit each is as long as both names and two bytes for the bracket.
        prop_assert!(folded.len() <= names.join(",").len() + 2, "{folded}");
        prop_assert_eq!(fold(&expand(&folded).unwrap()), folded);
    }

    #[test]
    fn a_list_is_refused_from_its_limit_on_and_not_before(items in vec(bracketed(), 1..4)) {
        let text = items.iter().map(Bracketed::written).collect::<Vec<_>>().join(",");
        let count = expand(&text).unwrap().len();
        prop_assert_eq!(expand_at_most(&text, count).map(|names| names.len()), Ok(count));
        let list: String = text.chars().take(64).collect();
        prop_assert_eq!(expand_at_most(&text, count - 1), Err(HostlistError::TooMany { list, most: count - 1 }));
    }

    /// An error shows the wrong item, and not its neighbours.
    #[test]
    fn an_error_names_the_item_that_is_wrong(before in bracketed(), after in bracketed(), wrong in "[a-z]{1,4}\\[[x-z]\\]") {
        let text = format!("{},{wrong},{}", before.written(), after.written());
        let range = wrong[wrong.len() - 2..wrong.len() - 1].to_owned();
        prop_assert_eq!(expand(&text), Err(HostlistError::BadRange { range, name: wrong }));
    }
}

#[test]
fn zeros_in_front_are_a_part_of_the_name() {
    assert_eq!(expand("n[8-10]").unwrap(), ["n8", "n9", "n10"]);
    assert_eq!(expand("n[008-010]").unwrap(), ["n008", "n009", "n010"]);
    assert_eq!(fold(&["n8", "n09", "n10"]), "n[8,09-10]");
    assert_eq!(fold(&["n099", "n100"]), "n[099-100]");
    assert_eq!(fold(&["n99", "n100"]), "n[99-100]");
}

#[test]
fn the_largest_list_is_as_large_as_it_says() {
    assert_eq!(expand(&format!("n[1-{NAMES_MAX}]")).unwrap().len(), NAMES_MAX);
    let error = expand(&format!("n[0-{NAMES_MAX}]")).unwrap_err().to_string();
    assert_eq!(error, format!("the list \"n[0-{NAMES_MAX}]\" stands for more than {NAMES_MAX} names"));
    assert!(expand("a[1-1024]b[1-1024]").is_ok());
    assert!(expand("a[1-1024]b[1-1025]").is_err());
}

#[test]
fn the_longest_name_is_as_long_as_it_says() {
    let name = "x".repeat(NAME_MAX);
    assert_eq!(expand(&name).unwrap(), [name.as_str()]);
    let error = expand(&format!("{name}x")).unwrap_err().to_string();
    assert_eq!(error, format!("\"{}\"... is longer than {NAME_MAX} bytes", "x".repeat(64)));
}

#[test]
fn an_address_of_ipv6_is_no_range() {
    for name in ["[fd00::7]:50052", "[::1]", "[fd00::1-2]:1"] {
        assert_eq!(expand(name).unwrap(), [name]);
        assert_eq!(fold(&[name, name]), format!("{name},{name}"));
    }
}
