//! Definitions of commands that clap creates only when a line names the command, or for the whole help.
//!
//! Most lines name one command of about thirty. The definition of the flags of all other commands takes longer than the start of one rank.

use std::ops::{Deref, DerefMut};

use clap::builder::{Command, Resettable, StyledStr};
use clap::{ArgMatches, Args, Error, FromArgMatches, Id, Subcommand};

/// Flags or subcommands of a command. A [`Command`] has them only after it is built. [`Command::build`] builds all commands, and parsing a line
/// builds the commands that the line names.
#[derive(Clone, Debug)]
pub struct Deferred<T>(Box<T>);

impl<T> Deferred<T> {
    /// The flags or subcommands themselves.
    pub fn into_inner(self) -> T {
        *self.0
    }
}

impl<T> Deref for Deferred<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> DerefMut for Deferred<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0
    }
}

impl<T: FromArgMatches> FromArgMatches for Deferred<T> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        T::from_arg_matches(matches).map(Box::new).map(Self)
    }

    fn from_arg_matches_mut(matches: &mut ArgMatches) -> Result<Self, Error> {
        T::from_arg_matches_mut(matches).map(Box::new).map(Self)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        self.0.update_from_arg_matches(matches)
    }
}

impl<T: Args> Args for Deferred<T> {
    fn group_id() -> Option<Id> {
        T::group_id()
    }

    fn augment_args(command: Command) -> Command {
        command.defer(|command| keeping_texts(command, T::augment_args))
    }

    fn augment_args_for_update(command: Command) -> Command {
        command.defer(|command| keeping_texts(command, T::augment_args_for_update))
    }
}

impl<T: Subcommand> Subcommand for Deferred<T> {
    fn augment_subcommands(command: Command) -> Command {
        command.defer(|command| keeping_texts(command, T::augment_subcommands))
    }

    fn augment_subcommands_for_update(command: Command) -> Command {
        command.defer(|command| keeping_texts(command, T::augment_subcommands_for_update))
    }

    fn has_subcommand(name: &str) -> bool {
        T::has_subcommand(name)
    }
}

/// Completes a definition. Texts that were set with the name of the command override the texts of the type with its flags.
fn keeping_texts(command: Command, complete: impl FnOnce(Command) -> Command) -> Command {
    let text = |text: Option<&StyledStr>| Resettable::from(text.cloned());
    let (about, long_about) = (text(command.get_about()), text(command.get_long_about()));
    let after_help = command.get_after_help().cloned();
    let complete = complete(command).about(about).long_about(long_about);
    match after_help {
        Some(after_help) => complete.after_help(after_help),
        None => complete,
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::args::Cli;

    /// Names of the commands with defined flags, after `line` is parsed.
    fn defined(line: &str) -> Vec<String> {
        let mut cli = Cli::command();
        // Most of these lines request a text, which clap returns as an error.
        let _ = cli.try_get_matches_from_mut(line.split(' '));
        let own = |command: &&Command| command.get_arguments().any(|arg| !arg.is_global_set());
        cli.get_subcommands().filter(own).map(|command| command.get_name().to_owned()).collect()
    }

    #[test]
    fn a_line_has_the_commands_defined_that_it_names() {
        // Commands with only one or two arguments are not deferred.
        let always = defined("lattice --version");
        assert_eq!(always, ["completions", "man", "help"]);
        for (line, name) in [
            ("lattice launch -n 2 true", "launch"),
            ("lattice run -n 2 true", "launch"),
            ("lattice -q queue --me", "queue"),
            ("lattice alloc create --help", "alloc"),
        ] {
            let mut expected = always.clone();
            expected.push(name.to_owned());
            let mut now = defined(line);
            now.sort();
            expected.sort();
            assert_eq!(now, expected, "{line}");
        }
    }

    #[test]
    fn texts_of_a_command_are_those_beside_its_name() {
        let texts = |command: &Command| {
            let texts = [command.get_about(), command.get_long_about(), command.get_after_help()];
            texts.map(|text| text.map(ToString::to_string))
        };
        let named = Cli::command();
        let mut built = Cli::command();
        built.build();
        for command in named.get_subcommands() {
            let [about, long_about, after_help] = texts(command);
            let now = texts(built.find_subcommand(command.get_name()).unwrap());
            assert_eq!([&now[0], &now[1]], [&about, &long_about], "{}", command.get_name());
            assert!(after_help.is_none() || after_help == now[2], "{}", command.get_name());
        }
    }
}
