//! Delivery to a scripted API server over a Unix socket, in virtual time.

use pmi_transport::address::Address;
use pmi_transport::connect;
use pmi_transport::identity::{Caller, Security};
use proto::node_service_server::{NodeService, NodeServiceServer};
use tokio::net::UnixListener;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::Server;
use tonic::{Request, Response, Streaming, async_trait};

use super::*;

/// Longer than anything here takes in virtual time.
const NEVER: Duration = Duration::from_secs(24 * 3600);

/// A stream of reports, as the API server sees it. Dropping it ends the stream in order, which acknowledges a report.
struct Opened {
    reports: Streaming<proto::LaunchReport>,
    commands: mpsc::Sender<Result<proto::NodeCommand, Status>>,
}

impl Opened {
    /// The next event.
    async fn event(&mut self) -> What {
        let report = timeout(NEVER, self.reports.message()).await.expect("an event comes").unwrap().unwrap();
        match report.what {
            Some(ReportWhat::Event(event)) => event.what.unwrap(),
            other => panic!("{other:?}"),
        }
    }

    async fn break_off(self) {
        self.commands.send(Err(Status::unavailable("the script breaks it"))).await.unwrap();
    }
}

/// Answers to the next attempts to open a stream; beyond them, all are accepted.
struct Script {
    opened: mpsc::UnboundedSender<Opened>,
    refusals: parking_lot::Mutex<Vec<Status>>,
}

macro_rules! not_in_the_script {
    ($($name:ident: $request:ident -> $response:ident),*) => {
        #[async_trait]
        impl NodeService for Script {
            $(async fn $name(&self, _: Request<proto::$request>) -> Result<Response<proto::$response>, Status> {
                Err(Status::unimplemented("not in the script"))
            })*

            type ReportLaunchStream = ReceiverStream<Result<proto::NodeCommand, Status>>;

            async fn report_launch(
                &self,
                request: Request<Streaming<proto::LaunchReport>>,
            ) -> Result<Response<Self::ReportLaunchStream>, Status> {
                if let Some(refusal) = self.refusals.lock().pop() {
                    return Err(refusal);
                }
                let mut reports = request.into_inner();
                let first = reports.message().await?.and_then(|report| report.what);
                assert_eq!(first, Some(ReportWhat::Of(of().encode())), "each stream says first what it reports of");
                let (commands, receiver) = mpsc::channel(4);
                // A test that has seen enough is gone.
                let _ = self.opened.send(Opened { reports, commands });
                Ok(Response::new(ReceiverStream::new(receiver)))
            }
        }
    };
}

not_in_the_script! {
    register_node: RegisterNodeRequest -> RegisterNodeResponse,
    heartbeat: HeartbeatRequest -> HeartbeatResponse,
    list_nodes: ListNodesRequest -> ListNodesResponse,
    drain_nodes: DrainNodesRequest -> DrainNodesResponse,
    resume_nodes: ResumeNodesRequest -> ResumeNodesResponse,
    call_name: NameRequest -> NameAnswer,
    spawn_tasks: SpawnRequest -> SpawnAnswer,
    meet_launches: MeetRequest -> MeetAnswer
}

fn of() -> ReportFor {
    ReportFor { launch_id: "l1".into(), node_id: "node0".into(), node: NodeIndex(0) }
}

fn event(what: What) -> proto::NodeEvent {
    proto::NodeEvent { what: Some(what) }
}

fn output() -> What {
    What::Output(proto::RankOutput { data: "x".into(), ..Default::default() })
}

fn cause() -> What {
    What::Ending(proto::Cause { host: "node0".into(), ..Default::default() })
}

fn report() -> What {
    What::Report(proto::SessionReport::default())
}

/// A delivery at work, and the API server that it speaks to.
struct Scene {
    events: Events,
    delivering: JoinHandle<Delivered>,
    streams: mpsc::UnboundedReceiver<Opened>,
    _directory: tempfile::TempDir,
}

