//! Forwarding of standard streams: the requests of clients, and the messages with output of ranks.

use super::reader::{Proc, Reader};
use super::value::{Info, Value};
use super::writer::Writer;
use super::{Encoding, WireError};

/// Streams of a rank, with the numbers of the standard: each is a bit of a set.
pub mod channel {
    /// Standard input.
    pub const STDIN: u16 = 1;
    /// Standard output.
    pub const STDOUT: u16 = 2;
    /// Standard error.
    pub const STDERR: u16 = 4;
}

/// Key of the info with the number of bytes that are missing before the data of its message.
pub const LOST: &str = "lattice.iof.lost";

/// Key of the info that marks the end of the stream.
pub const COMPLETE: &str = "pmix.iof.cmp";

/// Output that a client requests.
#[derive(Clone, PartialEq, Debug)]
pub struct Pull<'a> {
    /// Ranks that write the output.
    pub sources: Vec<Proc<'a>>,
    /// Directives.
    pub infos: Vec<Info<'a>>,
    /// Set of streams.
    pub channels: u16,
    /// The client's identifier of the pull.
    pub reference: u64,
}

impl<'a> Pull<'a> {
    pub(super) fn decode(reader: &mut Reader<'a>) -> Result<Self, WireError> {
        let (sources, infos) = (processes(reader)?, reader.counted_infos()?);
        reader.one()?;
        let channels = reader.u16()?;
        reader.one()?;
        Ok(Self { sources, infos, channels, reference: reader.size()? })
    }
}

/// Input from a client for ranks.
#[derive(Clone, PartialEq, Debug)]
pub struct Push<'a> {
    /// Ranks that receive it; an empty list means the ranks that read the input of the launch.
    pub targets: Vec<Proc<'a>>,
    /// The input; empty at its end.
    pub bytes: &'a [u8],
}

impl<'a> Push<'a> {
    pub(super) fn decode(reader: &mut Reader<'a>) -> Result<Self, WireError> {
        let targets = processes(reader)?;
        reader.counted_infos()?;
        if reader.is_empty() {
            return Ok(Self { targets, bytes: &[] });
        }
        reader.one()?;
        Ok(Self { targets, bytes: reader.byte_object()? })
    }
}

/// Decodes the server's number of a pull.
pub(super) fn decode_end(reader: &mut Reader<'_>) -> Result<u64, WireError> {
    reader.counted_infos()?;
    reader.one()?;
    reader.size()
}

/// Processes after their count. Clients of PMIx 4 send an empty group for none.
fn processes<'a>(reader: &mut Reader<'a>) -> Result<Vec<Proc<'a>>, WireError> {
    let procs = reader.counted_procs()?;
    let mut ahead = *reader;
    if procs.is_empty() && ahead.group() == Ok(0) {
        *reader = ahead;
    }
    Ok(procs)
}

/// Answer to a [`Pull`]: success, and the number by which the client can end it.
pub fn pulled(encoding: Encoding, number: u64) -> Vec<u8> {
    let mut reply = Writer::new(encoding);
    reply.status(super::status::SUCCESS);
    reply.one();
    reply.size(number);
    reply.into_bytes()
}

/// Output of a rank in transit to a client.
#[derive(Clone, Copy, Debug)]
pub struct Delivery<'a> {
    /// The rank.
    pub source: Proc<'a>,
    /// The stream.
    pub channel: u16,
    /// The client's identifier of the pull.
    pub reference: u64,
    /// Bytes that were dropped before these.
    pub lost: u64,
    /// True if the stream ends after these bytes.
    pub is_last: bool,
    /// Output of the rank.
    pub bytes: &'a [u8],
}

impl Delivery<'_> {
    /// Payload of its message.
    pub fn encode(&self, encoding: Encoding) -> Vec<u8> {
        let lost = (self.lost > 0).then(|| Info::new(LOST, Value::Size(self.lost)));
        let complete = self.is_last.then(|| Info::new(COMPLETE, Value::Bool(true)));
        let infos: Vec<Info<'_>> = lost.into_iter().chain(complete).collect();
        let mut payload = Writer::new(encoding);
        payload.one();
        payload.proc(self.source);
        payload.one();
        payload.u16(self.channel);
        payload.one();
        payload.size(self.reference);
        payload.count(infos.len());
        payload.group(infos.len());
        infos.iter().for_each(|info| payload.info(info));
        payload.one();
        payload.byte_object(self.bytes);
        payload.into_bytes()
    }
}
