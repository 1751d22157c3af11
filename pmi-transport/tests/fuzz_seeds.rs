//! The fuzz targets as ordinary tests: recorded traffic between agents of this process, and damaged copies of it, run through the
//! same functions as the targets in `fuzz/`.
//!
//! `cargo test -p pmi-transport --test fuzz_seeds -- --ignored` writes the recordings as seeds to `fuzz/corpus/`.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};

use async_trait::async_trait;
use bytes::Bytes;
use lattice_fuzz_seeds::Target;
use lattice_pki::{Authority, Caller, Validity};
use pmi_core::fence::Scope;
use pmi_core::ids::{Epoch, NodeIndex};
use pmi_transport::fence::{
    FanOut, FenceNode, Incoming, LaunchFences, Member, Membership, Outgoing, Questions, Transport,
};
use pmi_transport::fuzzing::{self, Operation};
use pmi_transport::proto::v1::{LinkFrame, PmiFenceCompleteRequest};
use prost::Message;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use tokio_stream::StreamExt;
use tonic::Status;

/// Nodes of the recorded launch; the fuzz target is the middle one.
const NODES: [&str; 3] = ["node0", "node1", "node2"];

/// Frames in order of sending: sender, receiver, bytes.
type Recording = Arc<Mutex<Vec<(String, String, Vec<u8>)>>>;

/// Transport to agents of the same process that records all frames.
struct Recorded {
    me: String,
    agents: Arc<Mutex<HashMap<String, Weak<FenceNode>>>>,
    frames: Recording,
}

impl Recorded {
    fn record(&self, from: &str, to: &str) -> impl FnMut(&LinkFrame) + Send + 'static {
        let (from, to, frames) = (from.to_owned(), to.to_owned(), Arc::clone(&self.frames));
        move |frame| frames.lock().unwrap().push((from.clone(), to.clone(), frame.encode_to_vec()))
    }
}

#[async_trait]
impl Transport for Recorded {
    async fn link(&self, node: &str, _: &str, outgoing: Outgoing) -> Result<Incoming, Status> {
        let agent = self.agents.lock().unwrap().get(node).and_then(Weak::upgrade).expect("an agent of the recording");
        let (mut sent, mut received) = (self.record(&self.me, node), self.record(node, &self.me));
        let incoming = agent.link(&self.me, outgoing.inspect_ok(move |frame| sent(frame)));
        Ok(Box::pin(incoming.map(move |frame| frame.inspect(&mut received))))
    }

    async fn complete(&self, _: &str, _: &str, _: PmiFenceCompleteRequest) -> Result<(), Status> {
        Err(Status::unimplemented("not recorded"))
    }
}

/// Converts frames to results, and passes each to a function first.
trait InspectOk: tokio_stream::Stream<Item = LinkFrame> + Sized {
    fn inspect_ok(
        self,
        mut inspect: impl FnMut(&LinkFrame) + Send,
    ) -> impl tokio_stream::Stream<Item = Result<LinkFrame, Status>> + Send + Unpin
    where
        Self: Send + Unpin,
    {
        self.map(move |frame| {
            inspect(&frame);
            Ok(frame)
        })
    }
}

impl InspectOk for Outgoing {}

/// Answers all questions but one.
struct Known;

#[async_trait]
impl Questions for Known {
    async fn answer(&self, _: NodeIndex, question: Bytes) -> Result<Bytes, String> {
        if question == "unknown" { Err("nobody knows".to_owned()) } else { Ok(question) }
    }
}

/// A launch of three nodes in a chain: a barrier, a fence with data, a fence of two nodes, questions, a dropped fence, the end.
async fn record() -> Vec<(String, String, Vec<u8>)> {
    let (agents, frames) = (Arc::default(), Recording::default());
    let nodes: Vec<_> = NODES.map(|name| node(name, &agents, &frames)).into();
    let member = |name: &str| Member { name: name.to_owned(), address: String::new() };
    let members: Arc<[Member]> = NODES.map(member).to_vec().into();
    let join = |(me, node): (u32, &Arc<FenceNode>)| {
        let (launch_id, nodes) = ("launch".to_owned(), Arc::clone(&members));
        let fan_out = FanOut { barrier: 1, data: 1 };
        node.join(Membership { launch_id, me: NodeIndex(me), nodes, fan_out }, Arc::new(Known))
    };
    let launches: Vec<_> = (0..).zip(&nodes).map(join).collect();
    let all = [0, 1, 2].map(NodeIndex);
    for (epoch, segments) in [(0, vec![]), (1, vec![Bytes::from(vec![7; 100])])] {
        let fences = launches.iter().map(|launch| fence(launch, &all, epoch, segments.clone()));
        let [a, b, c] = <[_; 3]>::try_from(fences.collect::<Vec<_>>()).unwrap_or_else(|_| unreachable!());
        tokio::join!(a, b, c);
    }
    tokio::join!(fence(&launches[1], &all[1..], 0, vec![]), fence(&launches[2], &all[1..], 0, vec![]));
    launches[0].ask(NodeIndex(1), "what".into()).await.unwrap();
    launches[1].ask(NodeIndex(2), "unknown".into()).await.unwrap_err();
    tokio::select! {
        biased;
        () = fence(&launches[0], &all, 2, vec![]) => unreachable!("nobody else is in it"),
        () = tokio::task::yield_now() => {}
    }
    drop(launches);
    tokio::task::yield_now().await;
    frames.lock().unwrap().clone()
}

