//! Allocations that are granted or refused, and their states.

mod waiting;

use std::num::{NonZeroU32, NonZeroU64};
use std::sync::LazyLock;

use bytes::Bytes;
use tonic::{Code, Status};

use super::allocation::{FailureKind, LaunchFailure, RequeuePolicy};
use super::batch::{BatchEnd, BatchJob};
use super::plan::{AllocationRequest, AllocationSettings, Creators, PlanError, WhenBusy};
use super::queue::NodeChoice;
use super::*;
use crate::nodes::Unready;
use crate::nodes::tests::{drain, registry};

/// The time in all of these tests.
const NOW: u64 = 1_700_000_000;

/// These nodes, none of which is unclean.
fn now(registry: &Registry) -> NodesNow<'_> {
    static CLEAN: LazyLock<UncleanNodes> = LazyLock::new(UncleanNodes::default);
    NodesNow { registry, unclean: &CLEAN, time: NOW }
}

fn asking(nodes: NodeChoice) -> AllocationRequest {
    AllocationRequest {
        nodes,
        requeue: RequeuePolicy::Never,
        uid: None,
        id: None,
        when_busy: WhenBusy::Refuse,
        time_limit: None,
        batch: None,
        certificate: Bytes::new(),
    }
}

/// A request for these nodes.
fn on(nodes: &str) -> AllocationRequest {
    asking(NodeChoice::These(hostlist::expand(nodes).unwrap()))
}

/// A request for this number of nodes.
fn any(number: u32) -> AllocationRequest {
    asking(NodeChoice::Any(NonZeroU32::new(number).unwrap()))
}

fn create(
    allocations: &mut Allocations,
    request: &AllocationRequest,
    caller: &Caller,
    nodes: &[&str],
) -> Result<Allocation, String> {
    let id = (0..).map(|number| format!("id{number}")).find(|id| allocations.find(id).is_none()).unwrap();
    let settings = AllocationSettings { per_user: 3, ..AllocationSettings::default() };
    let planned = allocations.plan(request, caller, &settings, &now(&registry(nodes)), id);
    let planned = planned.map_err(|error| error.to_string())?;
    allocations.put(planned.clone());
    Ok(planned)
}

const USER: Caller = Caller::User(1000);

fn failure(kind: FailureKind) -> LaunchFailure {
    LaunchFailure { reason: "because".to_owned(), kind }
}

#[tokio::test]
async fn nodes_are_given_to_one_allocation_at_a_time() {
    let (mut all, up) = (Allocations::default(), ["a0", "a1", "a2"]);
    let two = any(2);
    assert_eq!(create(&mut all, &two, &USER, &up).unwrap().nodes, ["a0", "a1"]);
    assert_eq!(create(&mut all, &two, &USER, &up).unwrap_err(), "2 nodes were asked for, and 1 is up and free");
    assert_eq!(create(&mut all, &on("a[1-2]"), &USER, &up).unwrap_err(), "node a1 belongs to allocation id0");
    assert_eq!(create(&mut all, &on("a2"), &USER, &up).unwrap().state, AllocationState::Running);
    let released = all.find("id0").unwrap().moved(AllocationState::Released);
    all.put(released);
    assert_eq!(create(&mut all, &on("a1"), &USER, &up).unwrap().id, "id0");
}

#[tokio::test]
async fn an_allocation_that_was_queued_again_runs_when_its_nodes_are_ready() {
    let mut all = Allocations::default();
    let request = AllocationRequest { requeue: RequeuePolicy::OnNodeFailure, ..on("a[0-1]") };
    let running = create(&mut all, &request, &USER, &["a0", "a1"]).unwrap();
    let queued = running.after_failure(&failure(FailureKind::NodeLost)).unwrap();
    let pending = queued.begun(&registry(&["a0"]), NOW).unwrap();
    assert_eq!(pending.state, AllocationState::Pending { reason: "waits for a1".to_owned() });
    all.put(pending.clone());
    let refusal = all.running(&USER, "id0").unwrap_err();
    assert_eq!(refusal.to_string(), "allocation id0 is pending, not running: waits for a1");
    assert_eq!(pending.begun(&registry(&["a0"]), NOW), None);
    let mut both = registry(&["a0", "a1"]);
    both.drain(drain("a0", "new memory"));
    assert_eq!(pending.begun(&both, NOW).unwrap().state.reason(), Some("waits for a0"));
    both.resume("a0");
    assert_eq!(pending.begun(&both, NOW).unwrap().state, AllocationState::Running);
}

