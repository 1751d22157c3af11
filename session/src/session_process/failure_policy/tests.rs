use pmi_core::ids::Rank;
use proptest::prelude::*;
use rank_spawner::RankExit;

use super::*;

const NODES: u32 = 4;

fn failed(node: u32, exit: RankExit) -> Cause {
    Cause { host: format!("n{node}"), kind: CauseKind::Failed { rank: Rank(node), exit } }
}

/// A cause that cannot follow from another cause.
fn killed(node: u32) -> Cause {
    failed(node, RankExit::Signal { signal: 9, core_dumped: false })
}

/// A cause that can follow from another cause.
fn crashed(node: u32) -> Cause {
    failed(node, RankExit::Signal { signal: 11, core_dumped: false })
}

/// A cause that usually follows from another cause.
fn gave_up(node: u32) -> Cause {
    Cause { host: format!("n{node}"), kind: CauseKind::Fence { reason: "a node left".to_owned() } }
}

fn told(cause: Cause, is_heard: bool, way: Way) -> SentCause {
    SentCause { cause: Some(cause), is_heard, way }
}

fn from_other(cause: Cause) -> LaunchFailure {
    LaunchFailure { cause, below: 0, api_is_silent: false }
}

fn to_all(cause: Cause) -> Decision {
    Decision::TellBelow(LaunchFailure { cause, below: NODES - 1, api_is_silent: false })
}

/// A policy, the time, and the decisions since the last look.
struct World {
    policy: FailurePolicy,
    now: Instant,
}

impl World {
    fn of_node(node: u32) -> Self {
        Self { policy: FailurePolicy::new(NodeIndex(node), NODES), now: Instant::now() }
    }

    fn told(&mut self, told: SentCause) -> Vec<Decision> {
        self.policy.on_told(told, self.now);
        self.decisions()
    }

    fn hears(&mut self, from: u32, failure: LaunchFailure) -> Vec<Decision> {
        self.policy.on_failure(NodeIndex(from), failure, self.now);
        self.decisions()
    }

    fn after(&mut self, time: Duration) -> Vec<Decision> {
        let until = self.now + time;
        while let Some(wake) = self.policy.next_wake().filter(|&wake| wake <= until) {
            self.now = self.now.max(wake);
            self.policy.on_time(self.now);
        }
        self.now = until;
        self.decisions()
    }

    fn decisions(&mut self) -> Vec<Decision> {
        std::iter::from_fn(|| self.policy.poll_decision()).collect()
    }
}

#[test]
fn nobody_is_told_what_the_api_server_hears() {
    for node in 0..NODES {
        let mut world = World::of_node(node);
        assert_eq!(world.told(told(killed(node), false, Way::Open)), []);
        assert_eq!(world.policy.stage(), Stage::Open, "it may still be that it does not hear");
        assert_eq!(world.told(told(killed(node), true, Way::Open)), []);
        assert_eq!((world.policy.stage(), world.policy.next_wake()), (Stage::Settled, None));
        assert_eq!(world.after(Duration::from_secs(60)), []);
    }
}

#[test]
fn the_root_is_told_what_the_api_server_does_not_hear_and_told_once() {
    let tell = || Decision::TellRoot(from_other(killed(2)));
    let mut known = World::of_node(2);
    assert_eq!(known.told(told(killed(2), false, Way::Broken)), [tell()]);
    assert_eq!(known.policy.stage(), Stage::Settled);
    let mut silent = World::of_node(2);
    assert_eq!(silent.told(told(killed(2), false, Way::Open)), []);
    assert_eq!(silent.after(timeouts::UNHEARD / 2), []);
    let waited = LaunchFailure { api_is_silent: true, ..from_other(killed(2)) };
    assert_eq!(silent.after(timeouts::UNHEARD), [Decision::TellRoot(waited)]);
    assert_eq!(silent.told(told(killed(2), false, Way::Broken)), []);
    let mut broken_later = World::of_node(2);
    assert_eq!(broken_later.told(told(killed(2), true, Way::Open)), []);
    assert_eq!(broken_later.told(told(killed(2), true, Way::Broken)), [tell()], "it may not have told the others");
}

