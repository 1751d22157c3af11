//! Flags of other launchers: the entries of their tables, their application to a line, and the errors for words.

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};

use lattice_console::{Verbosity, bounded_file};

use super::idle::{self, Notice};
use super::line::{Line, Translation};

/// A flag of another launcher.
pub(crate) struct Flag {
    /// Names of the flag, without dashes.
    pub(crate) names: &'static [&'static str],
    pub(crate) takes: Takes,
    pub(crate) meaning: Meaning,
}

/// Values that a flag takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Takes {
    Nothing,
    /// One value.
    Value,
    /// An optional value, after `=`.
    Optional,
    /// A name and a value: two words, or one with `=` in it.
    Pair,
}

/// Conversion of a flag's value.
pub(crate) type Make = fn(&mut Line, &OsStr) -> Result<(), Refusal>;

/// Meaning of a flag here.
#[derive(Clone, Copy)]
pub(crate) enum Meaning {
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
pub(crate) enum Refusal {
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

/// Result of a line.
pub(crate) enum Answer {
    Line(Translation),
    Help,
    Text(String),
}

impl Flag {
    /// True if the flag takes no value.
    pub(crate) fn is_switch(&self) -> bool {
        self.takes == Takes::Nothing
    }

    /// Records in the line that it has this flag, regardless of its meaning here.
    pub(crate) fn record(&self, line: &mut Line, value: Option<&OsStr>) {
        let is_of_launch = matches!(self.meaning, Meaning::OfLaunch(_) | Meaning::Made(..));
        if let Some(name) = self.names.first() {
            line.remember(name, is_of_launch, value);
        }
    }

    /// Applies the flag. `typed` is its name in the line, and `value` its value, if it takes one.
    pub(crate) fn apply(&self, line: &mut Line, typed: &str, value: Option<&OsStr>) -> Result<(), Refusal> {
        self.record(line, value);
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
    pub(crate) fn tip(&self, launcher: &str) -> String {
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
pub(crate) fn text_of(path: &OsStr) -> Result<String, Refusal> {
    let failed = |error: std::io::Error| Refusal::File { path: path.into(), reason: error.to_string() };
    bounded_file::text(path.as_ref(), BYTES_MAX).map_err(failed)
}

/// The names without repetitions, in order of their first occurrence.
pub fn distinct(names: impl IntoIterator<Item = String>) -> Vec<String> {
    let mut seen = HashSet::new();
    names.into_iter().filter(|name| seen.insert(name.clone())).collect()
}

/// Takes the next word of `rest` as the value of the flag `typed`.
pub(crate) fn next_word(typed: &str, rest: &mut &[OsString]) -> Result<OsString, Refusal> {
    let (first, behind) = rest.split_first().ok_or_else(|| Refusal::NoValue { flag: typed.to_owned() })?;
    *rest = behind;
    Ok(first.clone())
}

/// The flag with this name, without dashes.
pub(crate) fn find<'table>(flags: &'table [Flag], name: &str) -> Option<&'table Flag> {
    flags.iter().find(|flag| flag.names.contains(&name))
}

/// Error for an unknown flag, with the nearest flag of the launcher.
pub(crate) fn unknown(launcher: &'static str, flags: &[Flag], typed: &str) -> Refusal {
    let name = typed.trim_start_matches('-').split('=').next().unwrap_or_default();
    let known = flags.iter().flat_map(|flag| flag.names).filter(|known| known.len() > 2);
    // Dashes and underscores are not compared: users omit them as often as letters.
    let letters = |name: &str| name.replace(['-', '_'], "");
    let typed_letters = letters(name);
    let slips = |known: &&&str| strsim::damerau_levenshtein(&typed_letters, &letters(known));
    let nearest = known.min_by_key(slips).filter(|known| slips(known) <= 1 + name.chars().count() / 6);
    let nearest = nearest.map(|known| format!("--{known}"));
    Refusal::Unknown { launcher, flag: typed.to_owned(), nearest }
}
