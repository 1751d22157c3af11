//! Admission of links to a session, and the refusal of invalid ones: strangers, replays, forged nodes, sessions of other launches.

mod agents;

use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use agents::proxy::Pace;
use agents::sessions::LAUNCH;
use agents::{Over, World};
use bytes::Bytes;
use pmi_core::fence::Scope;
use pmi_core::ids::{Epoch, NodeIndex};
use pmi_transport::fence::{FanOut, LaunchFences, Limits, Member};
use pmi_transport::session_link::{Arrivals, GateRefusal, Greeting, HandOver, Handed, LaunchHash, LinkKey, Visitable};

const KEY: [u8; LinkKey::LEN] = [7; LinkKey::LEN];

fn key(byte: u8) -> LinkKey {
    LinkKey::from_bytes([byte; LinkKey::LEN])
}

/// Stores the greetings that it receives.
#[derive(Default)]
struct GreetingStore(Mutex<Vec<Greeting>>);

impl HandOver for GreetingStore {
    fn hand_over(&self, handed: &Handed) -> io::Result<()> {
        self.0.lock().unwrap().push(handed.greeting.clone());
        Ok(())
    }
}

/// The port of node 1 of a launch with nodes at 127.0.0.1, .2 and .3.
#[derive(Default)]
struct Port {
    arrivals: Arc<Arrivals>,
    session: Arc<GreetingStore>,
}

impl Port {
    fn expect(&self) -> Visitable {
        let nodes: Vec<_> = (0..3)
            .map(|node| Member { name: format!("node{node}"), address: format!("127.0.0.{}:1", node + 1) })
            .collect();
        self.arrivals.expect(LAUNCH, key(7).gate_key(), NodeIndex(1), nodes.into(), Arc::clone(&self.session) as _)
    }

    async fn arrive(&self, greeting: Greeting, from: &str) -> Result<(), GateRefusal> {
        self.arrivals.arrive(greeting, connection(), SocketAddr::new(from.parse::<IpAddr>().unwrap(), 4000)).await
    }

    fn handed(&self) -> usize {
        self.session.0.lock().unwrap().len()
    }
}

fn connection() -> TcpStream {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    TcpStream::connect(listener.local_addr().unwrap()).unwrap()
}

fn greeting(from: u32, to: u32, key: &LinkKey) -> Greeting {
    Greeting::new(LaunchHash::of(LAUNCH), NodeIndex(from), NodeIndex(to), [1; 16], &key.gate_key())
}

#[tokio::test]
async fn a_session_of_the_launch_is_let_through_from_its_own_address() {
    let port = Port::default();
    let _expected = port.expect();
    port.arrive(greeting(0, 1, &key(7)), "127.0.0.1").await.unwrap();
    port.arrive(greeting(2, 1, &key(7)), "::ffff:127.0.0.3").await.unwrap();
    assert_eq!(port.handed(), 2);
}

