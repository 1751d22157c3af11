//! A process may have children when it becomes a launcher, such as those of a shell that has ended with `exec`. They belong to no launch.
//! The file has one test, because all tests of a process share its children.

mod world;

use std::fs;
use std::process::{Command, Stdio};

use pmi_core::ids::JobId;
use rank_spawner::{LaunchTag, Orphans, Spawner, SweepScope, become_subreaper, reap_adopted, sweep};
use world::{PATIENCE, eventually, line, pids, runs, tagged, wait};

#[test]
fn children_that_were_there_before_the_launch_outlive_it() {
    let mut monitor = Command::new("sleep").arg("1000").stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let mut ended = Command::new("true").spawn().unwrap();
    become_subreaper().unwrap();
    let tag = LaunchTag::new(JobId::new(&format!("earlier-{}", std::process::id())).unwrap());
    let daemon =
        "(setsid true & echo $!); (env -i setsid sleep 1000 < /dev/null > /dev/null & echo $!); exec sleep 1000";
    let spawner = Spawner::new().unwrap();
    let rank = spawner.start(tagged(0, &tag, daemon)).unwrap();
    let [orphan, daemon] = [(); 2].map(|()| pids(&line(&rank))[0]);
    let ranks = [rank.pid()];
    let launch = SweepScope { tag: &tag, ranks: &ranks, orphans: Orphans::Claim { except: &[] } };
    eventually("an orphan is reaped though the child that was there before has ended, too", || {
        reap_adopted(&launch).unwrap();
        !fs::exists(format!("/proc/{orphan}")).unwrap()
    });
    eventually("the daemon falls to us and is swept", || {
        assert_eq!(sweep(&launch, PATIENCE).unwrap().survivors, []);
        !runs(daemon)
    });
    assert!(monitor.try_wait().unwrap().is_none(), "the monitor runs");
    assert!(ended.wait().unwrap().success(), "nobody has reaped it");
    wait(&rank);
    monitor.kill().unwrap();
    monitor.wait().unwrap();
}
