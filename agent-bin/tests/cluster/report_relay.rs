//! Reports of several nodes on one stream, which is fetched from the first node.

use std::collections::{BTreeMap, BTreeSet};

use pmi_transport::proto::v1 as proto;
use proto::launch_report::What as ReportWhat;
use proto::node_command::What as Command;
use proto::node_event::What as Event;
use proto::relayed_command::What as CommandWhat;
use proto::relayed_report::What;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Status, Streaming};

use super::world::{Agent, Api, PATIENCE, launch_on, request};

const API: &str = "lattice:///api";

/// Three agents; each forwards a launch to the next.
async fn chain(api: &mut Api, script: &str) -> ([Agent; 3], proto::LaunchSpec) {
    let mut agents = Vec::new();
    for node in ["node0", "node1", "node2"] {
        agents.push(Agent::start(api, node).await);
    }
    let agents: [Agent; 3] = agents.try_into().ok().unwrap();
    let spec = launch_on(&agents.each_ref(), 1, script);
    let request =
        proto::LaunchProcessesRequest { relay_nodes: 2, relay_fan_out: 1, relays_reports: true, ..request(&spec) };
    let answer = agents[0].send(request).await;
    assert!(answer.accepted, "{answer:?}");
    (agents, spec)
}

/// The reports of a launch, as its first node sends them.
struct Fetched {
    messages: mpsc::Sender<proto::RelayedCommands>,
    reports: Streaming<proto::RelayedReports>,
    /// Events by node.
    heard: BTreeMap<u32, Vec<Event>>,
    left: BTreeSet<u32>,
}

impl Fetched {
    async fn of(agent: &Agent, caller: &str, launch_id: &str) -> Result<Self, Status> {
        let (messages, stream) = mpsc::channel(4);
        let first = proto::RelayedCommands { launch_id: launch_id.to_owned(), commands: Vec::new() };
        messages.send(first).await.unwrap();
        let reports = agent.client(caller).relay_reports(ReceiverStream::new(stream)).await?.into_inner();
        Ok(Self { messages, reports, heard: BTreeMap::new(), left: BTreeSet::new() })
    }

    /// Receives reports until `condition` holds.
    async fn until(&mut self, condition: impl Fn(&BTreeMap<u32, Vec<Event>>, &BTreeSet<u32>) -> bool) {
        let wait = async {
            while !condition(&self.heard, &self.left) {
                let message = self.reports.message().await.unwrap().expect("the stream goes on");
                message.reports.into_iter().for_each(|report| take(report, &mut self.heard, &mut self.left));
            }
        };
        timeout(PATIENCE, wait).await.expect("it happens in time");
    }

    async fn tell(&self, node_index: u32, what: CommandWhat) {
        let command = proto::RelayedCommand { node_index, what: Some(what) };
        let message = proto::RelayedCommands { launch_id: String::new(), commands: vec![command] };
        self.messages.send(message).await.unwrap();
    }

    async fn command(&self, node_index: u32, sequence: u64, what: Command) {
        let command = proto::NodeCommand { what: Some(what), sequence, events_taken: 0 };
        self.tell(node_index, CommandWhat::Command(command)).await;
    }
}

fn take(report: proto::RelayedReport, heard: &mut BTreeMap<u32, Vec<Event>>, left: &mut BTreeSet<u32>) {
    let node = report.node_index;
    match report.what {
        Some(What::Report(proto::LaunchReport { what: Some(ReportWhat::Of(of)) })) => {
            assert_eq!((of.node_index, of.again), (node, false));
            assert!(heard.insert(node, Vec::new()).is_none(), "a node begins once");
        }
        Some(What::Report(proto::LaunchReport { what: Some(ReportWhat::Event(event)) })) => {
            heard.get_mut(&node).expect("it has begun").extend(event.what);
        }
        Some(What::Left(_)) => drop(left.insert(node)),
        other => panic!("{other:?}"),
    }
}

fn has_reported(events: &[Event]) -> bool {
    events.iter().any(|event| matches!(event, Event::Report(_)))
}

fn has_started(events: &[Event]) -> bool {
    events.iter().any(|event| matches!(event, Event::Started(_)))
}

