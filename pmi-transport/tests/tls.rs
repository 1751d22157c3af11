//! Calls with certificates: authenticated callers are served, and other callers receive the reason for their refusal.

mod world;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use pmi_transport::address::Address;
use pmi_transport::connect::{channel, is_cut_off, is_distrusted, reason};
use pmi_transport::identity::{Caller, Security};
use pmi_transport::proto::v1;
use pmi_transport::proto::v1::node_service_client::NodeServiceClient;
use tokio::io::{AsyncReadExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use tonic::{Code, Status};
use world::cluster::Pki;
use world::{DEADLINE, Running, who_am_i};

const ANYWHERE: &str = "127.0.0.1:0";

fn agent(node: &str) -> Caller {
    Caller::Agent(node.to_owned())
}

/// Asks the server for our identity, with `meant` as the expected server.
async fn ask(server: &Address, meant: &Caller, security: &Security) -> Result<String, Status> {
    who_am_i(&channel(server, meant, security).unwrap()).await
}

/// Reason why a call to a server with identity `theirs` fails, with our identity `ours` and the expected server
/// `meant`.
async fn why_not(theirs: &Security, meant: &Caller, ours: &Security) -> String {
    let server = Running::start(ANYWHERE, theirs).await;
    let status = ask(&server.address, meant, ours).await.unwrap_err();
    let words = reason(&status).replace(&server.address.to_string(), "ADDRESS");
    server.stop().await;
    words
}

#[tokio::test]
async fn who_proves_who_they_are_gets_through() {
    let pki = Pki::new();
    let api = Running::start(ANYWHERE, &pki.identity(&Caller::Api)).await;
    for caller in [agent("node3"), Caller::User(1000), Caller::Admin(None)] {
        let answer = ask(&api.address, &Caller::Api, &pki.identity(&caller)).await.unwrap();
        assert_eq!(answer, caller.to_string());
    }
    let user = channel(&api.address, &Caller::Api, &pki.identity(&Caller::User(7))).unwrap();
    let refused = NodeServiceClient::new(user).heartbeat(v1::HeartbeatRequest::default()).await.unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied);
    assert_eq!(reason(&refused), "user 7 may not call /lattice.v1.NodeService/Heartbeat; agents may");
    api.stop().await;
}

#[tokio::test]
async fn an_agent_is_known_by_its_node_however_it_is_reached() {
    let pki = Pki::new();
    for node in ["node4", "rack_1-n07", "n.cluster.example"] {
        let server = Running::start(ANYWHERE, &pki.identity(&agent(node))).await;
        let caller = agent(&format!("of-{node}"));
        assert_eq!(ask(&server.address, &agent(node), &pki.identity(&caller)).await.unwrap(), caller.to_string());
        server.stop().await;
    }
}

#[tokio::test]
async fn a_stolen_key_passes_for_nobody_else() {
    let pki = Pki::new();
    let node4 = pki.identity(&agent("node4"));
    let api = pki.identity(&Caller::Api);
    let words = why_not(&node4, &agent("node5"), &api).await;
    assert_eq!(words, "no TLS with ADDRESS: its certificate is for lattice:///agent/node4, node4, not for node5");
    // An agent at the API server's address, with a certificate that is valid for this host.
    let mixed = pki.identity_with_host(&agent("node6"));
    let words = why_not(&mixed, &Caller::Api, &api).await;
    assert_eq!(words, "the agent of node6 answers at ADDRESS; the API server was meant");
    // A user's certificate is not valid for a server.
    let words = why_not(&pki.identity(&Caller::User(7)), &Caller::Api, &api).await;
    assert_eq!(words, "no TLS with ADDRESS: its certificate is not meant for this end of a connection");
}

#[tokio::test]
async fn another_ca_is_refused_on_both_sides() {
    let (pki, other) = (Pki::new(), Pki::new());
    let (ours, theirs) = (pki.identity(&agent("node3")), other.identity(&Caller::Api));
    let words = why_not(&theirs, &Caller::Api, &ours).await;
    assert_eq!(words, "no TLS with ADDRESS: its certificate is not from the CA that we trust in");
    // We trust their CA, but they do not trust ours.
    let fooled = pki.trusting_in(&other, &agent("node4"));
    let words = why_not(&theirs, &Caller::Api, &fooled).await;
    assert_eq!(words, "our certificate is not from the CA that it trusts in");
}

