//! Setup with which an unmodified `mpirun` or `mpiexec` starts its ranks on the nodes of an allocation: variables and files for a shell.
//!
//! ```text
//! DIRECTORY/ssh, rsh, lattice-mpi-launcher ──> lattice      start daemons for Hydra, Intel MPI and Open MPI
//! DIRECTORY/srun, scontrol ────────────────> lattice      for Slurm scripts, outside of Slurm jobs
//! DIRECTORY/hosts, hosts-openmpi                            slots: a line for each, and `NODE slots=NUMBER`
//! ```
//!
//! Hydra does not support `slots=`. For Open MPI, a name that occurs once is a node with as many slots as cores. Intel MPI starts as many ranks
//! on each node as it has cores, and ignores the numbers in the file of its variable. It supports `-machinefile $HYDRA_HOST_FILE`.
//!
//! The variables that each launcher reads were measured with MPICH 3.4 to 5.0, Intel MPI 2021, Open MPI 4.1 and 5.0. `HYDRA_LAUNCHER=manual`
//! with `HYDRA_LAUNCHER_AUTOFORK=0`, as in the design document, is not used: every Hydra crashes on the pair.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use rank_spawner::{FileIdentity, OwnDirectory, write_own_file};

/// Names under which this program is a remote shell.
const NAMES: [&str; 3] = ["ssh", "rsh", OWN_NAME];
/// The one of these names that no other program has.
const OWN_NAME: &str = "lattice-mpi-launcher";
const HOSTS: &str = "hosts";
const HOSTS_OF_OPEN_MPI: &str = "hosts-openmpi";
/// Names under which this program reads Slurm command lines. They are not used in a Slurm job, where they belong to Slurm.
const NAMES_OF_SLURM: [&str; 2] = ["srun", "scontrol"];

/// Variable of the processes of a Slurm job.
const JOB_OF_SLURM: &str = "SLURM_JOB_ID";

/// Resource managers with variables that would redirect Open MPI. A name that a version does not support is harmless.
const NO_MANAGER_OMPI: &str = "^slurm,tm,gridengine,lsf,alps,loadleveler";
const NO_MANAGER_PRRTE: &str = "^slurm,pbs,gridengine,lsf,flux";

/// A node with the default number of ranks of a launcher on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slots {
    /// Name of the node.
    pub node: String,
    /// Number of ranks; 0 counts as 1.
    pub slots: u32,
}

/// Files of one shell, in a separate directory. They remain until they are removed.
#[derive(Clone, Debug)]
pub struct MpirunSetup {
    directory: PathBuf,
    identity: FileIdentity,
}

impl MpirunSetup {
    /// True if the files can be in a directory of this name. Open MPI splits the name at blanks, colons and commas.
    pub fn can_be_in(directory: &Path) -> bool {
        !directory.as_os_str().as_bytes().iter().any(|byte| b" \t:,".contains(byte))
    }

    /// Identity of the directory.
    pub fn identity(&self) -> FileIdentity {
        self.identity
    }

    /// Creates `directory`, and writes the files into it.
    ///
    /// # Errors
    /// Fails if the files cannot be written, or if they [cannot be in](Self::can_be_in) the directory.
    pub fn write(directory: PathBuf, nodes: &[Slots]) -> io::Result<Self> {
        if !Self::can_be_in(&directory) {
            let reason = format!("{} has a blank, a colon or a comma in its name", directory.display());
            return Err(io::Error::new(io::ErrorKind::InvalidInput, reason));
        }
        // Other users may search the directory. No other user may write to it, whatever the umask is, because its names come first in `PATH`.
        let identity = OwnDirectory::make(&directory, 0o755)?.identity();
        let program = std::env::current_exe()?;
        let of_slurm = NAMES_OF_SLURM.into_iter().filter(|_| std::env::var_os(JOB_OF_SLURM).is_none());
        for name in NAMES.into_iter().chain(of_slurm) {
            symlink(&program, directory.join(name))?;
        }
        let slots = || nodes.iter().map(|node| (node.node.as_str(), node.slots.max(1)));
        let lines = slots().flat_map(|(node, slots)| std::iter::repeat_n(node, slots as usize));
        let lines: String = lines.flat_map(|line| [line, "\n"]).collect();
        write_own_file(&directory.join(HOSTS), 0o644, lines.as_bytes())?;
        let lines: String = slots().map(|(node, slots)| format!("{node} slots={slots}\n")).collect();
        write_own_file(&directory.join(HOSTS_OF_OPEN_MPI), 0o644, lines.as_bytes())?;
        Ok(Self { directory, identity })
    }