#[tokio::test(flavor = "current_thread")]
async fn the_reports_of_all_nodes_behind_come_on_one_stream() {
    let mut api = Api::start().await;
    let (agents, spec) = chain(&mut api, "echo $LATTICE_RANK").await;
    let mut fetched = Fetched::of(&agents[0], API, &spec.launch_id).await.unwrap();
    fetched.until(|heard, _| heard.len() == 3 && heard.values().all(|events| has_reported(events))).await;
    for (node, events) in &fetched.heard {
        let printed = |event: &Event| matches!(event, Event::Output(output) if output.data == format!("{node}\n"));
        assert!(has_started(events) && events.iter().any(printed), "{node}: {events:?}");
    }
    for node in 0..3 {
        fetched.tell(node, CommandWhat::End(proto::StreamEnd::default())).await;
    }
    // Everything is acknowledged: the stream ends, and no node opens another one.
    let end = timeout(PATIENCE, fetched.reports.message()).await.unwrap();
    assert!(matches!(end, Ok(None)), "{end:?}");
    assert!(api.no_launch_yet() && fetched.left.is_empty());
}

#[tokio::test(flavor = "current_thread")]
async fn signals_come_by_a_relay_and_what_could_run_programs_does_not() {
    let mut api = Api::start().await;
    let script = "trap 'echo got USR1' USR1; echo ready; while :; do sleep 0.02; done";
    let (agents, spec) = chain(&mut api, script).await;
    let mut fetched = Fetched::of(&agents[0], API, &spec.launch_id).await.unwrap();
    let said = |events: &[Event], text: &str| {
        events.iter().any(|event| matches!(event, Event::Output(output) if output.data == text))
    };
    fetched.until(|heard, _| heard.len() == 3 && heard.values().all(|events| said(events, "ready\n"))).await;
    fetched.command(2, 1, Command::Signal(10)).await;
    fetched.until(|heard, _| said(&heard[&2], "got USR1\n")).await;
    // The node accepts this command only from the API server itself.
    fetched.command(2, 2, Command::Spawn(proto::SpawnOrder::default())).await;
    fetched.until(|_, left| left.contains(&2)).await;
    let mut launch = api.next_launch().await;
    assert_eq!((launch.of.node_index, launch.of.again), (2, true));
    launch.command(Command::Signal(10)).await;
    launch.until(|seen| seen.stdout.contains("got USR1")).await;
    assert_eq!(fetched.left, BTreeSet::from([2]), "the others have stayed");
    for agent in &agents {
        agent.abort(&spec.launch_id, 9).await;
    }
    launch.until_report().await;
}

#[tokio::test(flavor = "current_thread")]
async fn nodes_behind_a_relay_that_dies_report_for_themselves() {
    let mut api = Api::start().await;
    let (mut agents, spec) = chain(&mut api, "echo ready; sleep 1000").await;
    let mut fetched = Fetched::of(&agents[0], API, &spec.launch_id).await.unwrap();
    fetched.until(|heard, _| heard.len() == 3 && heard.values().all(|events| has_started(events))).await;
    agents[1].kill();
    agents[1].exit().await;
    fetched.until(|_, left| *left == BTreeSet::from([1, 2])).await;
    let mut launch = api.next_launch().await;
    assert_eq!((launch.of.node_index, launch.of.again), (2, true));
    agents[2].abort(&spec.launch_id, 9).await;
    launch.until_report().await;
    agents[0].abort(&spec.launch_id, 9).await;
}

#[tokio::test(flavor = "current_thread")]
async fn a_node_that_nobody_fetches_from_or_that_is_told_so_reports_for_itself() {
    let mut api = Api::start().await;
    let (agents, spec) = chain(&mut api, "sleep 1000").await;
    let id = &spec.launch_id;
    let refused = Fetched::of(&agents[0], "lattice:///agent/node1", id).await.err().expect("it has not asked for it");
    assert_eq!(refused.code(), Code::PermissionDenied);
    let unknown = Fetched::of(&agents[0], API, "nosuchlaunch").await.err().expect("it is not here");
    assert_eq!(unknown.code(), Code::NotFound);
    // Well before the time limit for a relay.
    let directly = proto::ReportDirectlyRequest { launch_id: id.clone() };
    agents[2].client(API).report_directly(directly).await.unwrap();
    let mut launches = BTreeMap::new();
    for _ in 0..3 {
        let launch = api.next_launch().await;
        assert!(!launch.of.again, "it is the first that is heard of it");
        launches.insert(launch.of.node_index, launch);
    }
    assert_eq!(launches.into_keys().collect::<Vec<_>>(), [0, 1, 2]);
    for agent in &agents {
        agent.abort(id, 9).await;
    }
}
