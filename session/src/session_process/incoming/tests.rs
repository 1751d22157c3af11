use std::io::Write;
use std::os::unix::net::UnixStream;

use bytes::{Bytes, BytesMut};
use pmi_core::ids::NodeIndex;
use pmi_core::quiet;
use proto::node_command::What as CommandWhat;
use tokio::task::JoinHandle;

use super::*;
use crate::gathered::{GatherDetail, Gathered, NodeSelection, Unheard};
use crate::sample::spec_on;
use crate::session_io::{Nodes, StdinSource};
use crate::session_process::frames::append_frame;
use crate::session_process::stdin::{Readers, connect};

/// An agent that sends messages to a session, and the receivers of these messages.
struct World {
    agent: UnixStream,
    control: mpsc::Receiver<Control>,
    asked: mpsc::Receiver<NodeQuestion>,
    arrived: mpsc::Receiver<Arrived>,
    told: mpsc::Receiver<ToAgent>,
    credit: Arc<OutputCredit>,
    confirmations: Arc<Confirmations>,
    calls: AgentCalls,
    stdin: mpsc::Receiver<Bytes>,
    reading: JoinHandle<()>,
}

impl World {
    fn new() -> Self {
        Self::with(NextAgents { connections: mpsc::channel(1).1, lease: Duration::ZERO })
    }

    fn with(agents: NextAgents) -> Self {
        let (socket, agent) = UnixStream::pair().unwrap();
        let (reader, _) = quiet::split(socket).unwrap();
        let (control, controlled) = mpsc::channel(8);
        let (urgent, told) = mpsc::channel(8);
        let (gathering, asked) = mpsc::channel(8);
        let (passing, arrived) = mpsc::channel(8);
        let credit = Arc::new(OutputCredit::new(0));
        let calls = AgentCalls::new(&spec_on(&[1, 1]), urgent.clone());
        let (input, stdin) = connect(Readers::Here, 100, urgent.clone());
        let StdinSource::Stream(stdin) = stdin else { panic!("no stream") };
        let confirmations = Arc::<Confirmations>::default();
        let incoming = Incoming {
            nodes: 2,
            control,
            gathering,
            calls: calls.clone(),
            credit: Arc::clone(&credit),
            input: Arc::new(Mutex::new(input)),
            passing,
            urgent,
            confirmations: Arc::clone(&confirmations),
            agents,
        };
        let reading = tokio::spawn(incoming.run(reader));
        Self { agent, control: controlled, asked, arrived, told, credit, confirmations, calls, stdin, reading }
    }

    fn send(&mut self, what: What) {
        let mut bytes = BytesMut::new();
        append_frame(&mut bytes, &proto::ToSession { what: Some(what) });
        self.agent.write_all(&bytes).unwrap();
    }

    fn command(&mut self, what: CommandWhat) {
        self.send(What::Command(proto::NodeCommand { what: Some(what), ..Default::default() }));
    }

    async fn warning(&mut self) -> String {
        match self.told.recv().await.expect("a warning").into_what() {
            Some(proto::from_session::What::Warning(text)) => text,
            other => panic!("{other:?} is no warning"),
        }
    }

    /// Checks the end of a session without an agent: it has no control, needs no credit, and gets no answers.
    async fn ends_without_agent(mut self) {
        self.reading.await.unwrap();
        assert!(self.control.recv().await.is_none());
        assert!(self.credit.spend(1 << 30));
        assert_eq!(self.stdin.recv().await, None);
        let asked = self.calls.ask(NodeIndex(1), Bytes::new()).await.unwrap_err();
        assert_eq!(asked.reason, "the node agent is gone");
    }
}

#[tokio::test]
async fn commands_reach_those_whom_they_concern() {
    let mut world = World::new();
    world.command(CommandWhat::Signal(10));
    assert!(matches!(world.control.recv().await, Some(Control::Signal(10))));
    world.command(CommandWhat::Stdin("input".into()));
    world.command(CommandWhat::StdinEnd(proto::Nothing {}));
    assert_eq!(world.stdin.recv().await.unwrap(), "input");
    assert_eq!(world.stdin.recv().await, None);
    world.command(CommandWhat::OutputCredit(5));
    world.credit.changed().await;
    assert!(world.credit.spend(5) && !world.credit.spend(1));
    let held_max = world.credit.held_max();
    world.command(CommandWhat::AskProgress(3));
    assert!(matches!(world.control.recv().await, Some(Control::AskProgress(3))));
    assert!(world.credit.held_max() > held_max, "the answer needs room");
}

