//! Other launchers, as seen by the programs and scripts that use them: their command lines, their files, and the remote shell that they call.
//!
//! # Design
//! A [`Called`] line is that of `lattice mpiexec`, `lattice srun`, or of the program under the names `mpiexec`, `mpirun` and `srun`. It is
//! translated to words of `lattice launch`:
//!
//! ```text
//! words ──table of the launcher──> Line ──> words of `lattice launch` ──> clap, as if they had been typed
//!          mpiexec.rs, srun.rs      └─> notes: flags that are ignored here
//! ```
//!
//! Each flag has one entry in a table, with its meaning here: supported, refused, or ignored with or without a note. The parser, the line that
//! `-v` shows, the help and `docs/reference/coming-from.md` use that table.
//!
//! The reverse direction is [`mpirun_setup`]: variables and files with which an unchanged `mpirun` calls this program as its
//! [remote shell](remote_shell).

mod components;
pub mod config_lines;
mod document;
mod flag;
mod front_end;
pub mod hostfile;
pub mod idle;
mod line;
mod mpiexec;
pub mod mpirun_setup;
pub mod per_object;
pub mod remote_shell;
pub mod slurm_time;
mod srun;
mod variables;

use std::ffi::OsString;
use std::path::Path;

use clap::error::ErrorKind;
use lattice_console::Verbosity;

pub use self::flag::distinct;
use self::flag::{Answer, Flag};
use self::front_end::FrontEnd;
pub use self::line::{SEPARATOR, Translation};

/// A command line of another launcher.
#[derive(Clone, Copy, Debug)]
pub struct Called<'a> {
    front_end: FrontEnd,
    /// The words after the name of the launcher.
    words: &'a [OsString],
    /// Verbosity, set by flags before the command.
    verbosity: Option<Verbosity>,
}

impl<'a> Called<'a> {
    /// Finds the launcher of a command line, by the name that this program was called by, else by the command.
    pub fn of(words: &'a [OsString]) -> Option<Self> {
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

    /// Name of the command of this launcher: `srun` or `mpiexec`.
    pub fn name(&self) -> &'static str {
        self.front_end.name()
    }

    /// Translates the line to a line of `lattice launch`.
    ///
    /// # Errors
    /// Returns clap's error for an invalid line, and for `--help` and `--version`, as clap does.
    pub fn translate(&self) -> Result<Translation, clap::Error> {
        let translation = translate(self.front_end, self.words)?;
        Ok(Translation { verbosity: translation.verbosity.or(self.verbosity), ..translation })
    }
}

/// Letters of the flags of `srun`, each with all names of its flag.
pub fn letters_of_srun() -> impl Iterator<Item = (char, &'static [&'static str])> {
    let letters = |flag: &'static Flag| {
        let letters = flag.names.iter().filter(|name| name.len() == 1).filter_map(|name| name.chars().next());
        letters.map(|letter| (letter, flag.names))
    };
    FrontEnd::Srun.flags().iter().flat_map(letters)
}

/// Translates a line, without the names of program and command, to a line of `lattice launch`.
///
/// # Errors
/// Returns clap's error for an invalid line, and for `--help` and `--version`, as clap does.
fn translate(front_end: FrontEnd, words: &[OsString]) -> Result<Translation, clap::Error> {
    let translated = match front_end {
        FrontEnd::Mpiexec(name) => mpiexec::translate(words, name),
        FrontEnd::Srun => srun::translate(words),
    };
    match translated {
        Ok(Answer::Line(translation)) => Ok(translation),
        Ok(Answer::Help) => Err(clap::Error::raw(ErrorKind::DisplayHelp, document::help(front_end))),
        Ok(Answer::Text(text)) => Err(clap::Error::raw(ErrorKind::DisplayVersion, text)),
        Err(refusal) => {
            let text = format!("{refusal}{}\n", refusal.tip(front_end.name()));
            Err(clap::Error::raw(ErrorKind::UnknownArgument, text))
        }
    }
}

#[cfg(test)]
mod tests;
