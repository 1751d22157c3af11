//! A killed launcher leaves nothing.
//!
//! The program has two roles. With the name of a part it is a launcher, which forks its keeper while it has one thread.
//! Without, it is the test, which kills launchers and searches for leftovers.

mod world;

use std::fs;
use std::io::{BufRead, BufReader, Lines};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use pmi_core::ids::JobId;
use rank_spawner::{Keeper, LaunchTag, Orphans, OwnDirectory, Spawner, SweepScope, become_subreaper, sweep};
use world::{PATIENCE, Tests, eventually, line, pids, runs, tagged, wait};

fn main() {
    match std::env::args().nth(1).as_deref() {
        Some("launcher-with-keeper") => launcher(true),
        Some("launcher-without-keeper") => launcher(false),
        Some("launcher-with-directory") => launcher_with_directory(),
        Some("orderly-launcher") => orderly_launcher(),
        _ => {
            let tests = Tests::from_args();
            tests.check("a_killed_launcher_takes_its_ranks_with_it", a_killed_launcher_takes_its_ranks_with_it);
            tests.check("the_keeper_kills_what_ranks_left_behind", the_keeper_kills_what_ranks_left_behind);
            tests.check("the_keeper_removes_the_directory_and_the_file", the_keeper_removes_the_directory_and_the_file);
            tests.check("an_orderly_launcher_leaves_no_keeper", an_orderly_launcher_leaves_no_keeper);
        }
    }
}

/// Prints the process numbers of each rank and its leftovers, one line per rank, then waits until it is killed.
fn launcher(with_keeper: bool) {
    let keeper = with_keeper.then(|| Keeper::fork().unwrap());
    let tag = launch_tag();
    if let Some(keeper) = &keeper {
        keeper.guard(&tag).unwrap();
    }
    let spawner = Spawner::new().unwrap();
    let daemons = "echo $$ \
        $(setsid sleep 1000 > /dev/null & echo $!) \
        $(sleep 1000 > /dev/null & echo $!) \
        $(env -i sleep 1000 > /dev/null & echo $!); exec sleep 1000";
    let ranks: Vec<_> = (0..3).map(|rank| spawner.start(tagged(rank, &tag, daemons)).unwrap()).collect();
    for rank in &ranks {
        if let Some(keeper) = &keeper {
            keeper.guard_rank(rank).unwrap();
        }
        println!("{}", line(rank));
    }
    println!("{}", keeper.as_ref().map_or(0, |keeper| keeper.pid().as_raw()));
    std::thread::park();
}

/// Makes a directory with content, prints its path, and waits until it is killed.
fn launcher_with_directory() {
    let keeper = Keeper::fork().unwrap();
    let path = std::env::temp_dir().join(format!("keeper-{}", std::process::id()));
    keeper.announce_directory(&path).unwrap();
    let made = OwnDirectory::make(&path, 0o700).unwrap();
    keeper.guard_directory(&made).unwrap();
    fs::create_dir(path.join("deeper")).unwrap();
    fs::write(path.join("deeper/file"), "content").unwrap();
    // A directory of the user at the path of an announced one.
    let taken = path.with_extension("taken");
    keeper.announce_directory(&taken).unwrap();
    fs::create_dir_all(taken.join("results")).unwrap();
    let file = path.with_extension("file");
    fs::write(&file, "content").unwrap();
    keeper.guard_file(&file).unwrap();
    keeper.guard_file(&path.with_extension("never")).unwrap();
    assert_eq!(keeper.announce_directory(&path.join("x".repeat(4001))), Err(nix::errno::Errno::ENAMETOOLONG));
    println!("{}", path.display());
    std::thread::park();
}

