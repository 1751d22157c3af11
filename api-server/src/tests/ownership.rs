//! The whole table of roles, calls and owners: each call of the API server, made by each kind of caller, about objects of the caller, of
//! another user, and of no user. The table contains all calls of the protocol, so that a call without an entry fails the test.
//! `pmi_transport::authorize` has the same table by role alone.

mod calls;
mod raw;

use pmi_transport::connect::Channel;
use pmi_transport::identity::{Caller, Role};
use tonic::{Code, Status};

use super::proxying::on_node;
use super::world::{USER, World, order, soon};
use super::*;
use calls::{Call, Names, Protocol, TABLE, Target};

/// Another user than [`USER`].
const OTHER: Caller = Caller::User(2000);

/// The objects: an allocation with a launch for each of two users, a second allocation of the first user, and a node without an allocation.
struct Scene {
    world: World,
    own: Named,
    others: Named,
    elsewhere: String,
}

/// Objects of one user.
struct Named {
    allocation: String,
    launch: String,
    node: &'static str,
    uid: u32,
    set: u32,
}

impl Scene {
    async fn new() -> Self {
        let world = World::new(4).await;
        let own = Self::named(&world, &USER, "node0").await;
        let others = Self::named(&world, &OTHER, "node1").await;
        let request = CreateAllocationRequest { nodes: "node3".to_owned(), ..Default::default() };
        let elsewhere = soon(world.allocations(&USER).create_allocation(request)).await.unwrap().into_inner().id;
        Self { world, own, others, elsewhere }
    }

    async fn named(world: &World, owner: &Caller, node: &'static str) -> Named {
        let request = CreateAllocationRequest { nodes: node.to_owned(), ..Default::default() };
        let mut client = world.allocations(owner);
        let allocation = soon(client.create_allocation(request)).await.unwrap().into_inner().id;
        let launched = soon(client.launch_tasks(order(&allocation))).await.unwrap().into_inner();
        let (launch, set) = (launched.task_launch_id, launched.spec.unwrap().set_id);
        let Caller::User(uid) = *owner else { panic!("{owner} is no user") };
        Named { allocation, launch, node, uid, set }
    }

    /// Connection of a caller to the server. A user in an allocation connects from a node of the allocation.
    fn channel(&self, caller: &Caller) -> Channel {
        match caller {
            Caller::UserIn { uid, allocation } if *allocation == self.own.allocation => on_node(&self.world, 0, *uid),
            Caller::UserIn { uid, .. } => on_node(&self.world, 3, *uid),
            _ => self.world.channel(caller),
        }
    }

    /// All kinds of callers.
    fn callers(&self) -> [Caller; 9] {
        let inside = |allocation: &str| Caller::UserIn { uid: self.own.uid, allocation: allocation.to_owned() };
        let agent = |node: &str| Caller::Agent(node.to_owned());
        [
            USER,
            OTHER,
            inside(&self.own.allocation),
            inside(&self.elsewhere),
            Caller::Admin(None),
            agent("node0"),
            agent("node1"),
            agent("node2"),
            Caller::Api,
        ]
    }

    /// The objects of [`USER`], of the other user, or of no user. A caller that must name its node names its own node.
    fn target(&self, whose: Whose, caller: &Caller, names: Names) -> Target<'_> {
        let named = |named: &Named| {
            let Named { allocation, launch, node, uid, set } = named;
            Target { allocation: allocation.clone(), launch: launch.clone(), node, uid: *uid, set: *set }
        };
        let nobodys = Target {
            allocation: "nobody".to_owned(),
            launch: "nobody".to_owned(),
            node: "node9",
            uid: 3000,
            set: 1 << 20 | 77,
        };
        let target = match whose {
            Whose::Users => named(&self.own),
            Whose::Others => named(&self.others),
            Whose::Nobodys => nobodys,
        };
        let own_node = ["node0", "node1", "node2"].into_iter().find(|&name| *caller == Caller::Agent(name.to_owned()));
        match own_node {
            // Set 0 requests the set id of the launch itself.
            Some(node) if names == Names::PartOfLaunch => Target { node, set: 0, ..target },
            _ => target,
        }
    }

    /// True while no call has had an effect.
    async fn is_as_it_was(&self) -> bool {
        let administrator = Caller::Admin(None);
        let mut launches = launch_service_client::LaunchServiceClient::new(self.world.channel(&administrator));
        let running = soon(launches.list_launches(ListLaunchesRequest { all: true })).await.unwrap().into_inner();
        let mut allocations = self.world.allocations(&administrator);
        let held = soon(allocations.list_allocations(ListAllocationsRequest { all: true })).await.unwrap().into_inner();
        let active = |launch: &LaunchSummary| matches!(launch.state(), LaunchState::Starting | LaunchState::Active);
        running.launches.len() == 2
            && running.launches.iter().all(active)
            && held.allocations.len() == 3
            && held.allocations.iter().all(|allocation| allocation.state() == AllocationState::Running)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Whose {
    /// The objects of [`USER`] and of node0.
    Users,
    /// The objects of [`OTHER`] and of node1.
    Others,
    Nobodys,
}

/// Relation of a caller to the named objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Relation {
    Own,
    Anothers,
    Nobodys,
}

