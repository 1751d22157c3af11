//! Properties that hold for every sequence of events.

use std::time::Duration;

use nix::sys::signal::Signal;
use pmi_core::ids::{JobId, Rank};
use pmi_core::job::{Job, Placement};
use pmi_core::server::EndReason;
use proptest::prelude::*;
use proptest::sample::Index;
use rank_spawner::{CpuBind, RankExit};

use super::super::StartFailure;
use super::super::jobs::JobNumber;
use super::super::ranks::SlotId;
use super::super::verdict::Verdict;
use super::world::{KILLED, Preparation, World};
use super::{spec, spec_on};
use crate::cause::{CauseKind, StartClass};
use crate::rank_ranges::RankRanges;
use crate::session_io::Control;
use crate::spawn::SpawnOrder;

fn preparation() -> impl Strategy<Value = Preparation> {
    prop_oneof![Just(Preparation::Done), Just(Preparation::Failed)]
}

/// Event of the session, for one of its ranks.
#[derive(Clone, Debug)]
enum Op {
    Start(Index),
    StartUnserved(Index),
    FailStart(Index),
    GiveUpStart(Index),
    Exit(Index, RankExit),
    /// An exit with output that arrives later.
    BareExit(Index, RankExit),
    EndOutput(Index),
    Abort(Index),
    LeftFence(Index, Index),
    Signal(i32),
    SignalOne(u32),
    End(i32),
    Kill,
    GiveUp,
    LoseControl,
    Release,
    AskProgress(u64),
    Spawn(Index, u32, Preparation),
    OrderSpawn(u32, Preparation),
    Disown(Index),
    Wait(u64),
}

fn exit() -> impl Strategy<Value = RankExit> {
    prop_oneof![Just(RankExit::Code(0)), (1..256_i32).prop_map(RankExit::Code), Just(KILLED)]
}

fn op() -> impl Strategy<Value = Op> {
    let index = any::<Index>;
    let lives = prop_oneof![
        4 => index().prop_map(Op::Start),
        1 => index().prop_map(Op::StartUnserved),
        1 => index().prop_map(Op::FailStart),
        1 => index().prop_map(Op::GiveUpStart),
        3 => (index(), exit()).prop_map(|(slot, exit)| Op::Exit(slot, exit)),
        2 => (index(), exit()).prop_map(|(slot, exit)| Op::BareExit(slot, exit)),
        2 => index().prop_map(Op::EndOutput),
    ];
    let servers = prop_oneof![
        1 => index().prop_map(Op::Abort),
        1 => (index(), index()).prop_map(|(rank, waiting)| Op::LeftFence(rank, waiting)),
        3 => (index(), 0..4_u32, preparation()).prop_map(|(job, ranks, next)| Op::Spawn(job, ranks, next)),
        2 => (0..4_u32, preparation()).prop_map(|(ranks, next)| Op::OrderSpawn(ranks, next)),
        2 => index().prop_map(Op::Disown),
    ];
    let launch = prop_oneof![
        Just(Op::Signal(10)),
        (0..8_u32).prop_map(Op::SignalOne),
        prop_oneof![Just(2), Just(15), Just(1), Just(99)].prop_map(Op::End),
        Just(Op::Kill),
        Just(Op::GiveUp),
        Just(Op::LoseControl),
        Just(Op::Release),
        any::<u64>().prop_map(Op::AskProgress),
    ];
    prop_oneof![6 => lives, 2 => servers, 1 => launch, 3 => (0..4000_u64).prop_map(Op::Wait)]
}

/// Applies `act` to one of the slots, if there is any.
fn to_one(slots: &[SlotId], index: Index, act: impl FnOnce(SlotId)) {
    if !slots.is_empty() {
        act(slots[index.index(slots.len())]);
    }
}

fn apply(world: &mut World, op: &Op) {
    let (starting, alive) = (world.starting.clone(), world.alive());
    let system = || StartFailure::Failed { class: StartClass::System, reason: "no memory".to_owned() };
    match *op {
        Op::Start(index) => to_one(&starting, index, |slot| world.start(slot)),
        Op::StartUnserved(index) => to_one(&starting, index, |slot| world.start_unserved(slot)),
        Op::FailStart(index) => to_one(&starting, index, |slot| world.fail_start(slot, system())),
        Op::GiveUpStart(index) => to_one(&starting, index, |slot| world.fail_start(slot, StartFailure::GivenUp)),
        Op::Exit(index, exit) => to_one(&alive, index, |slot| world.exit(slot, exit)),
        Op::BareExit(index, exit) => to_one(&alive, index, |slot| world.exit_with(slot, exit, Vec::new())),
        Op::EndOutput(index) => {
            let slots: Vec<SlotId> = world.machine.ranks().iter().map(|(slot, _)| slot).collect();
            to_one(&slots, index, |slot| world.end_output(slot));
        }
        Op::Abort(index) => to_one(&alive, index, |slot| {
            let known = world.machine.ranks().get(slot).clone();
            let rank = Rank(known.local.0);
            let abort = EndReason::Abort { rank, code: Some(3), whole_job: true, message: String::new() };
            world.reason(known.job, abort);
        }),
        Op::LeftFence(rank, waiting) => {
            let (rank, waiting) = (Rank(rank.index(4) as u32), vec![Rank(waiting.index(4) as u32)]);
            world.reason(JobNumber::LAUNCHED, EndReason::LeftFence { rank, waiting });
        }
        Op::Signal(signal) => world.control(Control::Signal(signal)),
        Op::SignalOne(rank) => world.control(Control::SignalRanks(10, RankRanges::new(&[(rank, rank)]).unwrap())),
        Op::End(signal) => world.control(Control::End(signal)),
        Op::Kill => world.control(Control::Kill(9)),
        Op::GiveUp => world.control(Control::GiveUp),
        Op::LoseControl => world.lose_control(),
        Op::Release => world.control(Control::Release),
        Op::AskProgress(question) => world.control(Control::AskProgress(question)),
        Op::Spawn(job, ranks, next) => {
            let job = one_of_jobs(world, job);
            world.prepare_next(next, |world| world.spawn(job, ranks));
        }
        Op::OrderSpawn(ranks, next) => {
            let order = order(world, ranks);
            world.prepare_next(next, |world| world.control(Control::Spawn(order)));
        }
        Op::Disown(job) => {
            let job = one_of_jobs(world, job);
            let id = world.machine.jobs().get(job).spec.job.id.clone();
            world.control(Control::Disown(id));
        }
        Op::Wait(millis) => world.advance(Duration::from_millis(millis)),
    }
}

