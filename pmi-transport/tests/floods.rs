//! Floods: one peer takes all that it can, and other peers are still served. The tests check the counted amounts, not memory.

mod world;

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::Request;
use http_body::{Body as HttpBody, Frame};
use pmi_transport::address::Address;
use pmi_transport::connect::{Channel, channel};
use pmi_transport::identity::{Caller, Security};
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tonic::body::Body;
use tonic::{Code, Status};
use tower::{Service, ServiceExt};
use world::cluster::Pki;
use world::{DEADLINE, Running, who_am_i};

const ANYWHERE: &str = "127.0.0.1:0";
const MEBIBYTE: usize = 1 << 20;

/// Half a request: its bytes, and then no end.
struct Half(Option<Bytes>);

impl HttpBody for Half {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        self.0.take().map_or(Poll::Pending, |bytes| Poll::Ready(Some(Ok(Frame::data(bytes)))))
    }
}

/// The beginning of a message with an announced length of `length` bytes, of which `sent` bytes follow.
fn beginning(length: usize, sent: usize) -> Half {
    let mut bytes = vec![0];
    bytes.extend(u32::try_from(length).unwrap().to_be_bytes());
    bytes.resize(5 + sent, 1);
    Half(Some(bytes.into()))
}

/// Makes a call with half a request; returns the code of its response.
async fn call(mut channel: Channel, path: &str, half: Half) -> Code {
    let uri = format!("http://server{path}");
    let request = Request::post(uri).header("content-type", "application/grpc").header("te", "trailers");
    let request = request.body(Body::new(half)).unwrap();
    channel.ready().await.unwrap();
    let answer = channel.call(request).await.unwrap();
    Status::from_header_map(answer.headers()).map_or(Code::Ok, |status| status.code())
}

fn channel_of(server: &Address, identity: &Security) -> Channel {
    channel(server, &Caller::Api, identity).unwrap()
}

/// Each call announced 4 MiB, sent almost all of it, and stopped. A server once stored all that indefinitely.
#[tokio::test]
async fn half_requests_of_a_user_take_no_more_than_the_users_share() {
    let pki = Pki::new();
    let server = Running::start(ANYWHERE, &pki.identity(&Caller::Api)).await;
    let user = pki.identity(&Caller::User(1000));
    let mut calls = JoinSet::new();
    for _ in 0..4 {
        let channel = channel_of(&server.address, &user);
        for _ in 0..16 {
            let half = beginning(4 * MEBIBYTE - 5, 3 * MEBIBYTE);
            let channel = channel.clone();
            calls.spawn(async move { call(channel, "/lattice.v1.NodeService/ListNodes", half).await });
        }
    }
    // At most 8 of them fit into the user's share. The rest is refused.
    for _ in 0..64 - 8 {
        let answer = timeout(DEADLINE, calls.join_next()).await.unwrap().unwrap().unwrap();
        assert_eq!(answer, Code::ResourceExhausted);
    }
    assert_eq!(calls.len(), 8);
    for caller in [Caller::User(1001), Caller::Agent("node3".to_owned())] {
        let answer = who_am_i(&channel_of(&server.address, &pki.identity(&caller))).await.unwrap();
        assert_eq!(answer, caller.to_string());
    }
    // Their share is free again after they have ended.
    calls.shutdown().await;
    let again = channel_of(&server.address, &user);
    let asked = async {
        while who_am_i(&again).await.is_err() {
            tokio::task::yield_now().await;
        }
    };
    timeout(DEADLINE, asked).await.unwrap();
    server.stop().await;
}

/// Health checks are open to all roles, and their requests have a few bytes.
#[tokio::test]
async fn a_call_that_is_open_to_everybody_takes_no_long_request() {
    let pki = Pki::new();
    let server = Running::start(ANYWHERE, &pki.identity(&Caller::Api)).await;
    let channel = channel_of(&server.address, &pki.identity(&Caller::User(1000)));
    for path in ["/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch"] {
        let answer = timeout(DEADLINE, call(channel.clone(), path, beginning(MEBIBYTE, 10))).await.unwrap();
        assert_eq!(answer, Code::OutOfRange, "{path}");
    }
    server.stop().await;
}

/// Silent connections once occupied the places of other clients.
#[tokio::test]
async fn silent_connections_make_way_for_others_from_their_own_address() {
    let pki = Pki::new();
    let server = Running::start(ANYWHERE, &pki.identity(&Caller::Api)).await;
    let Address::Tcp { host, port } = &server.address else { panic!("{} is no port", server.address) };
    let before = channel_of(&server.address, &pki.identity(&Caller::Agent("node1".to_owned())));
    who_am_i(&before).await.unwrap();
    let mut silent = Vec::new();
    for _ in 0..300 {
        silent.push(TcpStream::connect((host.as_str(), *port)).await.unwrap());
    }
    who_am_i(&channel_of(&server.address, &pki.identity(&Caller::Agent("node2".to_owned())))).await.unwrap();
    assert!(who_am_i(&before).await.is_ok(), "connections that are there are not touched");
    for stream in &mut silent {
        let read = timeout(DEADLINE, stream.read(&mut [0; 16])).await.unwrap();
        assert!(matches!(read, Ok(0) | Err(_)), "{read:?}");
    }
    server.stop().await;
}

#[tokio::test]
async fn a_user_who_opens_connections_without_end_is_refused_and_others_are_not() {
    let pki = Pki::new();
    let server = Running::start(ANYWHERE, &pki.identity(&Caller::Api)).await;
    let user = pki.identity(&Caller::User(1000));
    let mut held = Vec::new();
    let refused = loop {
        let channel = channel_of(&server.address, &user);
        match timeout(DEADLINE, who_am_i(&channel)).await.unwrap() {
            Ok(_) => held.push(channel),
            Err(_) => break held.len(),
        }
        assert!(held.len() < 1000);
    };
    assert_eq!(refused, 256);
    who_am_i(&channel_of(&server.address, &pki.identity(&Caller::User(1001)))).await.unwrap();
    server.stop().await;
}

/// An agent runs as root. A user's certificate must not occupy any of its memory, so no connection of a user gets as far as a
/// call.
#[tokio::test]
async fn where_daemons_are_served_no_call_of_a_user_is_read() {
    let (pki, node) = (Pki::new(), Caller::Agent("node3".to_owned()));
    let server = Running::start_for_daemons(ANYWHERE, &pki.identity(&node)).await;
    let user = pki.identity(&Caller::User(1000));
    let mut calls = JoinSet::new();
    for _ in 0..8 {
        let mut channel = channel(&server.address, &node, &user).unwrap();
        let half = Body::new(beginning(4 * MEBIBYTE - 5, 3 * MEBIBYTE));
        let request = Request::post("http://server/grpc.health.v1.Health/Check").body(half).unwrap();
        calls.spawn(async move {
            let ready = channel.ready().await;
            // A response needs a call; this client does not even have a connection.
            if ready.is_ok() { channel.call(request).await.is_ok() } else { false }
        });
    }
    while let Some(answered) = timeout(DEADLINE, calls.join_next()).await.unwrap() {
        assert!(!answered.unwrap());
    }
    let api = channel(&server.address, &node, &pki.identity(&Caller::Api)).unwrap();
    assert_eq!(who_am_i(&api).await.unwrap(), Caller::Api.to_string());
    server.stop().await;
}
