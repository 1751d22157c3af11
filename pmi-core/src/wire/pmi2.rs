//! PMI-2 text: `cmd=name;key=value;...;`.
//!
//! Slurm's client and MPICH up to 4.0 write `;;` for `;` in a value. MPICH from 4.1 on writes a single `;`, so that its value ends there.
//! The rest of such a value has no `=` and is skipped.

use std::borrow::Cow;
use std::str;

use bytes::Bytes;
use nom::bytes::complete::{tag, take_while1};
use nom::sequence::preceded;
use nom::{IResult, Parser};

use super::dialect::Dialect;
use super::request::{Message, NoCommand, Request, RequestError, ResourceRequest, ResourceWish, RingValue, number};
use crate::services::{SpawnApp, SpawnRequest};

/// Decodes one message, without its length.
pub(super) fn decode(message: &[u8]) -> Result<Message<'_>, NoCommand> {
    let (rest, command) = command(message).map_err(|_| NoCommand::at(message))?;
    let command = str::from_utf8(command).map_err(|_| NoCommand::at(message))?;
    let fields = Fields { rest };
    let thread = match fields.get("thrid") {
        Some(Cow::Borrowed(thread)) => Some(thread),
        // An address holds no `;`.
        Some(Cow::Owned(_)) | None => None,
    };
    Ok(Message { dialect: Dialect::Pmi2, command, thread, request: request(command, fields) })
}

fn command(message: &[u8]) -> IResult<&[u8], &[u8]> {
    preceded(tag("cmd="), take_while1(|byte| byte != b';')).parse(message)
}

/// Each command by its name on the wire, and by its name in the design document.
fn request<'a>(command: &str, fields: Fields<'a>) -> Result<Request<'a>, RequestError> {
    Ok(match command {
        "fullinit" => Request::FullInit { id: fields.claimed_id()? },
        "job-getid" => Request::JobId,
        "info-getjobattr" | "job-getinfo" => Request::JobAttribute { key: fields.need("key")? },
        "kvs-put" | "kvsput" => Request::Put { job: None, key: fields.need("key")?, value: fields.need("value")? },
        "kvs-get" | "kvsget" => Request::Get { job: fields.plain("jobid"), key: fields.need("key")? },
        "kvs-fence" | "kvsfence" => Request::Fence,
        "info-putnodeattr" => Request::PutNodeAttribute { key: fields.need("key")?, value: fields.need("value")? },
        "info-getnodeattr" => {
            Request::GetNodeAttribute { key: fields.need("key")?, wait: fields.truth("wait").unwrap_or(false) }
        }
        "resource-register" => fields.resource(ResourceWish::registration(&fields.need("phase")?)?)?,
        "resource-release-begin" => fields.resource(ResourceWish::release(&fields.need("timeout")?)?)?,
        "resource-release-end" => fields.resource(ResourceWish::EndRelease)?,
        "name-publish" => Request::Publish { service: fields.need("name")?, port: fields.need("port")? },
        "name-lookup" => Request::Lookup { service: fields.need("name")? },
        "name-unpublish" => Request::Unpublish { service: fields.need("name")? },
        "ring" => Request::Ring(RingValue {
            count: number("ring-count", &fields.need("ring-count")?)?,
            left: fields.need("ring-left")?.into_owned(),
            right: fields.need("ring-right")?.into_owned(),
        }),
        "spawn" => Request::Spawn(spawn(fields)?),
        "abort" => Request::Abort {
            code: fields.get("exitcode").and_then(|code| number("exitcode", &code).ok()),
            whole_job: fields.truth("isworld").unwrap_or(true),
            message: fields.get("msg").or_else(|| fields.get("message")).unwrap_or_default(),
        },
        "finalize" => Request::Finalize,
        "job-connect" | "job-disconnect" => Request::Unimplemented,
        _ => return Err(RequestError::UnknownCommand),
    })
}

/// The fields of a message after its command, in the order of the message.
#[derive(Clone, Copy)]
struct Fields<'a> {
    /// Begins with the `;` that ends the previous field.
    rest: &'a [u8],
}

impl<'a> Iterator for Fields<'a> {
    type Item = (&'a [u8], Cow<'a, [u8]>);

