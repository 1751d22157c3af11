//! Clients that follow a launch, and their effects on the launch.

use attach_request::What as Wish;
use attach_response::What as Told;
use lattice_session::timeouts;
use node_command::What as Command;
use node_event::What as Event;
use pmi_transport::limits::kept_cost;
use pmi_transport::proto::v1::cause::Kind;
use pmi_transport::proto::v1::*;
use tonic::Code;

use super::world::{Follower, Running, World, order, pass, soon};

/// A launch of one rank by this request, and half of the first output window of its node, in bytes.
async fn launched(world: &World, request: LaunchTasksRequest) -> (Running, usize) {
    let allocation_id = world.allocate(RequeuePolicy::Never).await;
    let launch = world.launch_in(&LaunchTasksRequest { allocation_id, ..request }).await;
    let spec = world.agents[0].seen.lock().launched.last().unwrap().spec.clone();
    let window = <LaunchSpec as prost::Message>::decode(spec).unwrap().output_window as usize;
    (launch, window / 2 - kept_cost(0))
}

/// The numbers of the next events.
async fn told(client: &mut Follower, events: usize) -> Vec<u64> {
    let mut numbers = Vec::new();
    while numbers.len() < events {
        let answer = client.hear().await.unwrap();
        if answer.sequence > 0 {
            numbers.push(answer.sequence);
        }
    }
    numbers
}

/// Reads until the stream of a client ends.
async fn refusal(client: &mut Follower) -> Code {
    loop {
        if let Err(status) = client.hear().await {
            return status.code();
        }
    }
}

#[tokio::test]
async fn output_waits_for_an_owner_that_is_slow_and_is_told_again_to_the_next() {
    let world = World::new(1).await;
    let (mut launch, half) = launched(&world, order("")).await;
    let report = &mut launch.reports[0];
    report.output(0, half).await;
    report.output(0, half).await;
    let mut first = world.attach(&launch.id, 0).await;
    assert_eq!(told(&mut first, 2).await, [1, 2]);
    first.say(Wish::Acknowledge(1)).await;
    let grant = Some(Command::OutputCredit(kept_cost(half) as u64));
    assert_eq!(report.command().await, grant);

    let mut second = world.attach(&launch.id, 1).await;
    assert_eq!(refusal(&mut first).await, Code::Aborted);
    assert_eq!(told(&mut second, 1).await, [2]);
    second.say(Wish::Acknowledge(2)).await;
    assert_eq!(report.command().await, grant);
}

#[tokio::test]
async fn viewers_hold_up_nobody_and_owners_do_not_miss_them() {
    let world = World::new(1).await;
    let (mut launch, half) = launched(&world, order("")).await;
    let mut owner = world.attach(&launch.id, 0).await;
    let mut viewer = world.look(&launch.id, 0).await;
    // This client never reads.
    let _paused = world.look(&launch.id, 0).await;
    let mut sequence = 0;
    // As many as are kept for slow viewers.
    let kept = (4 << 20) / kept_cost(half) as u64 - 1;
    for _ in 0..kept {
        launch.reports[0].output(0, half).await;
        sequence += 1;
        assert_eq!(told(&mut owner, 1).await, [sequence]);
        owner.say(Wish::Acknowledge(sequence)).await;
        assert_eq!(launch.reports[0].command().await, Some(Command::OutputCredit(kept_cost(half) as u64)));
    }
    assert_eq!(told(&mut viewer, kept as usize).await, (1..=kept).collect::<Vec<_>>());
    drop(viewer);
    launch.reports[0].output(0, half).await;
    assert_eq!(told(&mut owner, 1).await, [kept + 1]);
    launch.reports[0].run(0, 0, RankPhase::Finalized).await;
    launch.reports[0].finish().await;
    assert!(owner.complete().await.success);
}

#[tokio::test]
async fn a_viewer_begins_with_what_the_owner_has_not_dealt_with() {
    let world = World::new(1).await;
    let (mut launch, half) = launched(&world, order("")).await;
    let mut owner = world.attach(&launch.id, 0).await;
    launch.reports[0].output(0, half).await;
    launch.reports[0].output(0, half).await;
    assert_eq!(told(&mut owner, 2).await, [1, 2]);
    owner.say(Wish::Acknowledge(1)).await;
    assert!(matches!(launch.reports[0].command().await, Some(Command::OutputCredit(_))));
    let mut viewer = world.look(&launch.id, 0).await;
    assert_eq!(told(&mut viewer, 1).await, [2]);
}

#[tokio::test]
async fn a_viewer_only_looks() {
    let world = World::new(1).await;
    let launch = world.launch(1).await;
    for wish in [Wish::Signal(10), Wish::Kill(9), Wish::End(15), Wish::StdinEnd(Nothing {})] {
        let mut viewer = world.look(&launch.id, 0).await;
        assert!(matches!(viewer.hear().await.unwrap().what, Some(Told::Spec(_))));
        viewer.say(wish).await;
        assert_eq!(refusal(&mut viewer).await, Code::FailedPrecondition);
    }
}

