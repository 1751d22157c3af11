//! A server's reply, split into fields, and the common parts of replies of both protocols.
//!
//! Servers report "not found" in different ways: Slurm and Lattice send `found=FALSE`, Hydra's later versions a bare
//! `rc=1`, and PMI-1 servers an `rc` with a reason. [`Reply::if_found`] accepts all of them.

use alloc::string::String;
use alloc::vec::Vec;
use core::str::FromStr;

use crate::error::{ClientError, Defect, quote};

/// A reply with the expected name.
#[derive(Debug)]
pub(crate) struct Reply {
    /// The request to which it belongs.
    command: &'static str,
    /// The bytes of the reply, for error messages.
    body: Vec<u8>,
    fields: Fields,
}

/// A reply's `key=value` pairs in order.
pub(crate) type Fields = Vec<(Vec<u8>, Vec<u8>)>;

impl Reply {
    /// Parses `body` as the reply `name` to the request `command`. `parse` finds the fields.
    pub(crate) fn new(
        command: &'static str,
        name: &'static str,
        body: Vec<u8>,
        parse: fn(&[u8]) -> Fields,
    ) -> Result<Self, ClientError> {
        let reply = Self { command, fields: parse(&body), body };
        match reply.fields.first() {
            Some((key, value)) if key == b"cmd" && value == name.as_bytes() => Ok(reply),
            _ => Err(reply.malformed(Defect::WrongReply { expected: name })),
        }
    }

    /// Returns the reply unless the server refused. A missing `rc` means success: Hydra 3 and 4.0 often omit it.
    pub(crate) fn accepted(self) -> Result<Self, ClientError> {
        match self.rc()? {
            0 => Ok(self),
            rc => Err(ClientError::Refused { command: self.command, rc, message: self.message() }),
        }
    }

    /// Returns the reply; `None` if the server reports that the value does not exist.
    pub(crate) fn if_found(self) -> Result<Option<Self>, ClientError> {
        if self.rc()? != 0 && self.message().is_none_or(|message| says_not_found(&message)) {
            return Ok(None);
        }
        let reply = self.accepted()?;
        Ok((reply.field("found") != Some(b"FALSE")).then_some(reply))
    }

    /// Returns the requested value, if it exists.
    pub(crate) fn value_if_found(self) -> Result<Option<Vec<u8>>, ClientError> {
        self.if_found()?.map(|reply| reply.needed("value").map(<[u8]>::to_vec)).transpose()
    }

    /// Returns the job that a spawn has started, if the server provides it.
    pub(crate) fn spawned_job(self) -> Result<Option<String>, ClientError> {
        let reply = self.accepted()?;
        if reply.field("jobid").is_none() { Ok(None) } else { reply.text("jobid").map(Some) }
    }

    pub(crate) fn field(&self, field: &str) -> Option<&[u8]> {
        self.fields.iter().find(|(key, _)| key == field.as_bytes()).map(|(_, value)| value.as_slice())
    }

    pub(crate) fn needed(&self, field: &'static str) -> Result<&[u8], ClientError> {
        self.field(field).ok_or_else(|| self.malformed(Defect::MissingField { field }))
    }

    pub(crate) fn text(&self, field: &'static str) -> Result<String, ClientError> {
        let bytes = self.needed(field)?;
        String::from_utf8(bytes.to_vec()).map_err(|_| self.malformed(Defect::NotText { field }))
    }

    pub(crate) fn number<T: FromStr>(&self, field: &'static str) -> Result<T, ClientError> {
        let parsed = str::from_utf8(self.needed(field)?).ok().and_then(|text| text.parse().ok());
        parsed.ok_or_else(|| self.malformed(Defect::NotANumber { field }))
    }

    pub(crate) fn malformed(&self, defect: Defect) -> ClientError {
        ClientError::Malformed { command: self.command, defect, seen: quote(&self.body) }
    }

    fn rc(&self) -> Result<i64, ClientError> {
        if self.field("rc").is_none() { Ok(0) } else { self.number("rc") }
    }

    /// Returns the server's reason: `msg` in PMI-1, `errmsg` in PMI-2.
    fn message(&self) -> Option<String> {
        self.field("msg").or(self.field("errmsg")).map(|text| String::from_utf8_lossy(text).into_owned())
    }
}

/// Returns true if the reason of a nonzero `rc` means "no such key": `key_not_found`, `service_not_found`,
/// `key_<name>_not_found`.
fn says_not_found(message: &str) -> bool {
    message.contains("not_found") || message.contains("not found")
}
