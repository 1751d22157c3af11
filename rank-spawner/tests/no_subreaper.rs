//! A process that is not a subreaper, like most programs that embed this crate. Orphans of its ranks become children of another process,
//! and are found by their mark.

mod world;

use nix::unistd::Pid;
use pmi_core::ids::JobId;
use rank_spawner::{LaunchTag, Orphans, Spawner, SweepScope, sweep};
use world::{PATIENCE, line, pids, runs, tagged, wait};

/// A rank that ends and leaves two processes, one in its group and one in its own session.
const LEAVE_TWO: &str =
    "(sleep 1000 </dev/null >/dev/null & echo $!); (setsid sleep 1000 </dev/null >/dev/null & echo $!)";

#[test]
fn orphans_of_a_launch_end_with_it_and_those_of_another_go_on() {
    let spawner = Spawner::new().unwrap();
    let start = |name: &str| {
        let tag = LaunchTag::new(JobId::new(&format!("{name}-{}", std::process::id())).unwrap());
        let rank = spawner.start(tagged(0, &tag, LEAVE_TWO)).unwrap();
        let left: Vec<Pid> = (0..2).flat_map(|_| pids(&line(&rank))).collect();
        wait(&rank);
        (tag, rank.pid(), left)
    };
    let (one, two) = (start("one"), start("two"));
    let end = |(tag, rank, _): &(LaunchTag, Pid, Vec<Pid>)| {
        sweep(&SweepScope { tag, ranks: &[*rank], orphans: Orphans::Leave }, PATIENCE).unwrap()
    };
    let swept = end(&one);
    assert_eq!((swept.killed, swept.survivors), (2, vec![]));
    assert!(one.2.iter().all(|&pid| !runs(pid)) && two.2.iter().all(|&pid| runs(pid)));
    assert_eq!(end(&two).killed, 2);
    assert!(two.2.iter().all(|&pid| !runs(pid)));
}