#[tokio::test]
async fn who_forges_a_node_a_key_or_an_address_is_refused() {
    let port = Port::default();
    let _expected = port.expect();
    let refusals = [
        (greeting(0, 1, &key(8)), "127.0.0.1", "its greeting is not of a session of the launch"),
        (greeting(0, 1, &key(7)), "127.0.0.3", "it came from 127.0.0.3, and node node0 is at 127.0.0.1:1"),
        (greeting(0, 2, &key(7)), "127.0.0.1", "it is from node 0 to node 2, and here is node 1 of 3"),
        (greeting(1, 1, &key(7)), "127.0.0.2", "it is from node 1 to node 1, and here is node 1 of 3"),
        (greeting(3, 1, &key(7)), "127.0.0.4", "it is from node 3 to node 1, and here is node 1 of 3"),
    ];
    for (greeting, from, text) in refusals {
        assert_eq!(port.arrive(greeting, from).await.unwrap_err().to_string(), text);
    }
    assert_eq!(port.handed(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_link_waits_for_its_launch_to_begin_and_not_for_ever() {
    let port = Arc::new(Port::default());
    let early = tokio::spawn({
        let port = Arc::clone(&port);
        async move { port.arrive(greeting(0, 1, &key(7)), "127.0.0.1").await }
    });
    tokio::time::sleep(Duration::from_secs(20)).await;
    let expected = port.expect();
    early.await.unwrap().unwrap();
    assert_eq!(port.handed(), 1);
    drop(expected);
    let late = port.arrive(greeting(0, 1, &key(7)), "127.0.0.1").await;
    assert!(matches!(late, Err(GateRefusal::Ended { .. })), "{late:?}");
    let other = Greeting::new(LaunchHash::of("other"), NodeIndex(0), NodeIndex(1), [1; 16], &key(7).gate_key());
    let never = port.arrive(other, "127.0.0.1").await;
    assert!(matches!(never, Err(GateRefusal::UnknownLaunch { .. })), "{never:?}");
}

#[tokio::test(start_paused = true)]
async fn one_address_cannot_take_the_places_of_all() {
    let port = Arc::new(Port::default());
    let arrive = |from: &'static str| {
        let port = Arc::clone(&port);
        tokio::spawn(async move { port.arrive(greeting(0, 1, &key(7)), from).await })
    };
    let flood: Vec<_> = (0..300).map(|_| arrive("127.0.0.9")).collect();
    tokio::time::sleep(Duration::from_secs(1)).await;
    let other = arrive("127.0.0.1");
    tokio::time::sleep(Duration::from_secs(1)).await;
    let _expected = port.expect();
    let mut refused = 0;
    for link in flood {
        refused += usize::from(matches!(link.await.unwrap(), Err(GateRefusal::TooMany)));
    }
    assert_eq!(refused, 300 - 256);
    other.await.unwrap().unwrap();
}

/// Contributes a byte of each node to a fence of all nodes.
async fn fence(launches: &[LaunchFences], epoch: u64) -> Vec<Bytes> {
    let members: Vec<_> = (0..launches.len() as u32).map(NodeIndex).collect();
    let exchanges = launches.iter().map(|launch| async {
        let segments = vec![Bytes::from_static(b"x")];
        launch.exchange("job", &members, &Scope::World, Epoch(epoch), segments).await.unwrap()
    });
    let mut results = Vec::new();
    let mut running: Vec<_> = exchanges.map(Box::pin).collect();
    std::future::poll_fn(|context| {
        running.retain_mut(|exchange| match exchange.as_mut().poll(context) {
            std::task::Poll::Ready(result) => {
                results.push(result.runs.concat().into());
                false
            }
            std::task::Poll::Pending => true,
        });
        if running.is_empty() { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
    })
    .await;
    results
}

/// Sends bytes to a port, and reads until it closes the connection; returns the received bytes.
async fn send(address: String, bytes: Vec<u8>) -> Vec<u8> {
    let conversation = tokio::task::spawn_blocking(move || {
        let mut socket = TcpStream::connect(address).unwrap();
        // The other end may close the connection before all bytes are sent.
        let _ = socket.write_all(&bytes);
        let mut answer = Vec::new();
        socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let _ = socket.read_to_end(&mut answer);
        answer
    });
    conversation.await.unwrap()
}

/// With the greeting, but without the key.
#[tokio::test]
async fn a_greeting_without_a_handshake_ends_no_link() {
    let world = World::new(2, Over::Sessions, Limits::default()).await;
    let launches = world.join_all(LAUNCH, FanOut::default());
    assert_eq!(fence(&launches, 0).await, vec![Bytes::from_static(b"xx"); 2]);
    let gate = LinkKey::from_bytes(KEY).gate_key();
    let greeting = Greeting::new(LaunchHash::of(LAUNCH), NodeIndex(1), NodeIndex(0), [3; 16], &gate);
    let answer = send(world.members[0].address.clone(), [greeting.as_bytes(), [9; 49].as_slice()].concat()).await;
    assert_eq!(answer, [], "a stranger gets no byte");
    assert_eq!(fence(&launches, 1).await, vec![Bytes::from_static(b"xx"); 2]);
    assert_eq!((world.agent(0).links(), world.agent(1).links()), (1, 1));
}

/// Replays all bytes of a link, during a fence that waits for their sender. The handshake response has another random number than the
/// first time. So no recorded frame can be decrypted, and none is accepted.
#[tokio::test]
async fn what_was_recorded_and_is_sent_again_brings_nothing_to_a_fence_and_ends_no_link() {
    let (world, recordings) = World::behind_proxies(2, Limits::default(), |_| Some(Pace::AT_ONCE)).await;
    let launches = world.join_all(LAUNCH, FanOut::default());
    for epoch in 0..3 {
        assert_eq!(fence(&launches, epoch).await, vec![Bytes::from_static(b"xx"); 2]);
    }
    let nodes = [NodeIndex(0), NodeIndex(1)];
    let arrive =
        |node: usize| launches[node].exchange("job", &nodes, &Scope::World, Epoch(3), vec![Bytes::from_static(b"x")]);
    let (opener, called) = if recordings[0].lock().unwrap().is_empty() { (0, 1) } else { (1, 0) };
    let recorded = recordings[called].lock().unwrap().clone();
    assert_eq!(recorded.len(), 1, "there is one link");
    assert!(recorded[0].len() > 80 + 49, "greeting, handshake and frames: {} bytes", recorded[0].len());

    let mut waiting = Box::pin(arrive(called));
    // The whole recording, and cuts after the greeting, the handshake and the first frames; all at once.
    let ends = [80, 80 + 33, 80 + 49, 200, recorded[0].len()].map(|end| end.min(recorded[0].len()));
    let address = &world.members[called].address;
    let replays: Vec<_> =
        ends.iter().map(|&end| tokio::spawn(send(address.clone(), recorded[0][..end].to_vec()))).collect();
    let replayed = async {
        for replay in replays {
            replay.await.unwrap();
        }
    };
    tokio::select! {
        result = &mut waiting => panic!("a replay completed a fence: {result:?}"),
        () = replayed => {}
    }
    assert_eq!((world.agent(0).links(), world.agent(1).links()), (1, 1));
    let (one, other) = tokio::join!(waiting, arrive(opener));
    assert_eq!((one.unwrap().runs.concat(), other.unwrap().runs.concat()), (b"xx".to_vec(), b"xx".to_vec()));
}

/// Single bytes, delayed pieces, and one slow node among fast ones: nodes receive the frames of different senders in another order
/// than they were sent.
#[tokio::test]
async fn slow_links_and_those_that_pass_each_other_bring_the_same_to_all() {
    let slow = Pace { piece: 1, delay: Duration::ZERO };
    let late = Pace { piece: 65_536, delay: Duration::from_millis(30) };
    let paces: [&dyn Fn(u32) -> Option<Pace>; 3] =
        [&|_| Some(slow), &|_| Some(late), &|node| Some(if node % 2 == 0 { late } else { Pace::AT_ONCE })];
    for pace in paces {
        let (world, _) = World::behind_proxies(5, Limits::default(), pace).await;
        let launches = world.join_all(LAUNCH, FanOut { barrier: 2, data: 2 });
        for epoch in 0..3 {
            assert_eq!(fence(&launches, epoch).await, vec![Bytes::from_static(b"xxxxx"); 5]);
        }
        let answer = launches[3].ask(NodeIndex(4), Bytes::from_static(b"it")).await.unwrap();
        assert_eq!(answer, "3 asked it");
    }
}

/// It still has the launch's key, and its address.
#[tokio::test]
async fn a_node_that_was_cut_off_opens_no_link_and_is_sent_nothing() {
    let world = World::new(3, Over::Sessions, Limits::default()).await;
    let launches = world.join_all(LAUNCH, FanOut::default());
    let ask = |from: usize, to: u32| launches[from].ask(NodeIndex(to), Bytes::from_static(b"it"));
    assert_eq!(fence(&launches, 0).await, vec![Bytes::from_static(b"xxx"); 3]);
    assert_eq!(ask(2, 0).await.unwrap(), "2 asked it");
    for node in [0, 1] {
        world.sessions[node].cut_off(world.agent(node as u32), NodeIndex(2), "its certificate was revoked");
    }
    for node in [0, 1] {
        ask(2, node).await.unwrap_err();
        let refusal = ask(node as usize, 2).await.unwrap_err().to_string();
        assert!(refusal.contains("the node is lost to the launch"), "{refusal}");
        assert_eq!(world.agent(node).links(), 1);
    }
    let others = [NodeIndex(0), NodeIndex(1)];
    let scope = Scope::Group { name: "others".into(), nodes: others.into() };
    let exchange =
        |node: usize| launches[node].exchange("job", &others, &scope, Epoch(0), vec![Bytes::from_static(b"x")]);
    let (one, other) = tokio::join!(exchange(0), exchange(1));
    assert_eq!((one.unwrap().runs.concat(), other.unwrap().runs.concat()), (b"xx".to_vec(), b"xx".to_vec()));
}

#[tokio::test]
async fn nothing_but_a_greeting_is_read_before_the_key_is_proved() {
    let world = World::new(2, Over::Sessions, Limits::default()).await;
    let launches = world.join_all(LAUNCH, FanOut::default());
    let address = world.members[0].address.clone();
    let stranger = tokio::task::spawn_blocking(move || {
        let mut socket = TcpStream::connect(address).unwrap();
        socket
            .write_all(
                b"LATLINK2 and whatever a later version says, in more than eighty bytes, so that all of it is read",
            )
            .unwrap();
        let mut answer = Vec::new();
        socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let _ = socket.read_to_end(&mut answer);
        answer
    });
    assert_eq!(stranger.await.unwrap(), []);
    assert_eq!(fence(&launches, 0).await, vec![Bytes::from_static(b"xx"); 2]);
}