fn one_of_jobs(world: &World, index: Index) -> JobNumber {
    let jobs: Vec<JobNumber> = world.machine.jobs().iter().map(|(job, _)| job).collect();
    jobs[index.index(jobs.len())]
}

/// An order of the launch for a job with `ranks` ranks here.
fn order(world: &World, ranks: u32) -> SpawnOrder {
    let launched = &world.machine.jobs().get(JobNumber::LAUNCHED).spec;
    let id = JobId::new(&format!("kvs_1_0.x{}", world.machine.jobs().next().0)).unwrap();
    let placement = Placement::block(&[ranks, 1]);
    let job = Job { placement, spawner: Some(launched.job.id.clone()), ..Job::on_one_node(id, ranks + 1) };
    let first_shown = Rank(1000 * world.machine.jobs().next().0 as u32);
    SpawnOrder { job, apps: launched.apps.clone(), cpu_bind: CpuBind::None, parent_rank: Rank(0), first_shown }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, ..ProptestConfig::default() })]

    /// The world checks after each step that no reaped rank is signalled, that the first cause stays, and that exits are
    /// reported once. At the end it checks that each rank was reaped or never started, and that each spawn was answered.
    #[test]
    fn every_order_of_events_ends_with_each_rank_reaped(
        ops in prop::collection::vec(op(), 0..60),
        ranks in 1..6_u32,
        prepared in prop_oneof![19 => Just(Preparation::Done), 1 => Just(Preparation::Failed)],
    ) {
        let mut world = World::prepared(spec(ranks), prepared);
        for op in &ops {
            apply(&mut world, op);
        }
        world.finish();
    }

    /// The same on one of several nodes. It may have no rank of the launched job, and then waits for its release.
    #[test]
    fn every_order_of_events_ends_on_a_node_of_several(ops in prop::collection::vec(op(), 0..60), ranks in 0..4_u32) {
        let mut world = World::new(spec_on(&[ranks, 2]));
        for op in &ops {
            apply(&mut world, op);
        }
        world.finish();
    }

    #[test]
    fn of_ranks_that_fail_the_first_is_the_cause_whatever_the_order(
        order in Just((0..6_usize).collect::<Vec<_>>()).prop_shuffle(),
        exits in prop::collection::vec(exit(), 6),
    ) {
        let mut world = World::running(spec(6));
        let mut first = None;
        for &slot in &order {
            let failed = CauseKind::Failed { rank: Rank(slot as u32), exit: exits[slot] };
            if !exits[slot].is_success() {
                first.get_or_insert(failed);
            }
            world.exit(SlotId(slot), exits[slot]);
        }
        prop_assert!(world.is_done());
        prop_assert_eq!(world.cause(), first);
    }

    #[test]
    fn a_failure_elsewhere_is_never_blamed_on_a_rank_here(ops in prop::collection::vec(op(), 0..40)) {
        let mut world = World::running(spec(4));
        world.control(Control::GiveUp);
        for op in &ops {
            apply(&mut world, op);
        }
        world.finish();
        prop_assert_eq!(&world.machine.verdict, &Verdict::Elsewhere);
        prop_assert!(world.alarms.is_empty());
    }

    /// However often an end is requested, SIGKILL is sent no later than after the first request.
    #[test]
    fn the_deadline_of_an_end_only_moves_forward(
        asked in prop::collection::vec((0..3000_u64, prop_oneof![Just(2), Just(15), Just(1)]), 1..8),
    ) {
        let mut world = World::running(spec(3));
        world.control(Control::End(15));
        let begun = world.age();
        for (millis, signal) in asked {
            world.advance(Duration::from_millis(millis));
            world.control(Control::End(signal));
        }
        world.advance((begun + Duration::from_secs(5)).saturating_sub(world.age()));
        for slot in world.alive() {
            prop_assert_eq!(world.signals[&slot].last(), Some(&Signal::SIGKILL));
        }
        world.finish();
    }
}
