//! Flags among the words of one program of several that apply to all programs here. A line is refused if its programs would differ in such a
//! flag in the other launcher.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use super::flag::{Flag, Refusal, Takes, find};
use super::line::{Line, Typed};

/// Programs that a flag of one program applies to, in the other launcher.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reach {
    /// This program.
    Own,
    /// This program, and later programs without the flag.
    Following,
    /// All programs.
    All,
}

/// Returns an error if programs of the line differ in a flag of `flags` that applies to all programs here. `reach` takes the first name of a
/// flag.
pub(super) fn check(line: &Line, flags: &[Flag], reach: impl Fn(&str) -> Reach) -> Result<(), Refusal> {
    let programs = line.programs().len();
    let of_launch = || line.typed.iter().filter(|typed| typed.is_of_launch);
    for typed in of_launch() {
        let same = |other: &&Typed| other.name == typed.name && subject(other, flags) == subject(typed, flags);
        let value_of = |program: usize| {
            let given = of_launch().filter(same).rev().find(|other| match reach(typed.name) {
                Reach::Own | Reach::All => other.program == program,
                Reach::Following => other.program <= program,
            });
            given.map(|given| given.value.as_os_str())
        };
        let mut values = (0..programs).map(value_of).enumerate();
        // Programs may omit a flag that applies to all programs.
        let mut values = values.by_ref().filter(|(_, value)| reach(typed.name) != Reach::All || value.is_some());
        let Some((first, expected)) = values.next() else { continue };
        if let Some((second, other)) = values.find(|(_, value)| *value != expected) {
            let flag = typed_as(typed.name);
            let (first, second) = (described(first, expected), described(second, other));
            return Err(Refusal::Differs { flag, first, second });
        }
    }
    Ok(())
}

/// The variable that a flag sets, if the flag takes a name and a value. Flags for different variables do not conflict.
fn subject<'a>(typed: &'a Typed, flags: &[Flag]) -> Option<&'a [u8]> {
    let is_pair = find(flags, typed.name).is_some_and(|flag| flag.takes == Takes::Pair);
    typed.value.as_bytes().split(|&byte| byte == b'=').next().filter(|_| is_pair || typed.name == "set-env")
}

fn typed_as(name: &str) -> String {
    if name.len() == 1 { format!("-{name}") } else { format!("--{name}") }
}

fn described(program: usize, value: Option<&OsStr>) -> String {
    let number = program + 1;
    match value {
        None => format!("program {number} does not have it"),
        Some(value) if value.is_empty() => format!("program {number} has it"),
        Some(value) => format!("program {number} has {}", OsString::from(value).display()),
    }
}
