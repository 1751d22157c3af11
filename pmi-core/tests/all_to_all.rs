//! The all-to-all fence keeps all promises of a fence, in the documented number of rounds.

use std::collections::HashMap;
use std::future::{poll_fn, ready};
use std::sync::{Arc, Mutex};
use std::task::{Poll, Waker};

use async_trait::async_trait;
use bytes::Bytes;
use pmi_core::all_to_all::{AllToAll, Links, MessageId};
use pmi_core::conformance::{Cluster, check};
use pmi_core::fence::{Contribution, Fence, FenceId, Scope};
use pmi_core::ids::{Epoch, NodeIndex};

/// Mailboxes of all nodes.
#[derive(Default)]
struct Boxes {
    messages: HashMap<(NodeIndex, NodeIndex, MessageId), Bytes>,
    sent: usize,
    lost: Option<NodeIndex>,
    waiting: Vec<Waker>,
}

#[derive(Clone)]
struct Letters {
    boxes: Arc<Mutex<Boxes>>,
    node: NodeIndex,
}

#[async_trait]
impl Links for Letters {
    async fn send(&self, to: NodeIndex, id: &MessageId, message: Bytes) -> Result<(), String> {
        let mut boxes = self.boxes.lock().unwrap();
        boxes.sent += 1;
        let known = boxes.messages.insert((self.node, to, id.clone()), message);
        assert!(known.is_none(), "{id:?} is sent to {to} twice");
        boxes.waiting.drain(..).for_each(Waker::wake);
        Ok(())
    }

    async fn receive(&self, from: NodeIndex, id: &MessageId) -> Result<Bytes, String> {
        poll_fn(|context| {
            let mut boxes = self.boxes.lock().unwrap();
            match boxes.messages.remove(&(from, self.node, id.clone())) {
                Some(message) => Poll::Ready(Ok(message)),
                None if boxes.lost == Some(from) => Poll::Ready(Err("its power is off".to_owned())),
                None => {
                    boxes.waiting.push(context.waker().clone());
                    Poll::Pending
                }
            }
        })
        .await
    }
}

fn cluster(nodes: u32, boxes: &Arc<Mutex<Boxes>>) -> Cluster {
    let fence = |node| {
        let letters = Letters { boxes: Arc::clone(boxes), node: NodeIndex(node) };
        Arc::new(AllToAll::new(letters, NodeIndex(node), nodes)) as Arc<dyn Fence>
    };
    let fences = (0..nodes).map(fence).collect();
    let boxes = Arc::clone(boxes);
    let lose = move |node| {
        let mut boxes = boxes.lock().unwrap();
        boxes.lost = Some(node);
        boxes.waiting.drain(..).for_each(Waker::wake);
    };
    Cluster { fences, lose: Some(Box::new(lose)) }
}

#[test]
fn it_keeps_all_promises_of_a_fence_among_any_number_of_nodes() {
    for nodes in (1..=9).chain([16]) {
        let verdict = pollster::block_on(check(nodes, |nodes| ready(cluster(nodes, &Arc::default()))));
        verdict.unwrap_or_else(|broken| panic!("{broken}"));
    }
}

#[test]
fn each_node_sends_one_message_in_each_of_few_rounds() {
    for (nodes, rounds) in [(1, 0), (2, 1), (5, 3), (16, 4), (100, 7)] {
        let boxes: Arc<Mutex<Boxes>> = Arc::default();
        let fences = cluster(nodes, &boxes).fences;
        let id = FenceId { scope: Scope::World, epoch: Epoch(0) };
        let mut calls: Vec<_> = fences.iter().map(|fence| Some(fence.exchange(&id, Contribution::default()))).collect();
        pollster::block_on(poll_fn(|context| {
            for call in &mut calls {
                if let Some(running) = call
                    && let Poll::Ready(merged) = running.as_mut().poll(context)
                {
                    assert!(merged.unwrap().segments.is_empty());
                    *call = None;
                }
            }
            if calls.iter().all(Option::is_none) { Poll::Ready(()) } else { Poll::Pending }
        }));
        let boxes = boxes.lock().unwrap();
        assert_eq!((boxes.sent, boxes.messages.len()), ((nodes * rounds) as usize, 0), "{nodes} nodes");
    }
}
