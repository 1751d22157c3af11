# Recipe for Spack 1.0 or newer, for a clone of Lattice:
#   spack repo create lattice-repo && mkdir -p lattice-repo/packages/lattice_mpi
#   cp packaging/spack/package.py lattice-repo/packages/lattice_mpi/ && spack repo add lattice-repo
#   spack dev-build lattice-mpi@main
from spack.package import *
from spack_repo.builtin.build_systems.cargo import CargoPackage


class LatticeMpi(CargoPackage):
    """Starts MPI programs on one machine or a cluster, without SSH."""

    license("Apache-2.0 OR MIT")

    version("main")

    depends_on("c", type="build")
    depends_on("rust@1.95:", type="build")

    conflicts("platform=darwin", msg="Lattice needs Linux")

    def install(self, spec, prefix):
        for program in ("launcher-bin", "agent-bin"):
            cargo("install", "--locked", "--root", prefix, "--path", program)

    @run_after("install")
    def install_documents(self):
        lattice = Executable(self.prefix.bin.lattice)
        pages = self.prefix.share.man.man1
        mkdirp(pages)
        lattice("man", "--all", pages)
        Executable(join_path(self.prefix.bin, "lattice-agent"))("man", "--all", pages)
        completions = join_path(self.prefix.share, "bash-completion", "completions")
        mkdirp(completions)
        with open(join_path(completions, "lattice"), "w") as script:
            lattice("completions", "bash", output=script)

    @run_after("install")
    @on_package_attributes(run_tests=True)
    def check_install(self):
        Executable(self.prefix.bin.lattice)("launch", "-n", "4", "hostname")
