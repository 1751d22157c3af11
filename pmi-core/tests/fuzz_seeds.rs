//! The fuzz targets as ordinary tests: every recorded conversation, and mutations of it, run through the same functions that the targets
//! in `fuzz/` call. The number of runs and the seed are fixed.
//!
//! `cargo test -p pmi-core --test fuzz_seeds -- --ignored` writes the recorded conversations as seeds to `fuzz/corpus/`.

mod transcript;
mod world;

use lattice_fuzz_seeds::Target;
use pmi_core::fuzzing::{self, Operation};
use pmi_core::wire::{Frame, FrameBuffer};
use transcript::{Transcript, What, names};
use world::Dice;

/// Mutations of each seed.
const MUTATIONS: usize = 40;

/// A rank that uses further key-value spaces; no recorded client does.
const SPACES: &str = "cmd=init pmi_version=1 pmi_subversion=1
cmd=create_kvs
cmd=put kvsname=j.k0.1 key=k value=v
cmd=barrier_in
cmd=getbyidx kvsname=j.k0.1 idx=0
cmd=get kvsname=j.k0.1 key=k
cmd=destroy_kvs kvsname=j.k0.1
cmd=get kvsname=j.k0.1 key=k
";

/// A rank that registers resources; no recorded client does.
const RESOURCES: &str = "cmd=init pmi_version=1 pmi_subversion=1
cmd=get kvsname=j key=lattice.ext
cmd=resource_register phase=intent name=shm:
cmd=resource_register phase=done name=shm:7
cmd=resource_register phase=intent name=file:/tmp/a b
cmd=resource_register phase=done name=pid:99
cmd=resource_release_begin timeout=10 name=shm:7
cmd=resource_release_begin timeout=0 name=pid:99
cmd=resource_release_end name=shm:7
";

fn extension_operations(lines: &str) -> Vec<u8> {
    let lines = lines.lines().flat_map(|line| {
        [
            Operation::Bytes(0, format!("{line}\n").into_bytes()),
            Operation::Fence(0, 7),
            Operation::Answer(0, 1),
            Operation::Time(0),
        ]
    });
    fuzzing::encode(1, &lines.collect::<Vec<_>>())
}

/// Sequences of events, each from every initial state of a server.
fn in_each_state(seeds: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
    let from = |state: u8| {
        seeds.iter().map(move |seed| [&[seed[0], seed[1] + 6 * state], &seed[2..]].concat()).collect::<Vec<_>>()
    };
    (0..4).flat_map(from).collect()
}

fn targets() -> [Target; 3] {
    let transcripts: Vec<_> = names().iter().map(|name| Transcript::load(name)).collect();
    let streams = || transcripts.iter().flat_map(streams);
    [
        Target {
            name: "frame",
            run: fuzzing::frame,
            seeds: streams().map(|stream| [&[3], &stream[..]].concat()).collect(),
        },
        Target {
            name: "request",
            run: fuzzing::request,
            seeds: streams().chain([SPACES.into(), RESOURCES.into()]).flat_map(|stream| messages(&stream)).collect(),
        },
        Target {
            name: "server",
            run: fuzzing::server,
            seeds: in_each_state(
                transcripts.iter().map(operations).chain([SPACES, RESOURCES].map(extension_operations)).collect(),
            ),
        },
    ]
}

/// All bytes that each rank of a conversation sent.
fn streams(transcript: &Transcript) -> Vec<Vec<u8>> {
    let ranks = 0..transcript.job(None).size();
    let of_rank = |rank| {
        let sent = transcript.of(None).filter(|(speaking, _)| *speaking == rank).filter_map(|(_, what)| match what {
            What::FromClient(bytes) => Some(bytes.clone()),
            _ => None,
        });
        sent.flatten().collect()
    };
    ranks.map(of_rank).collect()
}

/// Each message of a stream, in the format of the target `request`.
fn messages(stream: &[u8]) -> Vec<Vec<u8>> {
    let mut buffer = FrameBuffer::default();
    buffer.push(stream);
    let mut messages = Vec::new();
    while let Some(frame) = buffer.next().expect("a recorded stream is PMI") {
        let (kind, content) = match frame {
            Frame::Line(line) => (0, line),
            Frame::SpawnBlocks(blocks) => (1, blocks),
            Frame::Pmi2(message) => (2, message),
        };
        messages.push([&[kind], content].concat());
    }
    messages
}

/// A whole conversation; the host's operations follow each message.
fn operations(transcript: &Transcript) -> Vec<u8> {
    let mut operations = vec![Operation::Accept];
    for (rank, what) in transcript.of(None) {
        match what {
            What::FromClient(bytes) => {
                let name = transcript.job(None).id;
                let text = transcript::text(bytes).replace(&format!("kvsname={name}"), "kvsname=j");
                operations.push(Operation::Bytes(rank as u8, text.into_bytes()));
                operations.extend([Operation::Fence(0, 7), Operation::Answer(0, 1)]);
            }
            What::ClientCloses => operations.extend([Operation::Disconnect(rank as u8), Operation::Exit(rank as u8)]),
            What::FromServer(_) | What::ServerCloses => {}
        }
    }
    fuzzing::encode(transcript.job(None).size() as u8, &operations)
}

/// Changes, cuts, repeats and joins bytes.
fn mutate(dice: &mut Dice, seed: &[u8], other: &[u8]) -> Vec<u8> {
    let mut data = seed.to_vec();
    for _ in 0..=dice.below(8) {
        let at = dice.below(data.len().max(1));
        match dice.below(6) {
            0 => data.truncate(at),
            1 => data.insert(at.min(data.len()), b"; \n=\0c9\xff"[dice.below(8)]),
            2 if at < data.len() => data[at] = dice.below(256) as u8,
            3 if at < data.len() => drop(data.remove(at)),
            4 => data.extend_from_slice(&other[dice.below(other.len().max(1)).min(other.len())..]),
            _ => {
                let piece = data[at.min(data.len())..].to_vec();
                let end = dice.below(piece.len() + 1);
                data.splice(at.min(data.len())..at.min(data.len()), piece[..end].iter().copied());
            }
        }
    }
    data
}

#[test]
fn recorded_conversations_and_their_mutations_keep_all_promises() {
    for Target { name, run, seeds } in targets() {
        let mut dice = Dice::new(20_240_607);
        for seed in &seeds {
            run(seed);
            for _ in 0..MUTATIONS {
                let other = &seeds[dice.below(seeds.len())];
                run(&mutate(&mut dice, seed, other));
            }
        }
        assert!(seeds.len() >= names().len(), "{name} has {} seeds", seeds.len());
    }
}

#[test]
#[ignore = "writes files: the seeds for cargo fuzz"]
fn write_the_corpus() {
    targets().iter().for_each(Target::write_seeds);
}
