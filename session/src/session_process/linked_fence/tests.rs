//! Fences of three nodes in one process. One of the nodes receives its frames late.

use std::collections::HashMap;
use std::sync::Weak;
use std::time::Duration;

use bytes::Bytes;
use pmi_core::ids::{Epoch, Rank};
use pmi_core::job::{Job, Placement};
use pmi_core::kvs::Segment;
use pmi_transport::fence::{FanOut, FenceNode, Incoming, Member, Membership, Outgoing, Questions, Transport};
use tokio_stream::StreamExt;
use tonic::Status;

use super::*;

/// Limit for a test that hangs. All tests are short.
const DEADLINE: Duration = Duration::from_secs(60);

const NODES: u32 = 3;
/// The node that receives frames only when the gate is open.
const LATE: usize = 1;
/// The node with the rank that dies.
const DEAD: usize = 2;

/// Transport between nodes of the same process, by direct calls.
struct Memory {
    me: usize,
    nodes: Arc<Mutex<HashMap<String, Weak<FenceNode>>>>,
    gate: watch::Receiver<bool>,
}

#[async_trait]
impl Transport for Memory {
    async fn link(&self, node: &str, _: &str, outgoing: Outgoing) -> Result<Incoming, Status> {
        let known = self.nodes.lock().get(node).and_then(Weak::upgrade);
        let known = known.ok_or_else(|| Status::unavailable("no such node"))?;
        let incoming = known.link(&name(self.me), outgoing.map(Ok));
        let (gate, is_late) = (self.gate.clone(), self.me == LATE);
        Ok(Box::pin(incoming.then(move |frame| {
            let mut gate = gate.clone();
            async move {
                if is_late {
                    gate.wait_for(|is_open| *is_open).await.expect("the gate lasts as long as the test");
                }
                frame
            }
        })))
    }
}

/// A source that never answers.
struct Never;

#[async_trait]
impl Questions for Never {
    async fn answer(&self, _: NodeIndex, _: Bytes) -> Result<Bytes, String> {
        std::future::pending().await
    }
}

/// Part of one node in the fences of the job.
struct Node {
    fence: Arc<LinkedFence>,
    living: Arc<LivingNodes>,
    _node: Arc<FenceNode>,
}

fn name(node: usize) -> String {
    format!("node{node}")
}

fn nodes(gate: &watch::Sender<bool>) -> Vec<Node> {
    let job = Job::on_one_node(JobId::new("job").unwrap(), NODES);
    let job = Job { placement: Placement::block(&[1; NODES as usize]), ..job };
    let member = |node| Member { name: name(node), address: String::new() };
    let members: Arc<[Member]> = (0..NODES as usize).map(member).collect();
    let known = Arc::default();
    let node = |me: usize| {
        let transport = Memory { me, nodes: Arc::clone(&known), gate: gate.subscribe() };
        let node = FenceNode::new(name(me), Arc::new(transport));
        known.lock().insert(name(me), Arc::downgrade(&node));
        let index = NodeIndex(me as u32);
        let membership = Membership {
            launch_id: "launch".to_owned(),
            me: index,
            nodes: Arc::clone(&members),
            fan_out: FanOut { barrier: NODES, data: NODES },
        };
        let fences = Arc::new(node.join(membership, Arc::new(Never)));
        let living = Arc::new(LivingNodes::of(&job));
        let (id, deaths) = (job.id.clone(), NodeDeaths::AreBorne);
        let fence = LinkedFence::new(id, index, Arc::clone(&living), Some(fences), deaths);
        Node { fence: Arc::new(fence), living, _node: node }
    };
    (0..NODES as usize).map(node).collect()
}

/// Contributes a value of the node. Returns the values of all nodes.
async fn exchange(fence: Arc<LinkedFence>, node: usize, epoch: u64) -> Vec<String> {
    let contribution = Segment::several([(name(node), node.to_string())]).into();
    let id = FenceId { scope: Scope::World, epoch: Epoch(epoch) };
    let merged = timeout(DEADLINE, fence.exchange(&id, contribution)).await.expect("it takes too long").unwrap();
    let pairs = merged.segments.iter().flat_map(Segment::pairs);
    pairs.map(|(_, value)| String::from_utf8_lossy(value).into_owned()).collect()
}

#[tokio::test]
async fn a_value_of_a_rank_that_died_just_after_a_fence_is_on_every_node() {
    let gate = watch::Sender::new(false);
    let nodes = nodes(&gate);
    let call = |node: usize, epoch| tokio::spawn(exchange(Arc::clone(&nodes[node].fence), node, epoch));
    let (first, late, dead) = (call(0, 0), call(LATE, 0), call(DEAD, 0));
    assert_eq!(first.await.unwrap(), ["0", "1", "2"]);
    assert_eq!(dead.await.unwrap(), ["0", "1", "2"]);
    nodes.iter().for_each(|node| node.living.die(Rank(DEAD as u32)));
    gate.send_replace(true);
    assert_eq!(late.await.unwrap(), ["0", "1", "2"], "others have the value of the dead rank");
    // The next fence continues among the living nodes. None of them has its result.
    let (first, late) = (call(0, 1), call(LATE, 1));
    assert_eq!(
        (first.await.unwrap(), late.await.unwrap()),
        (vec!["0".to_owned(), "1".into()], vec!["0".into(), "1".into()])
    );
}
