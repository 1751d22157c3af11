//! Delivery to a scripted API server over a Unix socket, in virtual time.

use pmi_transport::address::Address;
use pmi_transport::connect;
use pmi_transport::identity::{Caller, Security};
use proto::node_event::What;
use proto::node_service_server::{NodeService, NodeServiceServer};
use tokio::net::UnixListener;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::Server;
use tonic::{Request, Response, Streaming, async_trait};

use super::super::to_session::Waiting;
use super::*;

/// Exceeds all virtual times in these tests.
const NEVER: Duration = Duration::from_secs(24 * 3600);

/// A stream of reports at the API server. Dropping it ends the stream in order, which acknowledges a report.
struct Opened {
    of: proto::ReportFor,
    reports: Streaming<proto::LaunchReport>,
    commands: mpsc::Sender<Result<proto::NodeCommand, Status>>,
}

impl Opened {
    /// The next message.
    async fn word(&mut self) -> ReportWhat {
        let report = timeout(NEVER, self.reports.message()).await.expect("an event comes").unwrap().unwrap();
        report.what.unwrap()
    }

    /// The number and the content of the next event.
    async fn event(&mut self) -> (u64, What) {
        match self.word().await {
            ReportWhat::Event(event) => (event.sequence, event.what.unwrap()),
            other => panic!("{other:?}"),
        }
    }

    async fn command(&self, command: proto::NodeCommand) {
        self.commands.send(Ok(command)).await.unwrap();
    }

    async fn resume(&self, after: Option<u64>) {
        let what = Some(CommandWhat::Resume(proto::Resume { after }));
        self.command(proto::NodeCommand { what, ..Default::default() }).await;
    }

    async fn break_off(self) {
        self.commands.send(Err(Status::unavailable("the script breaks it"))).await.unwrap();
    }
}

/// Answers to the next attempts to open a stream; all later attempts succeed.
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

            type ProxyUserStream = ReceiverStream<Result<proto::ProxiedBytes, Status>>;

            async fn proxy_user(
                &self,
                _: Request<Streaming<proto::ProxiedBytes>>,
            ) -> Result<Response<Self::ProxyUserStream>, Status> {
                Err(Status::unimplemented("not in the script"))
            }

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
                let Some(ReportWhat::Of(of)) = first else { panic!("each stream says first what it reports of") };
                let (commands, receiver) = mpsc::channel(4);
                // The test may have ended.
                let _ = self.opened.send(Opened { of, reports, commands });
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
    renew_certificate: RenewCertificateRequest -> RenewCertificateResponse,
    call_name: NameRequest -> NameAnswer,
    spawn_tasks: SpawnRequest -> SpawnAnswer,
    meet_launches: MeetRequest -> MeetAnswer,
    pass_to_set: PassRequest -> SetPass
}

fn of() -> ReportFor {
    ReportFor { launch_id: "l1".into(), node_id: "node0".into(), node: NodeIndex(0) }
}

/// An event of a session; without a number, an event of the agent itself.
fn event(sequence: u64, what: What) -> Word {
    Word::Event(proto::NodeEvent { what: Some(what), sequence, ..Default::default() })
}