    /// Returns the next `name=value`. Text without `=` is skipped.
    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let text = self.rest.strip_prefix(b";").unwrap_or(self.rest);
            if text.is_empty() {
                return None;
            }
            let (value, rest) = unescape_until_end(text);
            self.rest = rest;
            // The name holds no `;`, so it is the same before and after unescaping.
            if let Some(equals) = memchr::memchr(b'=', &value) {
                let name = &text[..equals];
                let value = match value {
                    Cow::Borrowed(field) => Cow::Borrowed(&field[equals + 1..]),
                    Cow::Owned(field) => Cow::Owned(field[equals + 1..].to_vec()),
                };
                return Some((name, value));
            }
        }
    }
}

/// Reads up to the first single `;`, and returns the rest from that `;` on. `;;` stands for `;`.
fn unescape_until_end(text: &[u8]) -> (Cow<'_, [u8]>, &[u8]) {
    let mut unescaped: Option<Vec<u8>> = None;
    let mut start = 0;
    loop {
        let Some(ahead) = memchr::memchr(b';', &text[start..]) else {
            let field = unescaped.map_or(Cow::Borrowed(text), |mut field| {
                field.extend_from_slice(&text[start..]);
                Cow::Owned(field)
            });
            return (field, &[]);
        };
        let end = start + ahead;
        if text.get(end + 1) == Some(&b';') {
            unescaped.get_or_insert_default().extend_from_slice(&text[start..=end]);
            start = end + 2;
        } else {
            let field = unescaped.map_or(Cow::Borrowed(&text[..end]), |mut field| {
                field.extend_from_slice(&text[start..end]);
                Cow::Owned(field)
            });
            return (field, &text[end..]);
        }
    }
}

impl<'a> Fields<'a> {
    fn get(mut self, name: &str) -> Option<Cow<'a, [u8]>> {
        self.find(|(found, _)| *found == name.as_bytes()).map(|(_, value)| value)
    }

    fn need(self, name: &'static str) -> Result<Cow<'a, [u8]>, RequestError> {
        self.get(name).ok_or(RequestError::MissingField { name })
    }

    /// A field that cannot hold a `;`.
    fn plain(self, name: &str) -> Option<&'a [u8]> {
        match self.get(name)? {
            Cow::Borrowed(value) => Some(value),
            Cow::Owned(_) => None,
        }
    }

    fn truth(self, name: &str) -> Option<bool> {
        match self.plain(name)? {
            b"TRUE" => Some(true),
            b"FALSE" => Some(false),
            _ => None,
        }
    }

    fn resource(self, wish: ResourceWish) -> Result<Request<'a>, RequestError> {
        Ok(Request::Resource(ResourceRequest { name: self.need("name")?, wish }))
    }

    /// MPICH sends `pmirank`, Slurm's client `pmirank` or, in port mode, `srcid`.
    fn claimed_id(self) -> Result<Option<u32>, RequestError> {
        let named = |name| self.plain(name).map(|id| number(name, id));
        named("pmirank").or_else(|| named("srcid")).transpose()
    }
}

/// `spawn`: fields in order. The fields from `subcmd` on repeat for each program. `argv0` is the first argument, not the program.
fn spawn(fields: Fields<'_>) -> Result<SpawnRequest, RequestError> {
    let mut request = SpawnRequest::default();
    let mut preput_key = None;
    let mut info_key = None;
    for (name, value) in fields {
        let value = Bytes::from(value.into_owned());
        if name == b"subcmd" {
            request.apps.push(SpawnApp { program: value, ranks: 1, ..SpawnApp::default() });
        } else if numbered(name, b"ppkey") {
            preput_key = Some(value);
        } else if numbered(name, b"ppval") {
            let key = preput_key.take().ok_or(RequestError::MissingField { name: "ppkey" })?;
            request.preput.push((key, value));
        } else if let Some(app) = request.apps.last_mut() {
            if name == b"maxprocs" {
                app.ranks = number("maxprocs", &value)?;
            } else if numbered(name, b"argv") {
                app.args.push(value);
            } else if numbered(name, b"infokey") {
                info_key = Some(value);
            } else if numbered(name, b"infoval") {
                let key = info_key.take().ok_or(RequestError::MissingField { name: "infokey" })?;
                app.info.push((key, value));
            }
        }
    }
    if request.apps.is_empty() {
        return Err(RequestError::MissingField { name: "subcmd" });
    }
    Ok(request)
}

/// Returns true if `name` is `list` followed by a number.
fn numbered(name: &[u8], list: &[u8]) -> bool {
    let digits = name.strip_prefix(list).unwrap_or_default();
    !digits.is_empty() && digits.iter().all(u8::is_ascii_digit)
}
