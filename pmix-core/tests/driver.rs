//! A driver over real sockets: admission of clients, answers and refusals.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use pmi_core::fence::LocalFence;
use pmi_core::ids::{JobId, LocalRank, NodeIndex, Rank};
use pmi_core::job::Job;
use pmi_core::server::EndReason;
use pmi_core::services::NoServices;
use pmix_core::driver::{Driver, Sinks};
use pmix_core::server::{Server, Settings};
use pmix_core::services::Alone;
use pmix_core::{JobIndex, Namespace, NodeFacts, Seat};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::oneshot;

type End = oneshot::Receiver<(JobIndex, EndReason)>;

fn own_uid() -> u32 {
    std::os::unix::fs::MetadataExt::uid(&std::fs::metadata("/proc/self").unwrap())
}

fn driver(uid: u32, trace: &Arc<Mutex<Vec<String>>>) -> (Driver, End) {
    driver_of(2, uid, trace)
}

fn driver_of(ranks: u32, uid: u32, trace: &Arc<Mutex<Vec<String>>>) -> (Driver, End) {
    let trace = Arc::clone(trace);
    let sink = move |message: &pmi_core::server::Trace| {
        trace.lock().unwrap().push(String::from_utf8(message.bytes.to_vec()).unwrap());
    };
    let sinks = Sinks {
        say: Box::new(|_| {}),
        died: Box::new(|_, _| {}),
        registered: Box::new(|_| {}),
        trace: Some(Box::new(sink)),
    };
    let server = Server::new(Settings { trace: true, ..Settings::default() });
    let (driver, end) = Driver::new(server, uid, Arc::new(Alone), sinks).unwrap();
    let namespace = Namespace {
        name: "job1".to_owned(),
        job: Job::on_one_node(JobId::new("job1").unwrap(), ranks),
        node: NodeIndex(0),
        hosts: vec!["n0".to_owned()],
        directory: None,
        allocation: None,
        parent: None,
        here: NodeFacts::default(),
        command: bytes::Bytes::new(),
        sets: Vec::new(),
    };
    driver.add(namespace, Arc::new(LocalFence), Arc::new(NoServices));
    (driver, end)
}

async fn greet(driver: &Driver, rank: u32) -> TcpStream {
    let mut stream = TcpStream::connect(driver.address()).await.unwrap();
    let mut payload = b"native\0\0\0\0\0\0job1\0".to_vec();
    payload.extend(rank.to_be_bytes());
    payload.extend(b"4.2.2\0v41\0\x01hash\0");
    let mut frame = vec![0xff; 8];
    frame.extend((payload.len() as u32).to_ne_bytes());
    frame.extend([0; 4]);
    frame.extend(payload);
    stream.write_all(&frame).await.unwrap();
    stream
}

/// Returns true if the server accepts the client; else it has closed the connection.
async fn is_welcome(stream: &mut TcpStream) -> bool {
    let mut welcome = [0; 8];
    stream.read_exact(&mut welcome).await.is_ok() && welcome[..4] == [0; 4]
}

async fn ask(stream: &mut TcpStream, payload: &[u8]) {
    stream.write_all(&pmix_core::wire::frame::message(101, payload)).await.unwrap();
}

async fn answer(stream: &mut TcpStream) -> Vec<u8> {
    let mut header = [0; 16];
    stream.read_exact(&mut header).await.unwrap();
    let length = u32::from_be_bytes(header[8..12].try_into().unwrap());
    let mut payload = vec![0; length as usize];
    stream.read_exact(&mut payload).await.unwrap();
    payload
}

