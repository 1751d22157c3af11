//! Command lines of other launchers, translated to lines of `lattice launch`: `lattice mpiexec`, `lattice srun`, and this program under the
//! names `mpiexec`, `mpirun` and `srun`.
//!
//! ```text
//! words ──table of the launcher──> Line ──> words of `lattice launch` ──> clap, as if they had been typed
//!          mpiexec.rs, srun.rs      └─> notes: flags that are ignored here
//! ```
//!
//! Each flag has one entry in a table, with its meaning here: supported, refused, or ignored with or without a note. The parser, the line that
//! `-v` shows, the help and `docs/reference/coming-from.md` use that table.

mod components;
mod document;
mod line;
mod mpiexec;
mod srun;
mod variables;

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::path::Path;

use clap::error::ErrorKind;

use self::line::Line;
pub(super) use self::line::Translation;
pub(super) use self::mpiexec::Name;
use super::idle::{self, Notice};
use crate::bounded_file;
use crate::console::Verbosity;

/// Launcher of the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FrontEnd {
    /// `mpiexec` of the MPI standard, Hydra, Intel MPI and Open MPI, by the name that it was called by.
    Mpiexec(Name),
    /// `srun` of Slurm.
    Srun,
}

/// A flag of another launcher.
struct Flag {
    /// Names of the flag, without dashes.
    names: &'static [&'static str],
    takes: Takes,
    meaning: Meaning,
}

/// Values that a flag takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Takes {
    Nothing,
    /// One value.
    Value,
    /// An optional value, after `=`.
    Optional,
    /// A name and a value: two words, or one with `=` in it.
    Pair,
}

/// Conversion of a flag's value.
type Make = fn(&mut Line, &OsStr) -> Result<(), Refusal>;

