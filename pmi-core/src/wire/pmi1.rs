//! PMI-1.1 and 1.2 text: `cmd=name key=value ...`, and the `mcmd=spawn` blocks.
//!
//! The format has no escapes. A field ends at the next space; the last field of a few commands extends to the end of the line. Values of
//! Open MPI and abort messages of MPICH 4.1 contain spaces (both measured).

use std::collections::HashMap;
use std::str;

use bytes::Bytes;
use memchr::memmem;
use nom::bytes::complete::{tag, take_till, take_while1};
use nom::sequence::{preceded, terminated};
use nom::{IResult, Parser};

use super::dialect::Dialect;
use super::frame::FrameBuffer;
use super::request::{
    Group, Message, NoCommand, Request, RequestError, ResourceRequest, ResourceWish, Version, number,
};
use crate::services::{SpawnApp, SpawnRequest};

type Bytestring<'a> = &'a [u8];
type Decoded<'a> = Result<Request<'a>, RequestError>;

/// Decodes one line, without its line end.
pub(super) fn decode_line(line: &[u8]) -> Result<Message<'_>, NoCommand> {
    let (fields, command) = command(line).map_err(|_| NoCommand::at(line))?;
    let command = str::from_utf8(command).map_err(|_| NoCommand::at(line))?;
    let request = request(command, Fields(fields));
    Ok(Message { dialect: Dialect::Pmi1, command, thread: None, request })
}

fn command(line: Bytestring<'_>) -> IResult<Bytestring<'_>, Bytestring<'_>> {
    preceded(tag("cmd="), take_while1(|byte| byte != b' ')).parse(line)
}

fn request<'a>(command: &str, fields: Fields<'a>) -> Decoded<'a> {
    Ok(match command {
        "initack" => Request::InitAck { id: number("pmiid", fields.need("pmiid")?)? },
        "init" => Request::Init(version(fields)?),
        "singinit" => Request::Adopted(version(fields)?),
        "get_maxes" => Request::Maxes,
        "get_appnum" => Request::AppNum,
        "get_my_kvsname" => Request::JobId,
        "get_universe_size" => Request::UniverseSize,
        "put" => put(fields)?,
        "get" => Request::Get { job: fields.get("kvsname"), key: fields.need_tail("key")?.into() },
        "getbyidx" => Request::GetByIndex { job: fields.get("kvsname"), index: number("idx", fields.need("idx")?)? },
        "create_kvs" => Request::CreateSpace,
        "destroy_kvs" => Request::DestroySpace { name: fields.need("kvsname")? },
        "resource_register" => fields.resource(ResourceWish::registration(fields.need("phase")?)?)?,
        "resource_release_begin" => fields.resource(ResourceWish::release(fields.need("timeout")?)?)?,
        "resource_release_end" => fields.resource(ResourceWish::EndRelease)?,
        "barrier_in" => barrier(fields)?,
        "publish_name" => publish(fields)?,
        "lookup_name" => Request::Lookup { service: fields.need_tail("service")?.into() },
        "unpublish_name" => Request::Unpublish { service: fields.need_tail("service")?.into() },
        "abort" => abort(fields),
        "finalize" => Request::Finalize,
        _ => return Err(RequestError::UnknownCommand),
    })
}

/// The fields of a line after its command.
#[derive(Clone, Copy)]
struct Fields<'a>(Bytestring<'a>);

impl<'a> Fields<'a> {
    /// The text after ` name=`, to the end of the line.
    fn tail(self, name: &str) -> Option<Bytestring<'a>> {
        self.split_at(name).map(|(_, tail)| tail)
    }

    /// Splits at ` name=` into the text before it and the text after it.
    fn split_at(self, name: &str) -> Option<(Self, Bytestring<'a>)> {
        let mut searched = 0;
        loop {
            let at = searched + memmem::find(&self.0[searched..], name.as_bytes())?;
            let end = at + name.len();
            let begins_a_field = at.checked_sub(1).is_some_and(|before| self.0[before] == b' ');
            if begins_a_field && self.0.get(end) == Some(&b'=') {
                return Some((Self(&self.0[..at - 1]), &self.0[end + 1..]));
            }
            searched = end;
        }
    }

    /// The field `name`, which ends at the next space. Words without `=` are skipped.
    fn get(self, name: &str) -> Option<Bytestring<'a>> {
        self.tail(name).map(|tail| word(tail).map_or(tail, |(_, word)| word))
    }

    fn need(self, name: &'static str) -> Result<Bytestring<'a>, RequestError> {
        self.get(name).ok_or(RequestError::MissingField { name })
    }

    /// `name=anything to the end`
    fn resource(self, wish: ResourceWish) -> Decoded<'a> {
        Ok(Request::Resource(ResourceRequest { name: self.need_tail("name")?.into(), wish }))
    }

    fn need_tail(self, name: &'static str) -> Result<Bytestring<'a>, RequestError> {
        self.tail(name).ok_or(RequestError::MissingField { name })
    }
}

fn word(text: Bytestring<'_>) -> IResult<Bytestring<'_>, Bytestring<'_>> {
    take_till(|byte| byte == b' ')(text)
}

fn version(fields: Fields<'_>) -> Result<Version, RequestError> {
    Ok(Version {
        major: number("pmi_version", fields.need("pmi_version")?)?,
        minor: fields.get("pmi_subversion").map_or(Ok(0), |minor| number("pmi_subversion", minor))?,
    })
}

