//! Ends of ranks: by themselves, by signals and with the spawner; also of many ranks at once.

mod world;

use std::collections::BTreeSet;
use std::num::NonZeroUsize;
use std::sync::mpsc;
use std::thread;

use nix::errno::Errno;
use nix::sys::signal::Signal;
use rank_spawner::{RankExit, Spawner, signal_groups};
use world::{line, pids, runs, shell, wait};

fn killed_by(signal: i32) -> RankExit {
    RankExit::Signal { signal, core_dumped: false }
}

#[test]
fn status_and_signal_are_told_and_told_again() {
    let spawner = Spawner::new().unwrap();
    let check = |script: &str, expected: RankExit| {
        let rank = spawner.start(shell(0, script)).unwrap();
        assert_eq!(wait(&rank), expected, "{script}");
        assert_eq!(rank.try_wait(), Ok(Some(expected)), "{script}");
    };
    check("exit 0", RankExit::Code(0));
    check("exit 255", RankExit::Code(255));
    check("kill -TERM $$", killed_by(15));
    // Real-time signal, which has no name.
    check("kill -40 $$", killed_by(40));
}

#[test]
fn a_running_rank_has_no_end_and_signals_reach_it_until_it_is_reaped() {
    let spawner = Spawner::new().unwrap();
    let rank = spawner.start(shell(0, "trap 'exit 7' USR1; echo ready; while :; do sleep 0.01; done")).unwrap();
    line(&rank);
    assert_eq!(rank.try_wait(), Ok(None));
    rank.signal(Signal::SIGUSR1).unwrap();
    assert_eq!(wait(&rank), RankExit::Code(7));
    assert_eq!(rank.signal(Signal::SIGKILL), Err(Errno::ESRCH));
    assert_eq!(rank.signal_group(Signal::SIGKILL), Err(Errno::ESRCH));
}

#[test]
fn a_signal_to_the_group_reaches_the_children_of_the_rank() {
    let spawner = Spawner::new().unwrap();
    let rank = spawner.start(shell(0, "sleep 1000 & echo $!; wait")).unwrap();
    let child = pids(&line(&rank))[0];
    rank.signal_group(Signal::SIGKILL).unwrap();
    assert_eq!(wait(&rank), killed_by(9));
    world::eventually("the child of the rank ends", || !runs(child));
}

/// The filter holds back the line until its input ends.
#[test]
fn a_signal_that_ends_the_rank_spares_the_filter_of_its_output() {
    let filter = "read -r line; echo seen; cat; echo \"filtered $line\"";
    let script = format!("trap '' TERM; exec > >(trap - TERM; {filter}); echo line; sleep 1000 & wait");
    for signals in [&[Signal::SIGKILL] as &[_], &[Signal::SIGTERM, Signal::SIGKILL]] {
        let spawner = Spawner::new().unwrap();
        let rank = spawner.start(shell(0, &script)).unwrap();
        assert_eq!(line(&rank), "seen");
        for &signal in signals {
            signal_groups([&rank], signal);
        }
        assert_eq!(wait(&rank), killed_by(9), "{signals:?}");
        assert_eq!(line(&rank), "filtered line", "{signals:?}");
    }
}

/// A shell forks all commands of a pipeline first, and each command then takes its input. The first filter of this pipeline may run long
/// before the second has its input.
#[test]
fn a_signal_that_ends_the_rank_spares_the_filter_that_has_no_input_yet() {
    let late = "exec 3<&0 0</dev/null; read -r line <&3; echo seen; sleep 0.2; exec cat <&3";
    let script =
        format!("{{ echo line; sleep 1000; }} | {{ read -r line; echo $line; cat; echo last; }} | {{ {late}; }}");
    for signal in [Signal::SIGKILL, Signal::SIGTERM] {
        let spawner = Spawner::new().unwrap();
        let rank = spawner.start(shell(0, &script)).unwrap();
        assert_eq!(line(&rank), "seen");
        signal_groups([&rank], signal);
        wait(&rank);
        assert_eq!(line(&rank), "last", "{signal}");
    }
}

/// The script reads the output of a filter, as a filter does; if it is spared, it continues.
#[test]
fn a_signal_that_ends_the_rank_ends_a_script_that_takes_output_of_a_filter() {
    let inner = "echo $$ >&5; result=$(sleep 1000 | { echo there >&5; cat; }); echo went on >&5; sleep 1000";
    let script = format!("exec 5>&1; bash -c '{inner}'; sleep 1000");
    let spawner = Spawner::new().unwrap();
    let rank = spawner.start(shell(0, &script)).unwrap();
    let inner = pids(&line(&rank))[0];
    assert_eq!(line(&rank), "there");
    signal_groups([&rank], Signal::SIGTERM);
    assert_eq!(wait(&rank), killed_by(15));
    world::eventually("the script ends", || !runs(inner));
}

#[test]
fn ranks_die_with_the_spawner_and_not_before() {
    for threads in [1, 3] {
        let spawner = Spawner::with_threads(NonZeroUsize::new(threads).unwrap()).unwrap();
        let mut ranks: Vec<_> = (0..6).map(|rank| spawner.start(shell(rank, "exec sleep 1000")).unwrap()).collect();
        // The thread that requested a start may end; the thread that made the rank must not.
        let asker =
            thread::scope(|scope| scope.spawn(|| spawner.start(shell(6, "exec sleep 1000")).unwrap()).join().unwrap());
        ranks.push(asker);
        for rank in &ranks {
            assert_eq!(rank.try_wait(), Ok(None));
        }
        drop(spawner);
        for rank in &ranks {
            assert_eq!(wait(rank), killed_by(9));
        }
    }
}

#[test]
fn a_batch_is_delivered_whole() {
    let spawner = Spawner::new().unwrap();
    let (sender, receiver) = mpsc::channel();
    spawner.start_all((0..100).map(|rank| shell(rank, &format!("exit {rank}"))), move |result| {
        sender.send(result.unwrap()).unwrap();
    });
    let mut seen = BTreeSet::new();
    for rank in receiver {
        assert_eq!(wait(&rank), RankExit::Code(rank.rank.0 as i32));
        seen.insert(rank.rank.0);
    }
    assert_eq!(seen, (0..100).collect());
}

#[test]
fn several_threads_may_start_ranks_at_once() {
    let spawner = Spawner::new().unwrap();
    thread::scope(|scope| {
        for thread in 0..4 {
            let spawner = &spawner;
            scope.spawn(move || {
                for round in 0..25 {
                    let rank = spawner.start(shell(thread, &format!("echo {thread} {round}"))).unwrap();
                    assert_eq!(line(&rank), format!("{thread} {round}"));
                    assert_eq!(wait(&rank), RankExit::Code(0));
                }
            });
        }
    });
}
