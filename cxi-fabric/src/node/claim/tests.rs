//! Claims on recorded NICs, in virtual time.

use super::*;
use crate::clock::VirtualClock;
use crate::node::{Limit, Nic, Recorded, Resource, Shortage};

fn nic(name: &str, is_up: bool) -> Nic {
    Nic { name: name.to_owned(), is_up }
}

fn node() -> Recorded {
    Recorded::new([nic("cxi0", true), nic("cxi1", false), nic("cxi2", true)])
}

fn two_ranks() -> Claim {
    let vnis = vec![Vni::new(1024).expect("a number"), Vni::new(1025).expect("a number")];
    Claim { uid: 1000, ranks: 2, vnis, traffic_classes: TrafficClasses::default() }
}

fn in_seconds(clock: &VirtualClock, seconds: u64) -> Instant {
    clock.now() + Duration::from_secs(seconds)
}

fn service(nic: &str, svc_id: u32) -> NicService {
    NicService { nic: nic.to_owned(), svc_id }
}

fn busy() -> CxiError {
    CxiError::Busy { nic: "cxi2".into() }
}

fn short(shortage: Shortage) -> CxiError {
    CxiError::Short { nic: "cxi2".into(), shortage }
}

#[test]
fn each_nic_with_a_link_gets_a_service_of_its_own() {
    let (node, clock) = (node(), VirtualClock::default());
    let claimed = claim(&node, &clock, &two_ranks(), in_seconds(&clock, 5)).expect("claimed");
    assert_eq!(claimed.services, [service("cxi0", 11), service("cxi2", 31)]);
    assert!(claimed.warnings.is_empty());
    let spec = node.with("cxi2", |nic| nic.services[&31].clone());
    assert_eq!((spec.uid, spec.vnis.len()), (1000, 2));
    assert_eq!(spec.limits.of(Resource::Ptes), Limit { reserve: 12, max: 2048 });
    assert!(release(&node, &clock, &claimed.services, in_seconds(&clock, 5)).is_empty());
    assert_eq!(node.service_count(), 0);
}

#[test]
fn a_node_without_slingshot_has_no_services_and_no_error() {
    let (node, clock) = (Recorded::default(), VirtualClock::default());
    assert_eq!(claim(&node, &clock, &two_ranks(), clock.now()).expect("nothing"), NodeServices::default());
    let node = Recorded::new([nic("cxi0", false)]);
    let error = claim(&node, &clock, &two_ranks(), clock.now()).expect_err("no link").to_string();
    assert!(error.contains("none of the 1 CXI devices of this node has a link"), "{error}");
}

#[test]
fn one_nic_that_refuses_unwinds_all() {
    let (node, clock) = (node(), VirtualClock::default());
    node.with("cxi2", |nic| nic.create_failures.push_back(CxiError::Denied { nic: "cxi2".into() }));
    let error = claim(&node, &clock, &two_ranks(), in_seconds(&clock, 5)).expect_err("denied").to_string();
    assert!(error.contains("cxi2: not permitted") && !error.contains("is left"), "{error}");
    assert_eq!(node.service_count(), 0);
}

#[test]
fn what_cannot_be_unwound_is_told() {
    let (node, clock) = (node(), VirtualClock::default());
    node.with("cxi2", |nic| nic.create_failures.push_back(CxiError::Denied { nic: "cxi2".into() }));
    node.with("cxi0", |nic| nic.destroy_failures.extend((0..99).map(|_| CxiError::Busy { nic: "cxi0".into() })));
    let error = claim(&node, &clock, &two_ranks(), in_seconds(&clock, 5)).expect_err("denied").to_string();
    assert!(error.contains("service 11 of cxi0 is left"), "{error}");
}

