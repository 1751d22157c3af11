//! Reports of nodes that arrive through the node which forwarded the launch to them.

use attach_request::What as Wish;
use lattice_session::wire::report_relay;
use node_event::What as Event;
use pmi_transport::proto::v1::*;
use relayed_command::What as Told;
use tonic::{Code, Status};

use super::world::{Fetched, USER, World, exit, order, soon};

/// A launch of one rank on each of three nodes, and the stream on which the reports of the first node are fetched.
struct Scene {
    world: World,
    launch: String,
    relay: Fetched,
    /// Commands to nodes that were received and not examined yet.
    told: Vec<RelayedCommand>,
}

impl Scene {
    async fn new() -> Self {
        let world = World::relayed(3).await;
        let allocation = world.allocate(RequeuePolicy::Never).await;
        let mut request = LaunchTasksRequest { num_tasks: 3, ..order(&allocation) };
        let spec = request.spec.as_mut().unwrap();
        spec.stdin = Some(StdinTarget { target: Some(stdin_target::Target::Rank(0)) });
        let launch = soon(world.allocations(&USER).launch_tasks(request)).await.unwrap().into_inner().task_launch_id;
        let fetched = async {
            loop {
                let fetched = world.agents[0].seen.lock().fetched.pop();
                if let Some(fetched) = fetched {
                    return fetched;
                }
                tokio::task::yield_now().await;
            }
        };
        let mut relay = soon(fetched).await;
        let first = soon(relay.0.message()).await.unwrap().unwrap();
        assert_eq!((&first.launch_id, first.commands.len()), (&launch, 0));
        assert!(world.agents[0].seen.lock().launched[0].relays_reports);
        Self { world, launch, relay, told: Vec::new() }
    }

    fn of(&self, node: u32) -> launch_report::What {
        let node_id = format!("node{node}");
        launch_report::What::Of(ReportFor { launch_id: self.launch.clone(), node_id, node_index: node, again: false })
    }

    /// Sends reports of nodes in one message.
    async fn tell(&self, reports: impl IntoIterator<Item = (u32, launch_report::What)>) {
        let report = |(node_index, what)| {
            let what = relayed_report::What::Report(LaunchReport { what: Some(what) });
            RelayedReport { node_index, what: Some(what) }
        };
        let message = RelayedReports { reports: reports.into_iter().map(report).collect() };
        soon(self.relay.1.send(Ok(message))).await.unwrap();
    }

    /// The next command to this node.
    async fn told(&mut self, node: u32) -> Told {
        loop {
            if let Some(at) = self.told.iter().position(|told| told.node_index == node) {
                return self.told.remove(at).what.unwrap();
            }
            let message = soon(self.relay.0.message()).await.unwrap().expect("the stream goes on");
            self.told.extend(message.commands);
        }
    }

    /// The end of this node's part of the stream, after its confirmations.
    async fn end(&mut self, node: u32) -> Code {
        loop {
            match self.told(node).await {
                Told::End(end) => return Code::from(end.code),
                Told::Command(command) => assert!(report_relay::may_come(&command), "{command:?}"),
            }
        }
    }
}

fn numbered(sequence: u64, what: Event) -> launch_report::What {
    launch_report::What::Event(NodeEvent { what: Some(what), sequence, commands_taken: 0 })
}

fn started(rank: u32) -> Event {
    Event::Started(RankStarted { rank, pid: 100 + rank, ..Default::default() })
}

#[tokio::test]
async fn all_nodes_report_on_one_stream_and_each_report_is_acknowledged() {
    let mut scene = Scene::new().await;
    let mut client = scene.world.attach(&scene.launch, 0).await;
    let of_node = |node: u32| {
        let events =
            [started(node), Event::Exited(exit(node, 0, RankPhase::Finalized)), Event::Report(Default::default())];
        let events = (1..).zip(events).map(|(sequence, what)| numbered(sequence, what));
        std::iter::once(scene.of(node)).chain(events).map(move |what| (node, what)).collect::<Vec<_>>()
    };
    scene.tell((0..3).flat_map(of_node)).await;
    let complete = client.complete().await;
    assert!(complete.success && complete.ranks.len() == 3, "{complete:?}");
    for node in 0..3 {
        assert_eq!(scene.end(node).await, Code::Ok);
    }
}

#[tokio::test]
async fn a_node_opens_a_stream_of_its_own_for_what_a_relay_must_not_bring() {
    let mut scene = Scene::new().await;
    let mut client = scene.world.attach(&scene.launch, 0).await;
    scene.tell([(0, scene.of(0)), (0, numbered(1, started(0))), (1, scene.of(1)), (1, numbered(1, started(1)))]).await;
    for _ in 0..2 {
        assert!(matches!(client.event().await, Event::Started(_)));
    }
    // Rank 0 reads input.
    client.say(Wish::Stdin("for rank 0".into())).await;
    assert_eq!(scene.end(0).await, Code::Aborted);
    let (mut own, after) = scene.world.report_again(&scene.launch, 0, 0).await;
    assert_eq!(after, Some(1), "what came by the relay has come");
    own.resumed(1, 0).await;
    assert_eq!(own.command().await, Some(node_command::What::Stdin("for rank 0".into())));
    // The part of the other node continues.
    scene.tell([(1, numbered(2, Event::Exited(exit(1, 0, RankPhase::Finalized))))]).await;
    assert!(matches!(client.event().await, Event::Exited(exit) if exit.rank == 1));
}

#[tokio::test]
async fn a_relay_speaks_for_the_nodes_behind_it_in_this_launch_alone() {
    let mut scene = Scene::new().await;
    let another = |node_id: &str, node_index| {
        let (launch_id, node_id) = (scene.launch.clone(), node_id.to_owned());
        launch_report::What::Of(ReportFor { launch_id, node_id, node_index, again: false })
    };
    scene.tell([(1, another("node2", 2)), (2, another("node1", 2)), (9, another("node9", 9))]).await;
    for node in [1, 2, 9] {
        assert_eq!(scene.end(node).await, Code::InvalidArgument);
    }
}

#[tokio::test]
async fn nodes_behind_a_relay_that_is_gone_come_again() {
    let scene = Scene::new().await;
    let mut client = scene.world.attach(&scene.launch, 0).await;
    scene.tell([(2, scene.of(2)), (2, numbered(1, started(2)))]).await;
    assert!(matches!(client.event().await, Event::Started(_)));
    let Scene { world, launch, relay, .. } = scene;
    relay.1.send(Err(Status::unavailable("a test"))).await.unwrap();
    drop(relay);
    let (own, after) = world.report_again(&launch, 2, 2).await;
    assert_eq!(after, Some(1));
    own.resumed(1, 0).await;
    own.tell_numbered(2, Event::Exited(exit(2, 0, RankPhase::Finalized))).await;
    assert!(matches!(client.event().await, Event::Exited(exit) if exit.rank == 2));
}
