//! A node that leaves a launch leaves no question unanswered: it still sends its known answers, and refuses all other
//! questions.

mod agents;

use std::sync::Arc;

use agents::{DEADLINE, Over, World};
use async_trait::async_trait;
use bytes::Bytes;
use pmi_core::ids::NodeIndex;
use pmi_transport::fence::{AskError, FanOut, Limits, Questions};
use tokio::sync::Semaphore;
use tokio::time::timeout;

/// Signals each question, and answers when it is permitted.
struct Gate {
    asked: Semaphore,
    open: Semaphore,
}

#[async_trait]
impl Questions for Gate {
    async fn answer(&self, _: NodeIndex, question: Bytes) -> Result<Bytes, String> {
        self.asked.add_permits(1);
        self.open.acquire().await.unwrap().forget();
        Ok(question)
    }
}

#[tokio::test]
async fn answers_go_out_before_a_node_leaves() {
    let world = World::new(2, Over::Tcp, Limits::default()).await;
    let asking = world.join(0, "launch", FanOut::default());
    let gate = Arc::new(Gate { asked: Semaphore::new(0), open: Semaphore::new(0) });
    let membership = world.membership(1, "launch", FanOut::default());
    let leaving = world.agent(1).join(membership, Arc::clone(&gate) as _);
    let answer = asking.ask(NodeIndex(1), "what it said last".into());
    let leave = async {
        gate.asked.acquire().await.unwrap().forget();
        // As when an answer and the end of a session are read at once: no other task has run in between.
        gate.open.add_permits(1);
        leaving.last_answers().await;
        drop(leaving);
    };
    let (answer, ()) = timeout(DEADLINE, async { tokio::join!(answer, leave) }).await.unwrap();
    assert_eq!(answer, Ok("what it said last".into()));
}

#[tokio::test(start_paused = true)]
async fn a_question_that_is_open_when_a_node_leaves_is_refused() {
    let world = World::new(2, Over::Memory, Limits::default()).await;
    let asking = world.join(0, "launch", FanOut::default());
    let gate = Arc::new(Gate { asked: Semaphore::new(0), open: Semaphore::new(0) });
    let membership = world.membership(1, "launch", FanOut::default());
    let leaving = world.agent(1).join(membership, Arc::clone(&gate) as _);
    let answer = asking.ask(NodeIndex(1), "what it never says".into());
    let leave = async {
        gate.asked.acquire().await.unwrap().forget();
        drop(leaving);
    };
    let (answer, ()) = timeout(DEADLINE, async { tokio::join!(answer, leave) }).await.expect("an answer");
    let reason = "it has left the launch".to_owned();
    assert_eq!(answer, Err(AskError::Refused { node: NodeIndex(1), reason }));
}

/// Answers with as many bytes as the question requests.
struct Long;

#[async_trait]
impl Questions for Long {
    async fn answer(&self, _: NodeIndex, question: Bytes) -> Result<Bytes, String> {
        let len: usize = std::str::from_utf8(&question).unwrap().parse().unwrap();
        Ok((0..len).map(|at| (at / 1000) as u8).collect())
    }
}

#[tokio::test]
async fn an_answer_that_is_longer_than_any_message_comes_whole_and_leaves_the_link_in_use() {
    for over in [Over::Tcp, Over::Sessions] {
        let world = World::new(2, over, Limits::default()).await;
        let asking = world.join(0, "launch", FanOut::default());
        let _answering = world.agent(1).join(world.membership(1, "launch", FanOut::default()), Arc::new(Long));
        for len in [5_000_000, 1] {
            let asked = asking.ask(NodeIndex(1), len.to_string().into());
            let answer = timeout(DEADLINE, asked).await.expect("an answer").expect("data");
            assert!(answer == (0..len).map(|at| (at / 1000) as u8).collect::<Bytes>(), "{len} bytes over {over:?}");
        }
        let asked = asking.ask(NodeIndex(1), vec![b'1'; 5_000_000].into()).await;
        assert!(matches!(asked, Err(AskError::QuestionTooLong { len: 5_000_000, .. })), "{asked:?}");
    }
}
