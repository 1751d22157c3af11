//! Programs that create, register and release resources of all kinds at random, while their ranks or their launcher are killed at random steps.
//! Of each launch no registered resource may remain. All unregistered resources, and resources of other launches, must remain.
//!
//! `LATTICE_RESOURCE_CASES` is the number of cases, `LATTICE_RESOURCE_SEED` the seed of the first one.

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{self, Child, Stdio};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use lattice_tests::mpi::Flavour;
use lattice_tests::outcome::Outcome;
use lattice_tests::running::LOOK_EVERY;
use lattice_tests::{Command, launch, processes};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

const PROGRAM: &str = "libpmi_random_resources";
const RANKS: usize = 3;
/// Kinds by the numbers of the program, as far as a test names them.
const SEMAPHORES: u8 = 1;
const MESSAGES: u8 = 2;
const PROCESS: u8 = 8;
/// Maximum age of a registered resource before its launch, in seconds: the delay of file system clocks, and one second.
const OLDER: u64 = 4;
/// Time limit for a keeper to remove the remaining resources.
const REMOVED_WITHIN: Duration = Duration::from_secs(20);

/// A namespace of resources. The directory and the tag are part of all their names.
struct Place {
    program: PathBuf,
    directory: tempfile::TempDir,
    tag: u16,
}

/// Number of a resource in its namespace, and its kind.
type Resource = (u16, u8);

impl Place {
    fn new(number: u16) -> Self {
        // Tests may run concurrently.
        let tag = (process::id() as u16).wrapping_mul(256).wrapping_add(number);
        Self { program: Flavour::LatticePmi.program(PROGRAM), directory: tempfile::tempdir().unwrap(), tag }
    }

    fn words(&self) -> [String; 2] {
        [self.directory.path().display().to_string(), self.tag.to_string()]
    }

    /// Runs the program with `make`, `list` or `clean`. Returns its output.
    fn told(&self, word: &str) -> String {
        let output = process::Command::new(&self.program).args(self.words()).arg(word).output().unwrap();
        assert!(output.status.success(), "{word}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// Returns all existing resources, except processes.
    fn there(&self) -> BTreeSet<Resource> {
        let resource = |line: &str| {
            let (number, kind) = line.split_once(' ').unwrap();
            (number.parse().unwrap(), kind.parse().unwrap())
        };
        self.told("list").lines().map(resource).collect()
    }

    fn log(&self, rank: usize) -> String {
        fs::read_to_string(self.directory.path().join(format!("log-{rank}"))).unwrap_or_default()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.told("clean");
    }
}

/// A boolean that is unknown if the process was killed during an operation.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum Is {
    #[default]
    No,
    Perhaps,
    Yes,
}

/// State of a resource according to the log of its rank.
#[derive(Clone, Copy, Debug, Default)]
struct LoggedState {
    is_there: Is,
    is_intended: Is,
    is_held: Is,
    pid: Option<u32>,
}

/// State of a resource after its launch.
#[derive(Clone, Copy, Debug, PartialEq)]
enum End {
    Gone,
    Stays,
    Either,
}

impl LoggedState {
    fn end(self, kind: u8) -> End {
        // The kernel does not provide the creator of these kinds.
        let is_found = self.is_intended == Is::Yes && kind != SEMAPHORES && kind != MESSAGES;
        let is_loose = self.is_intended == Is::No || (kind == SEMAPHORES || kind == MESSAGES);
        match self.is_there {
            _ if kind == PROCESS || is_found || self.is_held == Is::Yes => End::Gone,
            Is::No => End::Gone,
            Is::Yes if is_loose && self.is_held == Is::No => End::Stays,
            _ => End::Either,
        }
    }