#[tokio::test]
async fn an_expired_certificate_is_refused_on_both_sides() {
    let pki = Pki::new();
    let (node, api) = (pki.expired(&agent("node3")), pki.identity(&Caller::Api));
    let words = why_not(&api, &Caller::Api, &node).await;
    assert_eq!(words, "our certificate has expired, or is not valid yet, by its clock; compare date on both machines");
    let words = why_not(&node, &agent("node3"), &api).await;
    assert_eq!(words, "no TLS with ADDRESS: its certificate has expired, by the clock of this machine");
}

/// A user's certificate is accepted only by the API server.
#[tokio::test]
async fn where_daemons_are_served_users_do_not_get_past_the_handshake() {
    let pki = Pki::new();
    let node = pki.identity(&agent("node3"));
    let server = Running::start_for_daemons(ANYWHERE, &node).await;
    for caller in [Caller::Api, agent("node4"), Caller::Admin(None)] {
        let answer = ask(&server.address, &agent("node3"), &pki.identity(&caller)).await.unwrap();
        assert_eq!(answer, caller.to_string());
    }
    let refused = ask(&server.address, &agent("node3"), &pki.identity(&Caller::User(1000))).await.unwrap_err();
    assert_eq!(reason(&refused), "it serves the API server, agents and administrators only");
    server.stop().await;
}

/// From the next connection on, without a restart.
#[tokio::test]
async fn a_revoked_certificate_is_refused_on_both_sides_and_no_other() {
    let pki = Pki::new();
    let [api, node3, node4] = [Caller::Api, agent("node3"), agent("node4")].map(|caller| pki.identity(&caller));
    let server = Running::start(ANYWHERE, &api).await;
    assert_eq!(ask(&server.address, &Caller::Api, &node3).await.unwrap(), agent("node3").to_string());
    pki.revoke(&agent("node3"));
    let refused = ask(&server.address, &Caller::Api, &node3).await.unwrap_err();
    assert_eq!(reason(&refused), "our certificate was revoked");
    assert!(is_distrusted(&refused) && !is_cut_off(&refused), "nobody need try again: {refused:?}");
    assert_eq!(ask(&server.address, &Caller::Api, &node4).await.unwrap(), agent("node4").to_string());
    server.stop().await;
    let words = why_not(&node3, &agent("node3"), &api).await;
    assert_eq!(words, "no TLS with ADDRESS: its certificate was revoked");
    let server = Running::start(ANYWHERE, &node4).await;
    assert_eq!(ask(&server.address, &agent("node4"), &api).await.unwrap(), Caller::Api.to_string());
    server.stop().await;
}

/// A call that lasts until its connection ends.
async fn lasting_call(server: &Address, meant: &Caller, security: &Security) -> tonic::Streaming<v1::NodeCommand> {
    let mut client = NodeServiceClient::new(channel(server, meant, security).unwrap());
    timeout(DEADLINE, client.report_launch(tokio_stream::pending::<v1::LaunchReport>()))
        .await
        .unwrap()
        .unwrap()
        .into_inner()
}

/// A thief with a stolen key loses the connections that used it, in both directions.
#[tokio::test]
async fn connections_of_a_revoked_certificate_are_closed_and_no_others() {
    let pki = Pki::new();
    let [api, node3, node4] = [Caller::Api, agent("node3"), agent("node4")].map(|caller| pki.identity(&caller));
    let server = Running::start(ANYWHERE, &api).await;
    let looking = tokio::spawn(api.clone().keep_current());
    let mut stolen = lasting_call(&server.address, &Caller::Api, &node3).await;
    let mut honest = lasting_call(&server.address, &Caller::Api, &node4).await;
    // A server with the stolen key, which checks no list.
    let thief = Running::start(ANYWHERE, &node3).await;
    let to_thief = channel(&thief.address, &agent("node3"), &api).unwrap();
    who_am_i(&to_thief).await.unwrap();

    pki.revoke(&agent("node3"));
    let closed = timeout(DEADLINE, stolen.message()).await.unwrap().unwrap_err();
    assert!(!is_distrusted(&closed), "its reason is said when it connects again: {closed:?}");
    // The list was read. The other connection of that certificate is closed, and no new one is made.
    let refused = who_am_i(&to_thief).await.unwrap_err();
    assert!(reason(&refused).contains("revoked"), "{}", reason(&refused));
    assert!(timeout(Duration::from_millis(200), honest.message()).await.is_err(), "it goes on");
    looking.abort();
    server.stop().await;
    thief.stop().await;
}

