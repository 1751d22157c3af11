//! Streams of reports that break: events and commands are sent again, and each is processed once. The same applies to repeated calls.

use attach_request::What as Wish;
use node_command::What as Command;
use node_event::What as Event;
use pmi_transport::proto::v1::*;

use super::spawns::{answer, ordered};
use super::world::{Follower, Report, World, exit, soon};

fn started() -> Event {
    Event::Started(RankStarted { rank: 0, pid: 100, ..Default::default() })
}

fn output(text: &'static str) -> Event {
    Event::Output(RankOutput { rank: 0, on_stderr: false, data: text.into() })
}

/// The next event of the node that a client receives.
async fn told(client: &mut Follower) -> String {
    match client.event().await {
        Event::Started(_) => "started".to_owned(),
        Event::Output(output) => String::from_utf8(output.data.to_vec()).unwrap(),
        other => format!("{other:?}"),
    }
}

#[tokio::test]
async fn events_that_come_again_count_once() {
    let world = World::new(1).await;
    let mut launch = world.launch(1).await;
    let mut client = world.attach(&launch.id, 0).await;
    let first = launch.reports.remove(0);
    first.tell_numbered(1, started()).await;
    first.tell_numbered(2, output("one")).await;
    assert_eq!([told(&mut client).await, told(&mut client).await], ["started", "one"]);
    drop(first);
    let (second, after) = world.report_again(&launch.id, 0, 0).await;
    assert_eq!(after, Some(2));
    // A resumption from an earlier event is permitted.
    second.resumed(1, 0).await;
    second.tell_numbered(2, output("one")).await;
    second.tell_numbered(3, output("two")).await;
    assert_eq!(told(&mut client).await, "two");
    let (third, after) = world.report_again(&launch.id, 0, 0).await;
    assert_eq!(after, Some(3), "the stream before is replaced");
    third.resumed(3, 0).await;
    third.tell_numbered(4, Event::Exited(exit(0, 0, RankPhase::Finalized))).await;
    third.tell_numbered(5, Event::Report(SessionReport::default())).await;
    let complete = client.complete().await;
    assert!(complete.success && complete.ranks.len() == 1, "{complete:?}");
}

#[tokio::test]
async fn a_node_that_leaves_out_events_is_lost() {
    let world = World::new(1).await;
    let launch = world.launch(1).await;
    let mut client = world.attach(&launch.id, 0).await;
    launch.reports[0].tell_numbered(1, started()).await;
    launch.reports[0].tell_numbered(3, output("two")).await;
    let complete = client.complete().await;
    assert!(complete.error_message.contains("it left out events of its ranks"), "{complete:?}");
}

/// The next command that is a signal, with its number.
async fn signal(report: &mut Report) -> (u64, i32) {
    loop {
        match report.numbered().await.expect("the stream goes on") {
            NodeCommand { what: Some(Command::Signal(signal)), sequence, .. } => return (sequence, signal),
            NodeCommand { what: Some(Command::OutputCredit(_)) | None, .. } => {}
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn a_command_is_sent_until_the_session_has_it_and_no_longer() {
    let world = World::new(1).await;
    let mut launch = world.launch(1).await;
    let client = world.attach(&launch.id, 0).await;
    client.say(Wish::Signal(10)).await;
    assert_eq!(signal(&mut launch.reports[0]).await, (1, 10));
    let (mut second, _) = world.report_again(&launch.id, 0, 0).await;
    client.say(Wish::Signal(12)).await;
    second.resumed(0, 0).await;
    assert_eq!([signal(&mut second).await, signal(&mut second).await], [(1, 10), (2, 12)]);
    let (mut third, _) = world.report_again(&launch.id, 0, 0).await;
    third.resumed(0, 1).await;
    assert_eq!(signal(&mut third).await, (2, 12), "the first one was taken");
    client.say(Wish::Signal(15)).await;
    assert_eq!(signal(&mut third).await, (3, 15));
}

#[tokio::test]
async fn a_session_hears_now_and_then_what_was_taken() {
    let world = World::new(1).await;
    let mut launch = world.launch(1).await;
    let _client = world.attach(&launch.id, 0).await;
    for sequence in 1..=1000 {
        launch.reports[0].tell_numbered(sequence, Event::Waiting(Waiting::default())).await;
    }
    let command = launch.reports[0].numbered().await.unwrap();
    assert!(command.what.is_none() && command.sequence == 0, "{command:?}");
    assert!((2..=1000).contains(&command.events_taken), "{command:?}");
}

#[tokio::test]
async fn a_spawn_that_is_asked_again_is_one_spawn() {
    let world = World::new(1).await;
    let mut launch = world.launch(1).await;
    let app = SpawnApp { program: "./child".into(), ranks: 2, ..Default::default() };
    let parent_job = format!("kvs_{}_0", launch.id);
    let call = SpawnCall { parent_job, parent_rank: 0, apps: vec![app], preput: vec![] };
    let request = SpawnRequest { launch_id: launch.id.clone(), node_id: "node0".into(), call: Some(call), call_id: 1 };
    let ask = |request: &SpawnRequest| {
        let (mut nodes, request) = (world.nodes(0), request.clone());
        tokio::spawn(async move { nodes.spawn_tasks(request).await.unwrap().into_inner() })
    };
    let first = ask(&request);
    let order = ordered(&mut launch.reports[0]).await;
    // The agent is lost before the answer arrives.
    first.abort();
    let again = ask(&request);
    answer(&launch.reports[0], &order, "").await;
    assert_eq!(soon(again).await.unwrap().job_id, order.job.as_ref().unwrap().id);
    assert_eq!(soon(ask(&request)).await.unwrap().job_id, order.job.as_ref().unwrap().id);
    let another = ask(&SpawnRequest { call_id: 2, ..request });
    let second = ordered(&mut launch.reports[0]).await;
    answer(&launch.reports[0], &second, "").await;
    assert_eq!(soon(another).await.unwrap().job_id, second.job.unwrap().id);
}