/// Ends normally, and prints the process number of its keeper.
fn orderly_launcher() {
    let keeper = Keeper::fork().unwrap();
    let tag = launch_tag();
    keeper.guard(&tag).unwrap();
    become_subreaper().unwrap();
    let spawner = Spawner::new().unwrap();
    let rank = spawner.start(tagged(0, &tag, "(setsid sleep 1000 > /dev/null & echo $!); exit 0")).unwrap();
    keeper.guard_rank(&rank).unwrap();
    let daemon = line(&rank);
    assert!(wait(&rank).is_success());
    let launch = SweepScope { tag: &tag, ranks: &[rank.pid()], orphans: Orphans::Claim { except: &[keeper.pid()] } };
    let swept = sweep(&launch, PATIENCE).unwrap();
    assert_eq!((swept.killed, swept.survivors), (1, vec![]));
    println!("{daemon}\n{}", keeper.pid());
    keeper.done().unwrap();
    assert!(nix::sys::wait::waitpid(None, None).is_err(), "a child is left");
}

fn launch_tag() -> LaunchTag {
    LaunchTag::new(JobId::new(&format!("launch-{}", std::process::id())).unwrap())
}

/// A launcher that is killed at the end of the test in any case.
struct Launcher {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Launcher {
    fn start(part: &str) -> Self {
        let program = std::env::current_exe().unwrap();
        let mut child = Command::new(program).arg(part).stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines }
    }

    /// Processes in the next line of its output.
    fn next_pids(&mut self) -> Vec<Pid> {
        pids(&self.lines.next().expect("the launcher prints another line").unwrap())
    }

    /// Processes of its three ranks, each followed by its leftovers.
    fn families(&mut self) -> [Vec<Pid>; 3] {
        [self.next_pids(), self.next_pids(), self.next_pids()]
    }
}

impl Drop for Launcher {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

fn a_killed_launcher_takes_its_ranks_with_it() {
    let mut launcher = Launcher::start("launcher-without-keeper");
    let families = launcher.families();
    assert!(families.iter().flatten().all(|&pid| runs(pid)));
    drop(launcher);
    for family in families {
        eventually("a rank dies with its launcher", || !runs(family[0]));
        // Without a keeper the leftovers survive; otherwise the next test would prove nothing.
        for &left in &family[1..] {
            assert!(runs(left));
            kill(left, Signal::SIGKILL).unwrap();
        }
    }
}

fn the_keeper_kills_what_ranks_left_behind() {
    let mut bystander = Launcher::start("launcher-with-keeper");
    let spared = bystander.families().concat();
    let mut launcher = Launcher::start("launcher-with-keeper");
    let families = launcher.families().concat();
    let keeper = launcher.next_pids()[0];
    assert!(families.iter().all(|&pid| runs(pid)));
    eventually("the keeper bears its name and holds null three times and its pipe", || {
        let name = fs::read_to_string(format!("/proc/{keeper}/comm")).unwrap();
        let held = fs::read_dir(format!("/proc/{keeper}/fd")).unwrap().count();
        name == "lattice-keeper\n" && held == 4
    });
    drop(launcher);
    eventually("every process of the launch dies", || !families.iter().any(|&pid| runs(pid)));
    eventually("the keeper ends", || !runs(keeper));
    assert!(spared.iter().all(|&pid| runs(pid)), "another launch was touched");
    drop(bystander);
    eventually("the other launch dies too", || !spared.iter().any(|&pid| runs(pid)));
}

fn the_keeper_removes_the_directory_and_the_file() {
    let mut launcher = Launcher::start("launcher-with-directory");
    let directory = PathBuf::from(launcher.lines.next().unwrap().unwrap());
    let file = directory.with_extension("file");
    assert!(directory.join("deeper/file").exists() && file.exists());
    drop(launcher);
    eventually("the directory and the file are removed", || !directory.exists() && !file.exists());
    let results = directory.with_extension("taken").join("results");
    assert!(results.exists(), "a directory that the launcher has not made is the user's");
    fs::remove_dir_all(directory.with_extension("taken")).unwrap();
}

fn an_orderly_launcher_leaves_no_keeper() {
    let mut launcher = Launcher::start("orderly-launcher");
    let (daemon, keeper) = (launcher.next_pids()[0], launcher.next_pids()[0]);
    assert!(launcher.child.wait().unwrap().success());
    assert!(!runs(daemon) && !runs(keeper));
}