#[tokio::test]
async fn two_ranks_meet_in_a_fence_and_leave() {
    let trace = Arc::default();
    let (driver, mut end) = driver(own_uid(), &trace);
    let mut ranks = [greet(&driver, 0).await, greet(&driver, 1).await];
    for rank in &mut ranks {
        assert!(is_welcome(rank).await);
    }
    assert!(!is_welcome(&mut greet(&driver, 1).await).await, "a second claim of a rank");
    let fence = b"\x02\x03\x02\x01\x02\x0ajob1\0\xfe\xff\xff\xff\x0f\x02\x00";
    ask(&mut ranks[0], fence).await;
    ask(&mut ranks[1], fence).await;
    for rank in &mut ranks {
        assert_eq!(answer(rank).await, [2, 0]);
        ask(rank, &[2, 5]).await;
        assert_eq!(answer(rank).await, [2, 0]);
    }
    for local in [LocalRank(0), LocalRank(1)] {
        driver.rank_exited(Seat { job: JobIndex(0), local });
    }
    assert!(end.try_recv().is_err());
    let trace = trace.lock().unwrap();
    assert!(trace[0].starts_with("pmix 101 FENCE"), "{trace:?}");
}

#[tokio::test]
async fn what_a_rank_said_last_is_heard_before_its_end() {
    let trace = Arc::default();
    let (driver, mut end) = driver(own_uid(), &trace);
    let mut rank = greet(&driver, 0).await;
    assert!(is_welcome(&mut rank).await);
    // an abort with code 7, and the end of the process
    ask(&mut rank, b"\x02\x01\x02\x0e\x02\x00\x02\x00").await;
    drop(rank);
    driver.drain(Seat { job: JobIndex(0), local: LocalRank(0) });
    let (_, reason) = end.try_recv().expect("the abort was not heard");
    assert!(matches!(reason, EndReason::Abort { rank: Rank(0), code: Some(7), .. }), "{reason:?}");
}

#[tokio::test]
async fn processes_of_other_users_are_turned_away() {
    let trace = Arc::default();
    let (driver, _end) = driver(own_uid() + 1, &trace);
    assert!(!is_welcome(&mut greet(&driver, 0).await).await);
}

#[tokio::test(start_paused = true)]
async fn who_does_not_say_who_it_is_is_turned_away_in_time() {
    let trace = Arc::default();
    let (driver, _end) = driver(own_uid(), &trace);
    let mut stranger = TcpStream::connect(driver.address()).await.unwrap();
    assert_eq!(stranger.read(&mut [0; 8]).await.unwrap(), 0, "the connection is not closed");
}

#[tokio::test]
async fn a_rank_that_does_not_read_holds_nobody_up() {
    let trace = Arc::default();
    let (driver, _end) = driver(own_uid(), &trace);
    let mut deaf = greet(&driver, 0).await;
    let mut other = greet(&driver, 1).await;
    assert!(is_welcome(&mut deaf).await && is_welcome(&mut other).await);
    // It requests the facts about its job until its requests are no longer taken.
    let question = pmix_core::wire::frame::message(101, &[2, 0]).repeat(64);
    let flood = async { while deaf.write_all(&question).await.is_ok() {} };
    assert!(tokio::time::timeout(Duration::from_millis(500), flood).await.is_err());
    ask(&mut other, &[2, 5]).await;
    assert_eq!(answer(&mut other).await, [2, 0]);
}

/// The limit on unclaimed connections ignores connections after their handshake.
#[tokio::test]
async fn more_ranks_than_may_be_unclaimed_at_once_are_served() {
    const RANKS: u32 = 1100;
    let (driver, mut end) = driver_of(RANKS, own_uid(), &Arc::default());
    let mut ranks = Vec::new();
    for rank in 0..RANKS {
        let mut stream = greet(&driver, rank).await;
        assert!(is_welcome(&mut stream).await, "rank {rank}");
        // A rank that has left also frees room.
        if rank % 8 == 0 {
            ranks.push(stream);
        }
    }
    ask(&mut ranks[0], &[2, 5]).await;
    assert_eq!(answer(&mut ranks[0]).await, [2, 0]);
    assert!(end.try_recv().is_err());
}
