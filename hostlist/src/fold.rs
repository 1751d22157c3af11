//! Names as a list: the inverse of [`expand`](crate::expand).

use std::fmt::Write;

use crate::number;

/// The shortest list that `fold` can write and that [`expand`](crate::expand) turns into exactly these names, in this order.
///
/// Neighbours that differ in one number share a bracket. The names must be possible results of `expand`: not empty, without commas or spaces,
/// and with brackets only around an IPv6 address.
pub fn fold<S: AsRef<str>>(names: &[S]) -> String {
    let mut list = String::new();
    let mut names = names.iter().map(AsRef::as_ref).peekable();
    while let Some(first) = names.next() {
        if !list.is_empty() {
            list.push(',');
        }
        let Some((prefix, suffix)) = names.peek().and_then(|second| frame(first, second)) else {
            list.push_str(first);
            continue;
        };
        list.push_str(prefix);
        list.push('[');
        let mut runs = Runs::begin(middle(first, prefix, suffix));
        while let Some(digits) = names.next_if(|name| is_framed(name, prefix, suffix)) {
            runs.add(middle(digits, prefix, suffix), &mut list);
        }
        runs.end(&mut list);
        list.push(']');
        list.push_str(suffix);
    }
    list
}

/// Text before and after the one number in which two names differ; `None` if they differ in more.
fn frame<'a>(first: &'a str, second: &str) -> Option<(&'a str, &'a str)> {
    if first.contains('[') {
        return None;
    }
    let same = first.bytes().zip(second.bytes()).take_while(|(a, b)| a == b).count();
    // A number is never cut, so that node10 and node11 become node[10-11]. Digits are ASCII, so this is a char boundary.
    let start = first.as_bytes()[..same].iter().rposition(|byte| !byte.is_ascii_digit()).map_or(0, |last| last + 1);
    let digits = first.as_bytes()[start..].iter().take_while(|byte| byte.is_ascii_digit()).count();
    let (prefix, suffix) = (first.get(..start)?, first.get(start + digits..)?);
    let fits = is_framed(first, prefix, suffix) && is_framed(second, prefix, suffix);
    fits.then_some((prefix, suffix))
}

fn is_framed(name: &str, prefix: &str, suffix: &str) -> bool {
    let middle = name.strip_prefix(prefix).and_then(|rest| rest.strip_suffix(suffix));
    middle.is_some_and(|digits| number(digits).is_some())
}

fn middle<'a>(name: &'a str, prefix: &str, suffix: &str) -> &'a str {
    &name[prefix.len()..name.len() - suffix.len()]
}

/// Consecutive numbers for a range in a bracket.
struct Runs<'a> {
    first: &'a str,
    last: &'a str,
}

impl<'a> Runs<'a> {
    fn begin(digits: &'a str) -> Self {
        Self { first: digits, last: digits }
    }

    fn add(&mut self, digits: &'a str, list: &mut String) {
        let width = self.first.len();
        let follows = number(self.last).is_some_and(|last| format!("{:0width$}", last + 1) == digits);
        if follows {
            self.last = digits;
        } else {
            Self { first: self.first, last: self.last }.end(list);
            list.push(',');
            *self = Self::begin(digits);
        }
    }

    fn end(self, list: &mut String) {
        list.push_str(self.first);
        if self.first != self.last {
            write!(list, "-{}", self.last).expect("writing to memory cannot fail");
        }
    }
}
