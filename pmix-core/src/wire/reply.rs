//! Answers of a server, and its events.

use super::Encoding;
use super::handshake::Version;
use super::reader::{Proc, Reader};
use super::request::command;
use super::types;
use super::value::{Info, Value};
use super::writer::Writer;

/// A value in a client's encoding: its type code, then the value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Encoded<'a> {
    /// Encoding of the bytes.
    pub encoding: Encoding,
    /// The bytes; checked once before, so they are complete.
    pub bytes: &'a [u8],
}

/// A reply with only a status.
pub fn status(encoding: Encoding, status: i32) -> Vec<u8> {
    let mut reply = Writer::new(encoding);
    reply.status(status);
    reply.into_bytes()
}

/// A status of success, then byte objects.
pub fn objects<'a>(encoding: Encoding, objects: impl IntoIterator<Item = &'a [u8]>) -> Vec<u8> {
    let mut reply = Writer::new(encoding);
    reply.status(super::status::SUCCESS);
    for object in objects {
        reply.one();
        reply.byte_object(object);
    }
    reply.into_bytes()
}

/// A status, then `count` infos, which are already encoded.
pub fn infos(encoding: Encoding, status: i32, count: usize, infos: &Writer) -> Vec<u8> {
    let mut reply = Writer::new(encoding);
    reply.status(status);
    reply.count(count);
    reply.group(count);
    reply.raw(infos.as_bytes());
    reply.into_bytes()
}

/// Beginning of a reply to REQ; the job's facts follow. Clients expect the name of their own encoding.
pub fn job_heading(encoding: Encoding, namespace: &[u8], module: &str) -> Vec<u8> {
    let mut heading = namespace_heading(encoding, namespace);
    let mut module_info = Writer::new(encoding);
    module_info.kval("pmix.bfrops.mod", &Value::Text(module.as_bytes()));
    heading.extend(module_info.into_bytes());
    heading
}

/// A namespace; facts about its job follow.
pub fn namespace_heading(encoding: Encoding, namespace: &[u8]) -> Vec<u8> {
    let mut heading = Writer::new(encoding);
    heading.one();
    heading.text(Some(namespace));
    heading.into_bytes()
}

/// A process; its values follow.
pub fn proc_heading(encoding: Encoding, proc: Proc<'_>) -> Writer {
    let mut heading = Writer::new(encoding);
    heading.one();
    heading.proc(proc);
    heading
}

/// Appends a key with its value, in the encoding of `out`.
pub fn push_pair(out: &mut Writer, key: &[u8], value: Encoded<'_>) {
    out.one();
    out.text(Some(key));
    push_value(out, value);
}

fn push_value(out: &mut Writer, value: Encoded<'_>) {
    if value.encoding == out.encoding() {
        return out.raw(value.bytes);
    }
    let copied = Reader::new(value.encoding, value.bytes).copy(types::VALUE, out);
    debug_assert!(copied.is_ok(), "a value that was read before cannot be read again: {copied:?}");
}

/// Published values from a lookup, each with its publisher.
pub fn found(encoding: Encoding, found: &[(Proc<'_>, &[u8], Encoded<'_>)]) -> Vec<u8> {
    let mut reply = Writer::new(encoding);
    reply.status(super::status::SUCCESS);
    reply.count(found.len());
    reply.group(found.len());
    for &(publisher, key, value) in found {
        reply.proc(publisher);
        reply.text(Some(key));
        push_value(&mut reply, value);
    }
    reply.into_bytes()
}

/// The namespace of a spawned job.
pub fn spawned(encoding: Encoding, namespace: &[u8]) -> Vec<u8> {
    let mut reply = Writer::new(encoding);
    reply.status(super::status::SUCCESS);
    reply.one();
    reply.text(Some(namespace));
    reply.into_bytes()
}

/// The first version in which clients read the members of a group before its context id.
const GROUPS_WITH_MEMBERS: Version = Version::new(4, 2, 4);

/// The first version in which clients read a flag for the context id before the id.
const GROUPS_WITH_CONTEXT_FLAG: Version = Version::new(6, 0, 0);

/// A new group, in the layout for this version of the client: the layout changed twice, and no encoding identifies it.
pub fn group(encoding: Encoding, version: Version, members: &[Proc<'_>], context: u64) -> Vec<u8> {
    let mut reply = Writer::new(encoding);
    reply.status(super::status::SUCCESS);
    if version >= GROUPS_WITH_MEMBERS {
        reply.count(members.len());
        reply.group(members.len());
        members.iter().for_each(|&member| reply.proc(member));
    }
    if version >= GROUPS_WITH_CONTEXT_FLAG {
        reply.one();
        reply.byte(1);
    }
    reply.one();
    reply.size(context);
    reply.into_bytes()
}

/// A rank's own number of a group's communicator, qualified by the group's context id.
pub fn push_qualified(out: &mut Writer, key: &str, number: u64, qualifier: &str, qualified_by: u64) {
    let qualifier = Info { key: qualifier.as_bytes(), flags: types::INFO_QUALIFIER, value: Value::Size(qualified_by) };
    let infos = vec![Info::new(key, Value::Size(number)), qualifier];
    out.kval("pmix.qual.val", &Value::Infos(infos));
}

/// An event, for a client with a registration for it.
pub fn event(encoding: Encoding, status: i32, source: Proc<'_>, infos: &[Info<'_>], range: u8) -> Vec<u8> {
    let mut event = Writer::new(encoding);
    event.one();
    event.byte(command::NOTIFY);
    event.status(status);
    event.one();
    event.proc(source);
    event.count(infos.len());
    event.group(infos.len());
    infos.iter().for_each(|info| event.info(info));
    event.one();
    event.byte(range);
    event.into_bytes()
}
