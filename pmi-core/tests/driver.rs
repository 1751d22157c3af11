//! The driver over real sockets: effects of a slow, silent, invalid or vanished peer on the other ranks.

use std::io::{ErrorKind, Write};
use std::net::{TcpListener, TcpStream as StdTcpStream};
use std::os::unix::net::UnixStream as StdUnixStream;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use pmi_core::driver::{Admission, Driver};
use pmi_core::fence::LocalFence;
use pmi_core::ids::{JobId, LocalRank, NodeIndex, Rank};
use pmi_core::job::Job;
use pmi_core::server::{EndReason, Offence, Server, Settings};
use pmi_core::services::{NameCall, NameError, NameRequest, NoServices, Services};
use pmi_core::wire::FrameError;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::oneshot;
use tokio::time;

const INIT: &[u8] = b"cmd=init pmi_version=1 pmi_subversion=1\n";
const GREETED: &[u8] = b"cmd=response_to_init rc=0 pmi_version=1 pmi_subversion=1\n";
const GET: &[u8] = b"cmd=get kvsname=j key=k\n";

/// A host that accepts every name, and answers no lookup.
struct Nobody;

#[async_trait]
impl Services for Nobody {
    async fn name(&self, request: NameRequest) -> Result<Bytes, NameError> {
        match request.call {
            // A service that never answers, like one that waits for another node.
            NameCall::Lookup { .. } => std::future::pending().await,
            _ => Ok(Bytes::new()),
        }
    }
}

fn drive(ranks: u32) -> (Driver, oneshot::Receiver<EndReason>) {
    let job = Job::on_one_node(JobId::new("j").unwrap(), ranks);
    Driver::new(Server::new(job, NodeIndex(0), Settings::default()), Arc::new(LocalFence), Arc::new(Nobody), None)
}

#[tokio::test]
async fn ranks_are_told_if_the_host_has_names() {
    let hosts: [(Arc<dyn Services>, &str); 2] = [(Arc::new(Nobody), "TRUE"), (Arc::new(NoServices), "FALSE")];
    for (host, expected) in hosts {
        let server = Server::new(Job::on_one_node(JobId::new("j").unwrap(), 1), NodeIndex(0), Settings::default());
        let (driver, _ended) = Driver::new(server, Arc::new(LocalFence), host, None);
        let mut rank = connect(&driver, 0);
        rank.write_all(INIT).await.unwrap();
        rank.write_all(b"cmd=get kvsname=j key=hasNameServ\n").await.unwrap();
        let expected = [GREETED, format!("cmd=get_result rc=0 value={expected}\n").as_bytes()].concat();
        let mut told = vec![0; expected.len()];
        rank.read_exact(&mut told).await.unwrap();
        assert_eq!(String::from_utf8_lossy(&told), String::from_utf8_lossy(&expected));
    }
}

#[tokio::test]
async fn a_rank_has_one_connection_and_a_stranger_none() {
    let (driver, _ended) = drive(2);
    let mut rank = connect(&driver, 1);
    let refusal = |local| {
        let (ours, _theirs) = StdUnixStream::pair().unwrap();
        driver.connect(LocalRank(local), ours).unwrap_err().to_string()
    };
    assert_eq!(refusal(1), "rank 1 has a connection to its server already");
    assert_eq!(refusal(2), "local rank 2 is not on this node, which has 2 ranks of the job");
    rank.write_all(INIT).await.unwrap();
    let mut told = vec![0; GREETED.len()];
    rank.read_exact(&mut told).await.unwrap();
    assert_eq!(told, GREETED);
}

/// The rank's end of a socket pair.
fn connect(driver: &Driver, rank: u32) -> UnixStream {
    let (ours, theirs) = StdUnixStream::pair().unwrap();
    driver.connect(LocalRank(rank), ours).unwrap();
    theirs.set_nonblocking(true).unwrap();
    UnixStream::from_std(theirs).unwrap()
}

