//! How much memory does the launcher use for each rank, without the ranks' keys?
//!
//! The bench launches ranks that greet their server and then wait. It reads the launcher's resident memory at two sizes, and
//! prints the difference by rank. Kernel memory is not included.
//!
//! Run it with `cargo bench -p lattice-benches --bench rank_memory`. It measures the launcher in `LATTICE_BIN`, or else the
//! launcher next to the bench.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

use lattice_benches::{lattice_binary, machine};

fn main() -> ExitCode {
    let launcher = match lattice_binary() {
        Ok(launcher) => launcher,
        Err(why) => {
            println!("absent: {why}");
            return ExitCode::SUCCESS;
        }
    };
    let is_measured = std::env::args().any(|word| word == "--bench");
    let sizes: &[usize] = if is_measured { &[16, 64, 256, 512] } else { &[1, 3] };
    println!("{}", machine::line());
    println!("{:>6} {:>14} {:>20}", "ranks", "resident KiB", "KiB for each more");
    let mut before: Option<(usize, usize)> = None;
    for &ranks in sizes {
        let resident = resident_kib(&launcher, ranks);
        let each = before.map(|(fewer, less)| (resident as f64 - less as f64) / (ranks - fewer) as f64);
        println!("{ranks:>6} {resident:>14} {:>20}", each.map_or("-".into(), |each| format!("{each:.1}")));
        before = Some((ranks, resident));
    }
    ExitCode::SUCCESS
}

/// Returns the resident memory of a launcher after all ranks have greeted their server.
fn resident_kib(launcher: &Path, ranks: usize) -> usize {
    // The shell greets the server over the inherited socket, prints a line, and waits for the end of its input.
    let rank = "echo 'cmd=init pmi_version=1 pmi_subversion=1' >&$PMI_FD; read -r answer <&$PMI_FD; echo here; cat";
    let mut launch = Command::new(launcher)
        .args(["launch", "-q", "--stdin", "all", "-n", &ranks.to_string(), "bash", "-c", rank])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("the launcher exists");
    let output = BufReader::new(launch.stdout.take().expect("it is piped"));
    let greeted = output.lines().take(ranks).filter(|line| matches!(line, Ok(line) if line == "here")).count();
    assert_eq!(greeted, ranks, "every rank greets its server");
    let status = std::fs::read_to_string(format!("/proc/{}/status", launch.id())).expect("the launcher runs");
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("a process has memory");
    let resident = line.split_whitespace().nth(1).and_then(|kib| kib.parse().ok()).expect("a number of KiB");
    drop(launch.stdin.take());
    launch.wait().expect("it is our child");
    resident
}
