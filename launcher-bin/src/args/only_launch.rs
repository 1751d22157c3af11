//! The command line of `lattice launch` alone. It is most of what is ever typed, and the definitions of all other commands would cost more
//! to make than one rank to start.

use clap::{Parser, Subcommand};

use super::{Cli, Command, LaunchArgs, Remarks, VerbosityArgs, launch};

/// [`Cli`] with one command.
#[derive(Debug, Parser)]
#[command(name = "lattice", version, max_term_width = super::HELP_WIDTH, args_override_self = true)]
pub(super) struct OnlyLaunch {
    #[command(flatten)]
    verbosity: VerbosityArgs,
    #[command(subcommand)]
    command: LaunchCommand,
}

#[derive(Debug, Subcommand)]
enum LaunchCommand {
    /// Run a program as the ranks of a job.
    #[command(alias = "run", after_help = launch::after_help(), override_usage = launch::USAGE)]
    Launch(Box<LaunchArgs>),
}

impl OnlyLaunch {
    /// The flags of the launch.
    pub(super) fn into_args(self) -> Box<LaunchArgs> {
        let LaunchCommand::Launch(args) = self.command;
        args
    }
}

impl From<OnlyLaunch> for Cli {
    fn from(line: OnlyLaunch) -> Self {
        Self { verbosity: line.verbosity, command: Command::Launch(line.into_args()), remarks: Remarks::default() }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn launch_is_defined_as_among_all_commands() {
        let help = |mut cli: clap::Command| {
            cli.build();
            cli.find_subcommand_mut("run").unwrap().render_long_help().to_string()
        };
        assert_eq!(help(OnlyLaunch::command()), help(Cli::command()));
    }
}
