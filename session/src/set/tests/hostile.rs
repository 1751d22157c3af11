//! Connections to a set without permission, and sets that cannot be reached.

use std::io::Read;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream as BlockingStream};
use std::os::unix::process::CommandExt;
use std::process::Command;

use lattice_overlay::directory::Nonce;
use lattice_overlay::greeting::{self, PROOF_LEN};
use nix::unistd::geteuid;
use tokio::io::AsyncReadExt;

use super::*;

/// Environment variable with the socket to which this program connects when it is started again.
const COMES_TO: &str = "SESSION_TEST_COMES_TO";

/// Connects to a set and reads its challenge.
async fn come(record: &SetRecord) -> (UnixStream, [u8; PROOF_LEN]) {
    let mut socket = UnixStream::connect(connection::path(record.nonce())).await.unwrap();
    let mut challenge = [0; PROOF_LEN];
    socket.read_exact(&mut challenge).await.unwrap();
    (socket, challenge)
}

fn caller(record: &SetRecord) -> Caller {
    Caller { set: record.id(), rank: 0, purpose: Purpose::Presence }
}

#[tokio::test]
async fn a_greeting_that_was_recorded_gets_no_further_byte() {
    let (_home, place) = home();
    let set = set(&place, "a");
    let record = set.found().await.unwrap();
    let (mut first, challenge) = come(&record).await;
    let recorded = greeting::greet(record.key(), caller(&record), &challenge, &challenge);
    first.write_all(&recorded).await.unwrap();
    first.read_exact(&mut [0; PROOF_LEN]).await.unwrap();
    let (mut second, _) = come(&record).await;
    second.write_all(&recorded).await.unwrap();
    let mut rest = Vec::new();
    second.read_to_end(&mut rest).await.unwrap();
    assert_eq!(rest, b"");
    set.leave().await;
}

#[tokio::test]
async fn whoever_listens_for_a_set_and_does_not_know_its_key_is_sent_no_call() {
    let (_home, place) = home();
    let set = set(&place, "a");
    let own = set.found().await.unwrap().id();
    let nonce = Nonce::random().unwrap();
    let listener = UnixListener::bind(connection::path(&nonce)).unwrap();
    let record = Directory::open(&place).unwrap().register(&nonce, SetFacts::default()).unwrap();
    let impostor = tokio::spawn(async move {
        let (mut socket, _) = listener.accept().await.unwrap();
        socket.write_all(&[1; PROOF_LEN]).await.unwrap();
        socket.read_exact(&mut [0; greeting::GREETING_LEN]).await.unwrap();
        socket.write_all(&[2; PROOF_LEN]).await.unwrap();
        let mut rest = Vec::new();
        socket.read_to_end(&mut rest).await.unwrap();
        rest
    });
    let called = set.call(record.id().root(), Method::PING, "?".into(), SECOND * 30).await;
    assert_eq!(called, Err(CallError::NoRoute { at: own.root() }));
    assert_eq!(impostor.await.unwrap(), b"");
    set.leave().await;
}

/// Not a separate test. The next test starts this process.
#[test]
fn a_process_that_comes() {
    let Some(name) = std::env::var_os(COMES_TO) else { return };
    let address = SocketAddr::from_abstract_name(name.as_encoded_bytes()).unwrap();
    let mut said = Vec::new();
    BlockingStream::connect_addr(&address).unwrap().read_to_end(&mut said).unwrap();
    println!("it was told {} bytes", said.len());
}

#[tokio::test]
async fn a_process_of_another_user_is_told_nothing() {
    assert!(geteuid().is_root(), "this test must run as root: it starts a process of another user");
    let (_home, place) = home();
    let set = set(&place, "a");
    let name = set.found().await.unwrap().nonce().socket_name();
    let stranger = blocking(move || {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "set::tests::hostile::a_process_that_comes", "--nocapture"]).env(COMES_TO, name);
        command.uid(65534).gid(65534).output().unwrap()
    });
    let output = stranger.await.unwrap();
    assert!(String::from_utf8_lossy(&output.stdout).contains("it was told 0 bytes"), "{output:?}");
    set.leave().await;
}

/// The caller receives the error that no route exists. The file of a set on another machine is kept, because this machine cannot check
/// whether that set is alive.
#[tokio::test]
async fn sets_of_another_home_and_of_another_machine_are_out_of_reach() {
    let [(_here, place), (_there, elsewhere)] = [home(), home()];
    let [a, b] = [(&place, "a"), (&elsewhere, "b")].map(|(place, launch)| set(place, launch));
    let (own, other) = (a.found().await.unwrap().id(), b.found().await.unwrap());
    let no_route = Err(CallError::NoRoute { at: own.root() });
    let unknown = SetId::new(geteuid().as_raw(), own.number() ^ 1);
    assert_eq!(a.call(unknown.root(), Method::PING, Bytes::new(), SECOND * 30).await, no_route);
    let text = std::fs::read_to_string(elsewhere.join(other.id().number().to_string())).unwrap();
    let mut record: serde_json::Value = serde_json::from_str(&text).unwrap();
    record["host"] = "another".into();
    record["boot"] = "another's".into();
    record["nonce"] = Nonce::random().unwrap().to_string().into();
    record["set"] = unknown.bits().into();
    let file = place.join(unknown.number().to_string());
    std::fs::write(&file, record.to_string()).unwrap();
    assert_eq!(a.call(unknown.root(), Method::PING, Bytes::new(), SECOND * 30).await, no_route);
    assert_eq!(a.sets().await.unwrap().len(), 2);
    a.leave().await;
    b.leave().await;
    assert!(file.exists());
}
