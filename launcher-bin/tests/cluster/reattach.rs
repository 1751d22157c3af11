//! Broken connections, in every possible place: no event is lost, no event is shown twice, and no process waits in vain.

use nix::sys::signal::Signal;
use pmi_transport::proto::v1::attach_request::What as Wish;
use pmi_transport::proto::v1::*;
use tokio::io::AsyncWriteExt;
use tonic::Status;

use crate::child::{ended, insist, says, signal};
use crate::fake::{Conversation, Fake, spec};

const EVENTS: u64 = 6;

/// Sends the events after `conversation.to.after` up to `last`.
async fn send_up_to(conversation: &Conversation, last: u64) {
    for sequence in conversation.to.after + 1..=last {
        conversation.output(sequence, 0, 0, &format!("line {sequence}\n")).await;
    }
}

fn restarted() -> Status {
    Status::unavailable("the API server is being restarted")
}

#[tokio::test]
async fn wherever_a_connection_breaks_every_line_is_shown_once() {
    let expected: String = (1..=EVENTS).map(|sequence| format!("line {sequence}\n")).collect();
    for broken_behind in 0..=EVENTS {
        let mut fake = Fake::start().await;
        let (child, _, conversation) = fake.launched("--stdin none -n 2 ./app").await;
        send_up_to(&conversation, broken_behind).await;
        conversation.fail(restarted()).await;

        let conversation = fake.attached(spec()).await;
        assert!(conversation.to.after <= broken_behind && conversation.to.tied, "{:?}", conversation.to);
        send_up_to(&conversation, EVENTS).await;
        conversation.complete(EVENTS + 1, None).await;
        let (code, stdout, stderr) = ended(child).await;
        assert_eq!((code, stdout.as_str()), (Some(0), expected.as_str()), "broken behind {broken_behind}: {stderr}");
    }
}

/// An API server may send received events again if they were not acknowledged.
#[tokio::test]
async fn events_that_come_twice_are_shown_once() {
    let mut fake = Fake::start().await;
    let (child, _, mut conversation) = fake.launched("--stdin none -n 2 ./app").await;
    send_up_to(&conversation, 3).await;
    conversation.hear_acknowledged(3).await;
    conversation.fail(restarted()).await;

    let mut conversation = fake.attached(spec()).await;
    assert_eq!(conversation.to.after, 3, "all that was acknowledged is not asked for again");
    conversation.to.after = 0;
    send_up_to(&conversation, 4).await;
    conversation.complete(5, None).await;
    let (code, stdout, _) = ended(child).await;
    assert_eq!((code, stdout.as_str()), (Some(0), "line 1\nline 2\nline 3\nline 4\n"));
}

#[tokio::test]
async fn a_connection_may_break_again_and_again() {
    let mut fake = Fake::start().await;
    let (child, _, mut conversation) = fake.launched("--stdin none -n 2 ./app").await;
    for sequence in 1..=EVENTS {
        send_up_to(&conversation, sequence).await;
        conversation.hear_acknowledged(sequence).await;
        conversation.fail(restarted()).await;
        conversation = fake.attached(spec()).await;
        assert_eq!(conversation.to.after, sequence);
    }
    conversation.complete(EVENTS + 1, None).await;
    let (code, stdout, stderr) = ended(child).await;
    assert_eq!((code, stdout.lines().count()), (Some(0), EVENTS as usize));
    assert_eq!(stderr.matches("attached again").count(), EVENTS as usize, "{stderr}");
}

#[tokio::test]
async fn an_end_in_order_that_was_asked_for_without_a_connection_is_told_to_the_next() {
    let mut fake = Fake::start().await;
    let (mut child, _, conversation) = fake.launched("--stdin none -v -n 2 ./app").await;
    conversation.fail(restarted()).await;
    // The fake server answers an attach request only when the test takes it. Until then there is no connection.
    says(&mut child, "attaching again").await;
    signal(&child, Signal::SIGUSR1);
    signal(&child, Signal::SIGTERM);
    says(&mut child, "SIGTERM: ending the launch; once more ends it at once").await;
    let mut conversation = fake.attached(spec()).await;
    let mut heard = [conversation.hear_wish().await, conversation.hear_wish().await];
    heard.sort_by_key(|wish| matches!(wish, Some(Wish::End(_))));
    assert_eq!(heard, [Some(Wish::Signal(Signal::SIGUSR1 as i32)), Some(Wish::End(Signal::SIGTERM as i32))]);
    let cause = Cause { host: "node0".to_owned(), kind: Some(cause::Kind::InterruptedBy(15)) };
    conversation.complete(1, Some(cause)).await;
    assert_eq!(ended(child).await.0, Some(143));
}

