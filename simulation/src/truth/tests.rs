//! Violations are found, and nothing else is reported.

use lattice_session::cause::CauseKind;

use super::*;
use crate::scenario::{Misstep, Wrong};

const FAILED: RankExit = RankExit::Code(3);
const GOOD: RankExit = RankExit::Code(0);
const ZERO: Rank = Rank(0);
const ONE: Rank = Rank(1);

/// Checks the violations that are found in a history of two ranks on two nodes.
fn check(history: impl FnOnce(&mut Truth), expected: &[&str]) {
    let scenario = Scenario { ranks: vec![1, 1], ..Scenario::of(0) };
    let mut truth = Truth::new(&scenario);
    history(&mut truth);
    assert_eq!(truth.violations(), expected);
}

fn on(node: &str, kind: CauseKind) -> Cause {
    Cause { host: node.to_owned(), kind }
}

fn lost(node: &str) -> Cause {
    on(node, CauseKind::NodeLost { reason: "it is gone".to_owned() })
}

fn failed(rank: Rank) -> Cause {
    on("n0", CauseKind::Failed { rank, exit: FAILED })
}

fn completed(cause: Option<Cause>, ends: &[(Rank, RankExit)]) -> Completed {
    Completed { cause, ends: ends.to_vec() }
}

fn line(number: u32) -> ClientEvent {
    ClientEvent::Output(ZERO, format!("{number} xxx\n").into())
}

#[test]
fn a_rank_leaves_a_fence_when_all_have_entered_it() {
    let early = |truth: &mut Truth| {
        truth.enter(ZERO, 0);
        truth.leave(ZERO, 0);
    };
    check(early, &["I2: rank 0 leaves fence 0, which rank 1 has not entered"]);
    let in_time = |truth: &mut Truth| {
        [ZERO, ONE].into_iter().for_each(|rank| truth.enter(rank, 0));
        [ZERO, ONE].into_iter().for_each(|rank| truth.leave(rank, 0));
    };
    check(in_time, &[]);
}

#[test]
fn exits_are_told_as_they_were_and_once() {
    check(
        |truth| {
            truth.exited(ZERO, FAILED);
            truth.exited(ZERO, FAILED);
        },
        &["I3: rank 0 ended twice"],
    );
    check(
        |truth| {
            truth.exited(ZERO, FAILED);
            truth.told(&ClientEvent::Exited(ZERO, GOOD));
        },
        &["I8: the client is told that rank 0 exited with status 0; Some(Code(3))"],
    );
    let twice = |truth: &mut Truth| {
        truth.exited(ZERO, GOOD);
        truth.told(&ClientEvent::Exited(ZERO, GOOD));
        truth.told(&ClientEvent::Exited(ZERO, GOOD));
    };
    check(twice, &["I8: the client is told twice that rank 0 exited with status 0"]);
    check(
        |truth| {
            truth.api_killed();
            twice(truth);
        },
        &[],
    );
}

#[test]
fn output_comes_in_order_without_a_gap_or_a_repetition() {
    let told =
        |lines: &'static [u32]| move |truth: &mut Truth| lines.iter().for_each(|&number| truth.told(&line(number)));
    check(told(&[1, 2, 3]), &[]);
    check(told(&[1, 1]), &["I8: line 1 of rank 0 is shown after line 1"]);
    check(told(&[1, 3]), &["I8: line 3 of rank 0 is shown right after line 1"]);
    check(
        told(&[2, 1]),
        &["I8: line 2 of rank 0 is shown right after line 0", "I8: line 1 of rank 0 is shown after line 2"],
    );
}

#[test]
fn output_is_shown_to_its_last_line() {
    let end = |truth: &mut Truth| {
        truth.told(&ClientEvent::Complete { cause: None, ends: Vec::new(), message: String::new() });
    };
    let printed = |shown: u32| {
        move |truth: &mut Truth| {
            (0..2).for_each(|_| truth.printed(ZERO));
            (1..=shown).for_each(|number| truth.told(&line(number)));
        }
    };
    let check_end = |shown, before: fn(&mut Truth), expected: &[&str]| {
        check(
            |truth| {
                before(truth);
                printed(shown)(truth);
                end(truth);
            },
            expected,
        );
    };
    check_end(2, |_| {}, &[]);
    check_end(1, |_| {}, &["I8: rank 0 printed 2 lines, and 1 are shown"]);
    check_end(1, Truth::api_killed, &[]);
    check_end(1, |truth| truth.struck.extend([0]), &[]);
}