/// Meaning of a flag here.
#[derive(Clone, Copy)]
enum Meaning {
    /// This flag of `lattice launch`, for one program.
    OfProgram(&'static str),
    /// This flag, for the whole launch.
    OfLaunch(&'static str),
    /// This flag, for the nodes of the launch. After a `:`, for the nodes of the program there.
    OfNodes(&'static str),
    /// The function translates the value, for the whole launch. The text describes the result in words of `lattice launch`.
    Made(&'static str, Make),
    /// The same, for one program.
    MadeOfProgram(&'static str, Make),
    /// Verbosity of messages.
    Shows(Verbosity),
    /// The flag is ignored for this reason, which a note reports.
    Ignored(Notice, &'static str),
    /// The flag is refused; the text is the alternative.
    Refused(&'static str),
}

/// Error for a word of another launcher.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
enum Refusal {
    #[error("{launcher} has no flag '{flag}' here")]
    Unknown { launcher: &'static str, flag: String, nearest: Option<String> },
    #[error("'{flag}' may be any of {}", among.join(", "))]
    Ambiguous { flag: String, among: Vec<String> },
    #[error("'{flag}' needs a value")]
    NoValue { flag: String },
    #[error("'{flag}' has no value")]
    HasValue { flag: String },
    #[error("'{flag}' is not possible here")]
    Refused { flag: String, instead: String },
    #[error("'{flag} {value}' is not possible here: {reason}")]
    Value { flag: &'static str, value: String, reason: String },
    #[error("{variable}={value}: {refusal}")]
    Variable { variable: String, value: String, refusal: Box<Self> },
    #[error(
        "{flag} differs between the programs: {first}, and {second}; it is the same for all programs of a launch here"
    )]
    Differs { flag: String, first: String, second: String },
    #[error("cannot read {}: {reason}", path.display())]
    File { path: std::path::PathBuf, reason: String },
}

/// A command line of another launcher.
pub(super) struct Called<'a> {
    pub(super) front_end: FrontEnd,
    /// The words after the name of the launcher.
    pub(super) words: &'a [OsString],
    /// Verbosity, set by flags before the command.
    pub(super) verbosity: Option<Verbosity>,
}

impl<'a> Called<'a> {
    /// Finds the launcher of a command line, by the name that this program was called by, else by the command.
    pub(super) fn of(words: &'a [OsString]) -> Option<Self> {
        let (called, mut words) = words.split_first()?;
        let name = Path::new(called).file_name()?.to_str()?;
        if let Some(front_end) = FrontEnd::named(name) {
            return Some(Self { front_end, words, verbosity: None });
        }
        let mut verbosity = None;
        loop {
            let (word, rest) = words.split_first()?;
            words = rest;
            match word.to_str()? {
                "-v" | "--verbose" => verbosity = Some(Verbosity::Verbose),
                "-q" | "--quiet" => verbosity = Some(Verbosity::Quiet),
                command => return Some(Self { front_end: FrontEnd::named(command)?, words, verbosity }),
            }
        }
    }
}

impl FrontEnd {
    fn named(name: &str) -> Option<Self> {
        match name {
            "srun" => Some(Self::Srun),
            _ => Name::called(name).map(Self::Mpiexec),
        }
    }

    /// Name of the command.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Mpiexec(_) => "mpiexec",
            Self::Srun => "srun",
        }
    }

    fn flags(self) -> &'static [Flag] {
        match self {
            Self::Mpiexec(_) => mpiexec::FLAGS,
            Self::Srun => srun::FLAGS,
        }
    }

    /// Translates a line, without the names of program and command, to a line of `lattice launch`.
    ///
    /// # Errors
    /// Returns clap's error for an invalid line, and for `--help` and `--version`, as clap does.
    pub(super) fn translate(self, words: &[OsString]) -> Result<Translation, clap::Error> {
        let translated = match self {
            Self::Mpiexec(name) => mpiexec::translate(words, name),
            Self::Srun => srun::translate(words),
        };
        match translated {
            Ok(Answer::Line(translation)) => Ok(translation),
            Ok(Answer::Help) => Err(clap::Error::raw(ErrorKind::DisplayHelp, document::help(self))),
            Ok(Answer::Text(text)) => Err(clap::Error::raw(ErrorKind::DisplayVersion, text)),
            Err(refusal) => {
                let text = format!("{refusal}{}\n", refusal.tip(self.name()));
                Err(clap::Error::raw(ErrorKind::UnknownArgument, text))
            }
        }
    }
}

/// Result of a line.
enum Answer {
    Line(Translation),
    Help,
    Text(String),
}

impl Flag {
    /// True if the flag takes no value.
    fn is_switch(&self) -> bool {
        self.takes == Takes::Nothing
    }

    /// Applies the flag. `typed` is its name in the line, and `value` its value, if it takes one.
    fn apply(&self, line: &mut Line, typed: &str, value: Option<&OsStr>) -> Result<(), Refusal> {
        line.remember(self, value);
        match (self.meaning, value) {
            (Meaning::OfProgram(flag), value) => line.add_to_program(flag, value),
            (Meaning::OfLaunch(flag), value) => line.add_to_launch(flag, value),
            (Meaning::OfNodes(flag), value) => line.add_to_nodes(flag, value),
            (Meaning::Made(_, make) | Meaning::MadeOfProgram(_, make), value) => {
                return make(line, value.unwrap_or_default());
            }
            (Meaning::Shows(verbosity), _) => line.verbosity = Some(verbosity),
            (Meaning::Ignored(notice, reason), value) => line.ignore(notice, value, idle::note(typed, reason)),
            (Meaning::Refused(instead), _) => {
                return Err(Refusal::Refused { flag: typed.to_owned(), instead: instead.to_owned() });
            }
        }
        Ok(())
    }
}

impl Refusal {
    /// Tip with the words to type next; empty if the error itself contains them.
    fn tip(&self, launcher: &str) -> String {
        let tip = match self {
            Self::Unknown { nearest: Some(near), .. } => format!("a similar one exists: '{near}'"),
            Self::Unknown { nearest: None, .. } => format!("lattice {launcher} --help shows those that there are"),
            Self::NoValue { flag } => format!("type {flag} VALUE; lattice {launcher} --help shows what it takes"),
            Self::HasValue { flag } => {
                let name = flag.split_once('=').map_or(flag.as_str(), |(name, _)| name);
                format!("type {name} alone")
            }
            Self::Refused { instead, .. } => instead.clone(),
            Self::Ambiguous { .. } | Self::Value { .. } => return String::new(),
            Self::Differs { flag, .. } => {
                format!("type the same {flag} for each program, or start the programs by launches of their own")
            }
            Self::Variable { variable, .. } => format!("type unset {variable}, or give it another value"),
            Self::File { .. } => "type the path of another file, or its words on this line".to_owned(),
        };
        format!("\n\n  tip: {tip}")
    }
}

/// Maximum size of a file that a line names, in bytes.
const BYTES_MAX: u64 = 1 << 20;

/// The text of a file that a line names.
fn text_of(path: &OsStr) -> Result<String, Refusal> {
    let failed = |error: std::io::Error| Refusal::File { path: path.into(), reason: error.to_string() };
    bounded_file::text(path.as_ref(), BYTES_MAX).map_err(failed)
}

/// The names without repetitions, in order of their first occurrence.
pub(crate) fn distinct(names: impl IntoIterator<Item = String>) -> Vec<String> {
    let mut seen = HashSet::new();
    names.into_iter().filter(|name| seen.insert(name.clone())).collect()
}

/// Takes the next word of `rest` as the value of the flag `typed`.
fn next_word(typed: &str, rest: &mut &[OsString]) -> Result<OsString, Refusal> {
    let (first, behind) = rest.split_first().ok_or_else(|| Refusal::NoValue { flag: typed.to_owned() })?;
    *rest = behind;
    Ok(first.clone())
}

/// The flag with this name, without dashes.
fn find<'table>(flags: &'table [Flag], name: &str) -> Option<&'table Flag> {
    flags.iter().find(|flag| flag.names.contains(&name))
}

/// Error for an unknown flag, with the nearest known flag.
fn unknown(front_end: FrontEnd, typed: &str) -> Refusal {
    let name = typed.trim_start_matches('-').split('=').next().unwrap_or_default();
    let known = front_end.flags().iter().flat_map(|flag| flag.names).filter(|known| known.len() > 2);
    // Dashes and underscores are not compared: users omit them as often as letters.
    let letters = |name: &str| name.replace(['-', '_'], "");
    let typed_letters = letters(name);
    let slips = |known: &&&str| strsim::damerau_levenshtein(&typed_letters, &letters(known));
    let nearest = known.min_by_key(slips).filter(|known| slips(known) <= 1 + name.chars().count() / 6);
    let nearest = nearest.map(|known| format!("--{known}"));
    Refusal::Unknown { launcher: front_end.name(), flag: typed.to_owned(), nearest }
}

#[cfg(test)]
mod tests;
