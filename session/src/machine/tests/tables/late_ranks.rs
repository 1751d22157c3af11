//! Looks at the call stacks of ranks that make no progress.

use super::super::super::effect::StackLook;
use super::super::world::StackAnswer;
use super::watching::fence;
use super::*;
use crate::call_stacks::RankStack;
use crate::gathered::GatherDetail;
use crate::rank_ranges::RankRanges;
use crate::timeouts;

const LIMIT: Duration = Duration::from_secs(60);

/// A world with these numbers of ranks on the nodes, at its time limit, while its ranks are being inspected.
fn at_limit(counts: &[u32]) -> World {
    let mut spec = spec_on(counts);
    Arc::make_mut(&mut spec).settings.timeouts = Timeouts { time_limit: Some(LIMIT), ..Timeouts::default() };
    let mut world = World::running(spec);
    world.stacks = StackAnswer::Later;
    world.advance(LIMIT);
    assert_eq!(world.alarms[0].kind, CauseKind::TimedOut { limit: LIMIT }, "others hear of it at once");
    assert_eq!(world.looks.last().map(|(look, _)| *look), Some(StackLook::AtLimit));
    world
}

fn stacks(world: &World) -> Vec<Vec<RankStack>> {
    let stacks = |notice: &&Notice| if let Notice::Stacks { stacks } = notice { Some(stacks.clone()) } else { None };
    world.notices().iter().filter_map(stacks).collect()
}

fn stack(ranks: &[u32], text: &str) -> RankStack {
    RankStack { ranks: ranks.iter().copied().map(Rank).collect(), text: text.to_owned() }
}

#[test]
fn ranks_are_looked_at_before_the_time_limit_ends_them() {
    let mut world = at_limit(&[3]);
    world.advance(timeouts::STACKS_AT_LIMIT / 2);
    assert!(world.signals.is_empty());
    world.see_stacks();
    assert_eq!(stacks(&world), [[stack(&[0, 2], "wait\n"), stack(&[1], "solve\n")]]);
    assert_eq!(world.signals[&SlotId(0)], [Signal::SIGTERM]);
    world.advance(seconds(5));
    assert_eq!(world.signals[&SlotId(0)], [Signal::SIGTERM, Signal::SIGKILL]);
    world.finish();
}

#[test]
fn a_look_that_takes_too_long_is_not_waited_for() {
    let mut world = at_limit(&[2]);
    world.advance(timeouts::STACKS_AT_LIMIT - Duration::from_millis(1));
    assert!(world.signals.is_empty());
    world.advance(Duration::from_millis(1));
    assert_eq!(world.signals[&SlotId(0)], [Signal::SIGTERM]);
    world.see_stacks();
    assert_eq!(world.signals[&SlotId(0)], [Signal::SIGTERM]);
    world.finish();
}

#[test]
fn who_ends_the_launch_meanwhile_waits_for_the_look_unless_he_kills() {
    let mut world = at_limit(&[1, 1]);
    world.control(Control::GiveUp);
    world.control(Control::End(2));
    world.advance(timeouts::STACKS_AT_LIMIT / 2);
    assert!(world.signals.is_empty());
    world.control(Control::Kill(2));
    assert_eq!(world.signals[&SlotId(0)], [Signal::SIGKILL]);
    world.finish();
}

/// Sessions start one after the other. The first one that reaches the limit causes a `GiveUp` message to the
/// other sessions.
#[test]
fn a_session_that_is_about_to_reach_the_limit_looks_at_its_ranks_too() {
    for (ahead, looks) in [(timeouts::LIMIT_SKEW, 1), (timeouts::LIMIT_SKEW + Duration::from_millis(1), 0)] {
        let mut spec = spec_on(&[1, 1]);
        Arc::make_mut(&mut spec).settings.timeouts = Timeouts { time_limit: Some(LIMIT), ..Timeouts::default() };
        let mut world = World::running(spec);
        world.advance(LIMIT - ahead);
        world.control(Control::GiveUp);
        assert_eq!((world.looks.len(), world.alarms.len()), (looks, 0));
        assert_eq!(world.signals[&SlotId(0)], [Signal::SIGTERM]);
        world.finish();
    }
}

#[test]
fn ranks_that_others_wait_for_are_looked_at_on_one_node_by_itself() {
    let mut world = World::running(spec(4));
    world.fences = vec![fence(0, &[0, 2], &[1, 3])];
    world.stacks = StackAnswer::Later;
    world.advance(seconds(70));
    assert_eq!(world.looks, [(StackLook::Late, vec![SlotId(1), SlotId(3)])], "one look at a time");
    world.see_stacks();
    assert_eq!(stacks(&world), [[stack(&[1, 3], "solve\n")]]);
    world.advance(seconds(60));
    assert_eq!(world.looks.len(), 2);
    world.finish();
}