fn relation(caller: &Caller, names: Names, whose: Whose, scene: &Scene) -> Relation {
    let of = |index: usize| [Whose::Users, Whose::Others].get(index) == Some(&whose);
    let is_own = match (caller, names) {
        (Caller::Admin(_), Names::User) => true,
        (Caller::Admin(_), _) => whose != Whose::Nobodys,
        (Caller::User(1000), _) => of(0),
        (Caller::User(_), _) => of(1),
        (Caller::UserIn { .. }, Names::User) => false,
        (Caller::UserIn { allocation, .. }, _) => of(0) && *allocation == scene.own.allocation,
        (Caller::Agent(node), _) => match node.as_str() {
            "node0" => of(0),
            "node1" => of(1),
            _ => false,
        },
        (Caller::Api, _) => false,
    };
    match whose {
        _ if is_own => Relation::Own,
        Whose::Nobodys => Relation::Nobodys,
        _ => Relation::Anothers,
    }
}

/// Fails unless the answer matches the table.
fn judge(call: &Call, caller: &Caller, relation: Relation, code: Code) -> Result<(), &'static str> {
    let is = |right: bool, words| if right { Ok(()) } else { Err(words) };
    if !call.is_open_to(caller) {
        return is(code == Code::PermissionDenied, "its role may not");
    }
    // The request has few fields, so that it may be invalid. The server checks the rights of the caller first.
    let refusals = [Code::PermissionDenied, Code::Unauthenticated, Code::Unimplemented, Code::NotFound, Code::Unknown];
    match (call.names, relation) {
        (Names::Nothing, _) | (_, Relation::Own) => is(!refusals.contains(&code), "it may"),
        (_, Relation::Anothers) => is(code == call.anothers, "it is another's"),
        (_, Relation::Nobodys) => is(code == call.nobodys, "it is nobody's"),
    }
}

#[test]
fn the_table_names_every_call_of_the_api_server_and_no_other() {
    let mut defined: Vec<_> = Protocol::read().calls().into_iter().map(|call| call.path).collect();
    let mut ours: Vec<_> = TABLE.iter().map(|call| call.path.to_owned()).collect();
    defined.sort();
    ours.sort();
    // One call has two entries, one for users and one for agents.
    ours.dedup();
    assert_eq!(ours, defined, "a call without an entry has no rule for what is another's");
}

#[tokio::test]
async fn each_call_is_for_those_whose_it_is_about() {
    let protocol = Protocol::read();
    let mut wrong = Vec::new();
    let mut scene = Scene::new().await;
    for call in TABLE {
        let request_type = protocol.request_of(call.path);
        for at in 0..scene.callers().len() {
            for whose in [Whose::Users, Whose::Others, Whose::Nobodys] {
                let caller = scene.callers()[at].clone();
                if !call.is_of(caller.role()) {
                    continue;
                }
                let relation = relation(&caller, call.names, whose, &scene);
                let request = protocol.request(&request_type, &scene.target(whose, &caller, call.names));
                let may = call.is_open_to(&caller) && (call.names == Names::Nothing || relation == Relation::Own);
                let answer = raw::make(&scene.channel(&caller), call.path, request, may).await;
                let code = answer.as_ref().map_or_else(Status::code, |_| Code::Ok);
                if let Err(rule) = judge(call, &caller, relation, code) {
                    wrong.push(format!("{} by {caller} of {whose:?} ({relation:?}, {rule}): {answer:?}", call.path));
                }
                let is_untouched = scene.is_as_it_was().await;
                if !may && !is_untouched {
                    wrong.push(format!("{} by {caller} of {whose:?} was refused, and did something", call.path));
                }
                // A permitted call may have effects that are not visible here.
                if may || !is_untouched {
                    scene = Scene::new().await;
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Lists contain the objects of the caller; for an administrator they contain all objects.
#[tokio::test]
async fn lists_show_to_each_what_is_its_own() {
    let scene = Scene::new().await;
    for path in ["/lattice.v1.AllocationService/ListAllocations", "/lattice.v1.LaunchService/ListLaunches"] {
        for caller in scene.callers().iter().filter(|caller| matches!(caller.role(), Role::User | Role::Admin)) {
            // Field 1 of both requests: all objects, including ended ones.
            for request in [vec![], vec![8, 1]] {
                let answer = raw::make(&scene.channel(caller), path, request, false).await.unwrap();
                let shows = |named: &Named| {
                    let id = if path.contains("Launch") { &named.launch } else { &named.allocation };
                    answer.windows(id.len()).any(|window| window == id.as_bytes())
                };
                let may = |whose| relation(caller, Names::Allocation, whose, &scene) == Relation::Own;
                let expected = [may(Whose::Users), may(Whose::Others)];
                assert_eq!([shows(&scene.own), shows(&scene.others)], expected, "{path} for {caller}");
            }
        }
    }
}

/// An agent that names another node than its own is refused in every call.
#[tokio::test]
async fn an_agent_that_names_another_node_is_refused() {
    let protocol = Protocol::read();
    let scene = Scene::new().await;
    let disguised = Caller::Agent("node2".to_owned());
    for call in TABLE.iter().filter(|call| matches!(call.names, Names::Node | Names::PartOfLaunch)) {
        let target = scene.target(Whose::Users, &Caller::Api, call.names);
        let request = protocol.request(&protocol.request_of(call.path), &target);
        let answer = raw::make(&scene.channel(&disguised), call.path, request, false).await;
        assert_eq!(answer.map_err(|status| status.code()), Err(Code::PermissionDenied), "{}", call.path);
    }
    assert!(scene.is_as_it_was().await);
}
