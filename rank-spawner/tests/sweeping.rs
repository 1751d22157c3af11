//! At the end of a launch none of its processes is left, and processes of another launch in the same process are
//! untouched.

mod world;

use std::fs;
use std::process::Command;

use nix::unistd::Pid;
use pmi_core::ids::JobId;
use rank_spawner::{LaunchTag, Orphans, RankExit, Spawner, SweepScope, become_subreaper, reap_adopted, sweep};
use world::{PATIENCE, eventually, line, pids, runs, tagged, wait};

fn tag(name: &str) -> LaunchTag {
    LaunchTag::new(JobId::new(&format!("{name}-{}", std::process::id())).unwrap())
}

/// Rank that leaves a daemon: its child has its own session and has lost its parent.
const LEAVE_A_DAEMON: &str = "(setsid sleep 1000 < /dev/null > /dev/null & echo $!); exec sleep 1000";

fn exists(pid: Pid) -> bool {
    fs::exists(format!("/proc/{pid}")).unwrap()
}

fn parent_of(pid: Pid) -> Option<u32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat[stat.rfind(')')? + 1..].split_whitespace().nth(1)?.parse().ok()
}

#[test]
fn a_daemon_of_a_rank_is_killed_and_reaped() {
    become_subreaper().unwrap();
    let spawner = Spawner::new().unwrap();
    let tag = tag("daemon");
    let rank = spawner.start(tagged(0, &tag, LEAVE_A_DAEMON)).unwrap();
    let daemon = pids(&line(&rank))[0];
    eventually("the daemon falls to us", || parent_of(daemon) == Some(std::process::id()));
    let launch = SweepScope { tag: &tag, ranks: &[rank.pid()], orphans: Orphans::Leave };
    let swept = sweep(&launch, PATIENCE).unwrap();
    assert_eq!((swept.killed, swept.survivors), (2, vec![]));
    assert!(!exists(daemon), "the daemon is a zombie");
    // The rank was killed, and its owner can still reap it.
    assert_eq!(wait(&rank), RankExit::Signal { signal: 9, core_dumped: false });
}

#[test]
fn two_launches_in_one_process_do_not_touch_each_other() {
    become_subreaper().unwrap();
    let spawner = Spawner::new().unwrap();
    let (one, two) = (tag("one"), tag("two"));
    let of_one = spawner.start(tagged(0, &one, LEAVE_A_DAEMON)).unwrap();
    let of_two = spawner.start(tagged(0, &two, LEAVE_A_DAEMON)).unwrap();
    let mut stranger = Command::new("sleep").arg("1000").spawn().unwrap();
    let (daemon_of_one, daemon_of_two) = (pids(&line(&of_one))[0], pids(&line(&of_two))[0]);
    let launch = SweepScope { tag: &one, ranks: &[of_one.pid()], orphans: Orphans::Leave };
    assert_eq!(sweep(&launch, PATIENCE).unwrap().survivors, []);
    assert!(!runs(daemon_of_one));
    assert_eq!(of_two.try_wait(), Ok(None));
    assert!(runs(daemon_of_two));
    assert_eq!(stranger.try_wait().unwrap(), None);
    // A stale number does not expose another launch's rank.
    let stale = SweepScope { ranks: &[of_one.pid(), of_two.pid()], ..launch };
    assert_eq!(sweep(&stale, PATIENCE).unwrap().killed, 0);
    assert_eq!(of_two.try_wait(), Ok(None));
    stranger.kill().unwrap();
    stranger.wait().unwrap();
    sweep(&SweepScope { tag: &two, ranks: &[of_two.pid()], orphans: Orphans::Leave }, PATIENCE).unwrap();
    assert!(!runs(daemon_of_two));
    wait(&of_one);
    wait(&of_two);
}

#[test]
fn a_process_without_tag_is_known_by_its_group_and_by_its_parents() {
    become_subreaper().unwrap();
    let spawner = Spawner::new().unwrap();
    let tag = tag("bare");
    // One child stays in the group, one leaves the group but not its parent; neither has an environment.
    let script = "env -i sleep 1000 & echo $!; env -i setsid sleep 1000 & echo $!; wait";
    let rank = spawner.start(tagged(0, &tag, &format!("{{ {script}; }}"))).unwrap();
    let children = pids(&format!("{} {}", line(&rank), line(&rank)));
    let launch = SweepScope { tag: &tag, ranks: &[rank.pid()], orphans: Orphans::Leave };
    assert_eq!(sweep(&launch, PATIENCE).unwrap().survivors, []);
    assert!(children.into_iter().all(|child| !exists(child)));
    wait(&rank);
}

#[test]
fn ended_orphans_of_a_ranks_group_are_reaped_while_the_rank_runs() {
    become_subreaper().unwrap();
    let spawner = Spawner::new().unwrap();
    let tag = tag("reap");
    let rank = spawner.start(tagged(0, &tag, "(sleep 0 & echo $!); exec sleep 1000")).unwrap();
    let other = spawner.start(tagged(1, &tag, "exit 5")).unwrap();
    let orphan = pids(&line(&rank))[0];
    let launch = SweepScope { tag: &tag, ranks: &[rank.pid(), other.pid()], orphans: Orphans::Leave };
    eventually("the orphan is reaped", || {
        reap_adopted(&launch).unwrap();
        !exists(orphan)
    });
    assert_eq!(rank.try_wait(), Ok(None));
    // An ended rank is not treated as an orphan.
    assert_eq!(wait(&other), RankExit::Code(5));
    sweep(&launch, PATIENCE).unwrap();
    wait(&rank);
}
