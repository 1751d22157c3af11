//! Order of names with numbers in them.

use std::cmp::Ordering;

/// Order by the value of numbers: `node2` before `node10`.
pub fn natural_order(one: &str, other: &str) -> Ordering {
    let is_digit = |text: &str| text.starts_with(|first: char| first.is_ascii_digit());
    let (mut one_rest, mut other_rest) = (one, other);
    while !one_rest.is_empty() && !other_rest.is_empty() {
        let (here, there) = (run(&mut one_rest), run(&mut other_rest));
        let order = if is_digit(here) && is_digit(there) {
            let [here, there] = [here, there].map(|digits| digits.trim_start_matches('0'));
            here.len().cmp(&there.len()).then(here.cmp(there))
        } else {
            here.cmp(there)
        };
        if order.is_ne() {
            return order;
        }
    }
    // Names with equal numbers, such as 1 and 01, are different.
    one_rest.len().cmp(&other_rest.len()).then(one.cmp(other))
}

/// Removes the digits, or the text before the next digit, from the start of a text.
fn run<'a>(text: &mut &'a str) -> &'a str {
    let is_digit = text.starts_with(|first: char| first.is_ascii_digit());
    let end = text.find(|letter: char| letter.is_ascii_digit() != is_digit).unwrap_or(text.len());
    let (run, rest) = text.split_at(end);
    *text = rest;
    run
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_in_the_order_in_which_people_count() {
        let sorted = ["", "01", "1", "2", "10", "a", "a1b", "a1c", "a2", "a10", "a10b2", "a10b10", "b", "b0"];
        for (index, one) in sorted.iter().enumerate() {
            for (other_index, other) in sorted.iter().enumerate() {
                assert_eq!(natural_order(one, other), index.cmp(&other_index), "{one} {other}");
            }
        }
    }
}