#[test]
fn the_root_chooses_among_causes_and_tells_all_what_the_api_server_does_not_hear() {
    let mut world = World::of_node(0);
    assert_eq!(world.told(SentCause { way: Way::Broken, ..SentCause::default() }), []);
    assert_eq!(world.policy.stage(), Stage::NoFailure);
    assert_eq!(world.told(told(gave_up(0), false, Way::Broken)), []);
    assert_eq!(world.hears(1, from_other(gave_up(1))), []);
    assert_eq!(world.policy.stage(), Stage::Open);
    assert_eq!(world.hears(2, from_other(killed(2))), [Decision::Take(killed(2)), to_all(killed(2))]);
    assert_eq!(world.hears(3, from_other(killed(3))), []);
    assert_eq!(world.told(told(killed(2), false, Way::Broken)), []);
    assert_eq!((world.policy.stage(), world.after(Duration::from_secs(60))), (Stage::Settled, Vec::new()));
}

#[test]
fn a_cause_that_no_other_follows_counts_after_a_moment() {
    let mut world = World::of_node(0);
    assert_eq!(world.told(told(gave_up(0), false, Way::Broken)), []);
    assert_eq!(world.after(HOLD_GIVEN_UP), [to_all(gave_up(0))], "it is the root's own already");
    let mut world = World::of_node(0);
    assert_eq!(world.hears(1, from_other(gave_up(1))), []);
    assert_eq!(world.after(HOLD_GIVEN_UP), [Decision::Take(gave_up(1))]);
    assert_eq!(world.told(told(gave_up(1), false, Way::Open)), [], "the API server hears of it from the root");
    assert_eq!(world.told(told(gave_up(1), true, Way::Open)), []);
    assert_eq!(world.after(Duration::from_secs(60)), []);
}

/// A crash that follows from the end of a rank on another node, whose report arrives later.
#[test]
fn a_crash_at_the_root_gives_way_to_the_cause_that_another_session_reports_late() {
    let mut broken = World::of_node(0);
    assert_eq!(broken.told(told(crashed(0), false, Way::Broken)), []);
    assert_eq!(broken.after(HOLD_GIVEN_UP / 2), []);
    assert_eq!(broken.hears(1, from_other(killed(1))), [Decision::Take(killed(1)), to_all(killed(1))]);
    // The other session waits for the API server first.
    let mut silent = World::of_node(0);
    assert_eq!(silent.told(told(crashed(0), false, Way::Open)), []);
    assert_eq!(silent.after(timeouts::UNHEARD), []);
    let waited = LaunchFailure { api_is_silent: true, ..from_other(killed(1)) };
    assert_eq!(silent.hears(1, waited), [Decision::Take(killed(1)), to_all(killed(1))]);
    // No other session has a cause.
    let mut alone = World::of_node(0);
    assert_eq!(alone.told(told(crashed(0), false, Way::Open)), []);
    assert_eq!(alone.after(timeouts::UNHEARD + HOLD_GIVEN_UP), [to_all(crashed(0))]);
}

#[test]
fn an_api_server_that_says_nothing_is_waited_for_by_the_root_as_well() {
    let mut world = World::of_node(0);
    assert_eq!(world.hears(1, from_other(killed(1))), [Decision::Take(killed(1))]);
    assert_eq!(world.told(told(killed(1), false, Way::Open)), []);
    assert_eq!(world.after(timeouts::UNHEARD), [to_all(killed(1))]);
}

#[test]
fn an_api_server_that_another_session_has_waited_for_is_not_waited_for_again() {
    let mut world = World::of_node(0);
    let waited = LaunchFailure { api_is_silent: true, ..from_other(killed(1)) };
    assert_eq!(world.hears(1, waited), [Decision::Take(killed(1)), to_all(killed(1))]);
    assert_eq!(world.told(told(killed(1), false, Way::Open)), []);
    assert_eq!(world.after(Duration::from_secs(60)), []);
}