#[tokio::test]
async fn pieces_for_several_nodes_are_passed_on_and_their_answers_told() {
    let mut world = World::new();
    let nodes = vec![proto::NodeRange { first: 0, last: 1 }];
    let piece = proto::InputPiece { offset: 7, data: "in".into(), is_last: false, nodes };
    world.command(CommandWhat::Input(piece.clone()));
    let Arrived { piece: passed, reply } = world.arrived.recv().await.unwrap();
    assert_eq!((passed.offset, &passed.bytes[..]), (7, &b"in"[..]));
    reply.send(Ok(NodeSelection::of([1]))).unwrap();
    let missed = vec![proto::NodeRange { first: 1, last: 1 }];
    let expected = proto::node_event::What::InputPassed(proto::InputPassed { offset: 7, missed });
    match world.told.recv().await.unwrap().into_what() {
        Some(proto::from_session::What::Event(event)) => assert_eq!(event.what, Some(expected)),
        other => panic!("{other:?} is no event"),
    }
    // The session is ending, so no answer is sent. The API server sends the piece to other nodes.
    world.command(CommandWhat::Input(piece));
    drop(world.arrived.recv().await.unwrap());
    world.command(CommandWhat::Stdin("more".into()));
    assert_eq!(world.stdin.recv().await.unwrap(), "more");
}

#[tokio::test]
async fn what_sessions_have_told_goes_back_under_the_number_of_the_question() {
    let question = |first| {
        CommandWhat::Gather(proto::Gather {
            question: 7,
            order: Some(proto::GatherOrder {
                nodes: vec![proto::NodeRange { first, last: 1 }],
                stacks: true,
                time_ms: 9,
            }),
        })
    };
    let answer =
        async |world: &mut World| match world.told.recv().await.unwrap().take_event().and_then(|event| event.what) {
            Some(proto::node_event::What::Gathered(gathered)) => (gathered.question, gathered.unheard.len()),
            other => panic!("{other:?}"),
        };
    let mut world = World::new();
    world.command(question(0));
    let NodeQuestion { order, reply } = world.asked.recv().await.unwrap();
    assert_eq!((order.nodes.ranges(), order.detail), (&[0..=1][..], GatherDetail::Stacks));
    let unheard = vec![Unheard { node: NodeIndex(1), reason: "lost".to_owned() }];
    reply.send(Ok(Gathered { unheard, ..Gathered::default() })).unwrap();
    assert_eq!(answer(&mut world).await, (7, 1));
    world.command(question(2));
    assert!(world.warning().await.contains("in ascending order"));
    world.asked.close();
    world.command(question(0));
    assert_eq!(answer(&mut world).await, (7, 0), "without links nobody is asked, and the API server hears so at once");
}

#[tokio::test]
async fn a_command_that_means_nothing_here_is_reported_and_the_session_goes_on() {
    let mut world = World::new();
    world.send(What::Command(proto::NodeCommand::default()));
    assert_eq!(world.warning().await, "a command is passed over: the message has no command");
    world.command(CommandWhat::SignalRanks(proto::SignalRanks { signal: 10, ranks: Vec::new() }));
    assert_eq!(world.warning().await, "a command is passed over: no rank is named; 0-3,8 names five");
    world.command(CommandWhat::Kill(9));
    assert!(matches!(world.control.recv().await, Some(Control::Kill(9))));
}

#[tokio::test]
async fn a_message_that_cannot_be_read_is_reported_and_ends_the_session() {
    let too_long = u32::try_from(TO_SESSION_MAX + 1).unwrap().to_be_bytes();
    let no_message = [0, 0, 0, 2, 0xff, 0xff];
    for bytes in [&too_long[..], &no_message] {
        let mut world = World::new();
        world.agent.write_all(bytes).unwrap();
        let warning = world.warning().await;
        assert!(warning.starts_with("the ranks are ended, as a message of the agent cannot be read: "), "{warning}");
        world.ends_without_agent().await;
    }
}

#[tokio::test]
async fn an_agent_that_goes_away_at_any_byte_ends_the_session() {
    let frame = [0, 0, 0, 2, 0x12, 0x00];
    for sent in 0..frame.len() {
        let mut world = World::new();
        world.agent.write_all(&frame[..sent]).unwrap();
        world.agent.shutdown(std::net::Shutdown::Both).unwrap();
        world.ends_without_agent().await;
    }
}

/// Messages of a later version, and a second start, do not end running ranks.
#[tokio::test]
async fn messages_without_a_meaning_here_are_passed_over() {
    let mut world = World::new();
    world.send(What::Start(proto::StartSession::default()));
    world.send(What::Answer(proto::Answer { id: 77, what: None }));
    world.agent.write_all(&[0, 0, 0, 0]).unwrap();
    world.command(CommandWhat::GiveUp(proto::Nothing {}));
    assert!(matches!(world.control.recv().await, Some(Control::GiveUp)));
}

