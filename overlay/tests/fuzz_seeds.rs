//! The fuzz targets as ordinary tests: frames, files and events of a member, and damaged copies of them, run through the same
//! functions as the targets in `fuzz/`.
//!
//! `cargo test -p lattice-overlay --test fuzz_seeds -- --ignored` writes them as seeds to `fuzz/corpus/`.

use bytes::{Bytes, BytesMut};
use lattice_fuzz_seeds::{Target, mutations};
use lattice_overlay::address::{Process, SetId, Uid};
use lattice_overlay::directory::{Directory, Kin, Nonce, SetFacts, UnixSeconds};
use lattice_overlay::frame::{Frame, Kind};
use lattice_overlay::fuzzing;
use lattice_overlay::method::Method;
use proptest::prelude::*;

fn frames() -> Vec<Vec<u8>> {
    let set = SetId::new(1000, 7);
    let frame = |kind| Frame {
        kind,
        ttl: 9,
        detours: 1,
        method: Method::PING.0,
        source: set.root(),
        destination: Uid::new(set, Process::Rank(3)),
        id: 17,
        remaining_ms: 30_000,
        body: Bytes::from_static(b"are you there"),
    };
    let written = [Kind::Request, Kind::Response, Kind::Error].map(|kind| {
        let mut written = BytesMut::new();
        frame(kind).append(&mut written);
        written.to_vec()
    });
    written.iter().cloned().chain([written.concat()]).collect()
}

fn files() -> Vec<Vec<u8>> {
    let home = tempfile::tempdir().unwrap();
    let place = home.path().join("sets");
    let facts = SetFacts {
        launch: Some("k3jq09zmf2".into()),
        ranks: 4,
        nodes: 1,
        command: "./a.out".into(),
        begun: UnixSeconds::now(),
        kin: Kin { ancestors: vec![1], programs: vec![(2, 3)] },
    };
    let set = Directory::open(&place).unwrap().register(&Nonce::random().unwrap(), facts).unwrap();
    vec![std::fs::read(place.join(set.id().number().to_string())).unwrap()]
}

/// Outgoing calls, opened and lost links, served requests, and passing time, for a member in each state.
fn lives() -> Vec<Vec<u8>> {
    let events: [[u8; 9]; 8] = [
        [3, 0, 9, 30, 2, 0, 0, 0, 0],
        [1, 9, 0, 0, 0, 0, 0, 0, 0],
        [0, 4, 0, 9, 200, 4, 5, 1, 0],
        [5, 0, 0, 0, 0, 0, 0, 0, 0],
        [0, 20, 0, 9, 2, 20, 5, 1, 0],
        [2, 9, 0, 0, 0, 0, 0, 0, 0],
        [4, 0, 40, 0, 0, 0, 0, 0, 0],
        [3, 0, 25, 1, 2, 0, 0, 0, 0],
    ];
    let lives = [events.concat(), events.repeat(9).concat()];
    (0..3).flat_map(|state| lives.iter().map(move |life| [&[state], &life[..]].concat())).collect()
}

fn targets() -> [Target; 3] {
    [
        Target { name: "overlay_frame", run: fuzzing::overlay_frame, seeds: frames() },
        Target { name: "overlay_member", run: fuzzing::overlay_member, seeds: lives() },
        Target { name: "set_file", run: fuzzing::set_file, seeds: files() },
    ]
}

#[test]
fn damaged_seeds_keep_every_promise() {
    targets().iter().for_each(Target::run_damaged);
}

proptest! {
    #[test]
    fn any_life_of_a_member_keeps_every_promise(life in mutations(lives())) {
        fuzzing::overlay_member(&life);
    }

    #[test]
    fn any_events_keep_every_promise(life in proptest::collection::vec(any::<u8>(), 0..2000)) {
        fuzzing::overlay_member(&life);
    }
}

#[test]
#[ignore = "writes the seeds of the fuzz targets"]
fn write_seeds() {
    targets().iter().for_each(Target::write_seeds);
}