fn resumed(stream: u64, after: u64) -> Word {
    Word::Resumed(proto::Resumed { stream, after, commands_taken: 0 })
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

/// A running delivery, its API server, and the messages to the session.
struct Scene {
    events: Events,
    delivering: JoinHandle<Delivered>,
    streams: mpsc::UnboundedReceiver<Opened>,
    session: Waiting,
    _directory: tempfile::TempDir,
}

impl Scene {
    /// Starts a delivery. The first attempts to open a stream are refused. The events are queued before the delivery starts.
    async fn new(refusals: impl IntoIterator<Item = Status>, waiting: impl IntoIterator<Item = Word>) -> Self {
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
        let (to_session, session) = ToSession::new();
        let (delivery, events) = Delivery::new(Ways { api: api.into(), offers: None }, of(), to_session, false);
        for word in waiting {
            events.push(word).await;
        }
        Self { events, delivering: tokio::spawn(delivery.run()), streams, session, _directory: directory }
    }

    async fn stream(&mut self) -> Opened {
        timeout(NEVER, self.streams.recv()).await.expect("a stream is opened").unwrap()
    }

    /// The next message to the session.
    async fn told(&mut self) -> ToWhat {
        timeout(NEVER, self.session.next()).await.expect("the session is told").unwrap()
    }

    /// The next resume order to the session, after the notice that the earlier stream has ended.
    async fn resume(&mut self) -> proto::ResumeEvents {
        assert_eq!(self.told().await, ToWhat::Unheard(proto::Nothing {}));
        match self.told().await {
            ToWhat::Resume(order) => order,
            other => panic!("{other:?}"),
        }
    }

    async fn end(self) -> Delivered {
        timeout(NEVER, self.delivering).await.expect("the delivery ends").unwrap()
    }
}

#[tokio::test(start_paused = true)]
async fn a_report_is_asked_about_until_the_api_server_acknowledges_it() {
    let mut scene = Scene::new([], [event(1, cause()), event(2, report())]).await;
    let begun = Instant::now();
    let mut first = scene.stream().await;
    assert!(!first.of.again);
    assert_eq!((first.event().await, first.event().await), ((1, cause()), (2, report())));
    let mut held = vec![first];
    // The server's disk is full for a while: it takes the report, and does not end the stream.
    for number in 2..5 {
        let mut stream = scene.stream().await;
        assert!(stream.of.again);
        stream.resume(Some(2)).await;
        let order = proto::ResumeEvents { stream: number, after: Some(2), handed: None };
        assert_eq!(scene.resume().await, order);
        scene.events.push(resumed(number, 2)).await;
        assert!(matches!(stream.word().await, ReportWhat::Resumed(_)));
        held.push(stream);
    }
    assert!(begun.elapsed() >= 3 * timeouts::REPORT_ACK, "{:?}", begun.elapsed());
    assert!(!scene.delivering.is_finished(), "nothing was acknowledged");
    drop(held);
    assert!(matches!(scene.end().await, Delivered::All));
}

/// No other component keeps the agent's own messages.
#[tokio::test(start_paused = true)]
async fn what_the_agent_says_itself_is_said_on_each_stream() {
    let mut scene = Scene::new([], [event(0, cause()), event(0, report())]).await;
    for _ in 0..3 {
        let mut stream = scene.stream().await;
        assert_eq!((stream.event().await, stream.event().await), ((0, cause()), (0, report())));
        stream.break_off().await;
    }
    drop(scene.stream().await);
    assert!(matches!(scene.end().await, Delivered::All));
}

#[tokio::test(start_paused = true)]
async fn after_a_break_events_wait_until_the_session_goes_on_where_the_api_server_says() {
    let mut scene = Scene::new([], [event(1, output()), event(2, output())]).await;
    let mut stream = scene.stream().await;
    assert_eq!((stream.event().await, stream.event().await), ((1, output()), (2, output())));
    stream.break_off().await;
    let mut stream = scene.stream().await;
    scene.events.push(event(3, output())).await;
    stream.resume(Some(1)).await;
    assert_eq!(scene.resume().await.after, Some(1));
    // Messages that the session sent before the new stream, and its answer for a stream that broke again.
    for stale in [event(4, output()), resumed(1, 0), event(1, output())] {
        scene.events.push(stale).await;
    }
    for word in [resumed(2, 1), event(2, output()), event(3, report())] {
        scene.events.push(word).await;
    }
    let ReportWhat::Resumed(answer) = stream.word().await else { panic!("no answer") };
    assert_eq!((answer.stream, answer.after), (2, 1));
    assert_eq!((stream.event().await, stream.event().await), ((2, output()), (3, report())));
    drop(stream);
    assert!(matches!(scene.end().await, Delivered::All));
}

#[tokio::test(start_paused = true)]
async fn a_session_hears_what_was_handed_to_an_api_server_that_is_no_more() {
    let mut scene = Scene::new([Status::unavailable("away")], [event(1, output())]).await;
    let mut stream = scene.stream().await;
    assert!(stream.of.again);
    stream.resume(None).await;
    let order = scene.resume().await;
    assert_eq!((order.after, order.handed), (None, Some(0)), "no server has accepted it");
    scene.events.push(resumed(order.stream, 0)).await;
    scene.events.push(event(1, output())).await;
    assert!(matches!(stream.word().await, ReportWhat::Resumed(_)));
    assert_eq!(stream.event().await, (1, output()));
    stream.break_off().await;
    let stream = scene.stream().await;
    stream.resume(None).await;
    assert_eq!(scene.resume().await.handed, Some(1));
}

#[tokio::test(start_paused = true)]
async fn commands_reach_the_session_with_their_numbers() {
    let mut scene = Scene::new([], []).await;
    let stream = scene.stream().await;
    let command = proto::NodeCommand { what: Some(CommandWhat::Signal(10)), sequence: 1, events_taken: 7 };
    stream.command(command.clone()).await;
    assert_eq!(scene.told().await, ToWhat::Command(command));
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_ends_before_the_report_acknowledges_nothing() {
    let mut scene = Scene::new([], []).await;
    drop(scene.stream().await);
    let mut stream = scene.stream().await;
    stream.resume(Some(0)).await;
    assert_eq!(scene.resume().await.stream, 2);
    scene.events.push(resumed(2, 0)).await;
    scene.events.push(event(1, report())).await;
    assert!(matches!(stream.word().await, ReportWhat::Resumed(_)));
    assert_eq!(stream.event().await, (1, report()));
    drop(stream);
    assert!(matches!(scene.end().await, Delivered::All));
}

#[tokio::test(start_paused = true)]
async fn an_api_server_that_is_away_is_waited_for_and_one_that_refuses_the_launch_is_not() {
    let elsewhere = Status::permission_denied("administrator 0 may not call this; agents may");
    let away = (0..5).map(|_| Status::unavailable("away")).chain([elsewhere]);
    let mut scene = Scene::new(away, [event(0, report())]).await;
    assert_eq!(scene.stream().await.event().await, (0, report()));
    for refusal in [Status::not_found("x"), Status::failed_precondition("x")] {
        let code = refusal.code();
        let scene = Scene::new([Status::unavailable("away"), refusal], [event(1, report())]).await;
        let ended = scene.end().await;
        assert!(matches!(&ended, Delivered::Unwanted(status) if status.code() == code), "{ended:?}");
    }
}

/// The session also sends messages that are not events; a full queue would block them.
#[tokio::test(start_paused = true)]
async fn while_there_is_no_api_server_events_are_dropped_and_hold_up_nobody() {
    let away = (0..1000).map(|_| Status::unavailable("away"));
    let mut scene = Scene::new(away, []).await;
    assert_eq!(scene.told().await, ToWhat::Unheard(proto::Nothing {}));
    for sequence in 1..=10 * WAITING_MAX as u64 {
        timeout(NEVER, scene.events.push(event(sequence, output()))).await.expect("there is room");
    }
}

#[tokio::test(start_paused = true)]
async fn an_api_server_without_reports_gets_none() {
    let scene = Scene::new([Status::unimplemented("x")], [event(1, output()), event(2, cause())]).await;
    assert!(matches!(scene.end().await, Delivered::Unheard));
}
