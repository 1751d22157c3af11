use pmi_core::ids::NodeIndex;
use proptest::prelude::*;

use super::*;

/// Two ranks on each of two nodes.
fn ranks() -> Ranks {
    Ranks::new(&Placement::block(&[2, 2]))
}

pub(in super::super) fn end(rank: u32, phase: Option<Phase>) -> RankEnd {
    let reached = phase.map(|phase| DialoguePoint { phase, fences: 0 });
    RankEnd { rank: Rank(rank), exit: RankExit::Code(0), reached }
}

#[test]
fn a_node_reports_its_own_ranks_only() {
    let mut ranks = ranks();
    assert!(!ranks.on_exited(NodeIndex(0), end(2, Some(Phase::Silent))), "it is of node 1");
    assert!(!ranks.on_exited(NodeIndex(0), end(99, Some(Phase::Silent))), "there is none");
    assert!(!ranks.on_started(NodeIndex(0), Rank(2), 7, &Programs::new()));
    assert!(ranks.on_exited(NodeIndex(1), end(2, Some(Phase::Finalized))));
    assert!(!ranks.on_exited(NodeIndex(1), end(2, Some(Phase::Silent))), "reported twice");
    assert_eq!(ranks.ends(), [end(2, Some(Phase::Finalized))]);
}

#[test]
fn spawned_ranks_are_counted_on_and_no_part_of_the_start() {
    let mut ranks = ranks();
    assert_eq!(ranks.add_job(&Placement::block(&[0, 3])), 4);
    assert!(ranks.on_started(NodeIndex(1), Rank(6), 7, &Programs::new()));
    assert_eq!((ranks.size(), ranks.launched_size(), ranks.load(2)), (7, 4, vec![2, 5]));
    assert_eq!(ranks.starts(2), Starts { started: 0, initialized: 0, missing: vec![2, 2] });
}

#[test]
fn a_start_counts_once_and_an_answer_tells_of_starts_too() {
    let mut ranks = ranks();
    assert!(ranks.on_started(NodeIndex(0), Rank(0), 7, &Programs::new()));
    assert!(!ranks.on_started(NodeIndex(0), Rank(0), 7, &Programs::new()), "no news");
    let mut open = ranks.known(2)[1][0].0.clone();
    (open.pid, open.phase) = (Some(9), Some(Phase::Open));
    ranks.on_progress(NodeIndex(1), &[open], &vec![(Rank(2), "/app".into())]);
    assert_eq!(ranks.starts(2), Starts { started: 2, initialized: 1, missing: vec![1, 1] });
    assert_eq!(ranks.known(2)[1][0].1, "/app");
}

#[test]
fn nothing_is_expected_of_ranks_whose_job_did_not_start() {
    let mut ranks = ranks();
    let first = ranks.add_job(&Placement::block(&[1, 1]));
    ranks.void_job(&(first..first + 2));
    assert_eq!((ranks.load(2), ranks.known(2)[0].len()), (vec![2, 2], 2));
    (0..4).for_each(|rank| assert!(ranks.on_exited(NodeIndex(rank / 2), end(rank, None))));
    assert!(ranks.all_exited());
    assert_eq!(ranks.add_job(&Placement::block(&[1])), 6, "their numbers are not given again");
}

#[test]
fn ranks_of_a_lost_node_are_lost_and_have_no_process_any_more() {
    let mut ranks = ranks();
    (2..4).for_each(|rank| assert!(ranks.on_started(NodeIndex(1), Rank(rank), 100 + rank, &Programs::new())));
    assert!(ranks.on_exited(NodeIndex(1), end(2, None)));
    assert_eq!(ranks.on_lost(NodeIndex(1)).len(), 1);
    let known = |rank: usize| ranks.known(2)[1][rank].0.clone();
    assert_eq!((known(0).pid, known(0).lost, known(0).exit.is_some()), (Some(102), false, true));
    assert_eq!((known(1).pid, known(1).lost, known(1).exit), (None, true, None));
}

