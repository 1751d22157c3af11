//! Nodes that register, send heartbeats, are lost and are drained.

use super::registration::{WORD_MAX, WORDS_MAX};
use super::*;
use crate::clock::Reading;

/// The registration of a node with an address and no other facts.
pub(crate) fn registration(node: &str) -> Registration {
    let facts = NodeFacts {
        grpc_address: "127.0.0.1:50052".to_owned(),
        network_addresses: Vec::new(),
        cores: None,
        memory_bytes: None,
        capabilities: Vec::new(),
        version: None,
    };
    Registration { node: node.to_owned(), incarnation: 1, launches: Vec::new(), facts }
}

/// A registry in which these nodes are up.
pub(crate) fn registry(nodes: &[&str]) -> Registry {
    let mut registry = Registry::default();
    for node in nodes {
        registry.register(registration(node), Instant::now()).unwrap();
    }
    registry
}

/// A note that a node is drained.
pub(crate) fn drain(node: &str, reason: &str) -> Drain {
    Drain { node: node.to_owned(), reason: reason.to_owned(), by: "admin".to_owned(), since: 1_700_000_000 }
}

/// The nodes that are lost if no suspect answers its probe.
pub(crate) fn expire(registry: &mut Registry, now: Instant) -> Vec<String> {
    let mut suspects = registry.suspects(usize::MAX, now);
    suspects.retain(|Suspect { node, .. }| {
        matches!(registry.judge(node, PortAnswer::Nothing, LEASE, now), Some(Judgement::Lost { .. }))
    });
    suspects.into_iter().map(|suspect| suspect.node).collect()
}

/// A lease that is longer than all times in these tests, except in the tests of the lease.
const LEASE: Duration = Duration::from_secs(1000);

fn agent(id: &str, incarnation: u64) -> Registration {
    Registration { incarnation, ..registration(id) }
}

#[tokio::test]
async fn a_node_that_is_not_heard_is_lost_once() {
    let (mut registry, start) = (Registry::default(), Instant::now());
    assert_eq!(registry.register(agent("a", 1), start).unwrap(), Arrival::First);
    assert_eq!(registry.register(agent("b", 1), start).unwrap(), Arrival::First);
    assert!(!registry.heartbeat("a", 1, start + 3 * HEARTBEAT));
    assert!(expire(&mut registry, start + LOST_AFTER).is_empty());
    assert_eq!(expire(&mut registry, start + 2 * LOST_AFTER - HEARTBEAT), ["b"]);
    assert!(expire(&mut registry, start + 2 * LOST_AFTER - HEARTBEAT).is_empty());
    assert!(registry.up("b").is_none());
    assert!(registry.heartbeat("b", 1, start + 2 * LOST_AFTER), "it must register again");
    assert_eq!(registry.register(agent("b", 1), start + 2 * LOST_AFTER).unwrap(), Arrival::Again);
    assert!(registry.up("b").is_some());
}

#[tokio::test]
async fn a_node_is_lost_when_the_certificate_is_revoked_that_it_showed_last() {
    let mut registry = registry(&["renewed", "stolen", "unknown"]);
    for (node, shown) in [("renewed", b"1"), ("renewed", b"2"), ("stolen", b"3")] {
        registry.shown(node, shown);
    }
    let revoke = |registry: &mut Registry| registry.lose_revoked(|shown| [&b"1"[..], b"3"].contains(&shown));
    assert_eq!((revoke(&mut registry), revoke(&mut registry)), (vec!["stolen".to_owned()], Vec::new()));
    assert!(registry.heartbeat("stolen", 1, Instant::now()), "it must register again");
    assert!(["renewed", "unknown"].iter().all(|node| registry.up(node).is_some()));
}

