use std::io::Read;
use std::os::unix::net::UnixStream;

use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};
use pmi_core::ids::Rank;
use prost::Message;
use proto::from_session;
use rank_spawner::RankExit;
use tokio::task::JoinHandle;

use super::*;
use crate::cause::CauseKind;
use crate::event::{Notice, Output, Stream};
use crate::session_process::confirmations::{End, Resume};
use crate::session_process::failure_policy::Way;
use crate::session_process::frames::read_frame;
use crate::session_process::kept_events::Position;

/// Message sources of a session, and the packets that it writes: one for each write.
struct Ends {
    events: mpsc::Sender<Event>,
    report: oneshot::Sender<Report>,
    packets: UnixStream,
    running: JoinHandle<io::Result<()>>,
    urgent: mpsc::Sender<ToAgent>,
    traces: mpsc::Sender<Bytes>,
    alarm: oneshot::Sender<Cause>,
    chosen: mpsc::Sender<Cause>,
    told: watch::Receiver<SentCause>,
    credit: Arc<OutputCredit>,
    confirmations: Arc<Confirmations>,
}

fn run() -> Ends {
    let packets = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC).unwrap();
    run_on((packets.0.into(), packets.1.into()), 1 << 20)
}

fn run_on((socket, packets): (UnixStream, UnixStream), window: u64) -> Ends {
    let (_reader, writer) = pmi_core::quiet::split(socket).unwrap();
    let (urgent, outgoing_urgent) = mpsc::channel(8);
    let (events, happened) = mpsc::channel(8);
    let (traces, traced) = mpsc::channel(8);
    let (alarm, alarmed) = oneshot::channel();
    let (choice, chosen) = mpsc::channel(1);
    let (telling, told) = watch::channel(SentCause::default());
    let (report, finish) = oneshot::channel();
    let credit = Arc::new(OutputCredit::new(window));
    let confirmations = Arc::<Confirmations>::default();
    let outgoing = Outgoing {
        urgent: outgoing_urgent,
        events: happened,
        traces: traced,
        alarm: Some(alarmed),
        chosen,
        told: telling,
        credit: Arc::clone(&credit),
        confirmations: Arc::clone(&confirmations),
    };
    let running = tokio::spawn(outgoing.run(writer, finish));
    Ends { events, report, packets, running, urgent, traces, alarm, chosen: choice, told, credit, confirmations }
}

fn report() -> Report {
    Report::default()
}

fn output(text: &'static str) -> Event {
    Event::Output(Output { rank: Rank(0), stream: Stream::Stdout, bytes: text.into() })
}

fn exited() -> Event {
    Event::Exited { rank: Rank(0), exit: RankExit::Code(0), reached: None, ran: Duration::ZERO }
}

/// Returns the text or kind of the next message that the agent reads.
async fn word(packets: &UnixStream) -> String {
    let mut packets = packets.try_clone().unwrap();
    let frame = tokio::task::spawn_blocking(move || read_frame(&mut packets)).await.unwrap().unwrap();
    let Some(frame) = frame else { return "end".to_owned() };
    let Some(from_session::What::Event(event)) = proto::FromSession::decode(&*frame).unwrap().what else {
        return "urgent".to_owned();
    };
    match event.what.unwrap() {
        What::Output(output) => String::from_utf8(output.data.to_vec()).unwrap(),
        What::Trace(line) => String::from_utf8(line.to_vec()).unwrap(),
        What::Exited(_) => "exited".to_owned(),
        What::Ending(_) => "ending".to_owned(),
        What::Report(_) => "report".to_owned(),
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "current_thread")]
async fn the_first_cause_passes_output_that_waits_for_credit() {
    let ends = run_on(UnixStream::pair().unwrap(), 1);
    ends.events.send(output("first")).await.unwrap();
    assert_eq!(word(&ends.packets).await, "first", "the window is open, if only by a byte");
    for event in [output("second"), exited()] {
        ends.events.send(event).await.unwrap();
    }
    let cause = || Cause { host: "n1".to_owned(), kind: CauseKind::Interrupted { signal: 2 } };
    ends.alarm.send(cause()).unwrap();
    assert_eq!(word(&ends.packets).await, "ending");
    ends.events.send(Event::Ending(cause())).await.unwrap();
    ends.urgent.send(ToAgent::warning("w".to_owned())).await.unwrap();
    assert_eq!(word(&ends.packets).await, "urgent");
    drop(ends.events);
    ends.report.send(report()).unwrap();
    ends.credit.grant(1 << 20);
    for expected in ["second", "exited", "report"] {
        assert_eq!(word(&ends.packets).await, expected, "the cause is told once, and the exit after the output");
    }
    ends.confirmations.end(End::Dismissed);
    assert_eq!(word(&ends.packets).await, "end");
    ends.running.await.unwrap().unwrap();
}