fn own_uid() -> u32 {
    std::os::unix::fs::MetadataExt::uid(&std::fs::metadata("/proc/self").unwrap())
}

/// A driver that listens for ranks, and its address.
fn listen(ranks: u32, claim_within: Duration) -> (Driver, oneshot::Receiver<EndReason>, std::net::SocketAddr) {
    let (driver, ended) = drive(ranks);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    driver.listen(listener, Admission { uid: own_uid(), claim_within }).unwrap();
    (driver, ended, address)
}

async fn ask(socket: &mut (impl AsyncReadExt + AsyncWriteExt + Unpin), message: &[u8], expected: &[u8]) {
    socket.write_all(message).await.unwrap();
    expect(socket, expected).await;
}

async fn expect(socket: &mut (impl AsyncReadExt + Unpin), expected: &[u8]) {
    let mut answer = vec![0; expected.len()];
    socket.read_exact(&mut answer).await.unwrap();
    assert_eq!(answer.escape_ascii().to_string(), expected.escape_ascii().to_string());
}

/// Waits until the peer closes. A peer that closes with unread bytes resets the connection.
async fn expect_close(socket: &mut (impl AsyncReadExt + Unpin)) {
    match socket.read(&mut [0; 16]).await {
        Ok(read) => assert_eq!(read, 0, "something was sent"),
        Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset),
    }
}

#[tokio::test]
async fn a_rank_that_reads_no_answers_delays_nobody_and_is_read_no_more() {
    let (driver, mut ended) = drive(2);
    let (mut flood, mut other) = (connect(&driver, 0), connect(&driver, 1));
    ask(&mut flood, INIT, GREETED).await;
    ask(&mut other, INIT, GREETED).await;
    let value = "v".repeat(4000);
    ask(&mut other, format!("cmd=put kvsname=j key=k value={value}\n").as_bytes(), b"cmd=put_result rc=0\n").await;
    // Until no more bytes are taken: the driver reads as long as the socket buffers take answers.
    let mut asked = 0;
    while let Ok(Ok(written)) = time::timeout(Duration::from_millis(100), flood.write(&GET.repeat(100))).await {
        asked += written;
    }
    assert!(asked < 8 * 1024 * 1024, "{asked} bytes were taken from a rank that reads nothing");
    let answer = format!("cmd=get_result rc=0 value={value}\n");
    for _ in 0..1000 {
        ask(&mut other, GET, answer.as_bytes()).await;
    }
    // The flood receives all answers once it reads.
    for _ in 0..asked / GET.len() {
        expect(&mut flood, answer.as_bytes()).await;
    }
    assert!(ended.try_recv().is_err());
}

#[tokio::test]
async fn an_endless_line_ends_the_job_and_the_connection() {
    let (driver, ended) = drive(2);
    let (mut rank, mut other) = (connect(&driver, 0), connect(&driver, 1));
    ask(&mut other, INIT, GREETED).await;
    rank.write_all(b"cmd=").await.unwrap();
    let mut written = 0;
    while rank.write_all(&[b'x'; 1024]).await.is_ok() {
        written += 1024;
    }
    assert!(written < 1024 * 1024, "{written} bytes were taken");
    expect_close(&mut rank).await;
    let reason = ended.await.unwrap();
    let EndReason::Offence { rank: Rank(0), offence: Offence::Frame(FrameError::TooLong { .. }) } = reason else {
        panic!("{reason:?}");
    };
}