    /// Processes a line of the log. If an operation failed because the launcher had been killed, its progress is unknown.
    fn take_in(&mut self, act: &str, code: i64) {
        match act {
            "intended" | "registered" | "begun" | "ended" if code != 0 => {}
            "intend" => self.is_intended = Is::Perhaps,
            "intended" => self.is_intended = Is::Yes,
            "make" => self.is_there = Is::Perhaps,
            "made" => (self.is_there, self.pid) = (Is::Yes, u32::try_from(code).ok()),
            "register" => self.is_held = Is::Perhaps,
            "registered" => (self.is_held, self.is_intended) = (Is::Yes, Is::No),
            "remove" => self.is_there = Is::Perhaps,
            "removed" => self.is_there = Is::No,
            "end" if self.is_held == Is::Yes => self.is_held = Is::Perhaps,
            "end" => self.is_intended = Is::Perhaps,
            "ended" => (self.is_held, self.is_intended) = (Is::No, Is::No),
            _ => {}
        }
    }
}

/// Parses a log. Every completed operation must have succeeded. Exceptions are registrations of foreign resources, and operations without the
/// launcher.
fn read(log: &str, killed: Killed, context: &str) -> BTreeMap<Resource, LoggedState> {
    let mut resources = BTreeMap::<Resource, LoggedState>::new();
    for line in log.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let (act, number, kind) = (words[0], words[1].parse().unwrap(), words[2].parse().unwrap());
        let code = words.get(3).map_or(0, |code| code.parse::<i64>().unwrap());
        match act {
            "pid" => {}
            "foreign" => assert_ne!(code, 0, "registered what is not its own: {line}\n{context}"),
            act => {
                let is_pid = act == "made" && kind == PROCESS;
                let is_left = matches!(killed, Killed::Launcher { .. }) && !matches!(act, "made" | "removed");
                assert!(code == 0 || is_pid || is_left, "should have succeeded: {line}\n{context}");
                resources.entry((number, kind)).or_default().take_in(act, code);
            }
        }
    }
    resources
}

/// Kills by the test, in addition to the ranks' own kills.
#[derive(Clone, Copy, Debug)]
enum Killed {
    Nobody,
    Launcher { after: usize },
    Rank { rank: usize, after: usize },
}

impl Killed {
    fn of(seed: u32) -> Self {
        let drawn = seed.wrapping_mul(2_654_435_761) >> 8;
        let after = (drawn / 16) as usize % 90;
        match drawn % 3 {
            0 => Self::Launcher { after },
            1 => Self::Rank { rank: (drawn / 3) as usize % RANKS, after: after / 3 },
            _ => Self::Nobody,
        }
    }
}

/// Runs a random launch, and checks the remaining resources.
fn check(place: &Place, seed: u32, foreign: &[String]) {
    let killed = Killed::of(seed);
    let command = launch(&format!("-n {RANKS} -K0")).arg(&place.program);
    let command = place.words().iter().fold(command, Command::arg).words(&format!("run {seed}"));
    let mut running = foreign.iter().fold(command, Command::arg).start();
    let logs = || (0..RANKS).map(|rank| place.log(rank)).collect::<Vec<_>>();
    let is_over = |pid: u32| !processes::lives(pid);
    let (pid, lines) = (running.pid(), |text: &str| text.lines().count());
    match killed {
        Killed::Nobody => {}
        Killed::Launcher { after } => {
            running.wait_until("the ranks have done so much", || {
                is_over(pid) || logs().iter().map(|log| lines(log)).sum::<usize>() >= after
            });
            running.signal(Signal::SIGKILL);
        }
        Killed::Rank { rank, after } => {
            running.wait_until("the rank has done so much", || is_over(pid) || lines(&place.log(rank)) > after);
            let log = place.log(rank);
            let process = log.lines().next().and_then(|line| line.rsplit(' ').next()?.parse().ok());
            // The process may have ended by itself.
            let _ = process.map(|process| kill(Pid::from_raw(process), Signal::SIGKILL));
        }
    }
    let outcome = running.finish();
    let context = format!("seed {seed}, killed: {killed:?}\n{}", logs().join("---\n"));
    let told: BTreeMap<Resource, LoggedState> = logs().iter().flat_map(|log| read(log, killed, &context)).collect();
    is_left(place, &told, &outcome, &context);
}