    /// Variables that the launchers read. Flags of the user override them.
    pub fn variables(&self) -> Vec<(&'static str, OsString)> {
        let (program, hosts) = (self.directory.join(OWN_NAME), self.directory.join(HOSTS));
        let hosts_of_open_mpi = self.directory.join(HOSTS_OF_OPEN_MPI);
        let path = |path: &Path| path.as_os_str().to_owned();
        vec![
            ("HYDRA_LAUNCHER", "rsh".into()),
            ("HYDRA_LAUNCHER_EXEC", path(&program)),
            ("HYDRA_HOST_FILE", path(&hosts)),
            ("I_MPI_HYDRA_BOOTSTRAP", "rsh".into()),
            ("I_MPI_HYDRA_BOOTSTRAP_EXEC", path(&program)),
            ("I_MPI_HYDRA_HOST_FILE", path(&hosts)),
            ("OMPI_MCA_plm", "rsh".into()),
            ("OMPI_MCA_plm_rsh_agent", path(&program)),
            ("OMPI_MCA_ras", NO_MANAGER_OMPI.into()),
            ("OMPI_MCA_orte_default_hostfile", path(&hosts_of_open_mpi)),
            ("PRTE_MCA_plm", "ssh".into()),
            ("PRTE_MCA_plm_ssh_agent", path(&program)),
            ("PRTE_MCA_ras", NO_MANAGER_PRRTE.into()),
            ("PRTE_MCA_prte_default_hostfile", path(&hosts_of_open_mpi)),
        ]
    }

    /// `path`, a value of `PATH`, with the directory of these files in front.
    ///
    /// # Errors
    /// Fails if `path` is no valid value.
    pub fn path(&self, path: &OsStr) -> io::Result<OsString> {
        let all = std::iter::once(self.directory.clone()).chain(std::env::split_paths(path));
        std::env::join_paths(all).map_err(io::Error::other)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn slots(node: &str, slots: u32) -> Slots {
        Slots { node: node.to_owned(), slots }
    }

    #[test]
    fn every_node_has_its_slots_and_every_name_leads_here() {
        let parent = tempfile::tempdir().unwrap();
        let setup = MpirunSetup::write(parent.path().join("mpirun"), &[slots("a", 2), slots("b", 0)]).unwrap();
        let check = |variable: &str, expected: &str| {
            let hosts = setup.variables().into_iter().find(|(name, _)| *name == variable).unwrap().1;
            assert_eq!(fs::read_to_string(hosts).unwrap(), expected, "a node has a slot at least");
        };
        check("HYDRA_HOST_FILE", "a\na\nb\n");
        check("OMPI_MCA_orte_default_hostfile", "a slots=2\nb slots=1\n");
        check("PRTE_MCA_prte_default_hostfile", "a slots=2\nb slots=1\n");
        let ours = std::env::current_exe().unwrap();
        let path = setup.path(OsStr::new("/usr/bin:/bin")).unwrap();
        let first = std::env::split_paths(&path).next().unwrap();
        for name in NAMES {
            assert_eq!(fs::read_link(first.join(name)).unwrap(), ours);
        }
        assert!(path.to_str().unwrap().ends_with("/mpirun:/usr/bin:/bin"));
    }

    #[test]
    fn a_directory_that_launchers_would_cut_is_refused() {
        let parent = tempfile::tempdir().unwrap();
        for name in ["a b", "a:b", "a,b"] {
            let error = MpirunSetup::write(parent.path().join(name), &[slots("a", 1)]).unwrap_err();
            assert!(error.to_string().contains("a blank, a colon or a comma"), "{error}");
        }
    }
}
