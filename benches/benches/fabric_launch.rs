//! What does a fabric manager that takes 50 ms for each answer cost a launch?
//!
//! The bench runs the same launch of two ranks on two nodes, in clusters without a fabric and with one. It measures the first
//! and the second launch of an allocation that has existed for a while. It also measures a launch that follows its allocation
//! at once and has to wait for the manager.
//!
//! ```text
//! cargo build --release && cargo bench -p lattice-benches --bench fabric_launch
//! ```
//! Without `--bench` (`cargo test --benches`) the bench only proves that it works, with one round.

use std::fs;
use std::io;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::thread::sleep;
use std::time::{Duration, Instant};

use lattice_benches::sample::median;
use lattice_benches::{is_measured, lattice_binary, machine};

const ROUNDS: usize = 30;
/// Argument for this program inside a cluster; the name of the cluster follows.
const INSIDE: &str = "--inside";
/// Every call takes 50 ms.
const SLOW: &str = r#"[{"times": 1000000, "fault": {"slow": {"milliseconds": 50}}}]"#;
/// Long enough for the answers of the manager.
const A_WHILE: Duration = Duration::from_millis(500);

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let lattice = match lattice_binary() {
        Ok(lattice) => lattice,
        Err(why) => {
            println!("lattice: absent, {why}");
            return ExitCode::SUCCESS;
        }
    };
    let inside = words.iter().position(|word| word == INSIDE).and_then(|at| words.get(at + 1));
    let result = match inside {
        Some(name) => compare(&lattice, name),
        None => in_clusters(&lattice),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            println!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn in_clusters(lattice: &Path) -> io::Result<()> {
    println!("{}", machine::line());
    println!("{:<22} {:>14} {:>14} {:>14}", "median, ms", "first launch", "second", "at once");
    let faults = std::env::temp_dir().join(format!("fabric-launch-{}.json", std::process::id()));
    fs::write(&faults, SLOW)?;
    let path = faults.display().to_string();
    let clusters: [(&str, &[&str]); 3] = [
        ("no fabric", &[]),
        ("manager answers at once", &["--fabric"]),
        ("manager takes 50 ms", &["--fabric", "--fabric-faults", &path]),
    ];
    let this = std::env::current_exe()?;
    let ran = clusters.iter().try_for_each(|(name, flags)| {
        let mut cluster = Command::new(lattice);
        cluster.args(["dev-cluster", "--loopback", "--nodes", "2"]).args(*flags).arg("--").arg(&this);
        let status = cluster.args(std::env::args_os().skip(1)).args([INSIDE, name]).status()?;
        if status.success() { Ok(()) } else { Err(io::Error::other(format!("{name}: {status}"))) }
    });
    fs::remove_file(faults)?;
    ran
}

fn compare(lattice: &Path, name: &str) -> io::Result<()> {
    if let Ok(allocation) = std::env::var("LATTICE_ALLOC_ID") {
        run(lattice, &["alloc", "release", &allocation])?;
    }
    let (mut first, mut second, mut at_once) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..if is_measured() { ROUNDS } else { 1 } {
        let allocation = run(lattice, &["alloc", "create", "-N", "2"])?;
        sleep(A_WHILE);
        first.push(launch(lattice, &allocation)?);
        second.push(launch(lattice, &allocation)?);
        run(lattice, &["alloc", "release", &allocation])?;
        let allocation = run(lattice, &["alloc", "create", "-N", "2"])?;
        at_once.push(launch(lattice, &allocation)?);
        run(lattice, &["alloc", "release", &allocation])?;
    }
    let shown = [first, second, at_once].map(|times| format!("{:14.1}", median(&times)));
    println!("{name:<22} {}", shown.join(" "));
    Ok(())
}

/// Returns the time of a launch, in milliseconds.
fn launch(lattice: &Path, allocation: &str) -> io::Result<f64> {
    let begun = Instant::now();
    run(lattice, &["launch", "--alloc", allocation, "--pmi", "none", "-n", "2", "true"])?;
    Ok(begun.elapsed().as_secs_f64() * 1e3)
}

/// Runs a command to its end and returns its output.
fn run(lattice: &Path, words: &[&str]) -> io::Result<String> {
    let output = Command::new(lattice).args(words).output()?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    if output.status.success() {
        return Ok(text(&output.stdout));
    }
    Err(io::Error::other(format!("lattice {}: {}", words.join(" "), text(&output.stderr))))
}
