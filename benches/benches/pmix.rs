//! What do PMIx clients cost their server, apart from the sockets? A rank's start for jobs of several sizes, a fence, gets.
//!
//! The facts about a job are written once per node and encoding; each rank gets the same bytes.

use std::hint::black_box;

use criterion::{BatchSize, BenchmarkId, Criterion, criterion_group, criterion_main};
use pmi_core::ids::{JobId, NodeIndex};
use pmi_core::job::{Job, Placement};
use pmi_core::server::ConnectionId;
use pmix_core::Namespace;
use pmix_core::server::{Action, Server, Settings};
use pmix_core::wire::Encoding;
use pmix_core::wire::frame::message;
use pmix_core::wire::reader::Proc;
use pmix_core::wire::request::command;
use pmix_core::wire::types::{RANK_WILDCARD, SCOPE_LOCAL};
use pmix_core::wire::value::Value;
use pmix_core::wire::writer::Writer;

/// Ranks on this node.
const LOCAL: u32 = 64;

/// A job of `ranks`, 64 on each node, as its first node sees it.
fn server(ranks: u32) -> Server {
    let nodes = ranks.div_ceil(LOCAL);
    let placement = Placement::block(&vec![ranks.min(LOCAL); nodes as usize]);
    let job = Job { placement, ..Job::on_one_node(JobId::new("job0").expect("letters and digits"), ranks) };
    let hosts = (0..nodes).map(|node| format!("node{node:05}")).collect();
    let mut server = Server::new(Settings::default());
    server.add(Namespace { name: "job0".into(), job, node: NodeIndex(0), hosts, directory: None, parent: None });
    server
}

/// Shakes hands as a client of Open MPI 5 does.
fn join(server: &mut Server, rank: u32) -> ConnectionId {
    let mut payload = b"native\0\0\0\0\x08\0\0\0\0\0\0\0\0\0job0\0".to_vec();
    payload.extend(rank.to_be_bytes());
    payload.extend(b"5.0.11rc1\0v41\0\x01hash\0");
    let mut bytes = vec![0xff; 8];
    bytes.extend((payload.len() as u32).to_ne_bytes());
    bytes.extend([0; 4]);
    bytes.extend(payload);
    let connection = server.accept();
    server.handle_bytes(connection, &bytes);
    connection
}

fn request(command: u8, write: impl FnOnce(&mut Writer)) -> Vec<u8> {
    let mut payload = Writer::new(Encoding::Flex);
    payload.one();
    payload.byte(command);
    write(&mut payload);
    message(101, &payload.into_bytes()).to_vec()
}

/// Carries out what can be done here: fences of one node. Returns how many messages were sent.
fn settle(server: &mut Server) -> usize {
    let mut sent = 0;
    while let Some(action) = server.poll_action() {
        match action {
            Action::Send { .. } => sent += 1,
            Action::Fence { job, id, contribution } => {
                server.handle_fence(job, &id, Ok(contribution.segments.into()));
            }
            _ => {}
        }
    }
    sent
}

fn start_of_a_rank(c: &mut Criterion) {
    let facts = request(command::REQ, |_| {});
    for ranks in [64, 1024, 10_240] {
        c.bench_with_input(BenchmarkId::new("pmix/first_rank", ranks), &ranks, |b, &ranks| {
            let start = |mut server: Server| {
                let connection = join(&mut server, 0);
                server.handle_bytes(connection, &facts);
                assert!(settle(&mut server) >= 2);
                server
            };
            b.iter_batched(|| server(ranks), start, BatchSize::LargeInput);
        });
        c.bench_with_input(BenchmarkId::new("pmix/each_further_rank", ranks), &ranks, |b, &ranks| {
            let mut server = server(ranks);
            let first = join(&mut server, 0);
            server.handle_bytes(first, &facts);
            b.iter(|| {
                let connection = join(&mut server, 1);
                server.handle_bytes(connection, &facts);
                server.handle_disconnect(connection);
                settle(&mut server)
            });
        });
    }
}

/// 64 ranks that have all committed a business card.
fn wired() -> (Server, Vec<ConnectionId>) {
    let mut server = server(LOCAL);
    let ranks: Vec<_> = (0..LOCAL).map(|rank| join(&mut server, rank)).collect();
    let commit = request(command::COMMIT, |out| {
        let mut buffer = Writer::new(Encoding::Flex);
        buffer.kval("btl.tcp.4.1", &Value::Bytes(&[7; 48]));
        out.one();
        out.byte(SCOPE_LOCAL);
        out.one();
        out.byte(1);
        out.byte_object(&buffer.into_bytes());
    });
    for &rank in &ranks {
        server.handle_bytes(rank, &commit);
    }
    settle(&mut server);
    (server, ranks)
}

fn fence_and_gets(c: &mut Criterion) {
    let fence = request(command::FENCE, |out| {
        out.count(1);
        out.group(1);
        out.proc(Proc { namespace: b"job0", rank: RANK_WILDCARD });
        out.count(0);
    });
    c.bench_function("pmix/fence_of_64", |b| {
        let (mut server, ranks) = wired();
        b.iter(|| {
            for &rank in &ranks {
                server.handle_bytes(rank, &fence);
            }
            assert_eq!(settle(&mut server), ranks.len());
        });
    });
    let gets: Vec<_> = (0..LOCAL)
        .map(|rank| {
            request(command::GET, |out| {
                out.one();
                out.text(Some(b"job0"));
                out.one();
                out.u32(rank);
                out.count(0);
                out.one();
                out.text(Some(b"btl.tcp.4.1"));
            })
        })
        .collect();
    c.bench_function("pmix/64_gets", |b| {
        let (mut server, ranks) = wired();
        b.iter(|| {
            for get in &gets {
                server.handle_bytes(ranks[0], black_box(get));
            }
            assert_eq!(settle(&mut server), gets.len());
        });
    });
}

criterion_group!(benches, start_of_a_rank, fence_and_gets);
criterion_main!(benches);