#[test]
fn a_job_that_is_over_leaves_its_ends_and_no_number_to_others() {
    let mut ranks = ranks();
    for _ in 0..1000 {
        let first = ranks.add_job(&Placement::block(&[1, 1]));
        assert!(ranks.on_exited(NodeIndex(0), end(first, None)) && !ranks.is_over(first));
        assert!(ranks.on_exited(NodeIndex(1), end(first + 1, None)) && ranks.is_over(first));
        assert_eq!(ranks.forget_job(first), first..first + 2);
        assert!(!ranks.on_exited(NodeIndex(1), end(first + 1, None)), "it is no news");
    }
    assert_eq!((ranks.jobs.len(), ranks.forgotten.runs().count(), ranks.size()), (1, 1, 2004));
    assert_eq!((ranks.all_ends().len(), ranks.ends().len(), ranks.failures().len()), (2000, 0, 0));
}

/// A change of the state of ends.
#[derive(Clone, Debug)]
enum Step {
    Exited(u32, RankEnd),
    Told(u32, RankEnd),
    Died(u32, u32),
    Lost(u32),
    Voided(usize),
    Spawned,
}

fn step() -> impl Strategy<Value = Step> {
    let phases = [None, Some(Phase::Silent), Some(Phase::Open), Some(Phase::Finalized)];
    let end =
        (0..12_u32, prop::sample::select(phases.to_vec()), 0..3_u64, 0..2).prop_map(|(rank, phase, fences, code)| {
            let reached = phase.map(|phase| DialoguePoint { phase, fences });
            RankEnd { rank: Rank(rank), exit: RankExit::Code(code), reached }
        });
    prop_oneof![
        8 => (0..2_u32, end.clone()).prop_map(|(node, end)| Step::Exited(node, end)),
        4 => (0..2_u32, end).prop_map(|(node, end)| Step::Told(node, end)),
        2 => (0..2_u32, 0..12_u32).prop_map(|(node, rank)| Step::Died(node, rank)),
        1 => (0..2_u32).prop_map(Step::Lost),
        1 => (0..3_usize).prop_map(Step::Voided),
        1 => Just(Step::Spawned),
    ]
}

fn take(ranks: &mut Ranks, step: Step) {
    match step {
        Step::Exited(node, end) => drop(ranks.on_exited(NodeIndex(node), end)),
        Step::Told(node, end) => {
            let told = RankProgress {
                exit: Some(end.exit),
                phase: end.phase(),
                fences: Some(end.fences()),
                ..RankProgress::unknown(end.rank)
            };
            ranks.on_progress(NodeIndex(node), &[told], &Programs::new());
        }
        Step::Died(node, rank) => {
            ranks.on_died(NodeIndex(node), Death { rank: Rank(rank), kind: DeathKind::Killed });
        }
        Step::Lost(node) => drop(ranks.on_lost(NodeIndex(node))),
        Step::Voided(job) => {
            let job = ranks.jobs().nth(job);
            if let Some(job) = job {
                ranks.void_job(&job);
            }
        }
        Step::Spawned => drop(ranks.add_job(&Placement::block(&[1, 1]))),
    }
}

proptest! {
    #[test]
    fn what_is_kept_about_all_ranks_is_what_a_look_at_each_would_find(steps in prop::collection::vec(step(), 0..40)) {
        let mut ranks = ranks();
        for step in steps {
            take(&mut ranks, step);
            let expected = ranks.iter().filter(|(_, rank)| rank.is_expected()).count();
            prop_assert_eq!(ranks.expected, expected);
            for departure in [Departure::Silent, Departure::Left] {
                let of_job = |job: &Range<u32>| {
                    let known = ranks.iter().filter(|(rank, _)| job.contains(&rank.0));
                    let ends = known.filter(|(_, rank)| rank.death.is_none()).filter_map(|(_, rank)| rank.end);
                    ends.filter(|end| Departure::of(end) == Some(departure)).min_by_key(RankEnd::fences)
                };
                let found: Vec<_> = ranks.jobs().filter_map(|job| Some((job.clone(), of_job(&job)?))).collect();
                prop_assert_eq!(ranks.earliest_ends(departure).collect::<Vec<_>>(), found);
            }
        }
    }
}
