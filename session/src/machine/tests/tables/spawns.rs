//! Spawned jobs: their start, their failures, their end.

use std::time::Instant;

use pmi_core::job::App;

use super::*;
use crate::spec::AppSpec;

fn spawned(world: &World) -> Vec<(&str, Option<&str>)> {
    let mut told = Vec::new();
    for event in &world.events {
        if let Event::Spawned { job, failure } = event {
            told.push((job.as_str(), failure.as_deref()));
        }
    }
    told
}

#[test]
fn a_spawn_is_answered_when_the_last_of_its_ranks_runs() {
    let mut world = World::running(spec(1));
    world.spawn(LAUNCHED, 2);
    world.start(SlotId(1));
    assert!(world.answers.is_empty());
    world.start(SlotId(2));
    assert_eq!(world.answers[&1].as_ref().unwrap().as_str(), "kvs_1_0.s1");
    let shown: Vec<u32> = world.machine.ranks().iter().map(|(_, slot)| slot.rank.0).collect();
    assert_eq!((shown, world.stdin_fed), (vec![0, 1, 2], 1));
    world.finish();
}

#[test]
fn variables_of_the_program_that_spawns_reach_its_children() {
    let pairs =
        |pairs: &[(&str, &str)]| pairs.iter().map(|&(name, value)| (name.into(), value.into())).collect::<Vec<_>>();
    let app = |set: &[(&str, &str)], remove: &[&str]| {
        let remove = remove.iter().map(|&name| name.to_owned()).collect();
        AppSpec { set: pairs(set), remove, ..spec(1).apps[0].clone() }
    };
    let one = |appnum| App { ranks: 1, appnum };
    let launched = SessionSpec {
        job: Job { apps: vec![one(0), one(1)], ..spec(2).job.clone() },
        apps: vec![app(&[("FIRST", "1")], &[]), app(&[("A", "1"), ("B", "1")], &["SECRET_*"])],
        ..SessionSpec::clone(&spec(2))
    };
    let mut world = World::running(launched.into());
    let order = order("kvs_1_0.s1", 1, 2);
    world.control(Control::Spawn(SpawnOrder { apps: vec![app(&[("B", "2")], &["C"])], parent_rank: Rank(1), ..order }));
    let (_, child) = world.machine.jobs.iter().nth(1).expect("the job was admitted");
    let child = &child.spec.apps[0];
    assert_eq!(child.set, pairs(&[("A", "1"), ("B", "1"), ("B", "2")]), "the last of a name counts");
    assert_eq!(child.remove, ["SECRET_*", "C"]);
    world.start_all();
    world.finish();
}

#[test]
fn parent_and_children_are_judged_together() {
    let mut world = World::running(spec(1));
    world.spawn(LAUNCHED, 1);
    world.start_all();
    world.exit(SlotId(1), FAILED);
    assert_eq!(world.cause(), Some(failed(1)));
    assert_eq!(world.signals[&SlotId(0)], [Signal::SIGTERM]);
    world.finish();
    let mut world = World::running(spec(2));
    world.spawn(LAUNCHED, 2);
    world.start_all();
    world.reason(JobNumber(1), abort(1));
    assert_eq!(world.cause(), Some(aborted(3)), "in the numbers that are shown");
    world.finish();
}

#[test]
fn a_spawn_that_fails_harms_nobody() {
    let mut world = World::running(spec(1));
    world.spawn(LAUNCHED, 2);
    world.start(SlotId(1));
    let failure = StartFailure::Failed { class: StartClass::NotFound, reason: "not there".to_owned() };
    world.fail_start(SlotId(2), failure);
    assert!(world.answers[&1].as_ref().unwrap_err().to_string().contains("not there"));
    assert_eq!(world.signals[&SlotId(1)], [Signal::SIGKILL], "the half that runs is ended");
    world.exit(SlotId(1), KILLED);
    world.reason(JobNumber(1), abort(0));
    assert_eq!((world.cause(), world.machine.phase()), (None, &Phase::Running));
    world.finish();
    assert_eq!(world.cause(), None);
}