#[tokio::test]
async fn many_messages_in_one_write_are_answered_in_order() {
    let (driver, _ended) = drive(1);
    let mut rank = connect(&driver, 0);
    let asked = b"cmd=get_maxes\ncmd=get_appnum\n    14cmd=job-getid;cmd=barrier_in\n14    cmd=kvs-fence;".repeat(50);
    let told = b"cmd=maxes rc=0 kvsname_max=256 keylen_max=64 vallen_max=1024\ncmd=appnum rc=0 appnum=0\n    36\
        cmd=job-getid-response;rc=0;jobid=j;"
        .to_vec();
    rank.write_all(&[INIT, &asked].concat()).await.unwrap();
    expect(&mut rank, GREETED).await;
    // Fences are answered when they are complete; all other requests at once, and in order.
    let mut answers = vec![0; 50 * (told.len() + "cmd=barrier_out rc=0\n    28cmd=kvs-fence-response;rc=0;".len())];
    rank.read_exact(&mut answers).await.unwrap();
    let answers = String::from_utf8(answers).unwrap();
    assert_eq!(answers.matches("cmd=barrier_out rc=0\n").count(), 50);
    assert_eq!(answers.matches("    28cmd=kvs-fence-response;rc=0;").count(), 50);
    let rest = answers.replace("cmd=barrier_out rc=0\n", "").replace("    28cmd=kvs-fence-response;rc=0;", "");
    assert_eq!(rest, String::from_utf8(told.repeat(50)).unwrap());
}

#[tokio::test]
async fn bytes_that_come_one_by_one_are_understood() {
    let (driver, _ended) = drive(1);
    let mut rank = connect(&driver, 0);
    for byte in [INIT, b"    14cmd=kvs-fence;cmd=finalize\n"].concat() {
        rank.write_all(&[byte]).await.unwrap();
        tokio::task::yield_now().await;
    }
    expect(&mut rank, &[GREETED, b"    28cmd=kvs-fence-response;rc=0;cmd=finalize_ack rc=0\n"].concat()).await;
}

#[tokio::test]
async fn a_question_that_nobody_answers_holds_nobody_up() {
    let (driver, _ended) = drive(2);
    let (mut asker, mut other) = (connect(&driver, 0), connect(&driver, 1));
    ask(&mut asker, INIT, GREETED).await;
    ask(&mut other, INIT, GREETED).await;
    asker.write_all(b"cmd=lookup_name service=s\n").await.unwrap();
    ask(&mut other, b"cmd=publish_name service=s port=p\n", b"cmd=publish_result rc=0\n").await;
    ask(&mut asker, b"cmd=get_appnum\n", b"cmd=appnum rc=0 appnum=0\n").await;
}