#[tokio::test(flavor = "current_thread")]
async fn traces_and_calls_are_written_before_the_report() {
    let ends = run_on(UnixStream::pair().unwrap(), 1 << 20);
    ends.traces.send("C> x\n".into()).await.unwrap();
    assert_eq!(word(&ends.packets).await, "C> x\n");
    drop((ends.events, ends.traces));
    ends.urgent.send(ToAgent::warning("w".to_owned())).await.unwrap();
    ends.report.send(report()).unwrap();
    for expected in ["urgent", "report"] {
        assert_eq!(word(&ends.packets).await, expected);
    }
    ends.confirmations.end(End::Dismissed);
    ends.running.await.unwrap().unwrap();
}

#[tokio::test(flavor = "current_thread")]
async fn a_session_can_end_though_its_agent_is_gone() {
    let Ends { events, report: ended, packets, running, credit, confirmations, .. } =
        run_on(UnixStream::pair().unwrap(), 1);
    drop(packets);
    credit.lift();
    confirmations.end(End::AgentGone);
    for _ in 0..100 {
        events.send(output("nobody reads this")).await.unwrap();
    }
    drop(events);
    ended.send(report()).unwrap();
    assert!(running.await.unwrap().is_err(), "it says that not all was read");
}

fn started() -> Event {
    Event::Started { rank: Rank(0), pid: std::process::id(), at: Duration::ZERO }
}

#[tokio::test(flavor = "current_thread")]
async fn a_launch_that_ends_at_once_is_told_of_in_one_piece() {
    let mut ends = run();
    ends.events.send(started()).await.unwrap();
    tokio::task::yield_now().await;
    ends.events.send(exited()).await.unwrap();
    ends.events.send(Event::Notice(Notice::Leftover { pids: vec![1] })).await.unwrap();
    drop(ends.events);
    ends.report.send(report()).unwrap();
    ends.confirmations.end(End::Dismissed);
    ends.running.await.unwrap().unwrap();
    let mut bytes = [0; 4096];
    assert!(ends.packets.read(&mut bytes).unwrap() > 0);
    assert_eq!(ends.packets.read(&mut bytes).unwrap(), 0, "there was a second write");
}

#[tokio::test(flavor = "current_thread")]
async fn a_start_is_told_of_though_nothing_follows() {
    let Ends { events, report: _report, mut packets, running, urgent: _urgent, traces: _traces, alarm: _alarm, .. } =
        run();
    events.send(started()).await.unwrap();
    packets.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let read = tokio::task::spawn_blocking(move || packets.read(&mut [0; 4096]));
    assert!(read.await.unwrap().unwrap() > 0);
    running.abort();
}