/// One rule applies to requests by name and by number: nodes must be up, free and not drained.
#[tokio::test]
async fn nodes_that_are_not_ready_are_refused_and_may_be_asked_for_again() {
    let all = Allocations::default();
    let mut up = registry(&["a0", "a1"]);
    up.drain(drain("a1", "new memory"));
    let check = |request: AllocationRequest, expected: &str| {
        let settings = AllocationSettings::default();
        let status = Status::from(all.plan(&request, &USER, &settings, &now(&up), "id".to_owned()).unwrap_err());
        assert_eq!((status.code(), status.message()), (Code::FailedPrecondition, expected));
    };
    const THERE: &str = "lattice nodes shows those that there are";
    const QUEUE: &str = "or --wait for a place in the queue";
    let few = format!("2 nodes were asked for, and 1 is up and free; 1 is drained\ntry: -N 1, {QUEUE}; {THERE}");
    check(any(2), &few);
    check(on("a[0,9]"), &format!("node a9 has not registered\ntry: another node; {THERE}"));
    check(on("a[0-1]"), &format!("node a1 is drained: new memory\ntry: another node, {QUEUE}; {THERE}"));
}

#[tokio::test]
async fn one_user_cannot_take_all() {
    let (mut all, up) = (Allocations::default(), ["a0", "a1", "a2", "a3"]);
    let one = any(1);
    for _ in 0..3 {
        create(&mut all, &one, &USER, &up).unwrap();
    }
    let refusal = create(&mut all, &one, &USER, &up).unwrap_err();
    assert_eq!(refusal, "user 1000 has 3 allocations already, as many as one may have here; release some");
    assert!(create(&mut all, &one, &Caller::User(1001), &up).is_ok());
    all.put(all.find("id0").unwrap().moved(AllocationState::Released));
    let again = create(&mut all, &one, &USER, &up).unwrap();
    assert_eq!(all.owner("a0"), Some(&again));
}

#[tokio::test]
async fn what_belongs_to_others_is_theirs() {
    let mut all = Allocations::default();
    create(&mut all, &on("a0"), &USER, &["a0"]).unwrap();
    let other = all.running(&Caller::User(1001), "id0").map(drop);
    assert_eq!(Status::from(other.unwrap_err()).code(), Code::PermissionDenied);
    assert!(all.running(&Caller::Admin(None), "id0").is_ok());
    let chosen = AllocationRequest { id: Some("mine".to_owned()), ..on("b0") };
    assert!(create(&mut all, &chosen, &USER, &["b0"]).unwrap_err().contains("only administrators"));
    let for_another = AllocationRequest { uid: Some(1007), ..chosen };
    assert!(create(&mut all, &for_another, &USER, &["b0"]).unwrap_err().contains("for others"));
    let created = create(&mut all, &for_another, &Caller::Admin(None), &["b0"]).unwrap();
    assert_eq!((created.id.as_str(), created.uid), ("mine", 1007));
}

/// An allocation of two nodes in a state.
fn allocation(state: AllocationState) -> Allocation {
    let nodes = vec!["a0".to_owned(), "a1".to_owned()];
    Allocation { state, ..Allocation::running("id", 1000, nodes) }
}

fn pending(reason: &str) -> AllocationState {
    AllocationState::Pending { reason: reason.to_owned() }
}

fn releasing(reason: &str) -> AllocationState {
    AllocationState::Releasing { reason: Some(reason.to_owned()) }
}

fn failed(reason: &str) -> AllocationState {
    AllocationState::Failed { reason: reason.to_owned() }
}

/// One example of each state.
fn all_states() -> [AllocationState; 6] {
    let just_releasing = AllocationState::Releasing { reason: None };
    let released = AllocationState::Released;
    [pending("why"), AllocationState::Running, just_releasing, releasing("why"), released, failed("why")]
}

/// Checks the state to which an event leads from each of [`all_states`]; `None` where nothing changes.
fn check_event(event: impl Fn(&Allocation) -> Option<Allocation>, expected: [Option<AllocationState>; 6]) {
    for (state, expected) in all_states().into_iter().zip(expected) {
        let before = allocation(state);
        let after = event(&before);
        assert_eq!(after.as_ref().map(|after| &after.state), expected.as_ref(), "from {:?}", before.state);
        if let Some(after) = after {
            let rest = |allocation: Allocation| Allocation {
                requeues: 0,
                began_at: None,
                ..allocation.moved(AllocationState::Running)
            };
            assert_eq!(rest(after), rest(before), "the rest stays as it is");
        }
    }
}

