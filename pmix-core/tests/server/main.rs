//! Requests of ranks to a server and its answers, in both encodings, on one node and on two.

mod collectives;
mod controls;
mod data;
mod deserters;
mod dynamic;
mod forwarding;
mod gets;
mod hostile;
mod job_info;
mod life;
mod mortality;
mod names;
mod orders;
mod queries;
mod ranges;
mod replies;
mod requests;
mod tools;
mod withheld;
mod world;

use pmix_core::wire::reader::Reader;
use pmix_core::wire::request::command;
use pmix_core::wire::value::{Info, Value};
use pmix_core::wire::writer::Writer;
use pmix_core::wire::{Encoding, status, types};

use self::world::{Client, World};

/// Commits one key for ranks of the node, and another value of it for all other ranks.
fn commit(world: &mut World, client: Client, key: &str, local: &[u8], remote: &[u8]) {
    put(world, client, 101, key, local, remote);
    assert_eq!(world.status(client), Some((status::SUCCESS, vec![])));
}

/// Does the same without reading the answer.
fn put(world: &mut World, client: Client, tag: u32, key: &str, local: &[u8], remote: &[u8]) {
    world.send(client, tag, command::COMMIT, |out| {
        for (scope, value) in [(types::SCOPE_LOCAL, local), (types::SCOPE_REMOTE, remote)] {
            let mut buffer = Writer::new(out.encoding());
            buffer.kval(key, &Value::Bytes(value));
            out.one();
            out.byte(scope);
            out.one();
            out.byte(1);
            out.byte_object(&buffer.into_bytes());
        }
    });
}

/// Commits these values for ranks of other nodes, without reading the answer.
fn put_all(world: &mut World, client: Client, tag: u32, pairs: &[(&str, &[u8])]) {
    world.send(client, tag, command::COMMIT, |out| {
        let mut buffer = Writer::new(out.encoding());
        pairs.iter().for_each(|&(key, value)| buffer.kval(key, &Value::Bytes(value)));
        out.one();
        out.byte(types::SCOPE_REMOTE);
        out.one();
        out.byte(1);
        out.byte_object(&buffer.into_bytes());
    });
}

fn get(world: &mut World, client: Client, namespace: &str, rank: u32, key: &str, immediate: bool) {
    world.send(client, 102, command::GET, |out| {
        out.one();
        out.text(Some(namespace.as_bytes()));
        out.one();
        out.u32(rank);
        out.count(immediate.into());
        out.group(immediate.into());
        if immediate {
            out.info(&Info::new("pmix.immediate", Value::Bool(true)));
        }
        out.one();
        out.text(Some(key.as_bytes()));
    });
}

/// The keys and values in the last object of an answer.
fn values(encoding: Encoding, objects: &[u8]) -> Vec<(String, Vec<u8>)> {
    let mut reader = Reader::new(encoding, objects);
    let mut values = Vec::new();
    while !reader.is_empty() {
        reader.one().unwrap();
        let mut object = Reader::new(encoding, reader.byte_object().unwrap());
        object.one().unwrap();
        object.proc().unwrap();
        while !object.is_empty() {
            object.one().unwrap();
            let key = String::from_utf8(object.required_text("key").unwrap().to_vec()).unwrap();
            let value = match object.value().unwrap() {
                Value::Bytes(bytes) | Value::Text(bytes) => bytes.to_vec(),
                other => format!("{other:?}").into_bytes(),
            };
            values.push((key, value));
        }
    }
    values
}

fn found(key: &str, value: &[u8]) -> Vec<(String, Vec<u8>)> {
    vec![(key.to_owned(), value.to_vec())]
}