fn node(name: &str, agents: &Arc<Mutex<HashMap<String, Weak<FenceNode>>>>, frames: &Recording) -> Arc<FenceNode> {
    let transport = Recorded { me: name.to_owned(), agents: Arc::clone(agents), frames: Arc::clone(frames) };
    let node = FenceNode::new(name.to_owned(), Arc::new(transport));
    agents.lock().unwrap().insert(name.to_owned(), Arc::downgrade(&node));
    node
}

async fn fence(launch: &LaunchFences, members: &[NodeIndex], epoch: u64, segments: Vec<Bytes>) {
    // A failed fence is also traffic.
    let _ = launch.exchange("job", members, &Scope::World, Epoch(epoch), segments).await;
}

/// The recording from the view of the middle node: the inputs of its session occur before the frames, between them, or never.
fn operations(recorded: &[(String, String, Vec<u8>)]) -> [Vec<Operation>; 3] {
    let peer = |name: &str| u8::from(name == NODES[2]);
    let to_me = recorded.iter().filter(|(_, to, _)| to == NODES[1]);
    let frames: Vec<_> = to_me.map(|(from, _, frame)| Operation::Frame(peer(from), frame.clone())).collect();
    let begin = |epoch| Operation::Begin(0, epoch, 0b111, epoch * 100);
    let session = [begin(0), begin(1), Operation::Begin(0, 0, 0b110, 0), Operation::Ask(0, 2)];
    let join = || vec![Operation::Accept(0), Operation::Join(0, 1)];
    let before = [join(), session.to_vec(), frames.clone()].concat();
    let mut between = join();
    for (at, frame) in frames.iter().enumerate() {
        between.push(frame.clone());
        between.extend(session.get(at).cloned());
        between.extend([Operation::Answer(0, 1), Operation::Tick]);
    }
    between.extend([Operation::Lost(1), Operation::GiveUp(0), Operation::Leave(0)]);
    let unclaimed = [frames, vec![Operation::Tick; 4], join()].concat();
    [before, between, unclaimed]
}

/// Each list of operations, from each initial state of a node.
fn in_each_state(lists: &[Vec<Operation>]) -> Vec<Vec<u8>> {
    let seeds = lists.iter().flat_map(|list| {
        let seed = fuzzing::encode(list);
        (0..5).map(move |state| [&[state], &seed[1..]].concat())
    });
    seeds.collect()
}

fn certificates() -> Vec<Vec<u8>> {
    let directory = tempfile::tempdir().unwrap();
    let authority = Authority::create(directory.path()).unwrap();
    let callers = [Caller::Api, Caller::Agent("node3".to_owned()), Caller::User(1000), Caller::Admin(None)];
    let der = |caller| {
        let issued = authority.issue(&caller, &["host".to_owned()], Validity::days(1).unwrap()).unwrap();
        CertificateDer::from_pem_slice(issued.certificate.as_bytes()).unwrap().to_vec()
    };
    callers.map(der).into()
}

fn targets() -> [Target; 6] {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    let recorded = runtime.block_on(record());
    let lists = operations(&recorded);
    let frames: Vec<_> = recorded.into_iter().map(|(.., frame)| frame).collect();
    let stream = fuzzing::link_stream_of(&frames);
    [
        Target { name: "link_frame", run: fuzzing::link_frame, seeds: frames },
        Target { name: "fence_node", run: fuzzing::fence_node, seeds: in_each_state(&lists) },
        Target { name: "link_stream", run: fuzzing::link_stream, seeds: vec![stream] },
        Target { name: "link_opening", run: fuzzing::link_opening, seeds: vec![fuzzing::link_opening_of_a_stranger()] },
        Target { name: "pieces", run: fuzzing::pieces, seeds: vec![vec![63, 0, 100, 1, 64, 65, 255], vec![3; 300]] },
        Target { name: "certificate", run: fuzzing::certificate, seeds: certificates() },
    ]
}

#[test]
fn recorded_traffic_and_damaged_copies_of_it_keep_all_promises() {
    targets().iter().for_each(Target::run_damaged);
}

#[test]
fn the_recording_has_every_kind_of_frame() {
    let kinds: Vec<_> = targets()[0].seeds.iter().map(|frame| frame[0] >> 3).collect();
    // Field numbers of `LinkFrame`. `awaited` is sent only to late nodes.
    for kind in 1..=5 {
        assert!(kinds.contains(&kind), "no frame of kind {kind} in {kinds:?}");
    }
}

#[test]
#[ignore = "writes files: the seeds for cargo fuzz"]
fn write_the_corpus() {
    targets().iter().for_each(Target::write_seeds);
}