#[tokio::test]
async fn renewed_files_hold_for_new_connections_and_old_ones_go_on() {
    let (pki, next) = (Pki::new(), Pki::new());
    let server = Running::start(ANYWHERE, &pki.identity(&Caller::Api)).await;
    let before = channel(&server.address, &Caller::Api, &pki.identity(&agent("node3"))).unwrap();
    who_am_i(&before).await.unwrap();
    let stale = pki.identity(&agent("node4"));
    next.replace(&pki, &Caller::Api);
    assert_eq!(who_am_i(&before).await.unwrap(), agent("node3").to_string());
    let new = next.identity(&agent("node5"));
    assert_eq!(ask(&server.address, &Caller::Api, &new).await.unwrap(), agent("node5").to_string());
    let refused = ask(&server.address, &Caller::Api, &stale).await.unwrap_err();
    assert_eq!(reason(&refused), "our certificate is not from the CA that it trusts in");
    server.stop().await;
}

#[tokio::test]
async fn plain_text_and_tls_do_not_mix() {
    let pki = Pki::new();
    let api = pki.identity(&Caller::Api);
    let plain = Security::Insecure { name: agent("node3") };
    let words = why_not(&api, &Caller::Api, &plain).await;
    assert_eq!(words, "it speaks TLS, and we have no certificates");
    let words = why_not(&plain, &agent("node3"), &api).await;
    assert_eq!(words, "no TLS with ADDRESS: it does not speak TLS; perhaps it runs without certificates");
}

#[tokio::test]
async fn silent_connections_keep_nobody_waiting_and_are_closed() {
    let pki = Pki::new();
    let server = Running::start(ANYWHERE, &pki.identity(&Caller::Api)).await;
    let Address::Tcp { host, port } = &server.address else { panic!("{} is no port", server.address) };
    let mut silent = Vec::new();
    for _ in 0..20 {
        silent.push(TcpStream::connect((host.as_str(), *port)).await.unwrap());
    }
    ask(&server.address, &Caller::Api, &pki.identity(&agent("node3"))).await.unwrap();
    for stream in &mut silent {
        let read = timeout(DEADLINE, stream.read(&mut [0; 16])).await.unwrap();
        assert_eq!(read.unwrap(), 0);
    }
    server.stop().await;
}

/// Listens, closes the first connections, counts all connections, and forwards all later ones to the server.
async fn hanging_up(first: usize, server: &Address) -> (Address, Arc<AtomicUsize>) {
    let listener = TcpListener::bind(ANYWHERE).await.unwrap();
    let address = listener.local_addr().unwrap().to_string().parse().unwrap();
    let taken = Arc::new(AtomicUsize::new(0));
    let (server, counter) = (server.to_string(), Arc::clone(&taken));
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            if counter.fetch_add(1, Ordering::Relaxed) >= first {
                let mut to_server = TcpStream::connect(&server).await.unwrap();
                tokio::spawn(async move { copy_bidirectional(&mut stream, &mut to_server).await });
            }
        }
    });
    (address, taken)
}

/// As with an agent that is stopped for seconds right after it has connected to the API server.
#[tokio::test]
async fn whoever_hangs_up_in_the_handshake_is_tried_once_more_and_not_for_ever() {
    let pki = Pki::new();
    let node3 = pki.identity(&agent("node3"));
    let server = Running::start(ANYWHERE, &pki.identity(&Caller::Api)).await;
    let (address, taken) = hanging_up(1, &server.address).await;
    assert_eq!(ask(&address, &Caller::Api, &node3).await.unwrap(), agent("node3").to_string());
    assert_eq!(taken.load(Ordering::Relaxed), 2);
    let (address, taken) = hanging_up(usize::MAX, &server.address).await;
    let refused = ask(&address, &Caller::Api, &node3).await.unwrap_err();
    assert_eq!(reason(&refused), format!("no TLS with {address}: it hung up"));
    assert_eq!(taken.load(Ordering::Relaxed), 2);
    server.stop().await;
}

#[tokio::test]
async fn nobody_there_is_said_within_the_time_limit() {
    let security = Security::Insecure { name: Caller::User(7) };
    // Listens, but never sends a byte.
    let deaf = std::net::TcpListener::bind(ANYWHERE).unwrap();
    let address: Address = deaf.local_addr().unwrap().to_string().parse().unwrap();
    let pki = Pki::new();
    let status = ask(&address, &Caller::Api, &pki.identity(&Caller::User(7))).await.unwrap_err();
    assert_eq!(reason(&status), format!("{address} did not answer within {:?}", Duration::from_secs(5)));
    drop(deaf);
    let status = ask(&address, &Caller::Api, &security).await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
    assert_eq!(reason(&status), format!("cannot connect to {address}: Connection refused (os error 111)"));
}
