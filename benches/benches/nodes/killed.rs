//! Time from the end of one killed rank to the end of the last rank.

use std::ffi::OsString;
use std::fs;
use std::thread::sleep;
use std::time::{Duration, Instant};

use lattice_benches::launcher::Launcher;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// Time limit for the start of all ranks, and for the end of all ranks.
const LIMIT: Duration = Duration::from_secs(60);

/// Starts ranks that sleep, kills one of them, and measures the time until no rank is left.
///
/// # Errors
/// Returns a description of the failure if not all ranks start, or not all ranks end.
pub(super) fn measure(launcher: &Launcher, ranks: usize) -> Result<Duration, String> {
    // The argument identifies the processes of this launch. It is a sleep of more than a day.
    let mark = format!("100000.{}", std::process::id());
    let mut launch = launcher.start(ranks, &["sleep".into(), OsString::from(&mark)])?;
    let mut started = Vec::new();
    let begun = Instant::now();
    while started.len() < ranks && begun.elapsed() < LIMIT {
        sleep(Duration::from_millis(20));
        started = sleeping(&mark);
    }
    let time = match started.get(ranks / 2) {
        Some(&one) if started.len() == ranks => time_to_end(&started, one),
        _ => Err(format!("{} has {} of {ranks} ranks", launcher.name, started.len())),
    };
    if time.is_err() {
        let _ = launch.kill();
    }
    let _ = launch.wait();
    time
}

fn time_to_end(ranks: &[Pid], killed: Pid) -> Result<Duration, String> {
    let begun = Instant::now();
    kill(killed, Signal::SIGKILL).map_err(|error| format!("a rank cannot be killed: {error}"))?;
    while ranks.iter().any(|&rank| lives(rank)) {
        if begun.elapsed() > LIMIT {
            return Err("ranks are left".to_owned());
        }
        sleep(Duration::from_micros(200));
    }
    Ok(begun.elapsed())
}

/// Returns the processes that sleep for this time.
fn sleeping(mark: &str) -> Vec<Pid> {
    let process = |entry: fs::DirEntry| {
        let pid = entry.file_name().to_str()?.parse().ok()?;
        let line = fs::read(entry.path().join("cmdline")).ok()?;
        (line == [b"sleep\0", mark.as_bytes(), b"\0"].concat()).then_some(Pid::from_raw(pid))
    };
    fs::read_dir("/proc").into_iter().flatten().flatten().filter_map(process).collect()
}

/// Returns true for a process that still runs. Returns false for a zombie.
fn lives(process: Pid) -> bool {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, fields)| !fields.starts_with(['Z', 'X']))
}