#[test]
fn what_the_root_chose_replaces_the_own_cause_and_is_passed_on_once() {
    let mut world = World::of_node(1);
    world.told(told(gave_up(1), false, Way::Broken));
    let failure = LaunchFailure { cause: killed(3), below: 2, api_is_silent: false };
    let passed_on = Decision::TellBelow(failure.clone());
    assert_eq!(world.hears(0, failure.clone()), [Decision::Take(killed(3)), passed_on]);
    assert_eq!(world.hears(0, failure), []);
    assert_eq!(world.told(told(killed(3), false, Way::Broken)), [], "it is not told to the root");
    assert_eq!(World::of_node(2).hears(0, from_other(killed(3))), [Decision::Take(killed(3))]);
}

/// A signal or a time limit ends each part of the launch by itself. The end of the agent's lease does, too.
#[test]
fn what_each_session_finds_by_itself_is_told_to_nobody() {
    let limit = Duration::from_secs(1);
    for kind in [CauseKind::Interrupted { signal: 1 }, CauseKind::TimedOut { limit }] {
        for node in [0, 1] {
            let mut world = World::of_node(node);
            let cause = Cause { host: "n1".to_owned(), kind: kind.clone() };
            assert_eq!(world.told(told(cause, false, Way::Broken)), [], "{kind:?}");
            assert_eq!((world.policy.stage(), world.after(Duration::from_secs(60))), (Stage::NoFailure, Vec::new()));
        }
    }
    let mut world = World::of_node(1);
    assert_eq!(world.told(told(killed(1), false, Way::Ended)), []);
    assert_eq!((world.policy.stage(), world.after(Duration::from_secs(60))), (Stage::Settled, Vec::new()));
}

proptest! {
    /// For all causes in all orders without an API server, all sessions end for the same cause. That cause cannot follow from another cause
    /// that is known in time.
    #[test]
    fn all_sessions_take_one_cause(found in prop::collection::vec((0..NODES, any::<bool>()), 1..6), order in any::<u64>()) {
        let mut worlds: Vec<World> = (0..NODES).map(World::of_node).collect();
        let (mut causes, mut messages) = (vec![None; NODES as usize], Vec::new());
        for &(node, root_cause) in &found {
            let own = &mut causes[node as usize];
            if own.is_none() {
                let cause = if root_cause { killed(node) } else { gave_up(node) };
                *own = Some(cause.clone());
                let decisions = worlds[node as usize].told(told(cause, false, Way::Broken));
                messages.extend(decisions.into_iter().map(|decision| (node, decision)));
            }
        }
        let mut order = order;
        loop {
            if messages.is_empty() {
                let more: Vec<_> = (0..NODES).flat_map(|node| worlds[node as usize].after(HOLD_GIVEN_UP).into_iter().map(move |it| (node, it))).collect();
                if more.is_empty() {
                    break;
                }
                messages.extend(more);
            }
            let (node, decision) = messages.swap_remove(order as usize % messages.len());
            order = order.rotate_left(7) ^ 0x9e37;
            let (to, decisions) = match decision {
                Decision::Take(cause) => {
                    causes[node as usize] = Some(cause.clone());
                    (node, worlds[node as usize].told(told(cause, false, Way::Broken)))
                }
                Decision::TellRoot(failure) => (0, worlds[0].hears(node, failure)),
                Decision::TellBelow(LaunchFailure { cause, below, .. }) => {
                    // The node after this one has all other nodes below it.
                    let failure = LaunchFailure { cause, below: below - 1, api_is_silent: false };
                    (node + 1, worlds[node as usize + 1].hears(node, failure))
                }
            };
            messages.extend(decisions.into_iter().map(|decision| (to, decision)));
        }
        prop_assert!(causes.iter().all(|cause| cause.is_some() && cause == &causes[0]), "{causes:?}");
        if found.iter().any(|&(node, _)| found.iter().find(|(other, _)| *other == node) == Some(&(node, true))) {
            prop_assert!(matches!(&causes[0], Some(Cause { kind: CauseKind::Failed { .. }, .. })), "{causes:?}");
        }
    }
}