impl Scene {
    /// The first attempts to open a stream are refused. The events wait before the delivery begins.
    async fn new(refusals: impl IntoIterator<Item = Status>, waiting: impl IntoIterator<Item = What>) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("api");
        let listener = UnixListenerStream::new(UnixListener::bind(&path).unwrap());
        let (opened, streams) = mpsc::unbounded_channel();
        let mut refusals: Vec<Status> = refusals.into_iter().collect();
        refusals.reverse();
        let script = NodeServiceServer::new(Script { opened, refusals: parking_lot::Mutex::new(refusals) });
        tokio::spawn(Server::builder().add_service(script).serve_with_incoming(listener));
        let security = Security::Insecure { name: Caller::Agent("node0".into()) };
        let api = connect::channel(&Address::Unix(path), &Caller::Api, &security).unwrap();
        let (delivery, events) = Delivery::new(api, of(), ToSession::new().0);
        for what in waiting {
            events.push(event(what)).await;
        }
        Self { events, delivering: tokio::spawn(delivery.run()), streams, _directory: directory }
    }

    async fn stream(&mut self) -> Opened {
        timeout(NEVER, self.streams.recv()).await.expect("a stream is opened").unwrap()
    }

    async fn end(self) -> Delivered {
        timeout(NEVER, self.delivering).await.expect("the delivery ends").unwrap()
    }
}

#[tokio::test(start_paused = true)]
async fn a_report_is_sent_again_until_the_api_server_acknowledges_it() {
    let mut scene = Scene::new([], [cause(), report()]).await;
    let begun = Instant::now();
    let mut held = Vec::new();
    // Its disk is full for a while: it takes the report, and does not end the stream.
    for _ in 0..4 {
        let mut stream = scene.stream().await;
        assert_eq!(stream.event().await, cause());
        assert_eq!(stream.event().await, report());
        held.push(stream);
    }
    assert!(begun.elapsed() >= 3 * timeouts::REPORT_ACK, "{:?}", begun.elapsed());
    assert!(!scene.delivering.is_finished(), "nothing was acknowledged");
    drop(held);
    assert!(matches!(scene.end().await, Delivered::All));
}

#[tokio::test(start_paused = true)]
async fn the_first_cause_overtakes_output_and_the_report_comes_last() {
    let mut scene = Scene::new([], [output(), output(), cause(), report()]).await;
    let mut stream = scene.stream().await;
    for expected in [cause(), output(), output(), report()] {
        assert_eq!(stream.event().await, expected);
    }
    drop(stream);
    assert!(matches!(scene.end().await, Delivered::All));
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_broke_is_opened_again_and_begins_with_the_cause() {
    let mut scene = Scene::new([], [cause()]).await;
    let mut stream = scene.stream().await;
    assert_eq!(stream.event().await, cause());
    stream.break_off().await;
    let mut stream = scene.stream().await;
    scene.events.push(event(report())).await;
    assert_eq!(stream.event().await, cause());
    assert_eq!(stream.event().await, report());
    drop(stream);
    assert!(matches!(scene.end().await, Delivered::All));
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_ends_before_the_report_acknowledges_nothing() {
    let mut scene = Scene::new([], []).await;
    drop(scene.stream().await);
    let mut stream = scene.stream().await;
    scene.events.push(event(report())).await;
    assert_eq!(stream.event().await, report());
    drop(stream);
    assert!(matches!(scene.end().await, Delivered::All));
}

#[tokio::test(start_paused = true)]
async fn an_api_server_that_is_away_is_waited_for_and_one_that_refuses_the_launch_is_not() {
    let away = (0..5).map(|_| Status::unavailable("away"));
    let mut scene = Scene::new(away, [report()]).await;
    assert_eq!(scene.stream().await.event().await, report());
    for refusal in [Status::not_found("x"), Status::permission_denied("x"), Status::failed_precondition("x")] {
        let code = refusal.code();
        let scene = Scene::new([Status::unavailable("away"), refusal], [report()]).await;
        let ended = scene.end().await;
        assert!(matches!(&ended, Delivered::Unwanted(status) if status.code() == code), "{ended:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_api_server_without_reports_gets_none_and_the_launch_runs_to_its_end() {
    let scene = Scene::new([Status::unimplemented("x")], [output(), cause()]).await;
    sleep(NEVER / 2).await;
    assert!(!scene.delivering.is_finished());
    scene.events.push(event(report())).await;
    assert!(matches!(scene.end().await, Delivered::All));
}
