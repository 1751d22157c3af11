//! Pairs: their values and times of publication, also while the writer is active.

use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use job_memory::{JobFacts, JobReader, JobWriter, Lookup, NotPublished};
use proptest::collection::vec;
use proptest::prelude::*;

use crate::{JOB, memory};

fn found(value: &[u8]) -> Lookup {
    Lookup::Found(value.to_vec())
}

#[test]
fn pairs_are_wanted_once_a_reader_has_asked() {
    let facts = JobFacts { job_id: JOB.to_owned(), ..JobFacts::default() };
    let (writer, descriptor) = JobWriter::create(&facts).unwrap();
    let first = JobReader::of(File::from(descriptor.try_clone().unwrap()), JOB).unwrap();
    assert!(!writer.is_wanted());
    first.ask_for_pairs().unwrap();
    assert!(writer.is_wanted());
    drop(first);
    assert!(writer.is_wanted(), "other ranks have the same open file");
    drop(descriptor);
    assert!(!writer.is_wanted());
}

#[test]
fn a_pair_is_there_after_the_fence_that_brought_it() {
    let (mut writer, mut reader) = memory(1 << 20);
    assert_eq!((reader.get(b"k"), reader.fences()), (Lookup::AskServer, None));
    writer.publish(b"k", b"one").unwrap();
    assert_eq!(reader.get(b"k"), Lookup::AskServer);
    writer.complete(3);
    assert_eq!((reader.get(b"k"), reader.fences()), (found(b"one"), Some(3)));
    writer.publish(b"k", b"two").unwrap();
    writer.publish(b"", b"").unwrap_err();
}

#[test]
fn a_key_is_told_from_others_and_has_its_newest_value() {
    let (mut writer, mut reader) = memory(1 << 20);
    let long = "k".repeat(128);
    for key in ["k", "k0", "k00", "12345678", "123456789", &long] {
        writer.publish(key.as_bytes(), b"old").unwrap();
        writer.publish(key.as_bytes(), key.as_bytes()).unwrap();
    }
    writer.publish(b"empty", b"").unwrap();
    writer.complete(1);
    for key in ["k", "k0", "k00", "12345678", "123456789", &long] {
        assert_eq!(reader.get(key.as_bytes()), found(key.as_bytes()));
    }
    assert_eq!(reader.get(b"empty"), found(b""));
    for absent in ["", "k000", "1234567", &"k".repeat(127), &"k".repeat(129)] {
        assert_eq!(reader.get(absent.as_bytes()), Lookup::Absent, "{absent}");
    }
}

#[test]
fn an_index_grows_and_a_reader_maps_what_came_later() {
    let (mut writer, mut reader) = memory(64 << 20);
    let big = vec![b'v'; 60_000];
    for fence in 1..=4_u32 {
        for number in 0..1000 {
            writer.publish(format!("key-{fence}-{number}").as_bytes(), number.to_string().as_bytes()).unwrap();
        }
        for number in 0..20 {
            writer.publish(format!("big-{fence}-{number}").as_bytes(), &big).unwrap();
        }
        writer.complete(fence.into());
        for earlier in 1..=fence {
            for number in 0..1000 {
                let key = format!("key-{earlier}-{number}");
                assert_eq!(reader.get(key.as_bytes()), found(number.to_string().as_bytes()), "{key}");
            }
            assert_eq!(reader.get(format!("big-{earlier}-19").as_bytes()), found(&big));
        }
    }
}

#[test]
fn the_same_value_again_takes_no_room() {
    let (mut writer, mut reader) = memory(64 * 1024);
    for _ in 0..100_000 {
        writer.publish(b"k", &[b'v'; 500]).unwrap();
    }
    writer.complete(1);
    assert_eq!(reader.get(b"k"), found(&[b'v'; 500]));
}