/// `put kvsname=K key=k value=anything to the end`
fn put(fields: Fields<'_>) -> Decoded<'_> {
    let missing = RequestError::MissingField { name: "value" };
    let (before, value) = fields.split_at("value").ok_or(missing)?;
    Ok(Request::Put { job: before.get("kvsname"), key: before.need_tail("key")?.into(), value: value.into() })
}

/// `publish_name service=a name with spaces port=anything to the end`
fn publish(fields: Fields<'_>) -> Decoded<'_> {
    let (before, port) = fields.split_at("port").ok_or(RequestError::MissingField { name: "port" })?;
    Ok(Request::Publish { service: before.need_tail("service")?.into(), port: port.into() })
}

/// `barrier_in`, and in PMI-1.2 `barrier_in group=WORLD:7`
fn barrier(fields: Fields<'_>) -> Decoded<'_> {
    let Some(name) = fields.get("group") else { return Ok(Request::Fence) };
    let bad = || RequestError::bad("group", name, "`WORLD`, `NODE` or a list of ranks, then `:` and a tag");
    let text = str::from_utf8(name).map_err(|_| bad())?;
    let (group, tag) = Group::parse(text).ok_or_else(bad)?;
    Ok(Request::GroupFence { group, tag, name: text })
}

/// `abort`, with `exitcode=` (MPICH, flux) or `exit_code=` (old flux), and `message=` or `error_msg=`; each may be missing.
fn abort(fields: Fields<'_>) -> Request<'_> {
    let code = fields.get("exitcode").or_else(|| fields.get("exit_code"));
    let message = fields.tail("message").or_else(|| fields.tail("error_msg"));
    Request::Abort {
        // An abort with an invalid code is still an abort.
        code: code.and_then(|code| number("exitcode", code).ok()),
        whole_job: true,
        message: message.unwrap_or_default().into(),
    }
}

/// Decodes all blocks of a spawn. The frame guarantees that they begin with `mcmd=spawn` and end with `endcmd`.
pub(super) fn decode_spawn(blocks: &[u8]) -> Message<'_> {
    let request = spawn(blocks).map(Request::Spawn);
    Message { dialect: Dialect::Pmi1, command: "spawn", thread: None, request }
}

fn spawn(blocks: &[u8]) -> Result<SpawnRequest, RequestError> {
    let mut request = SpawnRequest::default();
    let mut block = SpawnFields::default();
    for line in blocks.split(|&byte| byte == b'\n') {
        if line == b"endcmd" {
            let fields = std::mem::take(&mut block);
            request.apps.push(fields.app()?);
            // MPICH up to 4.0 and Intel MPI repeat the preput in every block, MPICH 4.1 sends it only in the first.
            if request.preput.is_empty() {
                request.preput = fields.pairs("preput_num", "preput_key_", "preput_val_")?;
            }
        } else if let Ok((value, name)) = name_of(line) {
            block.0.insert(name, value);
        }
    }
    Ok(request)
}

fn name_of(line: Bytestring<'_>) -> IResult<Bytestring<'_>, Bytestring<'_>> {
    terminated(take_while1(|byte| byte != b'='), tag("=")).parse(line)
}

/// The fields of one spawn block, with numbered lists: `arg1`, `info_key_0`. Clients differ in the order of the lines, so lists are read
/// by their numbers.
#[derive(Default)]
struct SpawnFields<'a>(HashMap<Bytestring<'a>, Bytestring<'a>>);

impl SpawnFields<'_> {
    fn need(&self, name: &'static str) -> Result<Bytes, RequestError> {
        let value = self.0.get(name.as_bytes()).ok_or(RequestError::MissingField { name })?;
        Ok(Bytes::copy_from_slice(value))
    }

    /// Returns the number of entries of a list; a missing list is empty.
    fn count(&self, name: &'static str) -> Result<usize, RequestError> {
        let count = self.0.get(name.as_bytes()).map_or(Ok(0), |count| number(name, count))?;
        // Each entry takes a line, so a list cannot have more entries than a spawn has bytes.
        let believable = count <= FrameBuffer::SPAWN_MAX;
        believable.then_some(count).ok_or(RequestError::MissingField { name })
    }

    fn entry(&self, list: &'static str, index: usize) -> Result<Bytes, RequestError> {
        let value = self.0.get(format!("{list}{index}").as_bytes());
        value.map(|value| Bytes::copy_from_slice(value)).ok_or(RequestError::MissingField { name: list })
    }

    fn pairs(
        &self,
        count: &'static str,
        keys: &'static str,
        values: &'static str,
    ) -> Result<Vec<(Bytes, Bytes)>, RequestError> {
        (0..self.count(count)?).map(|index| Ok((self.entry(keys, index)?, self.entry(values, index)?))).collect()
    }

    fn app(&self) -> Result<SpawnApp, RequestError> {
        let args = (1..=self.count("argcnt")?).map(|index| self.entry("arg", index));
        Ok(SpawnApp {
            program: self.need("execname")?,
            args: args.collect::<Result<_, _>>()?,
            ranks: number("nprocs", &self.need("nprocs")?)?,
            info: self.pairs("info_num", "info_key_", "info_val_")?,
            ..SpawnApp::default()
        })
    }
}