#[tokio::test]
async fn the_driver_takes_its_connections_with_it() {
    let (driver, mut ended, address) = listen(3, Duration::from_secs(600));
    let (mut idle, mut waiting) = (connect(&driver, 0), connect(&driver, 1));
    let mut visitor = TcpStream::connect(address).await.unwrap();
    ask(&mut visitor, b"cmd=initack pmiid=2\n", b"cmd=initack rc=0\ncmd=set size=3\ncmd=set rank=2\ncmd=set debug=0\n")
        .await;
    ask(&mut waiting, INIT, GREETED).await;
    waiting.write_all(b"cmd=barrier_in\n").await.unwrap();
    drop(driver);
    expect_close(&mut idle).await;
    expect_close(&mut waiting).await;
    expect_close(&mut visitor).await;
    assert!(ended.try_recv().is_err());
    // The listener closes after the tasks have been dropped.
    while TcpStream::connect(address).await.is_ok() {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn the_servers_end_is_closed_after_the_ranks() {
    let (driver, mut ended) = drive(1);
    let mut rank = connect(&driver, 0);
    ask(&mut rank, INIT, GREETED).await;
    // The rank reads its last answers after it has closed its sending side, as Slurm's client does.
    rank.write_all(b"cmd=finalize\n").await.unwrap();
    rank.shutdown().await.unwrap();
    expect(&mut rank, b"cmd=finalize_ack rc=0\n").await;
    expect_close(&mut rank).await;
    driver.rank_exited(LocalRank(0));
    assert!(ended.try_recv().is_err());
}

#[tokio::test]
async fn a_ranks_last_words_count_before_its_end() {
    let (driver, mut ended) = drive(2);
    let (ours, mut rank) = StdUnixStream::pair().unwrap();
    driver.connect(LocalRank(0), ours).unwrap();
    // The driver has read nothing when the process ends: no task has run since.
    rank.write_all(&[INIT, b"cmd=finalize\n"].concat()).unwrap();
    driver.drain(LocalRank(0));
    driver.rank_exited(LocalRank(0));
    assert!(ended.try_recv().is_err(), "it had finalized");
    rank.set_nonblocking(true).unwrap();
    expect(&mut UnixStream::from_std(rank).unwrap(), &[GREETED, b"cmd=finalize_ack rc=0\n"].concat()).await;

    let (ours, mut rank) = StdUnixStream::pair().unwrap();
    driver.connect(LocalRank(1), ours).unwrap();
    rank.write_all(&[INIT, b"cmd=abort exitcode=42\n"].concat()).unwrap();
    driver.drain(LocalRank(1));
    driver.rank_exited(LocalRank(1));
    assert!(matches!(ended.try_recv(), Ok(EndReason::Abort { code: Some(42), .. })));
}

#[tokio::test]
async fn a_rank_that_comes_through_the_port_is_claimed_once() {
    let (_driver, mut ended, address) = listen(2, Duration::from_secs(600));
    let (mut first, mut second) =
        (TcpStream::connect(address).await.unwrap(), TcpStream::connect(address).await.unwrap());
    let claimed = b"cmd=initack rc=0\ncmd=set size=2\ncmd=set rank=1\ncmd=set debug=0\n";
    ask(&mut first, b"cmd=initack pmiid=1\n", claimed).await;
    ask(&mut second, b"cmd=initack pmiid=1\n", b"cmd=initack rc=1 msg=rank_1_is_claimed_already\n").await;
    ask(&mut first, INIT, GREETED).await;
    // PMI-2 on the second connection
    let init2 = b"cmd=init pmi_version=2 pmi_subversion=0\n";
    ask(&mut second, init2, b"cmd=response_to_init rc=0 pmi_version=2 pmi_subversion=0\n").await;
    let message = b"36    cmd=fullinit;srcid=0;threaded=FALSE;";
    let answer = b"   113cmd=fullinit-response;rc=0;pmi-version=2;pmi-subversion=0;rank=0;size=2;appnum=0;debugged=FALSE;pmiverbose=FALSE;";
    ask(&mut second, message, answer).await;
    assert!(ended.try_recv().is_err());
}

#[tokio::test]
async fn a_claim_that_nothing_followed_is_void_once_its_connection_is_gone() {
    let (_driver, _ended, address) = listen(2, Duration::from_secs(600));
    let claimed = b"cmd=initack rc=0\ncmd=set size=2\ncmd=set rank=1\ncmd=set debug=0\n";
    let mut false_start = TcpStream::connect(address).await.unwrap();
    ask(&mut false_start, b"cmd=initack pmiid=1\n", claimed).await;
    false_start.shutdown().await.unwrap();
    expect_close(&mut false_start).await;
    let mut rank = TcpStream::connect(address).await.unwrap();
    ask(&mut rank, b"cmd=initack pmiid=1\n", claimed).await;
    ask(&mut rank, INIT, GREETED).await;
}

/// `sh -c './a; ./b'`, where both are programs of one rank.
#[tokio::test]
async fn the_next_program_of_a_rank_claims_it_through_the_port_again() {
    let (driver, mut ended, address) = listen(1, Duration::from_secs(600));
    let claimed = b"cmd=initack rc=0\ncmd=set size=1\ncmd=set rank=0\ncmd=set debug=0\n";
    // The driver may detect the end of a program after the beginning of the next one.
    let programs = async {
        let mut still_open = None;
        for is_seen in [true, true, false, true] {
            let mut program = TcpStream::connect(address).await.unwrap();
            ask(&mut program, b"cmd=initack pmiid=0\n", claimed).await;
            ask(&mut program, INIT, GREETED).await;
            if let Some(mut former) = still_open.take() {
                expect_close(&mut former).await;
            }
            ask(&mut program, b"cmd=finalize\n", b"cmd=finalize_ack rc=0\n").await;
            if is_seen {
                program.shutdown().await.unwrap();
                expect_close(&mut program).await;
            } else {
                still_open = Some(program);
            }
        }
    };
    time::timeout(Duration::from_secs(30), programs).await.expect("a program is not refused");
    driver.rank_exited(LocalRank(0));
    assert!(ended.try_recv().is_err());
}

/// A client sends both messages in any order.
#[tokio::test]
async fn a_rank_that_is_greeted_before_it_is_known_leaves_finalize_out_at_its_cost() {
    let (driver, ended, address) = listen(1, Duration::from_secs(600));
    let mut rank = TcpStream::connect(address).await.unwrap();
    ask(&mut rank, INIT, GREETED).await;
    ask(&mut rank, b"cmd=initack pmiid=0\n", b"cmd=initack rc=0\ncmd=set size=1\ncmd=set rank=0\ncmd=set debug=0\n")
        .await;
    driver.rank_exited(LocalRank(0));
    assert!(matches!(ended.await, Ok(EndReason::LeftWithoutFinalize { .. })));
}

#[tokio::test]
async fn a_strangers_garbage_costs_the_stranger_alone() {
    let (driver, mut ended, address) = listen(2, Duration::from_secs(600));
    let mut rank = connect(&driver, 0);
    ask(&mut rank, INIT, GREETED).await;
    let garbage: [&[u8]; 4] = [b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\x00", b"999999", b"cmd=\n"];
    for bytes in garbage {
        let mut stranger = TcpStream::connect(address).await.unwrap();
        stranger.write_all(bytes).await.unwrap();
        expect_close(&mut stranger).await;
        ask(&mut rank, b"cmd=get_appnum\n", b"cmd=appnum rc=0 appnum=0\n").await;
    }
    let mut late = TcpStream::connect(address).await.unwrap();
    let claimed = b"cmd=initack rc=0\ncmd=set size=2\ncmd=set rank=1\ncmd=set debug=0\n";
    ask(&mut late, b"cmd=initack pmiid=1\n", claimed).await;
    assert!(ended.try_recv().is_err());
}

/// Connects without a turn of the runtime: tokio's clock must not run while the kernel answers.
fn dial(address: std::net::SocketAddr) -> TcpStream {
    let stream = StdTcpStream::connect(address).unwrap();
    stream.set_nonblocking(true).unwrap();
    TcpStream::from_std(stream).unwrap()
}

#[tokio::test(start_paused = true)]
async fn who_does_not_say_which_rank_it_is_is_sent_away_in_time() {
    let (_driver, mut ended, address) = listen(2, Duration::from_secs(10));
    let (mut silent, mut flood, mut rank) = (dial(address), dial(address), dial(address));
    ask(&mut rank, b"cmd=initack pmiid=0\n", b"cmd=initack rc=0\ncmd=set size=2\ncmd=set rank=0\ncmd=set debug=0\n")
        .await;
    // A client that sends continuously, and reads nothing.
    while flood.try_write(&b"cmd=get_maxes\n".repeat(1000)).is_ok() {
        tokio::task::yield_now().await;
    }
    let asked = time::Instant::now();
    expect_close(&mut silent).await;
    assert!(asked.elapsed() >= Duration::from_secs(9), "{:?}", asked.elapsed());
    // The flood is also disconnected, even with many queued requests.
    while flood.read(&mut [0; 4096]).await.is_ok_and(|read| read > 0) {}
    // The rank stays connected, and later clients can still connect.
    time::sleep(Duration::from_secs(60)).await;
    ask(&mut rank, INIT, GREETED).await;
    let mut late = dial(address);
    ask(&mut late, b"cmd=initack pmiid=1\n", b"cmd=initack rc=0\ncmd=set size=2\ncmd=set rank=1\ncmd=set debug=0\n")
        .await;
    time::sleep(Duration::from_secs(60)).await;
    ask(&mut late, INIT, GREETED).await;
    assert!(ended.try_recv().is_err());
}

#[tokio::test(start_paused = true)]
async fn the_time_of_one_stranger_is_not_that_of_the_next() {
    let (_driver, _ended, address) = listen(1, Duration::from_secs(10));
    let mut first = dial(address);
    ask(&mut first, b"cmd=get_maxes\n", b"cmd=maxes rc=1 msg=init_comes_first\n").await;
    drop(first);
    time::sleep(Duration::from_secs(9)).await;
    let mut second = dial(address);
    // The second connection reuses the slot of the first, but not its deadline.
    time::sleep(Duration::from_secs(5)).await;
    ask(&mut second, b"cmd=initack pmiid=0\n", b"cmd=initack rc=0\ncmd=set size=1\ncmd=set rank=0\ncmd=set debug=0\n")
        .await;
}

/// A connection without room in the kernel's queue is retried after a second.
#[tokio::test]
async fn ranks_that_come_all_at_once_find_room_before_anybody_is_let_in() {
    let (_driver, _ended, address) = listen(1, Duration::from_secs(600));
    // No connection is accepted meanwhile: this thread runs the runtime.
    let ranks = (0..600).map(|_| StdTcpStream::connect_timeout(&address, Duration::from_millis(900)));
    assert_eq!(ranks.filter(Result::is_err).count(), 0);
}

/// The limit on unclaimed connections ignores connections with a claimed rank.
#[tokio::test]
async fn more_ranks_than_may_be_unclaimed_at_once_come_through_the_port() {
    const RANKS: u32 = 1100;
    let (_driver, mut ended, address) = listen(RANKS, Duration::from_secs(600));
    let mut ranks = Vec::new();
    for rank in 0..RANKS {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let claimed = format!("cmd=initack rc=0\ncmd=set size={RANKS}\ncmd=set rank={rank}\ncmd=set debug=0\n");
        ask(&mut stream, format!("cmd=initack pmiid={rank}\n").as_bytes(), claimed.as_bytes()).await;
        // A rank that has left also frees room.
        if rank % 8 == 0 {
            ranks.push(stream);
        }
    }
    ask(&mut ranks[0], INIT, GREETED).await;
    assert!(ended.try_recv().is_err());
}

#[tokio::test]
async fn those_who_left_without_a_claim_take_no_place() {
    let (_driver, _ended, address) = listen(1, Duration::from_secs(600));
    for _ in 0..1100 {
        let mut stranger = TcpStream::connect(address).await.unwrap();
        stranger.write_all(b"noise\n").await.unwrap();
        expect_close(&mut stranger).await;
    }
    let mut rank = TcpStream::connect(address).await.unwrap();
    ask(&mut rank, b"cmd=initack pmiid=0\n", b"cmd=initack rc=0\ncmd=set size=1\ncmd=set rank=0\ncmd=set debug=0\n")
        .await;
}

#[tokio::test]
async fn a_process_of_another_user_can_neither_claim_a_rank_nor_end_the_job() {
    let (driver, mut ended) = drive(1);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let admission = Admission { uid: own_uid() + 1, claim_within: Duration::from_secs(600) };
    driver.listen(listener, admission).unwrap();
    let mut stranger = TcpStream::connect(address).await.unwrap();
    // It may be closed before this is written.
    let _ = stranger.write_all(b"cmd=initack pmiid=0\ncmd=abort exitcode=7\n").await;
    expect_close(&mut stranger).await;
    assert!(ended.try_recv().is_err());
    assert_eq!(driver.progress(LocalRank(0)).unwrap().phase, pmi_core::Phase::Silent);
}
