//! Counts in messages: the noun and the verb agree with the number.

use std::fmt::Display;

/// `1 node`, `2 nodes`: a number with its noun, which gets an `s` unless the number is 1.
pub fn counted<N: Display + PartialEq + From<u8>>(number: N, noun: &str) -> String {
    let ending = if number == N::from(1) { "" } else { "s" };
    format!("{number} {noun}{ending}")
}

/// `1 is`, `2 are`: a number with its verb, for a noun that the text has named.
pub fn count_is<N: Display + PartialEq + From<u8>>(number: N) -> String {
    let verb = if number == N::from(1) { "is" } else { "are" };
    format!("{number} {verb}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_is_singular_and_all_others_are_plural() {
        assert_eq!([0_u32, 1, 2].map(|number| counted(number, "node")), ["0 nodes", "1 node", "2 nodes"]);
        assert_eq!([0_usize, 1, 2].map(count_is), ["0 are", "1 is", "2 are"]);
    }
}
