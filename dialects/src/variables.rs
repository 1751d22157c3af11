//! Variables of other launchers that stand for their flags.

use std::ffi::{OsStr, OsString};

use super::flag::{Flag, Meaning, Refusal, find};
use super::line::Line;

/// Value of a variable. An empty variable counts as not set.
pub(super) fn set(variable: impl Fn(&str) -> Option<OsString>, name: &str) -> Option<OsString> {
    variable(name).filter(|value| !value.is_empty())
}

/// Applies the flag of the table that a variable stands for. For a switch, a value that means off has no effect.
pub(super) fn apply(
    line: &mut Line,
    flags: &'static [Flag],
    name: &str,
    flag: &str,
    value: &OsStr,
) -> Result<(), Refusal> {
    apply_as(line, flags, (name, &value.to_string_lossy()), flag, value)
}

/// The same, for a variable with a value that differs from the value of the flag. Notes and errors show the value of the variable.
pub(super) fn apply_as(
    line: &mut Line,
    flags: &'static [Flag],
    (name, told): (&str, &str),
    flag: &str,
    value: &OsStr,
) -> Result<(), Refusal> {
    let Some(flag) = find(flags, flag).filter(|flag| !flag.is_switch() || is_on(value)) else { return Ok(()) };
    let refused =
        |refusal| Refusal::Variable { variable: name.to_owned(), value: told.to_owned(), refusal: Box::new(refusal) };
    let meant = if told == value { String::new() } else { format!(" {}", value.display()) };
    line.note(format!("{name}={told}: as --{}{meant}", flag.names.last().copied().unwrap_or_default()));
    match flag.meaning {
        Meaning::OfProgram(ours) => {
            flag.record(line, Some(value));
            line.add_to_every_program(ours, value);
        }
        // A variable applies to the launch, not to a program after a `:`.
        Meaning::OfNodes(ours) => {
            flag.record(line, Some(value));
            line.add_to_launch(ours, Some(value));
        }
        _ => flag.apply(line, name, (!flag.is_switch()).then_some(value)).map_err(refused)?,
    }
    Ok(())
}

/// True if a value switches a flag on.
pub(super) fn is_on(value: &OsStr) -> bool {
    !["0", "false", "no", "off"].iter().any(|off| value.eq_ignore_ascii_case(off))
}
