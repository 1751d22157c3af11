//! `lattice pmi`: a small PMI program to launch as the ranks of a job, under this launcher or another launcher.
//!
//! The probes need no MPI library. They check that a launcher serves PMI, measure the time of a fence, and check that every rank gets the values
//! of other ranks. Rank 0 reports for the job. A rank that gets a wrong value fails the job.

mod adopt;
mod connect;
mod distribution;
mod member;

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use lattice_console::formatting::count as plural;
use lattice_console::{OutputError, print};
use pmi_client::{SpawnApp, SpawnRequest};
use pmi_transport::error_chain::chain;

pub use self::adopt::AdoptError;
pub use self::connect::ConnectError;
use self::member::{CallError, Member};
use crate::args::PmiCommand;
use crate::args::pmi_command::{Method, Probe};
use crate::client_libraries::{self, ClientLibraryError};

/// Failure of a probe.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PmiCommandError {
    /// The process could not join its job.
    #[error("cannot join the job through PMI")]
    Join(#[source] CallError),
    /// A call failed during the probe.
    #[error("rank {rank} cannot go on")]
    Call {
        /// The rank that made the call.
        rank: u32,
        /// The error.
        source: CallError,
    },
    /// A key from before the fence is missing after it.
    #[error("rank {rank} found nothing under {key}, which was put before the fence")]
    Missing {
        /// The rank that called get.
        rank: u32,
        /// The key.
        key: String,
    },
    /// A key has a wrong value.
    #[error("rank {rank} got {seen} under {key}; {expected} was put")]
    Wrong {
        /// The rank that called get.
        rank: u32,
        /// The key.
        key: String,
        /// Value that the rank got, quoted, and truncated if it is long.
        seen: String,
        /// Value that was put, in the same form.
        expected: String,
    },
    /// A key of the job is unknown to the launcher.
    #[error("the launcher does not know {}", .keys.join(", "))]
    Unknown {
        /// The unknown keys.
        keys: Vec<String>,
    },
    /// The loaded PMI library belongs to another launcher.
    #[error("{reason}; the library of PMI here is {}, which is none of Lattice\ntry: lattice launch --pmi-library, or --library with the file of another one", library.display())]
    OtherLibrary {
        /// Failure of the probe.
        reason: String,
        /// The library.
        library: PathBuf,
    },
    /// A program cannot be connected to the launcher, or cannot be executed.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// A program that was started without a launcher cannot be served.
    #[error(transparent)]
    Adopt(#[from] AdoptError),
    /// The client libraries are missing or invalid.
    #[error(transparent)]
    Library(#[from] ClientLibraryError),
    /// The result could not be printed.
    #[error(transparent)]
    Output(#[from] OutputError),
}

/// Runs one probe as the rank of this process. Only rank 0 prints the result, on standard output. Returns the exit code.
///
/// # Errors
/// Fails if PMI fails, if a value is wrong or missing, or if a key is unknown to the launcher.
pub fn run(command: PmiCommand) -> Result<u8, PmiCommandError> {
    if let Probe::Library { functions } = command.probe {
        return Ok(print(libraries(functions)?.as_bytes())?);
    }
    if let Probe::Adopt { port } = command.probe {
        return Ok(adopt::adopt(port)?);
    }
    if let Probe::Connect { command } = &command.probe {
        return Err(connect::become_rank(command).into());
    }
    let is_found = matches!(command.method, Method::Lib | Method::Lib2) && command.library.is_none();
    let mut other = None;
    probe(command, &mut other).map_err(|error| match other.filter(|_| is_found) {
        Some(library) => PmiCommandError::OtherLibrary { reason: chain(&error), library },
        None => error,
    })
}

/// PMI library that this process has loaded, if it is not a library of Lattice.
fn other_library() -> Option<PathBuf> {
    let maps = fs::read_to_string("/proc/self/maps").ok()?;
    let is_pmi = |path: &Path| {
        path.file_name()
            .is_some_and(|name| name.as_bytes().starts_with(b"libpmi") && !name.as_bytes().starts_with(b"libpmix"))
    };
    let mut files = maps.lines().filter_map(|line| Some(Path::new(&line[line.find('/')?..])));
    let found = files.find(|path| is_pmi(path))?;
    let ours = client_libraries::both().map(|both| both.map(|library| library.path)).ok();
    let is_ours = ours.is_some_and(|ours| ours.iter().any(|own| own.canonicalize().is_ok_and(|own| own == found)));
    (!is_ours).then(|| found.to_owned())
}

/// Runs a probe. If it loads the PMI library of another launcher, stores the path in `other`.
fn probe(command: PmiCommand, other: &mut Option<PathBuf>) -> Result<u8, PmiCommandError> {
    let mut client = Member::join(command.method, command.library.as_deref()).map_err(PmiCommandError::Join)?;
    // The library stays loaded as long as the client exists.
    *other = other_library();
    let rank = client.rank();
    let report = match command.probe {
        Probe::Barrier { count } => barrier(&mut client, count),
        Probe::Exchange { count, size } => exchange(&mut client, count, size),
        Probe::Get { keys } => get(&mut client, keys),
        Probe::Spawn { ranks, command } => spawn(&mut client, ranks, command),
        // Handled above.
        Probe::Library { .. } | Probe::Connect { .. } | Probe::Adopt { .. } => Ok(Report::default()),
    }?;
    client.finalize().map_err(|source| PmiCommandError::Call { rank, source })?;
    let code = if rank == 0 { print(&report.printed)? } else { 0 };
    if report.unknown.is_empty() { Ok(code) } else { Err(PmiCommandError::Unknown { keys: report.unknown }) }
}

/// One line for each client library.
fn libraries(functions: bool) -> Result<String, ClientLibraryError> {
    let mut text = String::new();
    for library in client_libraries::both()? {
        let (path, count) = (library.path.display(), plural(library.functions.len() as u64, "function"));
        text += &format!("{path}  version {}  {count}\n", library.version);
        if functions {
            text.extend(library.functions.iter().map(|function| format!("  {function}\n")));
        }
    }
    Ok(text)
}

/// Result of a probe. It is printed after the job has ended in order.
#[derive(Debug, Default)]
struct Report {
    printed: Vec<u8>,
    /// Keys that are unknown to the launcher.
    unknown: Vec<String>,
}

impl From<String> for Report {
    fn from(line: String) -> Self {
        Self { printed: line.into_bytes(), unknown: Vec::new() }
    }
}

fn barrier(client: &mut Member, count: u32) -> Result<Report, PmiCommandError> {
    let (rank, size) = (client.rank(), client.size());
    let failed = |source| PmiCommandError::Call { rank, source };
    // Ranks do not start at the same time, and the first fence would measure that. A fence that does not wait returns no value of a neighbour.
    let key = |rank: u32| format!("pmi-barrier-{rank}");
    client.put(&key(rank), &value(rank, 0, 16)).map_err(failed)?;
    client.fence().map_err(failed)?;
    let neighbour = (rank + 1) % size;
    let seen = client.get(neighbour, &key(neighbour)).map_err(failed)?;
    verify(rank, key(neighbour), seen, &value(neighbour, 0, 16))?;
    let times = (0..count).map(|_| timed(|| client.fence().map_err(failed))).collect::<Result<Vec<_>, _>>()?;
    let picture = distribution::picture(&times);
    let spread = Spread::of(times);
    Ok(format!("barrier: {}, {}: {spread}\n{picture}", plural(size, "rank"), plural(count, "fence")).into())
}

fn exchange(client: &mut Member, count: u32, bytes: usize) -> Result<Report, PmiCommandError> {
    let (rank, size) = (client.rank(), client.size());
    client.fence().map_err(|source| PmiCommandError::Call { rank, source })?;
    let times = (0..count).map(|round| timed(|| exchange_once(client, round, bytes))).collect::<Result<Vec<_>, _>>()?;
    let pairs = f64::from(size) * f64::from(count) / times.iter().sum::<Duration>().as_secs_f64();
    let picture = distribution::picture(&times);
    let spread = Spread::of(times);
    Ok(format!(
        "exchange: {}, {}, {}: {spread}, {pairs:.0} pairs/s\n{picture}",
        plural(size, "rank"),
        plural(count, "round"),
        plural(bytes as u64, "byte")
    )
    .into())
}

/// Each round has separate keys: the next put of a fast rank must not replace a value that a slow rank still needs.
fn exchange_once(client: &mut Member, round: u32, bytes: usize) -> Result<(), PmiCommandError> {
    let (rank, size) = (client.rank(), client.size());
    let failed = |source| PmiCommandError::Call { rank, source };
    let key = |rank: u32| format!("pmi-exchange-{round}-{rank}");
    client.put(&key(rank), &value(rank, round, bytes)).map_err(failed)?;
    client.fence().map_err(failed)?;
    for other in 0..size {
        let seen = client.get(other, &key(other)).map_err(failed)?;
        verify(rank, key(other), seen, &value(other, round, bytes))?;
    }
    Ok(())
}

/// Only rank 0 gets the keys, because the result is the same for all ranks.
fn get(client: &mut Member, keys: Vec<String>) -> Result<Report, PmiCommandError> {
    let mut report = Report::default();
    let rank = client.rank();
    if rank != 0 {
        return Ok(report);
    }
    for key in keys {
        match client.job_attribute(&key).map_err(|source| PmiCommandError::Call { rank, source })? {
            Some(value) => report.printed.extend([key.as_bytes(), b"=", &value, b"\n"].concat()),
            None => report.unknown.push(key),
        }
    }
    Ok(report)
}

/// Only rank 0 spawns, because the new job is for all ranks.
fn spawn(client: &mut Member, ranks: u32, command: Vec<String>) -> Result<Report, PmiCommandError> {
    let rank = client.rank();
    let mut words = command.into_iter();
    let (Some(program), 0) = (words.next(), rank) else { return Ok(Report::default()) };
    let app = SpawnApp { program, args: words.collect(), ranks, ..SpawnApp::default() };
    let request = SpawnRequest { apps: vec![app], ..SpawnRequest::default() };
    let start = Instant::now();
    let job = client.spawn(&request).map_err(|source| PmiCommandError::Call { rank, source })?;
    let took = start.elapsed().as_secs_f64() * 1e3;
    let job = job.map(|job| format!(", job {job}")).unwrap_or_default();
    Ok(format!("spawn: {}{job}: {took:.3} ms\n", plural(ranks, "rank")).into())
}

/// A text of `bytes` bytes. If it is long enough, it is unique for the rank and the round.
fn value(rank: u32, round: u32, bytes: usize) -> Vec<u8> {
    format!("{rank}.{round},").into_bytes().into_iter().cycle().take(bytes).collect()
}

fn verify(rank: u32, key: String, seen: Option<Vec<u8>>, expected: &[u8]) -> Result<(), PmiCommandError> {
    match seen {
        Some(seen) if seen == expected => Ok(()),
        Some(seen) => Err(PmiCommandError::Wrong { rank, key, seen: quote(&seen), expected: quote(expected) }),
        None => Err(PmiCommandError::Missing { rank, key }),
    }
}

/// The first bytes of a value, enough to recognize it.
fn quote(value: &[u8]) -> String {
    let head = value[..value.len().min(40)].escape_ascii();
    if value.len() > 40 { format!("\"{head}..\" ({} bytes)", value.len()) } else { format!("\"{head}\"") }
}

fn timed<E>(call: impl FnOnce() -> Result<(), E>) -> Result<Duration, E> {
    let start = Instant::now();
    call().map(|()| start.elapsed())
}

/// Minimum, median and maximum of times.
#[derive(Debug, PartialEq)]
struct Spread {
    min: Duration,
    median: Duration,
    max: Duration,
}

impl Spread {
    /// Spread of at least one time. The command line requires at least one.
    fn of(mut times: Vec<Duration>) -> Self {
        times.sort_unstable();
        Self { min: times[0], median: times[times.len() / 2], max: times[times.len() - 1] }
    }
}

impl std::fmt::Display for Spread {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let [min, median, max] = [self.min, self.median, self.max].map(|time| time.as_secs_f64() * 1e3);
        write!(f, "{min:.3}/{median:.3}/{max:.3} ms min/median/max")
    }
}

#[cfg(test)]
mod tests {
    use pmi_client::{Client, ClientError};

    use super::*;

    fn printed(report: Report) -> String {
        String::from_utf8(report.printed).unwrap()
    }

    #[test]
    fn probes_of_a_job_of_one_rank_report_one_line() {
        let mut client = Member::Pmi(Client::alone());
        let line = printed(barrier(&mut client, 3).unwrap());
        assert!(line.starts_with("barrier: 1 rank, 3 fences: ") && line.ends_with(" ms min/median/max\n"), "{line}");
        let line = printed(exchange(&mut client, 2, 100).unwrap());
        assert!(line.starts_with("exchange: 1 rank, 2 rounds, 100 bytes: ") && line.ends_with(" pairs/s\n"), "{line}");
    }

    #[test]
    fn keys_are_printed_and_unknown_ones_named() {
        let keys = ["PMI_process_mapping", "nonesuch"].map(String::from);
        let report = get(&mut Member::Pmi(Client::alone()), keys.into()).unwrap();
        assert_eq!(report.unknown, ["nonesuch"]);
        assert_eq!(printed(report), "PMI_process_mapping=(vector,(0,1,1))\n");
    }

    #[test]
    fn a_wrong_value_is_reported_with_rank_and_key() {
        let check = |seen: Option<&[u8]>, expected: &str| {
            let error = verify(3, "k".into(), seen.map(<[u8]>::to_vec), &value(1, 0, 5)).unwrap_err();
            assert_eq!(error.to_string(), expected);
        };
        check(Some(b"1.1,1"), "rank 3 got \"1.1,1\" under k; \"1.0,1\" was put");
        let long = "x".repeat(40);
        check(Some(&[b'x'; 41]), &format!("rank 3 got \"{long}..\" (41 bytes) under k; \"1.0,1\" was put"));
        check(None, "rank 3 found nothing under k, which was put before the fence");
        assert!(verify(3, "k".into(), Some(b"1.0,1".to_vec()), &value(1, 0, 5)).is_ok());
    }

    #[test]
    fn a_value_too_long_for_the_launcher_is_an_error() {
        let error = exchange(&mut Member::Pmi(Client::alone()), 1, 70_000).unwrap_err();
        assert!(
            matches!(error, PmiCommandError::Call { rank: 0, source: CallError::Pmi(ClientError::Length { .. }) }),
            "{error:?}"
        );
    }

    #[test]
    fn a_spread_is_of_sorted_times() {
        let times = [5, 1, 3, 9].map(Duration::from_millis).to_vec();
        assert_eq!(Spread::of(times).to_string(), "1.000/5.000/9.000 ms min/median/max");
    }
}