#[test]
fn what_a_cause_says_of_a_rank_is_what_its_program_does() {
    let wrong = |what| {
        let mut scenario = Scenario { ranks: vec![1, 1], time_limit: None, ..Scenario::of(0) };
        scenario.programs = scenario.programs.iter().cycle().take(2).cloned().collect();
        for program in &mut scenario.programs {
            (program.fault, program.is_missing) = (None, false);
        }
        scenario.programs[0].fault = Some(Misstep { before: 0, what });
        Truth::new(&scenario)
    };
    let aborted = |rank, code| CauseKind::Aborted { rank, code, message: String::new() };
    let deserted = |rank| CauseKind::LeftFence { rank, waiting: vec![ONE] };
    let offence = |rank| CauseKind::Offence { rank, offence: "no message".to_owned() };
    let limit = std::time::Duration::from_secs(1);
    for (does, kind, is_true) in [
        (Wrong::Abort(3), aborted(ZERO, 3), true),
        (Wrong::Abort(3), aborted(ZERO, 4), false),
        (Wrong::Abort(3), aborted(ONE, 3), false),
        (Wrong::Desert, deserted(ZERO), true),
        (Wrong::Leave, deserted(ZERO), false),
        (Wrong::Babble, offence(ZERO), true),
        (Wrong::Hang, offence(ZERO), false),
        (Wrong::Hang, CauseKind::TimedOut { limit }, false),
    ] {
        let mut truth = wrong(does);
        truth.ending(&on("n0", kind.clone()));
        assert_eq!(truth.violations().is_empty(), is_true, "{does:?} {kind:?}");
    }
}

/// The next API server must use the cause on the disk.
#[test]
fn a_cause_that_was_kept_is_the_cause_after_a_restart() {
    let (first, second) = (failed(ZERO), failed(ONE));
    let both_failed = |truth: &mut Truth| [ZERO, ONE].into_iter().for_each(|rank| truth.exited(rank, FAILED));
    let words = "rank 0 on n0 exited with status 3";
    let others = "rank 1 on n0 exited with status 3";
    check(
        |truth| {
            both_failed(truth);
            truth.ending(&first);
            truth.api_killed();
            truth.ending(&second);
        },
        &[],
    );
    check(
        |truth| {
            both_failed(truth);
            truth.ending(&first);
            truth.kept_cause = Some(first.clone());
            truth.api_killed();
            truth.ending(&second);
        },
        &[&format!("I3: the launch ends for {words}, then for {others}")],
    );
    check(
        |truth| {
            both_failed(truth);
            truth.ending(&first);
            truth.completed(&completed(Some(second.clone()), &[]));
        },
        &[&format!("I3: the launch was ending for {words}, and has ended for {others}")],
    );
}

#[test]
fn a_launch_ends_for_one_cause_which_has_happened() {
    check(
        |truth| {
            truth.exited(ZERO, FAILED);
            truth.ending(&failed(ZERO));
            truth.ending(&failed(ZERO));
        },
        &[],
    );
    check(
        |truth| {
            truth.exited(ZERO, FAILED);
            truth.exited(ONE, FAILED);
            truth.ending(&failed(ZERO));
            truth.ending(&failed(ONE));
        },
        &["I3: the launch ends for rank 0 on n0 exited with status 3, then for rank 1 on n0 exited with status 3"],
    );
    check(
        |truth| truth.ending(&failed(ZERO)),
        &["I8: the cause is rank 0 on n0 exited with status 3, which has not happened"],
    );
    check(
        |truth| truth.ending(&lost("n1")),
        &["I8: the cause is node n1 was lost: it is gone, which has not happened"],
    );
    check(
        |truth| {
            truth.struck.insert(1);
            truth.ending(&lost("n1"));
        },
        &[],
    );
    let interrupted = on("", CauseKind::Interrupted { signal: 15 });
    check(|truth| truth.ending(&interrupted), &["I8: the cause is interrupted by SIGTERM, which has not happened"]);
}

#[test]
fn an_end_is_told_as_it_was_and_to_all_alike() {
    let both = [(ZERO, GOOD), (ONE, GOOD)];
    let ended = |exits: [RankExit; 2]| {
        move |truth: &mut Truth| [ZERO, ONE].into_iter().zip(exits).for_each(|(rank, exit)| truth.exited(rank, exit))
    };
    check(
        |truth| {
            ended([GOOD, GOOD])(truth);
            truth.completed(&completed(None, &both));
        },
        &[],
    );
    check(
        |truth| {
            ended([GOOD, FAILED])(truth);
            truth.completed(&completed(None, &[(ZERO, GOOD), (ONE, FAILED)]));
        },
        &["I8: the launch succeeded, and rank 1 exited with status 3"],
    );
    check(
        |truth| {
            ended([GOOD, GOOD])(truth);
            truth.completed(&completed(None, &both[..1]));
        },
        &["I8: the launch succeeded, and 1 of 2 ends are known"],
    );
    check(
        |truth| {
            truth.struck.insert(1);
            truth.completed(&completed(Some(lost("n1")), &[(ZERO, GOOD)]));
        },
        &["I8: rank 0 is said to have ended as exited with status 0; None"],
    );
    check(
        |truth| {
            ended([GOOD, GOOD])(truth);
            truth.completed(&completed(None, &both));
            truth.completed(&completed(Some(lost("n1")), &both));
        },
        &["I3: the launch ended with success, then with node n1 was lost: it is gone"],
    );
}