/// A node without heartbeats changes its state with each result of a probe.
#[tokio::test]
async fn a_node_whose_agent_ended_is_away_until_its_lease_is_over() {
    use PortAnswer::{Accepted, Nothing, Refused};
    let check = |answers: &[(PortAnswer, NodeState)]| {
        let (mut registry, start) = (Registry::default(), Instant::now());
        registry.register(agent("a", 1), start).unwrap();
        let mut now = start + LOST_AFTER;
        for &(answer, expected) in answers {
            now += HEARTBEAT;
            let suspects = registry.suspects(10, now);
            assert_eq!(suspects.len(), 1);
            assert!(registry.suspects(10, now + HEARTBEAT).is_empty(), "it is being asked");
            registry.judge("a", answer, 2 * LOST_AFTER, now);
            assert_eq!(registry.list(now, |_| 0)[0].presence.as_ref().unwrap().state, expected, "{answers:?}");
            assert!(registry.suspects(10, now).is_empty(), "not so soon again");
        }
        assert!(registry.up("a").is_none());
        assert!(registry.heartbeat("a", 1, now), "it must register again");
        assert_eq!(registry.register(agent("a", 2), now).unwrap(), Arrival::Anew);
        assert_eq!(registry.ready("a").map(|_| ()), Ok(()));
    };
    check(&[(Nothing, NodeState::Lost)]);
    check(&[(Accepted, NodeState::Up), (Accepted, NodeState::Lost)]);
    check(&[(Accepted, NodeState::Up), (Refused, NodeState::Away), (Nothing, NodeState::Lost)]);
    check(&[(Refused, NodeState::Away), (Nothing, NodeState::Lost)]);
    let away = (Refused, NodeState::Away);
    check(&[away, (Accepted, NodeState::Away), away, (Refused, NodeState::Lost)]);
}

/// The port of an agent that replaces a killed one accepts before the agent has registered.
#[tokio::test]
async fn an_agent_that_is_seen_as_it_starts_is_not_lost() {
    let (mut registry, start) = (Registry::default(), Instant::now());
    registry.register(agent("a", 1), start).unwrap();
    let seen = start + LOST_AFTER + HEARTBEAT;
    let judge = |registry: &mut Registry, now| registry.judge("a", PortAnswer::Accepted, LEASE, now);
    assert_eq!(registry.suspects(1, seen).len(), 1);
    assert_eq!(judge(&mut registry, seen), None);
    assert!(registry.suspects(1, seen + PORT_AGAIN / 2).is_empty());
    assert_eq!(registry.register(agent("a", 2), seen + PORT_AGAIN / 2).unwrap(), Arrival::Anew);
    assert!(registry.suspects(1, seen + PORT_AGAIN).is_empty());
    // An agent that hangs is lost at the second probe. Probes before its last heartbeat do not count.
    let hangs = seen + 3 * LOST_AFTER;
    assert_eq!(registry.suspects(1, hangs).len(), 1);
    assert_eq!(judge(&mut registry, hangs), None);
    assert!(!registry.heartbeat("a", 2, hangs));
    for (time, lost) in [(hangs + 2 * LOST_AFTER, false), (hangs + 2 * LOST_AFTER + PORT_AGAIN, true)] {
        assert_eq!(registry.suspects(1, time).len(), 1);
        assert_eq!(matches!(judge(&mut registry, time), Some(Judgement::Lost { .. })), lost);
    }
}

#[tokio::test]
async fn nothing_new_begins_on_a_node_whose_agent_is_away_and_who_is_heard_meanwhile_is_not() {
    let (mut registry, start) = (Registry::default(), Instant::now());
    registry.register(agent("a", 1), start).unwrap();
    registry.register(agent("b", 1), start).unwrap();
    let late = start + LOST_AFTER + HEARTBEAT;
    assert_eq!(registry.suspects(1, late).len(), 1, "not all at once");
    assert_eq!(registry.suspects(1, late).len(), 1);
    registry.heartbeat("b", 1, late);
    assert_eq!(registry.judge("a", PortAnswer::Refused, LEASE, late), Some(Judgement::Away));
    assert_eq!(registry.judge("b", PortAnswer::Refused, LEASE, late), None);
    assert_eq!(registry.ready("a").unwrap_err(), Unready::Away);
    assert_eq!([NodeState::Up, NodeState::Away, NodeState::Lost].map(|state| registry.count(state)), [1, 1, 0]);
    assert_eq!(registry.judge("nobody", PortAnswer::Refused, LEASE, late), None);
}

#[tokio::test]
async fn a_time_in_which_nobody_could_be_heard_does_not_count() {
    let (mut registry, start) = (Registry::default(), Instant::now());
    let mut clock = Reading::new(start);
    registry.register(agent("a", 1), clock.at(start)).unwrap();
    registry.register(agent("b", 1), clock.at(start + HEARTBEAT)).unwrap();
    let awake = start + HEARTBEAT + 2 * LOST_AFTER;
    assert!(expire(&mut registry, clock.at(awake)).is_empty());
    let mut expired = Vec::new();
    for passed in 1..=LOST_AFTER.as_millis() as u32 / 250 {
        let now = clock.at(awake + passed * Duration::from_millis(250));
        assert!(!registry.heartbeat("b", 1, now));
        expired.extend(expire(&mut registry, now).into_iter().map(|node| (passed, node)));
    }
    let time = (LOST_AFTER - HEARTBEAT).as_millis() as u32 / 250 + 1;
    assert_eq!(expired, [(time, "a".to_owned())], "it had the time that it would have had, and no more");
}

