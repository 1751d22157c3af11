//! What does a PMI message cost a server, without the socket?

use std::hint::black_box;

use criterion::{Criterion, criterion_group};
use lattice_benches::machine;
use pmi_core::ids::{JobId, LocalRank, NodeIndex};
use pmi_core::job::Job;
use pmi_core::server::{ConnectionId, Server, Settings};
use pmi_core::wire::{Dialect, Frame, FrameBuffer, Message, Response};

const PMI1_PUT: &[u8] = b"cmd=put kvsname=kvs_23068_0 key=-allgather-shm-1-17 \
    value=0200AFCFC0000202000000000000000000000000000000000000000000000000000000000000";
const PMI2_PUT: &[u8] = b"cmd=kvs-put;key=bc-17;value=mpi#0200B331C00002020000000000000000$;";

fn parse(c: &mut Criterion) {
    c.bench_function("wire/pmi1_parse", |b| b.iter(|| Message::decode(Frame::Line(black_box(PMI1_PUT)))));
    c.bench_function("wire/pmi2_parse", |b| b.iter(|| Message::decode(Frame::Pmi2(black_box(PMI2_PUT)))));
    let mut stream = PMI1_PUT.to_vec();
    stream.push(b'\n');
    c.bench_function("wire/frame", |b| {
        let mut frames = FrameBuffer::default();
        b.iter(|| {
            frames.push(black_box(&stream));
            frames.advance()
        });
    });
}

fn encode(c: &mut Criterion) {
    let reply = Response::Value(Some(b"mpi#0200B331C00002020000000000000000$"));
    for (name, dialect, command) in
        [("wire/encode_pmi1", Dialect::Pmi1, "get"), ("wire/encode_pmi2", Dialect::Pmi2, "kvs-get")]
    {
        c.bench_function(name, |b| b.iter(|| black_box(&reply).encode(dialect, command, None)));
    }
}

/// Returns a server with one rank that has sent `init` and put one pair.
fn greeted() -> (Server, ConnectionId) {
    let job = Job::on_one_node(JobId::new("kvs_23068_0").expect("letters, digits, underscores"), 1);
    let mut server = Server::new(job, NodeIndex(0), Settings::default());
    let connection = server.connect(LocalRank(0)).expect("a rank of the job");
    server.handle_bytes(connection, b"cmd=init pmi_version=1 pmi_subversion=1\n");
    server.handle_bytes(connection, b"cmd=put kvsname=kvs_23068_0 key=bc-0 value=mpi#0200B331C0000202$\n");
    while server.poll_action().is_some() {}
    (server, connection)
}

/// Measures the time from the bytes of a request to the bytes of its answer.
fn serve(c: &mut Criterion) {
    let requests: [(&str, &[u8]); 3] = [
        ("server/get", b"cmd=get kvsname=kvs_23068_0 key=bc-0\n"),
        ("server/maxes", b"cmd=get_maxes\n"),
        ("server/universe_size", b"cmd=get_universe_size\n"),
    ];
    for (name, request) in requests {
        c.bench_function(name, |b| {
            let (mut server, connection) = greeted();
            b.iter(|| {
                server.handle_bytes(connection, black_box(request));
                server.poll_action()
            });
        });
    }
}

criterion_group!(benches, parse, encode, serve);

fn main() {
    println!("{}", machine::line());
    benches();
    Criterion::default().configure_from_args().final_summary();
}