#[test]
fn a_spawn_that_cannot_be_prepared_or_admitted_is_answered_at_once() {
    let check = |preparation: Preparation, job: JobNumber, ranks: u32, expected: &str| {
        let mut world = World::running(spec(1));
        world.preparations.push(preparation);
        world.spawn(job, ranks);
        let answer = world.answers[&1].as_ref().unwrap_err().to_string();
        assert!(answer.contains(expected), "{answer}");
        assert!(world.starting.is_empty());
        world.finish();
        assert_eq!(world.cause(), None);
    };
    check(Preparation::Failed, LAUNCHED, 1, "no such program");
    check(Preparation::Done, LAUNCHED, 0, "no rank was asked for");
    check(Preparation::Done, LAUNCHED, 20_000, "a node has up to 16384");
    check(Preparation::Done, LAUNCHED, 2_000_000, "a launch has up to 1048576");
}

#[test]
fn nothing_is_spawned_by_a_launch_that_ends() {
    let mut world = World::running(spec(1));
    world.control(Control::End(15));
    world.spawn(LAUNCHED, 1);
    assert!(world.answers[&1].as_ref().unwrap_err().to_string().contains("the launch is ending"));
    world.control(Control::Spawn(order("kvs_1_0.s1", 1, 1)));
    assert_eq!(spawned(&world), [("kvs_1_0.s1", Some("the launch is ending"))]);
    world.finish();
    world.control(Control::Spawn(order("kvs_1_0.s2", 1, 1)));
    assert_eq!(spawned(&world)[1].1, Some("this node's part of the launch is over"));
}

#[test]
fn a_node_whose_ranks_have_ended_does_not_refuse_a_job_that_has_none_there() {
    let mut world = World::running(spec_on(&[1, 1]));
    world.finish();
    world.control(Control::Spawn(order("kvs_1_0.s1", 0, 2)));
    world.control(Control::Spawn(order("kvs_1_0.s2", 1, 3)));
    let refusal = Some("this node's part of the launch is over");
    assert_eq!(spawned(&world), [("kvs_1_0.s1", None), ("kvs_1_0.s2", refusal)]);
}

#[test]
fn orders_to_spawn_are_answered_whether_or_not_there_are_ranks_here() {
    let mut world = World::running(spec_on(&[1, 1]));
    world.control(Control::Spawn(order("kvs_1_0.s1", 0, 2)));
    assert_eq!(spawned(&world), [("kvs_1_0.s1", None)]);
    world.control(Control::Spawn(order("kvs_1_0.s1", 0, 2)));
    assert_eq!(spawned(&world)[1], ("kvs_1_0.s1", Some("job kvs_1_0.s1 is here already")));
    let orphan = SpawnOrder {
        job: Job { spawner: Some(JobId::new("nobody").unwrap()), ..order("kvs_1_0.s2", 0, 2).job },
        ..order("kvs_1_0.s2", 0, 2)
    };
    world.control(Control::Spawn(orphan));
    assert_eq!(spawned(&world)[2].1, Some("the parent of job kvs_1_0.s2 is not known here"));
    world.control(Control::Spawn(order("kvs_1_0.s3", 2, 4)));
    assert_eq!(spawned(&world).len(), 3, "its ranks are not there yet");
    world.start_all();
    assert_eq!(spawned(&world)[3], ("kvs_1_0.s3", None));
    world.finish();
}

#[test]
fn a_disowned_job_is_killed_once_none_of_its_ranks_is_on_its_way() {
    let mut world = World::running(spec_on(&[1, 1]));
    world.control(Control::Spawn(order("kvs_1_0.s1", 2, 2)));
    world.start(SlotId(1));
    let id = || JobId::new("kvs_1_0.s1").unwrap();
    world.control(Control::Disown(id()));
    assert!(!world.signals.contains_key(&SlotId(1)));
    world.start(SlotId(2));
    assert_eq!(
        (&world.signals[&SlotId(1)], &world.signals[&SlotId(2)]),
        (&vec![Signal::SIGKILL], &vec![Signal::SIGKILL])
    );
    world.exit(SlotId(1), KILLED);
    world.exit(SlotId(2), FAILED);
    assert_eq!(world.cause(), None, "their ends say nothing about the launch");
    world.control(Control::Disown(JobId::new("kvs_1_0").unwrap()));
    world.control(Control::Disown(JobId::new("unknown").unwrap()));
    assert_eq!(world.alive(), [SlotId(0)], "the launched job is the launch itself");
    world.finish();
}

