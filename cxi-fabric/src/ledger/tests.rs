//! Tests of the ledger by single calls.

mod world;

use std::time::Duration;

use super::*;

const NODES: [&str; 3] = ["n0", "n1", "n2"];
const OURS: Numbering = Numbering::Ours { job_vni: false };
const OURS_WITH_JOB_VNI: Numbering = Numbering::Ours { job_vni: true };

fn need(allocation: &str) -> Need {
    Need { allocation: allocation.to_owned(), nodes: NODES.map(str::to_owned).to_vec(), uid: 1000 }
}

fn range() -> VniRange {
    "100-103".parse().expect("a range")
}

fn credentials(vni: Vni) -> Credentials {
    Credentials { vni, job_vni: None, auth_key: None, svc_id: 0, lifetime: None }
}

fn created(answer: Result<Answer, LedgerError>) -> ServiceRequest {
    match answer {
        Ok(Answer::Create(request)) => request,
        other => panic!("expected to create, got {other:?}"),
    }
}

fn service(request: &ServiceRequest) -> Service {
    let vni = request.vni.expect("ours");
    Service { id: ServiceId(format!("id-{}", request.name)), vni, job_vni: request.job_vni }
}

fn cluster() -> ClusterName {
    "c".parse().expect("a name")
}

fn ledger() -> Ledger {
    Ledger::recover(cluster(), OURS, range(), [])
}

#[test]
fn two_launches_of_an_allocation_share_one_service() {
    let (mut ledger, now) = (ledger(), Instant::now());
    let request = created(ledger.want(&need("a"), now));
    assert_eq!(ledger.want(&need("a"), now), Ok(Answer::Wait));
    assert!(ledger.made(&request.name, service(&request)));
    assert_eq!(ledger.want(&need("a"), now), Ok(Answer::Wait), "its credentials are being fetched");
    let credentials = credentials(request.vni.expect("ours"));
    ledger.equipped(&request.name, credentials.clone(), now);
    assert_eq!(ledger.want(&need("a"), now), Ok(Answer::Ready(credentials.clone())));
    assert_eq!(ledger.ready("a", now), Some(&credentials));
    assert_eq!(ledger.unwritten().len(), 2, "intended and made");
    // A launch on one node also gets a VNI.
    let alone = Need { nodes: vec!["n0".into()], ..need("b") };
    assert!(created(ledger.want(&alone, now)).vni.is_some());
}

#[test]
fn credentials_that_ended_are_fetched_again() {
    let (mut ledger, now) = (ledger(), Instant::now());
    let request = created(ledger.want(&need("a"), now));
    ledger.made(&request.name, service(&request));
    let lifetime = Some(Duration::from_secs(60));
    ledger.equipped(&request.name, Credentials { lifetime, ..credentials(request.vni.expect("ours")) }, now);
    assert!(matches!(ledger.want(&need("a"), now), Ok(Answer::Ready(_))));
    let later = now + Duration::from_secs(60);
    assert!(ledger.ready("a", later).is_none());
    assert!(matches!(ledger.want(&need("a"), later), Ok(Answer::Fetch(..))));
    ledger.unequipped(&request.name);
    assert!(matches!(ledger.want(&need("a"), later), Ok(Answer::Fetch(..))));
    ledger.vanished(&request.name);
    assert_ne!(created(ledger.want(&need("a"), later)).vni, request.vni);
}

#[test]
fn a_vni_is_quarantined_until_the_last_node_confirmed() {
    let (mut ledger, now) = (ledger(), Instant::now());
    let request = created(ledger.want(&need("a"), now));
    let (name, vni) = (request.name.clone(), request.vni.expect("ours"));
    ledger.made(&name, service(&request));
    ledger.release("a");
    let confirm =
        |nodes: &[&str]| Task::Confirm(name.clone(), vni, nodes.iter().map(|node| (*node).to_owned()).collect());
    assert_eq!(ledger.due(), [Task::Delete(name.clone(), service(&request).id), confirm(&NODES)]);
    ledger.deleted(&name);
    ledger.confirmed(&name, "n1");
    ledger.confirmed(&name, "n1");
    assert_eq!(ledger.due(), [confirm(&["n0", "n2"])]);
    assert_eq!(ledger.views()[0].state, "quarantined");
    ledger.node_is_empty("n0");
    assert!(ledger.pool.is_taken(vni));
    ledger.confirmed(&name, "n2");
    assert!(!ledger.pool.is_taken(vni) && ledger.due().is_empty() && ledger.views().is_empty());
}

#[test]
fn a_managers_own_number_is_given_back_after_the_nodes_confirmed() {
    let mut ledger = Ledger::recover(cluster(), Numbering::Managers, range(), []);
    let request = created(ledger.want(&need("a"), Instant::now()));
    assert_eq!(request.vni, None);
    let vni = Vni::new(7).expect("a number");
    ledger.made(&request.name, Service { id: ServiceId("j".into()), vni, job_vni: None });
    ledger.release("a");
    assert!(matches!(ledger.due().as_slice(), [Task::Confirm(..)]), "{:?}", ledger.due());
    NODES.iter().for_each(|node| ledger.confirmed(&request.name, node));
    assert!(matches!(ledger.due().as_slice(), [Task::Delete(..)]), "{:?}", ledger.due());
}