#[tokio::test]
async fn only_a_pending_allocation_begins_when_its_nodes_are_ready() {
    let both = registry(&["a0", "a1"]);
    check_event(|before| before.begun(&both, NOW), [Some(AllocationState::Running), None, None, None, None, None]);
}

#[tokio::test]
async fn a_pending_allocation_names_the_nodes_that_it_waits_for() {
    let one = registry(&["a1"]);
    check_event(|before| before.begun(&one, NOW), [Some(pending("waits for a0")), None, None, None, None, None]);
    assert_eq!(allocation(pending("waits for a0")).begun(&one, NOW), None, "that is no news");
}

#[test]
fn only_a_running_allocation_answers_failures() {
    let by_policy = [
        (RequeuePolicy::Never, FailureKind::Other, None),
        (RequeuePolicy::Never, FailureKind::NodeLost, Some(failed("because"))),
        (RequeuePolicy::OnNodeFailure, FailureKind::Other, None),
        (RequeuePolicy::OnNodeFailure, FailureKind::NodeLost, Some(pending("queued again: because"))),
        (RequeuePolicy::OnAnyFailure, FailureKind::Other, Some(pending("queued again: because"))),
        (RequeuePolicy::OnAnyFailure, FailureKind::NodeLost, Some(pending("queued again: because"))),
    ];
    for (requeue, kind, expected) in by_policy {
        let fail = |before: &Allocation| {
            let before = Allocation { requeue, ..before.clone() };
            before.after_failure(&failure(kind)).map(|after| Allocation { requeue: RequeuePolicy::Never, ..after })
        };
        check_event(fail, [None, expected, None, None, None, None]);
    }
}

#[test]
fn an_allocation_counts_how_often_it_was_queued_again() {
    let running = Allocation { requeue: RequeuePolicy::OnAnyFailure, ..allocation(AllocationState::Running) };
    let again = running.after_failure(&failure(FailureKind::Other)).unwrap();
    assert_eq!(again.requeues, 1);
    let last = Allocation { requeues: u32::MAX, ..running };
    assert_eq!(last.after_failure(&failure(FailureKind::Other)).unwrap().requeues, u32::MAX);
}

#[test]
fn every_allocation_can_be_released_and_a_release_that_has_begun_goes_on() {
    let begins = || Some(AllocationState::Releasing { reason: None });
    let goes_on = Some(releasing("why"));
    check_event(|before| Some(before.releasing()), [begins(), begins(), begins(), goes_on, begins(), begins()]);
}

#[test]
fn an_allocation_without_launches_is_released_when_its_nodes_are_clean() {
    let released = || Some(AllocationState::Released);
    check_event(|before| before.released(&[]), [None, None, released(), released(), None, None]);
    let unclean = ["a1".to_owned()];
    let waits = || Some(releasing("waits until nothing of a launch is left on a1"));
    check_event(|before| before.released(&unclean), [None, None, waits(), waits(), None, None]);
    assert_eq!(allocation(waits().unwrap()).released(&unclean), None, "that is no news");
}

#[tokio::test]
async fn an_allocation_that_failed_keeps_its_nodes_until_it_is_released() {
    let mut all = Allocations::new([allocation(failed("node a0 was lost"))]);
    let refusal = create(&mut all, &on("a0"), &USER, &["a0", "a1"]).unwrap_err();
    assert_eq!(refusal, "node a0 belongs to allocation id");
    all.put(allocation(AllocationState::Released));
    assert!(create(&mut all, &on("a0"), &USER, &["a0", "a1"]).is_ok());
    assert!(all.find("id").is_none());
}

#[test]
fn a_refusal_tells_the_state_and_its_reason() {
    let words = [
        ("pending", ": why"),
        ("running", ""),
        ("releasing", ""),
        ("releasing", ": why"),
        ("released", ""),
        ("failed", ": why"),
    ];
    for (state, (word, reason)) in all_states().into_iter().zip(words) {
        let error = AllocationError::NotRunning { id: "id".to_owned(), state };
        assert_eq!(error.to_string(), format!("allocation id is {word}, not running{reason}"));
    }
}

#[test]
fn agents_and_the_server_itself_use_no_allocation() {
    let allocations = Allocations::new([allocation(AllocationState::Running)]);
    let rights = [
        (Caller::User(1000), true),
        (Caller::User(0), false),
        (Caller::Admin(None), true),
        (Caller::Admin(Some(7)), true),
        (Caller::Agent("a0".to_owned()), false),
        (Caller::Api, false),
    ];
    for (caller, may) in rights {
        let answer = allocations.running(&caller, "id");
        let refusal = AllocationError::NotYours { id: "id".to_owned() };
        assert_eq!(answer.err(), (!may).then_some(refusal), "{caller}");
    }
}