/// Rank 1 has raised an exception and is in MPI_Finalize; ranks 0 and 2 are not.
#[test]
fn ranks_that_are_waited_for_in_mpi_finalize_are_reported_once_if_they_are_in_mpi() {
    let check = |stack: &'static str, expected: &[&str]| {
        let mut world = World::running(spec(3));
        world.stack = Some(stack);
        world.fences = vec![FenceSeen { at_start: false, ..fence(0, &[1], &[0, 2]) }];
        world.advance(seconds(150));
        let reported = world.notices().into_iter().map(|notice| match notice {
            Notice::PmiMisuse { rank: Rank(1), observed } => observed.split(':').next().unwrap(),
            other => panic!("{other:?}"),
        });
        assert_eq!(reported.collect::<Vec<_>>(), expected, "{stack}");
        assert_eq!(world.looks[0], (StackLook::Finalizing, vec![SlotId(0), SlotId(2)]));
        world.finish();
    };
    let wait = "waits in MPI_Finalize, or another fence of all ranks, for 15 s and more, while rank 0";
    check("#0 poll ()\n#1 PMPI_Barrier ()\n#2 main ()\n", &[&format!("{wait} is in MPI_Barrier")]);
    check("1 thread\n", &[&format!("{wait} runs")]);
    check("#0 write ()\n#1 write_results ()\n#2 main ()\n", &[]);
}

/// MPICH has no fence in MPI_Init on one node: its first fence is in MPI_Finalize.
#[test]
fn a_start_that_is_late_in_another_function_than_mpi_init_is_told_apart() {
    for (stack, is_reported) in [("#0 PMPI_Recv ()", true), ("#0 PMPI_Init_thread ()", false), ("1 thread", false)] {
        let mut world = World::running(spec(2));
        world.stack = Some(stack);
        world.fences = vec![fence(0, &[1], &[0])];
        world.advance(seconds(70));
        let misuses = world.notices().into_iter().filter(|notice| matches!(notice, Notice::PmiMisuse { .. }));
        assert_eq!(misuses.count(), usize::from(is_reported), "{stack}");
        assert!(world.looks.iter().all(|(look, _)| *look == StackLook::Late), "one debugger at a time");
        world.finish();
    }
}

#[test]
fn on_several_nodes_ranks_are_looked_at_that_the_launch_names() {
    let mut world = World::running(spec_on(&[2, 2]));
    world.fences = vec![fence(0, &[0], &[1])];
    world.advance(seconds(70));
    assert!(world.looks.is_empty(), "others may be missing as well");
    world.control(Control::LookAtStacks(RankRanges::new(&[(1, 3)]).unwrap()));
    assert_eq!(stacks(&world), [[stack(&[1], "solve\n")]], "ranks 2 and 3 are elsewhere");
    world.exit(SlotId(1), GOOD);
    world.control(Control::LookAtStacks(RankRanges::new(&[(1, 3)]).unwrap()));
    assert_eq!(world.looks.len(), 1);
    world.finish();
}

#[test]
fn sessions_that_ask_share_the_look_of_the_launch_and_have_the_whole_answer() {
    let mut world = World::running(spec(2));
    world.stacks = StackAnswer::Later;
    world.tell(1, GatherDetail::Stacks);
    world.control(Control::AskStacks(1));
    world.tell(2, GatherDetail::Stacks);
    world.tell(3, GatherDetail::Usage);
    assert_eq!(world.looks.len(), 1);
    let told = |world: &World| -> Vec<(u64, usize, bool)> {
        world.told.iter().map(|(ticket, told)| (*ticket, told.ranks.len(), told.stacks.is_some())).collect()
    };
    assert_eq!(told(&world), [(3, 2, false)]);
    world.see_stacks();
    assert_eq!(told(&world), [(3, 2, false), (1, 2, true), (2, 2, true)]);
    let answers = world.events.iter().filter(|event| matches!(event, Event::Progress { stacks: Some(_), .. }));
    assert_eq!(answers.count(), 1, "the launch has its own");
    world.tell(4, GatherDetail::Stacks);
    assert_eq!(world.looks.len(), 2);
    world.finish();
}

#[test]
fn one_look_answers_all_who_ask_for_stacks_while_it_is_under_way() {
    let answers = |world: &World| -> Vec<(u64, Option<Vec<RankStack>>)> {
        let answer = |event: &Event| match event {
            Event::Progress { question, ranks, stacks } => {
                assert_eq!(ranks.len(), 2);
                Some((*question, stacks.clone()))
            }
            _ => None,
        };
        world.events.iter().filter_map(answer).collect()
    };
    let mut world = World::running(spec(2));
    world.stacks = StackAnswer::Later;
    world.control(Control::AskStacks(1));
    world.control(Control::AskStacks(2));
    assert_eq!(world.looks, [(StackLook::Asked, vec![SlotId(0), SlotId(1)])]);
    assert_eq!(answers(&world), [(1, None)]);
    world.see_stacks();
    let seen = Some(vec![stack(&[0], "wait\n"), stack(&[1], "solve\n")]);
    assert_eq!(answers(&world), [(1, None), (2, seen.clone())]);
    world.control(Control::AskStacks(3));
    world.see_stacks();
    assert_eq!(answers(&world).last(), Some(&(3, seen)));
    assert!(stacks(&world).is_empty(), "no notice: the ranks are not late");
    world.finish();
}
