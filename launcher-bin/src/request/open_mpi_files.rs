//! Parameter files of Open MPI, as far as they select transports: the file of the user, and the file of the Open MPI in `PATH`.
//!
//! A line is `name = value`, or an option of mpirun such as `--mca name value` (Open MPI, `opal/util/keyval_parse.c`).

use std::io;
use std::path::{Path, PathBuf};

use lattice_console::bounded_file;
use lattice_console::environment::{self, Environment};

/// Maximum size of a file, in bytes. The contents of a longer file are unknown.
const FILE_MAX: u64 = 256 * 1024;

/// Path of the file below the prefix of an Open MPI installation.
const OF_INSTALLATION: &str = "etc/openmpi-mca-params.conf";

/// True if a file of the user or of the Open MPI in `PATH` selects transports, or cannot be read.
pub(super) fn choose_transports(environment: &Environment) -> bool {
    let home = environment::non_empty(environment, "HOME").map(|home| Path::new(home).join(".openmpi/mca-params.conf"));
    let installed = installation(environment).map(|prefix| prefix.join(OF_INSTALLATION));
    home.into_iter().chain(installed).any(|file| match bounded_file::text(&file, FILE_MAX) {
        Ok(text) => text.lines().any(is_choice),
        Err(error) => !matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory),
    })
}

/// Prefix of the Open MPI installation that the variables name.
fn installation(environment: &Environment) -> Option<PathBuf> {
    if let Some(prefix) = environment::non_empty(environment, "OPAL_PREFIX") {
        return Some(prefix.into());
    }
    let mut programs =
        std::env::split_paths(environment::value(environment, "PATH")?).map(|directory| directory.join("ompi_info"));
    // Resolving each path costs a system call for each of its parts.
    let program = programs.find(|program| program.exists())?;
    let program = program.canonicalize().ok()?;
    Some(program.parent()?.parent()?.to_owned())
}

/// Parameters that select transports: for bytes, for messages, and for the layer above both.
const CHOICES: [&str; 3] = ["btl", "mtl", "pml"];

/// True if a line selects transports.
fn is_choice(line: &str) -> bool {
    let line = line.split('#').next().unwrap_or_default();
    let mut words = line.split(|c: char| c.is_ascii_whitespace() || c == '=').filter(|word| !word.is_empty());
    match words.next() {
        Some("-mca" | "--mca" | "-gmca" | "--gmca") => words.next().is_some_and(|name| CHOICES.contains(&name)),
        Some(name) => CHOICES.contains(&name),
        None => false,
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_line_that_names_layers_is_a_choice() {
        for line in ["btl = tcp,self", "btl=^openib", "  pml\t= ob1 # a comment", "--mca mtl ofi", "-mca btl self"] {
            assert!(is_choice(line), "{line}");
        }
        for line in ["", "# btl = tcp", "btl_tcp_if_include = eth0", "osc = ^ucx", "--mca osc rdma", "--mca", "x = btl"]
        {
            assert!(!is_choice(line), "{line}");
        }
    }

    #[test]
    fn files_of_the_user_and_of_the_installation_are_read() {
        let directory = tempfile::tempdir().unwrap();
        let below = |name: &str| directory.path().join(name);
        for name in ["home/.openmpi", "mpi/etc", "mpi/bin", "own/etc"] {
            fs::create_dir_all(below(name)).unwrap();
        }
        fs::write(below("mpi/bin/ompi_info"), "").unwrap();
        let chooses = |variables: &[(&str, PathBuf)]| {
            let variables = variables.iter().map(|(name, value)| ((*name).into(), value.into()));
            choose_transports(&variables.collect::<Vec<_>>())
        };
        let (home, path) = (("HOME", below("home")), ("PATH", below("mpi/bin")));
        assert!(!chooses(&[home.clone(), path.clone()]) && !chooses(&[]), "there is no file");
        fs::write(below("home/.openmpi/mca-params.conf"), "btl_tcp_if_include = eth0\n").unwrap();
        assert!(!chooses(std::slice::from_ref(&home)));
        fs::write(below("mpi/etc/openmpi-mca-params.conf"), "# of the site\nbtl = self,sm,tcp\n").unwrap();
        assert!(chooses(&[home.clone(), path.clone()]));
        assert!(!chooses(&[home.clone(), path, ("OPAL_PREFIX", below("own"))]), "another installation is used");
        fs::write(below("home/.openmpi/mca-params.conf"), "btl = self\n").unwrap();
        assert!(chooses(std::slice::from_ref(&home)));
        fs::write(below("home/.openmpi/mca-params.conf"), [0xff]).unwrap();
        assert!(chooses(&[home]), "nobody knows");
    }
}