/// All reasons to refuse a request, in the order of the checks.
#[tokio::test]
async fn requests_that_cannot_be_granted_are_refused_with_a_reason() {
    let taken = Allocation { nodes: vec!["a2".to_owned()], ..allocation(AllocationState::Running) };
    let all = Allocations::new([taken]);
    let up = registry(&["a0", "a1", "a2"]);
    let admin = Caller::Admin(Some(7));
    let called = |id: &str| AllocationRequest { id: Some(id.to_owned()), ..on("a0") };
    let these = |nodes: &[&str]| asking(NodeChoice::These(nodes.iter().map(|&node| node.to_owned()).collect()));
    let name = |name: &str| PlanError::NodeName { name: name.to_owned() };
    let cases = [
        (Caller::Admin(None), on("a0"), PlanError::ForWhom),
        (Caller::Agent("a0".to_owned()), on("a0"), PlanError::AdminsOnly { what: "create allocations for others" }),
        (USER, called("mine"), PlanError::AdminsOnly { what: "choose an allocation's id" }),
        (admin.clone(), called("id"), PlanError::Exists { id: "id".to_owned() }),
        (admin.clone(), called("a b"), PlanError::Id { id: "a b".to_owned() }),
        (admin.clone(), called(&"x".repeat(65)), PlanError::Id { id: "x".repeat(64) }),
        (USER, these(&["a0", "a/1"]), name("a/1")),
        (USER, these(&["a0", "a0"]), PlanError::Twice { node: "a0".to_owned() }),
        (USER, on("b0"), PlanError::Unready { node: "b0".to_owned(), why: Unready::Unknown }),
        (USER, on("a2"), PlanError::Taken { node: "a2".to_owned(), owner: "id".to_owned() }),
        (USER, any(3), PlanError::TooFew { asked: 3, free: 2, drained: 0 }),
    ];
    for (caller, request, expected) in cases {
        let refusal = all.plan(&request, &caller, &AllocationSettings::default(), &now(&up), "new".to_owned());
        assert_eq!(refusal.unwrap_err(), expected, "{caller} asks for {request:?}");
    }
}

/// Each agent decides about root for its own node.
#[tokio::test]
async fn accounts_of_the_system_get_no_allocation() {
    let up = registry(&["a0"]);
    let plan = |caller: Caller, uid, min_uid| {
        let request = AllocationRequest { uid, ..on("a0") };
        let settings = AllocationSettings { min_uid, ..AllocationSettings::default() };
        Allocations::default().plan(&request, &caller, &settings, &now(&up), "id".to_owned()).map(|made| made.uid)
    };
    let min_uid = AllocationSettings::default().min_uid;
    let refused = |uid| Err(PlanError::SystemUser { uid, min_uid: 1000 });
    assert_eq!(plan(Caller::User(999), None, min_uid), refused(999));
    assert_eq!(plan(Caller::Admin(Some(0)), Some(5), min_uid), refused(5));
    assert_eq!(plan(Caller::User(1000), None, min_uid), Ok(1000));
    assert_eq!(plan(Caller::Admin(Some(0)), None, min_uid), Ok(0));
    assert_eq!(plan(Caller::Admin(Some(500)), None, min_uid), Ok(500), "the server's own user");
    assert_eq!(plan(Caller::User(5), None, 5), Ok(5));
}

#[tokio::test]
async fn where_only_administrators_create_allocations_users_do_not() {
    let settings = AllocationSettings { creators: Creators::Admins, ..AllocationSettings::default() };
    let up = registry(&["a0"]);
    let plan = |caller: &Caller| Allocations::default().plan(&on("a0"), caller, &settings, &now(&up), "id".to_owned());
    assert_eq!(plan(&USER).unwrap_err(), PlanError::AdminsOnly { what: "create allocations" });
    assert_eq!(plan(&Caller::Admin(Some(7))).unwrap().uid, 7);
}