fn is_left(place: &Place, told: &BTreeMap<Resource, LoggedState>, outcome: &Outcome, context: &str) {
    let with_end = |end: End| {
        let resources = told.iter().filter(move |((_, kind), told)| *kind != PROCESS && told.end(*kind) == end);
        resources.map(|(resource, _)| *resource).collect::<BTreeSet<_>>()
    };
    let (gone, stays) = (with_end(End::Gone), with_end(End::Stays));
    let deadline = Instant::now() + REMOVED_WITHIN;
    // The keeper of a killed launcher may still be working.
    while !place.there().is_disjoint(&gone) && Instant::now() < deadline {
        thread::sleep(LOOK_EVERY);
    }
    let there = place.there();
    let left: Vec<_> = there.intersection(&gone).collect();
    outcome.check(left.is_empty(), || format!("should be gone (number, kind): {left:?}\n{context}"));
    let lost: Vec<_> = stays.difference(&there).collect();
    outcome.check(lost.is_empty(), || format!("should be there, was nobody's: {lost:?}\n{context}"));
    let unknown: Vec<_> = there.iter().filter(|resource| !told.contains_key(resource)).collect();
    outcome.check(unknown.is_empty(), || format!("nobody has told of making these: {unknown:?}\n{context}"));
    let live: Vec<_> = told.values().filter_map(|told| told.pid).filter(|&pid| processes::lives(pid)).collect();
    outcome.check(live.is_empty(), || format!("should have ended: {live:?}\n{context}"));
}

/// A process that ends with its test.
struct Bystander(Child);

impl Drop for Bystander {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Seconds since 1970.
fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}

#[test]
fn whoever_is_killed_when_what_is_registered_goes_and_nothing_else() {
    let number = |name: &str, usual: u32| env::var(name).map_or(usual, |text| text.parse().expect("a number"));
    let (cases, first) = (number("LATTICE_RESOURCE_CASES", 20), number("LATTICE_RESOURCE_SEED", 0));
    // Resources without a launch, and resources of another launch.
    let (nobody, other) = (Place::new(254), Place::new(255));
    nobody.told("make");
    let stranger = Bystander(process::Command::new("sleep").arg("1000").stdout(Stdio::null()).spawn().unwrap());
    let command = launch("-n 1").arg(&other.program);
    let mut holder = other.words().iter().fold(command, Command::arg).words("hold").start();
    holder.wait_for_stdout("holds all");
    let held = read(&other.log(0), Killed::Nobody, "the other launch");
    let child = held[&(u16::from(PROCESS), PROCESS)].pid.unwrap();
    let all: BTreeSet<Resource> = (0..PROCESS).map(|kind| (u16::from(kind), kind)).collect();
    let made = now();
    holder.wait_until("everything is older than the next launch", || now() >= made + OLDER);

    let words = |place: &Place, pid: u32| [&place.words()[..], &[pid.to_string()]].concat();
    let foreign = [words(&nobody, stranger.0.id()), words(&other, child)].concat();
    for case in 0..cases {
        let place = Place::new((case % 200) as u16);
        check(&place, first.wrapping_add(case), &foreign);
        let seed = first.wrapping_add(case);
        assert_eq!(nobody.there(), all, "nobody's resources after seed {seed}");
        assert_eq!(other.there(), all, "the other launch's resources after seed {seed}");
        assert!(processes::lives(stranger.0.id()) && processes::lives(child), "processes of others after seed {seed}");
    }
    fs::write(Path::new(&other.words()[0]).join("go"), "").unwrap();
    holder.finish().exits(0);
    assert_eq!(other.there(), BTreeSet::new());
    assert!(!processes::lives(child));
}