#[test]
fn exhausted_resources_are_shared_with_a_warning() {
    let (node, clock) = (node(), VirtualClock::default());
    let les = Shortage::Resource { resource: Resource::Les, asked: 32, available: 5 };
    node.with("cxi2", |nic| nic.create_failures.extend([short(les), short(Shortage::TriggerPools)]));
    let claimed = claim(&node, &clock, &two_ranks(), in_seconds(&clock, 5)).expect("claimed");
    let warnings: Vec<_> = claimed.warnings.iter().map(ToString::to_string).collect();
    assert_eq!(warnings.len(), 2);
    assert!(
        warnings[0].starts_with("cxi2: 32 LEs were to be reserved, 5 are free; the launch reserves less"),
        "{warnings:?}"
    );
    let limits = node.with("cxi2", |nic| nic.services[&31].limits);
    assert_eq!(limits.of(Resource::Les).reserve, 5);
    assert_eq!(limits.of(Resource::Tles), Limit::default());
    // The other NIC had enough.
    assert_eq!(node.with("cxi0", |nic| nic.services[&11].limits), Limits::for_ranks(2));
}

#[test]
fn a_shortage_that_less_cannot_help_fails_with_the_resource() {
    let (node, clock) = (node(), VirtualClock::default());
    node.with("cxi2", |nic| nic.create_failures.extend([short(Shortage::TriggerPools), short(Shortage::TriggerPools)]));
    let error = claim(&node, &clock, &two_ranks(), in_seconds(&clock, 5)).expect_err("short").to_string();
    assert!(error.contains("cxi2: all pools of trigger list entries are taken"), "{error}");
    assert_eq!(node.service_count(), 0);
}

#[test]
fn a_service_that_is_busy_for_a_minute_is_ended_after_it() {
    let (node, clock) = (node(), VirtualClock::default());
    let claimed = claim(&node, &clock, &two_ranks(), in_seconds(&clock, 5)).expect("claimed");
    // 50 + 100 + ... + 800 ms, then one per second: 64 tries take a minute.
    node.with("cxi2", |nic| nic.destroy_failures.extend((0..64).map(|_| busy())));
    assert!(release(&node, &clock, &claimed.services, in_seconds(&clock, 120)).is_empty());
    assert!(clock.passed() > Duration::from_secs(59), "{:?}", clock.passed());
    assert_eq!(node.service_count(), 0);
}

#[test]
fn what_stays_busy_is_reported_and_can_be_released_later() {
    let (node, clock) = (node(), VirtualClock::default());
    let claimed = claim(&node, &clock, &two_ranks(), in_seconds(&clock, 5)).expect("claimed");
    node.with("cxi0", |nic| nic.destroy_failures.extend((0..99).map(|_| busy())));
    let stuck = release(&node, &clock, &claimed.services, in_seconds(&clock, 5));
    assert_eq!(stuck.iter().map(|stuck| stuck.service.clone()).collect::<Vec<_>>(), [service("cxi0", 11)]);
    assert!(clock.passed() <= Duration::from_secs(5));
    assert_eq!(holders(&node, Vni::new(1024).expect("a number")).expect("listed"), [service("cxi0", 11)]);
    node.with("cxi0", |nic| nic.destroy_failures.clear());
    // Missing services are not an error.
    assert!(release(&node, &clock, &claimed.services, clock.now()).is_empty());
    assert_eq!(holders(&node, Vni::new(1025).expect("a number")).expect("listed"), []);
}

#[test]
fn a_managers_service_has_one_number_on_every_nic_with_a_link() {
    assert_eq!(given(&node(), 9).expect("seen"), [service("cxi0", 9), service("cxi2", 9)]);
}

#[test]
fn a_service_names_one_to_four_vnis() {
    let (node, clock) = (node(), VirtualClock::default());
    for count in [0, 5] {
        let vnis = (1..=count).map(|number| Vni::new(number).expect("a number")).collect();
        let error = claim(&node, &clock, &Claim { vnis, ..two_ranks() }, clock.now()).expect_err("refused");
        assert!(matches!(error, ClaimError::Vnis(seen) if seen == count as usize));
    }
}
