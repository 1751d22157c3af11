//! What do PMIx clients cost their server, without the sockets? The bench measures a rank's start in jobs of several sizes,
//! a fence, and gets.
//!
//! The server encodes the facts about a job once per node and encoding. Each rank receives the same bytes.

use std::hint::black_box;

use criterion::{BatchSize, BenchmarkId, Criterion, criterion_group};
use lattice_benches::machine;
use lattice_benches::pmix_client::{NAMESPACE, commit, fence, get, join, request};
use pmi_core::ids::{JobId, NodeIndex};
use pmi_core::job::{Job, Placement};
use pmi_core::server::ConnectionId;
use pmix_core::server::{Action, Server, Settings};
use pmix_core::wire::request::command;
use pmix_core::wire::types::SCOPE_LOCAL;
use pmix_core::{Namespace, NodeFacts};

/// Key of each rank's value.
const KEY: &str = "btl.tcp.4.1";
/// Number of ranks on this node.
const LOCAL: u32 = 64;

/// Returns the server of the first node of a job of `ranks`, with 64 ranks on each node.
fn server(ranks: u32) -> Server {
    let nodes = ranks.div_ceil(LOCAL);
    let placement = Placement::block(&vec![ranks.min(LOCAL); nodes as usize]);
    let job = Job { placement, ..Job::on_one_node(JobId::new(NAMESPACE).expect("letters and digits"), ranks) };
    let hosts = (0..nodes).map(|node| format!("node{node:05}")).collect();
    let mut server = Server::new(Settings::default());
    server.add(Namespace {
        name: NAMESPACE.into(),
        job,
        node: NodeIndex(0),
        hosts,
        allocation: None,
        directory: None,
        parent: None,
        here: NodeFacts::default(),
        command: bytes::Bytes::new(),
        sets: Vec::new(),
    });
    server
}

/// Executes the actions that are possible here: fences of one node. Returns the number of sent messages.
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

/// Prints the number of bytes of the job facts that each rank receives.
fn bytes_of_the_facts(_: &mut Criterion) {
    let facts = request(command::REQ, |_| {});
    for ranks in [64, 1024, 10_240] {
        let mut server = server(ranks);
        let connection = join(&mut server, 0);
        settle(&mut server);
        server.handle_bytes(connection, &facts);
        let mut sent = 0;
        while let Some(action) = server.poll_action() {
            if let Action::Send { bytes, .. } = action {
                sent += bytes.len();
            }
        }
        println!("pmix/facts/{ranks}: {sent} bytes, {} for each rank of the job", sent / ranks as usize);
    }
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

/// Returns a server and 64 ranks that have all committed a business card.
fn wired() -> (Server, Vec<ConnectionId>) {
    let mut server = server(LOCAL);
    let ranks: Vec<_> = (0..LOCAL).map(|rank| join(&mut server, rank)).collect();
    let commit = commit(SCOPE_LOCAL, KEY, &[7; 48]);
    for &rank in &ranks {
        server.handle_bytes(rank, &commit);
    }
    settle(&mut server);
    (server, ranks)
}

fn fence_and_gets(c: &mut Criterion) {
    let fence = fence();
    c.bench_function("pmix/fence_of_64", |b| {
        let (mut server, ranks) = wired();
        b.iter(|| {
            for &rank in &ranks {
                server.handle_bytes(rank, &fence);
            }
            assert_eq!(settle(&mut server), ranks.len());
        });
    });
    let gets: Vec<_> = (0..LOCAL).map(|rank| get(rank, KEY)).collect();
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

criterion_group!(benches, bytes_of_the_facts, start_of_a_rank, fence_and_gets);

fn main() {
    println!("{}", machine::line());
    benches();
    Criterion::default().configure_from_args().final_summary();
}