#[test]
fn a_creation_that_may_have_happened_is_looked_for() {
    let (mut ledger, now) = (ledger(), Instant::now());
    let request = created(ledger.want(&need("a"), now));
    ledger.failed(&request.name, Effect::Unknown);
    assert_eq!(ledger.due(), [Task::Find(request.clone())]);
    ledger.found(&request.name, Some(service(&request)));
    assert!(matches!(ledger.due().as_slice(), [Task::Delete(..)]), "no node was told of it: {:?}", ledger.due());

    let certain = created(ledger.want(&need("b"), now));
    ledger.failed(&certain.name, Effect::None);
    assert_eq!(ledger.due().len(), 1);
    assert!(!ledger.pool.is_taken(certain.vni.expect("ours")));
}

#[test]
fn a_creation_that_a_crash_cut_short_is_undone_and_holds_up_nobody() {
    let (mut ledger, now) = (ledger(), Instant::now());
    let request = created(ledger.want(&need("a"), now));
    let mut next = Ledger::recover(cluster(), OURS, range(), ledger.unwritten());
    assert_eq!(next.due(), [Task::Find(request.clone())]);
    let again = created(next.want(&need("a"), now));
    assert!(again.name != request.name && again.vni != request.vni);
    assert_eq!(next.unwritten().len(), 2, "the end of the one, the beginning of the other");
}

/// The effect of the call is unknown until it returns. A search before that would miss the service, and its VNI would be
/// assigned again.
#[test]
fn a_service_that_is_being_made_is_not_looked_for() {
    for made in [true, false] {
        let (mut ledger, now) = (ledger(), Instant::now());
        let request = created(ledger.want(&need("a"), now));
        ledger.release("a");
        assert_eq!(ledger.due(), [], "the call is under way");
        assert!(ledger.pool.is_taken(request.vni.expect("ours")));
        if made {
            assert!(!ledger.made(&request.name, service(&request)));
            assert_eq!(ledger.due(), [Task::Delete(request.name.clone(), service(&request).id)]);
        } else {
            ledger.failed(&request.name, Effect::Unknown);
            assert_eq!(ledger.due(), [Task::Find(request.clone())]);
        }
    }
}

#[test]
fn an_exhausted_pool_tells_its_counts() {
    let (mut ledger, now) = (ledger(), Instant::now());
    for allocation in ["a", "b", "c", "d"] {
        created(ledger.want(&need(allocation), now));
    }
    let error = ledger.want(&need("e"), now).expect_err("exhausted").to_string();
    assert!(error.starts_with("VNI pool exhausted (4/4 in use"), "{error}");
}

#[test]
fn a_second_vni_is_held_and_freed_with_the_first_or_neither_is() {
    let mut ledger = Ledger::recover(cluster(), OURS_WITH_JOB_VNI, range(), []);
    let now = Instant::now();
    let (one, two) = (created(ledger.want(&need("a"), now)), created(ledger.want(&need("b"), now)));
    assert_eq!(one.vnis().chain(two.vnis()).map(Vni::get).collect::<Vec<_>>(), [100, 101, 102, 103]);
    ledger.failed(&one.name, Effect::None);
    let mut three = Ledger::recover(cluster(), OURS_WITH_JOB_VNI, "100-102".parse().expect("a range"), []);
    created(three.want(&need("a"), now));
    assert!(three.want(&need("b"), now).is_err(), "one number is left, and two are needed");
    assert_eq!(three.pool.taken().len(), 2, "what was of no use is free again");

    ledger.made(&two.name, service(&two));
    ledger.release("b");
    ledger.deleted(&two.name);
    assert_eq!(ledger.pool.taken().len(), 2, "both are in quarantine");
    let mut ledger = Ledger::recover(cluster(), OURS_WITH_JOB_VNI, range(), ledger.compacted());
    NODES.iter().for_each(|node| ledger.confirmed(&two.name, node));
    assert!(ledger.pool.taken().is_empty());
}

#[test]
fn strangers_are_this_clusters_and_unknown() {
    let mut ledger = ledger();
    let known = created(ledger.want(&need("a"), Instant::now())).name;
    let listed = |name: &str| Listed {
        id: ServiceId(name.into()),
        name: ServiceName::try_from(name.to_owned()).ok(),
        vni: None,
    };
    let list = vec![listed(known.as_str()), listed("c.old.7"), listed("other.x.1"), listed("c/odd")];
    let strangers = ledger.strangers(list);
    assert_eq!(strangers.iter().map(|listed| listed.id.0.as_str()).collect::<Vec<_>>(), ["c.old.7"]);
}

/// The VNI becomes free after the later of the two reports, and is reported once.
#[test]
fn a_vni_is_free_when_manager_and_nodes_have_both_given_it_back() {
    for manager_is_last in [false, true] {
        let mut ledger = ledger();
        let request = created(ledger.want(&need("a"), Instant::now()));
        ledger.made(&request.name, service(&request));
        ledger.release("a");
        let confirm =
            |ledger: &mut Ledger| need("a").nodes.iter().for_each(|node| ledger.confirmed(&request.name, node));
        if manager_is_last {
            confirm(&mut ledger);
            assert_eq!(ledger.over(), []);
            ledger.deleted(&request.name);
        } else {
            ledger.deleted(&request.name);
            assert_eq!(ledger.over(), []);
            confirm(&mut ledger);
        }
        assert_eq!(ledger.over(), [(request.name.clone(), request.vni)]);
        confirm(&mut ledger);
        assert_eq!(ledger.over(), []);
    }
}