#[test]
fn an_allocation_ends_when_it_has_run_as_long_as_it_may() {
    let limited = Allocation { time_limit: NonZeroU64::new(60), ..allocation(AllocationState::Running) };
    let running = limited.begun_on(vec!["a0".to_owned()], NOW);
    // It began at some time in the second NOW.
    assert_eq!((running.ends_at(), running.timed_out(NOW + 60)), (Some(NOW + 61), None));
    let over = running.timed_out(NOW + 61).unwrap();
    assert_eq!(over.state, releasing("its time limit of 60 seconds is over"));
    assert_eq!((over.ends_at(), over.timed_out(NOW + 99)), (None, None));
    let unlimited = Allocation { time_limit: None, ..running };
    assert_eq!((unlimited.ends_at(), unlimited.timed_out(u64::MAX)), (None, None));
}

#[tokio::test]
async fn a_time_limit_counts_for_as_long_as_nodes_are_held() {
    let limited = Allocation { time_limit: NonZeroU64::new(60), ..allocation(AllocationState::Running) };
    let running = limited.begun_on(vec!["a0".to_owned()], NOW);
    for held in [running.moved(pending("queued again: why")), running.moved(failed("why"))] {
        assert_eq!((held.ends_at(), held.timed_out(NOW + 60)), (Some(NOW + 61), None));
        assert_eq!(held.timed_out(NOW + 61).unwrap().state, releasing("its time limit of 60 seconds is over"));
    }
    let again = running.moved(pending("queued again: why")).begun(&registry(&["a0"]), NOW + 50).unwrap();
    assert_eq!((again.state.clone(), again.ends_at()), (AllocationState::Running, Some(NOW + 61)), "its time goes on");
    let gives_back = Allocation { time_limit: limited.time_limit, began_at: Some(NOW), ..batch(pending("why")) };
    assert_eq!(gives_back.ends_at(), None);
    let queued = Allocation { nodes: Vec::new(), ..running.moved(pending("why")) };
    assert_eq!(queued.ends_at(), None);
}

/// An allocation of a batch job in a state.
fn batch(state: AllocationState) -> Allocation {
    let job = BatchJob { name: "job".to_owned(), bytes: 1, launch: Some("l".into()), end: None };
    Allocation { batch: Some(job), requeue: RequeuePolicy::OnNodeFailure, ..allocation(state) }
}

#[tokio::test]
async fn a_batch_job_that_is_queued_again_gives_its_nodes_back() {
    let again = batch(AllocationState::Running).after_failure(&failure(FailureKind::NodeLost)).unwrap();
    assert_eq!((again.requeues, again.is_queued()), (1, false));
    assert_eq!(again.begun(&registry(&["a0", "a1"]), NOW), None, "its launches may not have ended yet");
    assert_eq!(again.given_back(), None, "the end of its script is not noted yet");
    let again = again.after_batch(again.batch.as_ref().unwrap().anew());
    let given_back = again.given_back().unwrap();
    assert!(given_back.is_queued() && given_back.given_back().is_none());
    assert_eq!(allocation(pending("why")).given_back(), None, "others keep theirs");
    let last = Allocation { requeues: 5, ..batch(AllocationState::Running) };
    let end = last.after_failure(&failure(FailureKind::NodeLost)).unwrap();
    assert_eq!(end.state, failed("because"), "not for ever");
}

#[test]
fn a_job_that_is_over_before_its_script_begins_has_that_cause() {
    let mut waiting =
        Allocation { time_limit: NonZeroU64::new(1), began_at: Some(NOW), ..batch(AllocationState::Running) };
    waiting.batch.as_mut().unwrap().launch = None;
    let cause = |over: &Allocation| over.batch.as_ref().unwrap().end.as_ref().map(|end| end.cause.clone());
    let over = waiting.timed_out(NOW + 2).unwrap();
    assert_eq!(cause(&over).unwrap(), "its time limit of 1 second is over, and its script had not begun");
    assert_eq!(cause(&over.released_by(&USER)), cause(&over), "the first cause");
    let started = Allocation { batch: batch(AllocationState::Running).batch, ..waiting };
    assert_eq!(cause(&started.timed_out(NOW + 2).unwrap()), None, "its end follows");
}

#[test]
fn an_allocation_ends_with_its_script_unless_it_is_queued_again() {
    let end = BatchEnd { exit_code: Some(3), cause: String::new() };
    let after = |state| {
        let before = batch(state);
        let job = before.batch.as_ref().unwrap().ended(end.clone());
        before.after_batch(job).state
    };
    let releases = AllocationState::Releasing { reason: None };
    assert_eq!(after(AllocationState::Running), releases);
    assert_eq!(after(failed("why")), releases);
    assert_eq!(after(releasing("why")), releasing("why"));
    assert_eq!(after(pending("why")), pending("why"));
}