#[test]
fn a_reader_of_full_memory_asks_the_server() {
    let (mut writer, mut reader) = memory(64 * 1024);
    writer.publish(b"k", b"v").unwrap();
    writer.complete(1);
    let error = (0..).find_map(|number: u32| writer.publish(b"k", &[number as u8; 4000]).err()).unwrap();
    assert!(matches!(error, NotPublished::Full { capacity: 65_536 }), "{error}");
    assert_eq!(reader.get(b"k"), Lookup::AskServer);
    writer.publish(b"k", b"v").unwrap();
    writer.complete(2);
    assert_eq!((reader.get(b"k"), writer.is_wanted()), (Lookup::AskServer, false));
}

#[test]
fn a_pair_that_no_record_holds_ends_it_too() {
    let (mut writer, mut reader) = memory(64 * 1024);
    writer.complete(1);
    let error = writer.publish(&[b'k'; 129], b"v").unwrap_err().to_string();
    assert!(error.starts_with("a pair has a key of 129 and a value of 1 bytes"), "{error}");
    assert_eq!(reader.get(b"k"), Lookup::AskServer);
}

#[test]
fn a_reader_that_outlives_the_writer_asks_the_server() {
    let (mut writer, mut reader) = memory(1 << 20);
    writer.publish(b"k", b"v").unwrap();
    writer.complete(1);
    drop(writer);
    assert_eq!((reader.get(b"k"), reader.fences()), (Lookup::AskServer, None));
}

/// Every value repeats its round number many times, so a mix of two values would be detected.
#[test]
fn readers_see_whole_values_that_never_become_older() {
    let (mut writer, reader) = memory(256 << 20);
    writer.publish(b"k-0", b"").unwrap();
    writer.complete(0);
    let over = AtomicBool::new(false);
    let read = |mut reader: JobReader| {
        let mut newest = HashMap::new();
        while !over.load(Ordering::Relaxed) {
            for number in 0..500_u32 {
                let key = format!("k-{number}");
                let Lookup::Found(value) = reader.get(key.as_bytes()) else { continue };
                let (rounds, rest) = value.as_chunks::<4>();
                assert!(rest.is_empty() && rounds.iter().all(|round| *round == rounds[0]), "{key} is torn");
                let round = rounds.first().map_or(0, |round| u32::from_ne_bytes(*round));
                let before = newest.insert(number, round).unwrap_or_default();
                assert!(before <= round, "{key} went from {before} back to {round}");
            }
        }
        newest.len()
    };
    thread::scope(|scope| {
        let reading = scope.spawn(|| read(reader));
        for round in 1..=400_u32 {
            for number in 0..round.min(500) {
                let value = round.to_ne_bytes().repeat(1 + (round + number) as usize % 60);
                writer.publish(format!("k-{number}").as_bytes(), &value).unwrap();
            }
            writer.complete(round.into());
        }
        over.store(true, Ordering::Relaxed);
        assert!(reading.join().unwrap() > 0, "the reader found nothing");
    });
}

proptest! {
    #[test]
    fn a_reader_gets_what_was_published(
        rounds in vec(vec(("[a-d]{1,3}|[a-z]{1,20}", vec(any::<u8>(), 0..200)), 0..80), 1..5),
        absent in vec("[A-Z]{1,9}", 3),
    ) {
        let (mut writer, mut reader) = memory(8 << 20);
        let mut model = HashMap::new();
        for (fence, round) in (1..).zip(rounds) {
            for (key, value) in round {
                writer.publish(key.as_bytes(), &value).unwrap();
                model.insert(key, value);
            }
            writer.complete(fence);
            for (key, value) in &model {
                prop_assert_eq!(reader.get(key.as_bytes()), found(value));
            }
            for key in &absent {
                prop_assert_eq!(reader.get(key.as_bytes()), Lookup::Absent);
            }
        }
    }
}

#[test]
fn what_is_not_written_takes_no_memory() {
    let facts = JobFacts { job_id: JOB.to_owned(), ..JobFacts::default() };
    let (_writer, descriptor) = JobWriter::create(&facts).unwrap();
    let metadata = File::from(descriptor).metadata().unwrap();
    assert_eq!((metadata.len(), metadata.blocks() * 512), (JobWriter::CAPACITY as u64, 4096));
}
