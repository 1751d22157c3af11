//! Completions and man pages, generated from the definition of the command line.

use std::path::{Path, PathBuf};
use std::{fs, io};

use clap::{Command, CommandFactory};
use clap_complete::Shell;
use clap_mangen::Man;
use lattice_console::formatting::nearest;

use crate::args::Cli;

/// A man page cannot be made.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ManPageError {
    /// There is no command of this name.
    #[error("there is no command {command:?}; there are {}\ntry: lattice man {}, or another of these", known.join(", "), nearest(command, known).unwrap_or("launch"))]
    NoSuchCommand {
        /// The requested command.
        command: String,
        /// The known commands.
        known: Vec<String>,
    },
    /// A page cannot be stored.
    #[error("cannot write the man page {}: {source}", path.display())]
    Write {
        /// File of the page.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
}

/// Completion script for `shell`.
pub(crate) fn completions(shell: Shell) -> Vec<u8> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "lattice", &mut script);
    script
}

/// The man page, in roff, of the command at `path` below `lattice`.
pub(crate) fn man_page(path: &[String]) -> Result<Vec<u8>, ManPageError> {
    let mut command = Cli::command();
    // Global flags are then listed for every command.
    command.build();
    for word in path {
        let known = command.get_subcommands().map(|known| known.get_name().to_owned()).collect();
        command = match command.find_subcommand(word) {
            Some(found) => found.clone(),
            None => return Err(ManPageError::NoSuchCommand { command: word.clone(), known }),
        };
    }
    Ok(page_of(&command, path))
}

/// The man page of a built command, which is at `path` below `lattice`.
fn page_of(command: &Command, path: &[String]) -> Vec<u8> {
    let mut page = Vec::new();
    Man::new(command.clone()).render(&mut page).expect("writing to memory cannot fail");
    with_own_references(command, path, page)
}

/// Writes the man page of `lattice` and of each command below it to `directory`, which must exist: `lattice-alloc-create.1` and so on. Hidden
/// commands have no page.
///
/// # Errors
/// Fails if a file cannot be written.
pub(crate) fn write_man_pages(directory: &Path) -> Result<(), ManPageError> {
    let mut all = Cli::command();
    all.build();
    write_pages_of(&all, &mut Vec::new(), directory)
}

fn write_pages_of(command: &Command, path: &mut Vec<String>, directory: &Path) -> Result<(), ManPageError> {
    let name = ["lattice"].into_iter().chain(path.iter().map(String::as_str)).collect::<Vec<_>>().join("-");
    let file = directory.join(format!("{name}.1"));
    fs::write(&file, page_of(command, path)).map_err(|source| ManPageError::Write { path: file, source })?;
    for below in command.get_subcommands().filter(|below| !below.is_hide_set() && below.get_name() != "help") {
        path.push(below.get_name().to_owned());
        write_pages_of(below, path, directory)?;
        path.pop();
    }
    Ok(())
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
    fn the_pages_of_all_commands_are_written_to_a_directory() {
        let directory = tempfile::tempdir().unwrap();
        write_man_pages(directory.path()).unwrap();
        let page = |name: &str| fs::read_to_string(directory.path().join(name)).unwrap();
        for (name, title) in [
            ("lattice.1", ".TH lattice 1"),
            ("lattice-launch.1", ".TH lattice-launch 1"),
            ("lattice-alloc-create.1", ".TH lattice-alloc-create 1"),
        ] {
            assert!(page(name).contains(title), "{name}");
        }
        assert!(!directory.path().join("lattice-help.1").exists());
        assert!(write_man_pages(Path::new("/nonexistent")).is_err());
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