#[tokio::test]
async fn an_agent_that_was_started_anew_is_told_from_one_that_returns() {
    let (mut registry, now) = (Registry::default(), Instant::now());
    assert_eq!(registry.register(agent("a", 1), now).unwrap(), Arrival::First);
    assert_eq!(registry.register(agent("a", 1), now).unwrap(), Arrival::Again);
    assert!(registry.heartbeat("a", 2, now));
    assert_eq!(registry.register(agent("a", 2), now).unwrap(), Arrival::Anew);
}

#[tokio::test]
async fn strange_registrations_are_refused() {
    let mut registry = Registry::default();
    let mut check = |change: fn(&mut Registration), expected: &str| {
        let mut told = agent("a", 1);
        change(&mut told);
        let error = registry.register(told, Instant::now()).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    };
    check(|told| told.node = "a,b".to_owned(), "cannot be a node's name");
    check(|told| told.facts.grpc_address = "here".to_owned(), "no address");
    check(|told| told.facts.grpc_address = "unix:/a".to_owned(), "cannot be reached");
    check(|told| told.facts.capabilities = vec!["x".repeat(1000)], "at most 64");
    check(
        |told| told.facts.version = Some("999.0.0".to_owned()),
        "an agent of version 999.0.0 and an API server of version",
    );
}

#[tokio::test]
async fn nothing_new_begins_on_a_node_that_is_drained() {
    let (mut registry, start) = (Registry::default(), Instant::now());
    let ready = |registry: &Registry| registry.all_ready().cloned().collect::<Vec<_>>();
    registry.register(agent("a", 1), start).unwrap();
    registry.register(agent("b", 1), start).unwrap();
    registry.drain(drain("a", "new memory"));
    registry.drain(drain("c", "new memory"));
    assert_eq!(ready(&registry), ["b"]);
    assert_eq!(registry.ready("a").unwrap_err().to_string(), "is drained: new memory");
    assert!(registry.up("a").is_some(), "what runs there goes on");
    assert_eq!(registry.ready("c").unwrap_err(), Unready::Unknown);
    let listed = registry.list(start, |_| 0);
    let drained: Vec<_> = listed.iter().map(|listed| (listed.node.as_str(), listed.drain.is_some())).collect();
    assert_eq!(drained, [("a", true), ("b", false), ("c", true)]);
    // The drain applies to the next agent as well, until it is ended.
    registry.register(agent("a", 2), start).unwrap();
    assert_eq!(ready(&registry), ["b"]);
    registry.resume("a");
    assert_eq!(ready(&registry), ["a", "b"]);
    expire(&mut registry, start + 2 * LOST_AFTER);
    assert_eq!(registry.ready("a").unwrap_err(), Unready::Lost);
}

/// Sends a heartbeat of the agent with this incarnation. Returns true if the agent must register again.
fn beat(registry: &mut Registry, incarnation: u64, now: Instant) -> bool {
    registry.heartbeat("a", incarnation, now)
}

#[tokio::test]
async fn a_heartbeat_counts_only_from_the_agent_that_registered_and_is_not_lost() {
    let (mut registry, start) = (Registry::default(), Instant::now());
    assert!(beat(&mut registry, 1, start), "nobody registered");
    registry.register(agent("a", 1), start).unwrap();
    assert!(!beat(&mut registry, 1, start));
    assert!(beat(&mut registry, 2, start), "an agent that was started anew");
    let late = start + LOST_AFTER + HEARTBEAT;
    assert!(!beat(&mut registry, 1, late), "it is not looked at yet, and so not lost");
    assert!(expire(&mut registry, late).is_empty());
    assert_eq!(expire(&mut registry, late + LOST_AFTER + HEARTBEAT), ["a"]);
    assert!(beat(&mut registry, 1, late + LOST_AFTER + HEARTBEAT), "it is lost");
}

#[tokio::test]
async fn a_refused_registration_leaves_the_node_as_it_was() {
    let (mut registry, now) = (registry(&["a"]), Instant::now());
    let mut strange = agent("a", 2);
    strange.facts.grpc_address = "unix:/a".to_owned();
    assert!(matches!(registry.register(strange, now), Err(RegisterError::NoTcp { .. })));
    assert!(!beat(&mut registry, 1, now), "the agent before is still there");
    assert_eq!(registry.up("a"), Some(&registration("a").facts));
}