/// After a break, a session writes the events that the API server does not have, to the connection of the next agent.
#[tokio::test(flavor = "current_thread")]
async fn the_next_agent_gets_what_the_one_before_did_not_deliver() {
    let mut ends = run_on(UnixStream::pair().unwrap(), 1 << 20);
    for text in ["one", "two", "three"] {
        ends.events.send(output(text)).await.unwrap();
        assert_eq!(word(&ends.packets).await, text);
    }
    let (socket, packets) = UnixStream::pair().unwrap();
    ends.packets = packets;
    ends.confirmations.reconnect(Connection::New(pmi_core::quiet::split(socket).unwrap().1));
    ends.events.send(output("four")).await.unwrap();
    ends.urgent.send(ToAgent::warning("w".to_owned())).await.unwrap();
    assert_eq!(word(&ends.packets).await, "urgent", "no event is sent before it is known what was taken");
    ends.confirmations.resume(Resume { stream: 1, position: Position::After(1) });
    for expected in ["urgent", "two", "three", "four"] {
        assert_eq!(word(&ends.packets).await, expected, "the answer, and the events from there on");
    }
    drop(ends.events);
    ends.report.send(report()).unwrap();
    assert_eq!(word(&ends.packets).await, "report");
    assert!(!ends.running.is_finished(), "the report is not acknowledged");
    ends.confirmations.resume(Resume { stream: 2, position: Position::After(4) });
    for expected in ["urgent", "report"] {
        assert_eq!(word(&ends.packets).await, expected);
    }
    ends.confirmations.end(End::Dismissed);
    assert_eq!(word(&ends.packets).await, "end");
    ends.running.await.unwrap().unwrap();
}

/// Returns the host of the next cause, or the kind of the next other event.
async fn next_host(packets: &UnixStream) -> String {
    let mut packets = packets.try_clone().unwrap();
    let frame = tokio::task::spawn_blocking(move || read_frame(&mut packets)).await.unwrap().unwrap().unwrap();
    match proto::FromSession::decode(&*frame).unwrap().what.unwrap() {
        from_session::What::Event(event) => match event.what.unwrap() {
            What::Ending(cause) => cause.host,
            What::Report(_) => "report".to_owned(),
            other => panic!("{other:?}"),
        },
        other => format!("{other:?}").split('(').next().unwrap().to_owned(),
    }
}

fn on(host: &str) -> Cause {
    Cause { host: host.to_owned(), kind: CauseKind::Fence { reason: "it left".to_owned() } }
}

/// After an outage, the API server receives one cause, and the session detects the acknowledgement.
#[tokio::test(flavor = "current_thread")]
async fn the_cause_that_sessions_chose_is_told_in_place_of_the_own_one() {
    let mut ends = run_on(UnixStream::pair().unwrap(), 1 << 20);
    ends.alarm.send(on("own")).unwrap();
    assert_eq!(next_host(&ends.packets).await, "own");
    ends.confirmations.unheard();
    let expected = SentCause { cause: Some(on("own")), is_heard: false, way: Way::Broken };
    ends.told.wait_for(|told| *told == expected).await.unwrap();
    ends.chosen.send(on("chosen")).await.unwrap();
    assert_eq!(
        next_host(&ends.packets).await,
        "chosen",
        "an agent that still reads the first one hears of this as well"
    );
    ends.events.send(Event::Ending(on("own"))).await.unwrap();
    ends.confirmations.resume(Resume { stream: 1, position: Position::Unknown { handed: Some(0) } });
    for expected in ["Resumed", "chosen", "chosen"] {
        assert_eq!(next_host(&ends.packets).await, expected);
    }
    assert!(!ends.told.borrow().is_heard);
    ends.confirmations.confirm(4);
    let expected = SentCause { cause: Some(on("chosen")), is_heard: true, way: Way::Open };
    ends.told.wait_for(|told| *told == expected).await.unwrap();
    drop(ends.events);
    // Updates about the API server are handled while the report is pending.
    ends.confirmations.unheard();
    ends.told.wait_for(|told| told.way == Way::Broken).await.unwrap();
    ends.report.send(report()).unwrap();
    assert_eq!(next_host(&ends.packets).await, "report");
    ends.running.abort();
}

#[tokio::test(flavor = "current_thread")]
async fn commands_are_told_to_be_taken_though_nothing_happens() {
    let ends = run_on(UnixStream::pair().unwrap(), 1 << 20);
    (1..=16).for_each(|sequence| ends.confirmations.command_taken(sequence));
    let mut packets = ends.packets.try_clone().unwrap();
    let frame = tokio::task::spawn_blocking(move || read_frame(&mut packets)).await.unwrap().unwrap().unwrap();
    let Some(from_session::What::Event(event)) = proto::FromSession::decode(&*frame).unwrap().what else { panic!() };
    assert_eq!((event.what, event.sequence, event.commands_taken), (None, 0, 16));
    ends.running.abort();
}
