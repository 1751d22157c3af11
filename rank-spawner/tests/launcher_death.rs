//! What is left when a launcher is killed: nothing.
//!
//! The program plays both parts. Called with the name of a part it is a launcher, which forks its keeper while it has one
//! thread; without, it is the test, which kills launchers and looks for what they left.

mod world;

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, ExitStatus, Stdio};

use nix::unistd::Pid;
use pmi_core::ids::JobId;
use rank_spawner::{Belongings, Keeper, LaunchTag, Orphans, Spawner, become_subreaper, sweep};
use world::{PATIENCE, eventually, line, pids, runs, tagged, wait};

fn main() {
    match std::env::args().nth(1).as_deref() {
        Some("launcher-with-keeper") => launcher(true),
        Some("launcher-without-keeper") => launcher(false),
        Some("orderly-launcher") => orderly_launcher(),
        _ => {
            check("a_killed_launcher_takes_its_ranks_with_it", a_killed_launcher_takes_its_ranks_with_it);
            check("the_keeper_kills_what_ranks_left_behind", the_keeper_kills_what_ranks_left_behind);
            check("an_orderly_launcher_leaves_no_keeper", an_orderly_launcher_leaves_no_keeper);
        }
    }
}

fn check(name: &str, test: fn()) {
    print!("test {name} ... ");
    test();
    println!("ok");
}

/// Prints the pid of each rank and of what it left behind, on one line each, then waits to be killed.
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

/// Ends as a launcher should, and prints the pid of its keeper.
fn orderly_launcher() {
    let keeper = Keeper::fork().unwrap();
    let tag = launch_tag();
    keeper.guard(&tag).unwrap();
    become_subreaper().unwrap();
    let spawner = Spawner::new().unwrap();
    let mut rank = spawner.start(tagged(0, &tag, "(setsid sleep 1000 > /dev/null & echo $!); exit 0")).unwrap();
    keeper.guard_rank(&rank).unwrap();
    let daemon = line(&rank);
    assert!(wait(&mut rank).is_success());
    let launch = Belongings { tag: &tag, ranks: &[rank.pid()], orphans: Orphans::Claim { except: &[keeper.pid()] } };
    let swept = sweep(&launch, PATIENCE).unwrap();
    assert_eq!((swept.killed, swept.survivors), (1, vec![]));
    println!("{daemon}\n{}", keeper.pid());
    keeper.done().unwrap();
    assert!(nix::sys::wait::waitpid(None, None).is_err(), "a child is left");
}

fn launch_tag() -> LaunchTag {
    LaunchTag::new(JobId::new(&format!("launch-{}", std::process::id())).unwrap())
}

fn start(part: &str) -> (Child, impl FnMut() -> Vec<Pid>) {
    let program = std::env::current_exe().unwrap();
    let mut child = Command::new(program).arg(part).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    (child, move || pids(&lines.next().expect("the launcher prints another line").unwrap()))
}

fn kill(mut child: Child) -> ExitStatus {
    child.kill().unwrap();
    child.wait().unwrap()
}

fn a_killed_launcher_takes_its_ranks_with_it() {
    let (child, mut next_pids) = start("launcher-without-keeper");
    let families = [next_pids(), next_pids(), next_pids()];
    assert!(families.iter().flatten().all(|&pid| runs(pid)));
    kill(child);
    for family in families {
        eventually("a rank dies with its launcher", || !runs(family[0]));
        // Without a keeper the others live on, or the next test would show nothing.
        for &left in &family[1..] {
            assert!(runs(left));
            nix::sys::signal::kill(left, nix::sys::signal::SIGKILL).unwrap();
        }
    }
}

fn the_keeper_kills_what_ranks_left_behind() {
    let (bystander, mut of_bystander) = start("launcher-with-keeper");
    let spared = [of_bystander(), of_bystander(), of_bystander(), of_bystander()].concat();
    let (child, mut next_pids) = start("launcher-with-keeper");
    let families = [next_pids(), next_pids(), next_pids()].concat();
    let keeper = next_pids()[0];
    assert!(families.iter().all(|&pid| runs(pid)));
    let name = std::fs::read_to_string(format!("/proc/{keeper}/comm")).unwrap();
    assert_eq!(name, "lattice-keeper\n");
    let held = std::fs::read_dir(format!("/proc/{keeper}/fd")).unwrap().count();
    assert_eq!(held, 4, "the keeper holds null three times and its pipe");
    kill(child);
    eventually("every process of the launch dies", || !families.iter().any(|&pid| runs(pid)));
    eventually("the keeper ends", || !runs(keeper));
    assert!(spared.iter().all(|&pid| runs(pid)), "another launch was touched");
    kill(bystander);
    eventually("the other launch dies too", || !spared.iter().any(|&pid| runs(pid)));
}

fn an_orderly_launcher_leaves_no_keeper() {
    let (mut child, mut next_pids) = start("orderly-launcher");
    let (daemon, keeper) = (next_pids()[0], next_pids()[0]);
    assert!(child.wait().unwrap().success());
    assert!(!runs(daemon) && !runs(keeper));
}