#[tokio::test]
async fn a_launch_whose_owner_vanishes_ends() {
    let world = World::new(1).await;
    let mut launch = world.launch(1).await;
    let _viewer = world.look(&launch.id, 0).await;
    world.attach_and_die(&launch.id).await;
    pass(2 * timeouts::NEXT_OWNER).await;
    assert_eq!(launch.reports[0].command().await, Some(Command::End(1)));
}

/// Ends a launch of one rank successfully.
async fn end(launch: &Running) {
    launch.reports[0].run(0, 0, RankPhase::Finalized).await;
    launch.reports[0].finish().await;
}

#[tokio::test]
async fn an_owner_that_is_behind_has_the_rest_however_many_launches_end_meanwhile() {
    const PIECES: u64 = 400;
    let world = World::new(1).await;
    let allocation = world.allocate(RequeuePolicy::Never).await;
    let launch = world.launch_in(&order(&allocation)).await;
    let mut owner = world.attach(&launch.id, 0).await;
    for _ in 0..PIECES {
        launch.reports[0].output(0, 2000).await;
    }
    end(&launch).await;
    // More launches than the number of ended launches that are kept.
    for _ in 0..70 {
        let other = world.launch_in(&LaunchTasksRequest { detached: true, ..order(&allocation) }).await;
        end(&other).await;
        assert!(world.look(&other.id, 0).await.complete().await.success);
    }
    assert_eq!(told(&mut owner, PIECES as usize).await, (1..=PIECES).collect::<Vec<_>>());
    assert!(owner.complete().await.success);
}

#[tokio::test]
async fn who_comes_when_nothing_is_kept_is_told_of_the_end_and_of_what_is_missing() {
    let mut world = World::new(1).await;
    let (mut launch, _) = launched(&world, order("")).await;
    end(&launch).await;
    // The stream ends when the end of the launch is durable.
    while launch.reports[0].command().await.is_some() {}
    world.restart().await;
    for (after, dropped) in [(0, true), (1, true), (2, false)] {
        let mut owner = world.attach(&launch.id, after).await;
        let mut heard = Vec::new();
        while let Ok(answer) = owner.hear().await {
            heard.push((answer.sequence, answer.what));
        }
        assert_eq!(heard.iter().any(|(_, what)| *what == Some(Told::DroppedOutput(0))), dropped, "{after}: {heard:?}");
        assert!(matches!(heard.last(), Some((3, Some(Told::Complete(_))))), "{after}: {heard:?}");
    }
}

#[tokio::test]
async fn an_abort_does_not_wait_for_an_owner_that_does_not_read() {
    let world = World::new(1).await;
    let mut request = order("");
    if let Some(spec) = &mut request.spec {
        spec.patience = Some(Patience::default());
    }
    let (mut launch, half) = launched(&world, request).await;
    let mut owner = world.attach(&launch.id, 0).await;
    launch.reports[0].output(0, half).await;
    launch.reports[0].output(0, half).await;
    let abort = AbortLaunchRequest { id: launch.id.clone(), reason: "enough".to_owned() };
    soon(world.launches().abort_launch(abort)).await.unwrap();
    assert_eq!(launch.reports[0].command().await, Some(Command::End(15)));
    assert_eq!(launch.reports[0].command().await, Some(Command::OutputCredit(2 * kept_cost(half) as u64)));
    launch.reports[0].finish().await;
    // Output that was sent before is not lost.
    assert_eq!(told(&mut owner, 2).await, [1, 2]);
    assert!(matches!(owner.complete().await.cause.unwrap().kind, Some(Kind::Ended(_))));
}

#[tokio::test]
async fn what_a_detached_launch_says_is_there_for_all_who_look_later() {
    const EACH: usize = 256 << 10;
    let world = World::new(1).await;
    let (mut launch, _) = launched(&world, LaunchTasksRequest { detached: true, ..order("") }).await;
    let mut granted = 0;
    for _ in 0..100 {
        launch.reports[0].output(0, EACH).await;
        if let Some(Command::OutputCredit(bytes)) = launch.reports[0].command().await {
            granted += bytes;
        }
    }
    assert_eq!(granted, 100 * kept_cost(EACH) as u64);
    launch.reports[0].run(0, 0, RankPhase::Finalized).await;
    launch.reports[0].finish().await;
    for _ in 0..2 {
        let mut client = world.look(&launch.id, 0).await;
        let mut output = 0;
        let complete = loop {
            match client.hear().await.unwrap().what {
                Some(Told::Event(NodeEvent { what: Some(Event::Output(piece)), .. })) => output += piece.data.len(),
                Some(Told::DroppedOutput(bytes)) => panic!("{bytes} bytes were dropped"),
                Some(Told::Complete(complete)) => break complete,
                _ => {}
            }
        };
        assert!(complete.success);
        assert_eq!(output, 100 * EACH);
    }
}