#[tokio::test]
async fn two_interrupts_end_the_wait_for_a_connection() {
    let mut fake = Fake::start().await;
    let (mut child, _, conversation) = fake.launched("--stdin none -n 2 ./app").await;
    conversation.fail(restarted()).await;
    says(&mut child, "attaching again").await;
    signal(&child, Signal::SIGINT);
    says(&mut child, "SIGINT: ending the launch; once more ends it at once").await;
    insist(&child, Signal::SIGINT).await;
    let (code, _, stderr) = ended(child).await;
    assert_eq!(code, Some(125));
    assert!(stderr.contains("launch k3jq09zmf2 was lost sight of: the API server is being restarted"), "{stderr}");
    assert!(stderr.ends_with("lattice: try: lattice attach k3jq09zmf2\n"), "{stderr}");
}

#[tokio::test]
async fn a_viewer_comes_back_as_a_viewer() {
    let mut fake = Fake::start().await;
    let child = fake.lattice("attach k3jq09zmf2").spawn().unwrap();
    let mut conversation = fake.attached(spec()).await;
    send_up_to(&conversation, 2).await;
    conversation.hear_acknowledged(2).await;
    conversation.fail(restarted()).await;
    let conversation = fake.attached(spec()).await;
    assert_eq!((conversation.to.tied, conversation.to.after), (false, 2));
    conversation.complete(3, None).await;
    assert_eq!(ended(child).await.1, "line 1\nline 2\n");
}

#[tokio::test]
async fn input_that_may_be_lost_is_told_in_bytes() {
    let mut fake = Fake::start().await;
    let (mut child, _, mut conversation) = fake.launched("-n 2 ./app").await;
    child.stdin.as_mut().unwrap().write_all(b"abcdefgh").await.unwrap();
    assert_eq!(conversation.hear_wish().await, Some(Wish::Stdin("abcd".into())));
    conversation.fail(restarted()).await;
    let mut conversation = fake.attached(spec()).await;
    assert_eq!(conversation.hear_wish().await, Some(Wish::Stdin("efgh".into())), "a new connection has a new credit");
    conversation.complete(1, None).await;
    let (code, _, stderr) = ended(child).await;
    assert_eq!(code, Some(0));
    assert!(stderr.contains("lattice: warning: up to 4 bytes of standard input may be lost\n"), "{stderr}");
}

#[tokio::test]
async fn a_launch_that_nobody_knows_any_more_is_not_asked_for_again() {
    let mut fake = Fake::start().await;
    let (child, _, conversation) = fake.launched("--stdin none -n 2 ./app").await;
    conversation.fail(Status::not_found("there is no launch k3jq09zmf2")).await;
    let (code, _, stderr) = ended(child).await;
    assert_eq!(code, Some(125));
    let told = "lattice: launch k3jq09zmf2 was lost sight of: there is no launch k3jq09zmf2\n\
                lattice: try: lattice attach k3jq09zmf2\n";
    assert!(stderr.ends_with(told) && !stderr.contains("attaching again"), "{stderr}");
}

#[tokio::test]
async fn an_answer_that_makes_no_sense_is_not_tried_again() {
    let mut fake = Fake::start().await;
    let (child, _, conversation) = fake.launched("--stdin none -n 2 ./app").await;
    conversation.tell(1, 0, attach_response::What::Event(NodeEvent::default())).await;
    let (code, _, stderr) = ended(child).await;
    assert_eq!(code, Some(125));
    assert!(stderr.contains("sent something that makes no sense: the message has no event"), "{stderr}");
}