#[tokio::test]
async fn a_question_of_another_node_is_answered_by_the_session_or_by_its_end() {
    let mut world = World::new();
    let question = |request_id| {
        let (launch_id, question) = ("1".to_owned(), Bytes::from_static(b"key?"));
        What::Question(proto::DataRequest { launch_id, request_id, question, ..Default::default() })
    };
    let no_answer = Err("its part of the launch has ended".to_owned());
    for (id, answer) in [(1, Some(Ok("value".into()))), (2, Some(Err("no such key".to_owned()))), (3, None)] {
        world.send(question(id));
        let Some(Control::Question { question, reply }) = world.control.recv().await else { panic!("no question") };
        assert_eq!(question, "key?");
        let expected = answer.clone().unwrap_or(no_answer.clone());
        match answer {
            Some(answer) => reply.send(answer).unwrap(),
            None => drop(reply),
        }
        assert_eq!(world.told.recv().await, Some(ToAgent::reply("1".to_owned(), id, expected)));
    }
    world.control.close();
    world.send(question(4));
    assert_eq!(world.told.recv().await, Some(ToAgent::reply("1".to_owned(), 4, no_answer)));
}

/// Returns the session's receiver of later connections, and its sender.
fn next_agents() -> (mpsc::Sender<UnixStream>, NextAgents) {
    let (sender, connections) = mpsc::channel(1);
    (sender, NextAgents { connections, lease: Duration::from_secs(3600) })
}

#[tokio::test]
async fn a_command_that_comes_again_is_carried_out_once() {
    let mut world = World::new();
    for (sequence, signal) in [(1, 10), (2, 12), (1, 10), (2, 12), (0, 15), (3, 10)] {
        let what = Some(CommandWhat::Signal(signal));
        world.send(What::Command(proto::NodeCommand { what, sequence, events_taken: 0 }));
    }
    for expected in [10, 12, 15, 10] {
        assert!(matches!(world.control.recv().await, Some(Control::Signal(signal)) if signal == expected));
    }
    world.command(CommandWhat::GiveUp(proto::Nothing {}));
    assert!(matches!(world.control.recv().await, Some(Control::GiveUp)));
    assert_eq!((world.confirmations.commands_to_tell(), world.confirmations.commands_to_tell()), (3, 0));
}

#[tokio::test]
async fn what_the_api_server_has_is_passed_on_to_the_task_that_writes() {
    let mut world = World::new();
    world.send(What::Command(proto::NodeCommand { what: None, sequence: 0, events_taken: 5 }));
    world.send(What::Resume(proto::ResumeEvents { stream: 2, after: Some(7), handed: None }));
    world.send(What::Dismissed(proto::Nothing {}));
    let mut news = world.confirmations.take();
    while news.end.is_none() {
        world.confirmations.changed().await;
        let later = world.confirmations.take();
        news.confirmed = news.confirmed.max(later.confirmed);
        news.resume = later.resume.or(news.resume);
        news.end = later.end;
    }
    assert_eq!((news.confirmed, news.end), (5, Some(End::Dismissed)));
    assert_eq!(news.resume, Some(Resume { stream: 2, position: Position::After(7) }));
}

/// Another agent continues after the previous one has stopped in the middle of a message.
#[tokio::test]
async fn a_session_goes_on_with_the_next_agent_and_asks_it_again() {
    let (agents, next) = next_agents();
    let mut world = World::with(next);
    let calls = world.calls.clone();
    let asked = tokio::spawn(async move { calls.ask(NodeIndex(1), "question".into()).await });
    let Some(proto::from_session::What::Call(call)) = world.told.recv().await.unwrap().into_what() else { panic!() };
    world.agent.write_all(&[0, 0, 0, 9, 1]).unwrap();
    let (session_end, agent_end) = UnixStream::pair().unwrap();
    world.agent = agent_end;
    agents.send(session_end).await.unwrap();
    let Some(proto::from_session::What::Call(again)) = world.told.recv().await.unwrap().into_what() else { panic!() };
    assert_eq!(call, again);
    let answer = proto::Answer { id: again.id, what: Some(proto::answer::What::Data("answer".into())) };
    world.send(What::Answer(answer));
    assert_eq!(asked.await.unwrap().unwrap(), "answer");
    world.command(CommandWhat::Signal(10));
    assert!(matches!(world.control.recv().await, Some(Control::Signal(10))));
    drop(agents);
    world.agent.shutdown(std::net::Shutdown::Both).unwrap();
    world.ends_without_agent().await;
}

#[tokio::test(start_paused = true)]
async fn a_session_ends_when_no_agent_comes_in_time() {
    let (_agents, next) = next_agents();
    let world = World::with(next);
    world.agent.shutdown(std::net::Shutdown::Both).unwrap();
    world.ends_without_agent().await;
}