/// A loop of MPI_Comm_spawn.
#[test]
fn a_job_that_is_over_is_forgotten_but_for_the_ends_of_its_ranks() {
    let mut world = World::running(spec(1));
    let known = |world: &World| (world.machine.jobs().iter().count(), world.machine.ranks().iter().count());
    for round in 0..200 {
        world.spawn(LAUNCHED, 2);
        world.start_all();
        let (first, second) = (SlotId(2 * round + 1), SlotId(2 * round + 2));
        world.exit_with(first, GOOD, Vec::new());
        world.exit(second, GOOD);
        assert_eq!((known(&world), world.released), ((2, 3), round), "an output is open");
        (0..2).for_each(|_| world.end_output(first));
        assert_eq!((known(&world), world.released), ((1, 1), round + 1));
    }
    world.prepare_next(Preparation::Failed, |world| world.spawn(LAUNCHED, 2));
    assert_eq!((known(&world), world.released), ((1, 1), 201), "a job that did not start is over");
    world.spawn(LAUNCHED, 1);
    assert_eq!(world.machine.ranks().slot_of(Rank(401)), Some(SlotId(401)), "no number is given twice");
    world.finish();
    assert_eq!(world.machine.report().exits.len(), 402);
}

#[test]
fn a_job_on_several_nodes_is_over_when_the_launch_says_so_and_its_ranks_here_have_ended() {
    let mut world = World::running(spec_on(&[1, 1]));
    let over = || Control::JobOver(JobId::new("kvs_1_0.s1").unwrap());
    world.control(Control::Spawn(order("kvs_1_0.s1", 1, 2)));
    world.start_all();
    world.exit(SlotId(1), GOOD);
    assert_eq!(world.released, 0, "ranks may run on the other node");
    world.control(over());
    assert_eq!((world.released, world.machine.jobs().iter().count()), (1, 1));
    world.control(over());
    world.control(Control::JobOver(JobId::new("kvs_1_0").unwrap()));
    assert_eq!((world.released, world.alive()), (1, vec![SlotId(0)]));
    world.finish();
}

/// The user gets a report of silent ranks at the end of the launch.
#[test]
fn some_jobs_with_ranks_that_ended_in_silence_are_kept_for_the_report() {
    let mut world = World::running(spec(2));
    for round in 0..100 {
        world.spawn(LAUNCHED, 2);
        world.start_all();
        for slot in [SlotId(2 * round + 2), SlotId(2 * round + 3)] {
            let end = UnreportedEnd { slot, exit: GOOD, reached: None };
            world.machine.on_exit(end, Vec::new(), &[], Instant::now());
            world.settle();
            (0..2).for_each(|_| world.end_output(slot));
        }
    }
    assert_eq!(world.machine.jobs().iter().count(), 1 + super::super::super::SILENT_JOBS_MAX);
    world.finish();
}

/// A program may repeat its request, with names of any length.
#[test]
fn the_user_is_told_why_a_rank_got_no_new_processes_but_not_for_ever() {
    let mut world = World::running(spec(2));
    for number in 0..100 {
        world.machine.on_not_spawned(LAUNCHED, Rank(1), format!("{number}{}", "\u{e9}".repeat(5000)));
        world.settle();
    }
    let told = world.notices();
    assert_eq!(told.len(), 16);
    for (number, notice) in told.into_iter().enumerate() {
        let Notice::NotSpawned { rank: Rank(1), reason } = notice else { panic!("{notice:?}") };
        assert!(reason.starts_with(&number.to_string()) && reason.len() < 2200, "{reason}");
        assert_eq!(reason.ends_with("further failures of this kind are not reported"), number == 15, "{reason}");
    }
    world.finish();

    let mut world = World::running(spec(1));
    world.control(Control::End(15));
    world.machine.on_not_spawned(LAUNCHED, Rank(0), "the launch is ending".to_owned());
    world.finish();
    assert!(world.notices().is_empty(), "that is not why it ends");
}