#[tokio::test]
async fn words_of_an_agent_are_taken_up_to_their_limits() {
    let check = |change: &dyn Fn(&mut NodeFacts, usize), most: usize| {
        for (size, fits) in [(most, true), (most + 1, false)] {
            let mut registration = registration("a");
            change(&mut registration.facts, size);
            let answer = Registry::default().register(registration, Instant::now());
            assert_eq!(answer.is_ok(), fits, "{size}: {answer:?}");
        }
    };
    check(&|facts, size| facts.capabilities = vec!["x".to_owned(); size], WORDS_MAX);
    check(&|facts, size| facts.network_addresses = vec!["x".to_owned(); size], WORDS_MAX);
    check(&|facts, size| facts.capabilities = vec!["x".repeat(size)], WORD_MAX);
    check(&|facts, size| facts.network_addresses = vec!["x".repeat(size)], WORD_MAX);
    check(&|facts, size| facts.version = Some("x".repeat(size)), WORD_MAX);
}

#[tokio::test]
async fn nodes_are_counted_by_their_state_and_listed_by_their_names() {
    let (mut registry, start) = (registry(&["b", "a"]), Instant::now());
    registry.drain(drain("c", "new memory"));
    assert_eq!([NodeState::Up, NodeState::Lost].map(|state| registry.count(state)), [2, 0]);
    registry.heartbeat("a", 1, start + LOST_AFTER);
    expire(&mut registry, start + LOST_AFTER + HEARTBEAT);
    assert_eq!([NodeState::Up, NodeState::Lost].map(|state| registry.count(state)), [1, 1]);
    let listed = registry.list(start + LOST_AFTER + HEARTBEAT, |node| u32::from(node == "a"));
    let told = |listed: &Listed| {
        let presence = listed.presence.as_ref();
        (listed.node.clone(), presence.map(|presence| (presence.state, presence.launches)))
    };
    let expected = [
        ("a".to_owned(), Some((NodeState::Up, 1))),
        ("b".to_owned(), Some((NodeState::Lost, 0))),
        ("c".to_owned(), None),
    ];
    assert_eq!(listed.iter().map(told).collect::<Vec<_>>(), expected);
    assert_eq!(listed[0].presence.as_ref().unwrap().heard_ago, HEARTBEAT);
}

#[tokio::test]
async fn a_drain_outlives_the_loss_of_its_node_and_ends_when_it_is_undone() {
    let (mut registry, start) = (registry(&["a"]), Instant::now());
    registry.drain(drain("a", "first"));
    registry.drain(drain("a", "second"));
    assert_eq!(registry.ready("a"), Err(Unready::Drained { reason: "second".to_owned() }));
    expire(&mut registry, start + 2 * LOST_AFTER);
    assert_eq!(registry.ready("a"), Err(Unready::Lost));
    assert_eq!(registry.all_drained().count(), 0, "it is not up");
    registry.register(agent("a", 2), start).unwrap();
    assert_eq!(registry.all_drained().collect::<Vec<_>>(), ["a"]);
    registry.resume("a");
    registry.resume("never drained");
    assert!(registry.ready("a").is_ok());
    assert_eq!(registry.all_known().into_iter().collect::<Vec<_>>(), ["a"]);
}

#[tokio::test]
async fn nodes_of_an_earlier_server_are_expected_for_a_while_and_those_that_are_new_are_told_once() {
    let (mut registry, start) = (Registry::default(), Instant::now());
    registry.expect(["a", "b", "c"].map(str::to_owned), start + LOST_AFTER);
    registry.drain(drain("c", "new memory"));
    registry.register(agent("a", 1), start).unwrap();
    registry.register(agent("d", 1), start).unwrap();
    registry.register(agent("d", 2), start).unwrap();
    assert_eq!((registry.take_new(), registry.take_new()), (vec!["d".to_owned()], Vec::new()));
    assert_eq!((registry.count_known(), registry.is_expected("b"), registry.is_expected("a")), (4, true, false));
    let coming = |registry: &Registry| registry.all_coming().cloned().collect::<Vec<_>>();
    assert_eq!(coming(&registry), ["b"], "nothing begins on one that is drained");
    assert_eq!(registry.give_up_expected(start), [""; 0]);
    assert_eq!(registry.give_up_expected(start + LOST_AFTER), ["b", "c"]);
    let late = start + 2 * LOST_AFTER;
    assert_eq!(registry.suspects(1, late).len(), 1);
    assert_eq!(registry.judge("a", PortAnswer::Refused, LEASE, late), Some(Judgement::Away));
    assert_eq!(coming(&registry), ["a"]);
}
