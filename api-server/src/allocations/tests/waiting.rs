//! Allocations that wait in the queue, and allocations that do not.

use super::*;

/// A request for this number of nodes that may wait.
fn waiting_for(number: u32, limit: Option<u64>) -> AllocationRequest {
    AllocationRequest { when_busy: WhenBusy::Queue, time_limit: limit.and_then(NonZeroU64::new), ..any(number) }
}

/// Serves the queue; returns a summary of the changes.
fn serve(all: &mut Allocations, nodes: &[&str]) -> Vec<String> {
    serve_on(all, &registry(nodes))
}

/// The same on these nodes in their present state.
fn serve_on(all: &mut Allocations, nodes: &Registry) -> Vec<String> {
    let Served { begun, waiting } = all.serve(&now(nodes));
    let begins = begun.iter().map(|next| format!("{} on {}", next.id, hostlist::fold(&next.nodes)));
    let told = begins.chain(waiting.iter().map(|(id, reason)| format!("{id}: {reason}"))).collect();
    begun.into_iter().for_each(|next| all.put(next));
    waiting.into_iter().for_each(|(id, reason)| all.wait(&id, reason));
    told
}

/// A queued allocation that requests this number of nodes.
fn queued(id: &str, turn: u64, number: u32) -> Allocation {
    let wanted = NodeChoice::Any(NonZeroU32::new(number).unwrap());
    Allocation { id: id.to_owned(), turn, nodes: Vec::new(), wanted, ..allocation(pending("has just been queued")) }
}

#[tokio::test]
async fn any_number_of_jobs_for_nodes_that_are_not_ready_holds_nobody_up() {
    let lacking = (0..10 * LOOKED_AT_MAX as u64).map(|turn| queued(&format!("lacks{turn}"), turn, 3));
    let mut all = Allocations::new(lacking.chain([queued("fits", u64::MAX, 1)]));
    let told = serve(&mut all, &["a0", "a1"]);
    assert_eq!(told[..2], ["fits on a0", "lacks0: 3 nodes were asked for, and 2 are up and free"]);
    assert_eq!(serve(&mut all, &["a0", "a1"])[0], "lacks0: 3 nodes were asked for, and 1 is up and free");
    assert_eq!(serve(&mut all, &["a0", "a1"]), [""; 0], "that is no news");
}

#[tokio::test]
async fn the_head_keeps_its_reservation_while_agents_are_about_to_come_back() {
    let mut nodes = registry(&["a0", "a1"]);
    nodes.expect(["a2".to_owned()], tokio::time::Instant::now());
    let mut all = Allocations::new([queued("head", 0, 3), queued("small", 1, 1)]);
    let why = ["head: 3 nodes were asked for, and 2 are up and free", "small: waits behind allocation head"];
    assert_eq!(serve_on(&mut all, &nodes), why);
    let refusal = all.plan(&any(1), &USER, &AllocationSettings::default(), &now(&nodes), "id".to_owned()).unwrap_err();
    assert_eq!(refusal, PlanError::Kept { head: "head".to_owned() });
    assert_eq!(nodes.give_up_expected(tokio::time::Instant::now()), ["a2"]);
    assert_eq!(serve_on(&mut all, &nodes)[0], "small on a0", "it lacks nodes from now on");
    assert_eq!(serve(&mut all, &["a0", "a1", "a2", "a3"]), ["head on a[1-3]"]);
}

#[tokio::test]
async fn what_an_earlier_server_knew_can_be_waited_for() {
    let mut nodes = registry(&["a0"]);
    nodes.expect(["a1".to_owned()], tokio::time::Instant::now());
    let all = Allocations::default();
    let plan = |request| all.plan(&request, &USER, &AllocationSettings::default(), &now(&nodes), "id".to_owned());
    let named = AllocationRequest { when_busy: WhenBusy::Queue, ..on("a[0-1]") };
    assert!(plan(named).unwrap().is_queued() && plan(waiting_for(2, None)).unwrap().is_queued());
    assert_eq!(plan(waiting_for(3, None)).unwrap_err(), PlanError::TooMany { asked: 3, there: 2 });
}

#[tokio::test]
async fn who_does_not_wait_is_told_who_takes_the_nodes() {
    let (mut all, up) = (Allocations::default(), ["a0"]);
    create(&mut all, &waiting_for(1, None), &USER, &up).unwrap();
    let refusal = create(&mut all, &any(1), &USER, &up).unwrap_err();
    assert!(refusal.starts_with("the nodes are kept for allocation id0, which has waited longer"), "{refusal}");
}

