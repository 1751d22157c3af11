//! Completions and man pages, generated from the definition of the command line.

use clap::{Command, CommandFactory};
use clap_complete::Shell;
use clap_mangen::Man;

use crate::args::Cli;
use crate::formatting::nearest;

/// The man page of an unknown command was requested.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no command {command:?}; there are {}\ntry: lattice man {}, or another of these", known.join(", "), nearest(command, known).unwrap_or("launch"))]
pub(crate) struct NoSuchCommand {
    /// The command.
    command: String,
    /// The known commands.
    known: Vec<String>,
}

/// Completion script for `shell`.
pub(crate) fn completions(shell: Shell) -> Vec<u8> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "lattice", &mut script);
    script
}

/// The man page, in roff, of the command at `path` below `lattice`.
pub(crate) fn man_page(path: &[String]) -> Result<Vec<u8>, NoSuchCommand> {
    let mut command = Cli::command();
    // Global flags are then listed for every command.
    command.build();
    for word in path {
        let known = command.get_subcommands().map(|known| known.get_name().to_owned()).collect();
        command = match command.find_subcommand(word) {
            Some(found) => found.clone(),
            None => return Err(NoSuchCommand { command: word.clone(), known }),
        };
    }
    let mut page = Vec::new();
    Man::new(command.clone()).render(&mut page).expect("writing to memory cannot fail");
    Ok(with_own_references(&command, path, page))
}

/// The page with the command that prints the page of each subcommand. It replaces the name of a page, because pages are not installed.
fn with_own_references(command: &Command, path: &[String], page: Vec<u8>) -> Vec<u8> {
    let mut text = String::from_utf8_lossy(&page).into_owned();
    for below in command.get_subcommands() {
        let words = [path, &[below.get_name().to_owned()]].concat();
        let name = format!("lattice-{}(1)", words.join("-")).replace('-', "\\-");
        text = text.replace(&name, &format!("lattice {0} (lattice man {0})", words.join(" ")));
    }
    text.into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_shell_gets_completions() {
        for shell in [Shell::Bash, Shell::Elvish, Shell::Fish, Shell::PowerShell, Shell::Zsh] {
            let script = String::from_utf8(completions(shell)).unwrap();
            assert!(script.contains("tasks-per-node"), "{shell}");
        }
    }

    #[test]
    fn man_pages_describe_a_command() {
        let page = |path: &[&str]| {
            let path: Vec<String> = path.iter().map(|&word| word.to_owned()).collect();
            man_page(&path).map(|page| String::from_utf8(page).unwrap())
        };
        let whole = page(&[]).unwrap();
        assert!(
            whole.contains("lattice launch (lattice man launch)") && !whole.contains("lattice\\-launch(1)"),
            "{whole}"
        );
        assert!(page(&["alloc"]).unwrap().contains("lattice alloc create (lattice man alloc create)"));
        let launch = page(&["launch"]).unwrap();
        assert!(launch.contains(".TH lattice-launch 1") && launch.contains("\\-\\-cpu\\-bind"), "{launch}");
        let error = page(&["lunch"]).unwrap_err().to_string();
        assert!(error.starts_with(r#"there is no command "lunch"; there are launch,"#), "{error}");
    }

    #[test]
    fn every_command_has_a_man_page() {
        fn check(command: &Command, path: &[String]) {
            let page = String::from_utf8(man_page(path).unwrap()).unwrap();
            assert!(page.contains(".SH SYNOPSIS"), "{path:?}");
            for sub in command.get_subcommands() {
                let deeper: Vec<String> = path.iter().cloned().chain([sub.get_name().to_owned()]).collect();
                check(sub, &deeper);
            }
        }
        check(&Cli::command(), &[]);
    }
}