#[tokio::test]
async fn the_lists_of_nodes_of_one_user_have_a_bound() {
    let large = NodeChoice::These((0..1 << 17).map(|number| format!("a{number}")).collect());
    let waits = |id: &str| Allocation { wanted: large.clone(), ..queued(id, 0, 1) };
    let all = Allocations::new([waits("one"), waits("two")]);
    let up = registry(&["a0"]);
    let plan = |caller: &Caller| {
        let request = AllocationRequest { when_busy: WhenBusy::Queue, ..asking(large.clone()) };
        all.plan(&request, caller, &AllocationSettings::default(), &now(&up), "new".to_owned()).unwrap_err()
    };
    assert!(matches!(plan(&USER), PlanError::NamedByUser { uid: 1000, .. }));
    let unknown = PlanError::Unready { node: "a1".to_owned(), why: Unready::Unknown };
    assert_eq!(plan(&Caller::User(1001)), unknown, "others have theirs");
    assert_eq!(plan(&Caller::Admin(Some(1000))), unknown);
}

#[tokio::test]
async fn a_script_that_was_not_started_waits_and_holds_nobody_up() {
    let mut all = Allocations::new([queued("again", 0, 1), queued("next", 1, 1)]);
    all.postponed.postpone("again", NOW);
    all.postponed.avoid("a0", NOW);
    assert_eq!(serve(&mut all, &["a0", "a1"]), ["next on a1"]);
    let up = registry(&["a0"]);
    let plan = |request| all.plan(&request, &USER, &AllocationSettings::default(), &now(&up), "id".to_owned());
    assert_eq!(plan(on("a0")).unwrap_err(), PlanError::Avoided { node: "a0".to_owned() });
    assert_eq!(plan(any(1)).unwrap_err(), PlanError::TooFew { asked: 1, free: 0, drained: 0 });
}

#[tokio::test]
async fn those_who_wait_are_served_in_their_order_and_told_why_they_wait() {
    let (mut all, up) = (Allocations::default(), ["a0", "a1"]);
    create(&mut all, &on("a0"), &USER, &up).unwrap();
    assert!(create(&mut all, &waiting_for(2, None), &USER, &up).unwrap().is_queued());
    create(&mut all, &waiting_for(1, None), &USER, &up).unwrap();
    let why = ["id1: 2 nodes were asked for, and 1 is up and free", "id2: waits behind allocation id1"];
    assert_eq!(serve(&mut all, &up), why);
    assert_eq!(serve(&mut all, &up), [""; 0], "that is no news");
    all.put(all.find("id0").unwrap().moved(AllocationState::Released));
    assert_eq!(serve(&mut all, &up), ["id1 on a[0-1]", "id2: its nodes go to those before it"]);
    assert_eq!(serve(&mut all, &up), ["id2: 1 node was asked for, and 0 are up and free"]);
    all.put(all.find("id1").unwrap().moved(AllocationState::Released));
    assert_eq!(serve(&mut all, &up), ["id2 on a0"]);
}

#[tokio::test]
async fn nobody_overtakes_those_who_wait_by_not_waiting() {
    let (mut all, up) = (Allocations::default(), ["a0", "a1"]);
    let hour = AllocationRequest { time_limit: NonZeroU64::new(3600), ..on("a0") };
    create(&mut all, &hour, &USER, &up).unwrap();
    create(&mut all, &waiting_for(2, None), &USER, &up).unwrap();
    let refusal = create(&mut all, &any(1), &USER, &up).unwrap_err();
    assert!(refusal.starts_with("the nodes are kept for allocation id1, which has waited longer"), "{refusal}");
    let short = AllocationRequest { time_limit: NonZeroU64::new(3600), ..any(1) };
    assert_eq!(create(&mut all, &short, &USER, &up).unwrap().nodes, ["a1"]);
}

#[tokio::test]
async fn what_can_never_be_had_is_not_queued() {
    let (mut all, up) = (Allocations::default(), ["a0", "a1"]);
    let refusal = create(&mut all, &waiting_for(3, None), &USER, &up).unwrap_err();
    assert_eq!(refusal, "3 nodes were asked for, and this cluster has 2");
    let named = AllocationRequest { when_busy: WhenBusy::Queue, ..on("b0") };
    assert_eq!(create(&mut all, &named, &USER, &up).unwrap_err(), "node b0 has not registered");
}

#[tokio::test]
async fn an_unclean_node_is_given_to_nobody() {
    let (all, up) = (Allocations::default(), registry(&["a0"]));
    let mut unclean = UncleanNodes::default();
    unclean.add("a0", &"launch".into());
    let now = NodesNow { unclean: &unclean, ..now(&up) };
    let plan = |request| all.plan(&request, &USER, &AllocationSettings::default(), &now, "id".to_owned());
    assert_eq!(plan(any(1)).unwrap_err(), PlanError::TooFew { asked: 1, free: 0, drained: 0 });
    assert_eq!(plan(on("a0")).unwrap_err(), PlanError::Unclean { node: "a0".to_owned() });
    assert!(plan(waiting_for(1, None)).unwrap().is_queued());
}
