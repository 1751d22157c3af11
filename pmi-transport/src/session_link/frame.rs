//! Encoding of frames on links between sessions. The handshake compares the layout's [`VERSION`].
//!
//! ```text
//! length, 4 bytes   kind   fields
//!
//! 1  up            fence  flags  part  withheld  { position  length << 1 | continues  run }
//! 2  down          fence  flags  fan-out  part  withheld  run
//! 3  failed        fence  node + 1, or 0  reason
//! 4  data request  id  from  question
//! 5  data reply    id  0 | 1 data | 2 error | 3 data that continues in the next reply
//! 6  awaited       fence
//! 7  left
//! 8  to session    id  from  message
//! ```
//! Numbers are encoded by [`field`](super::field), fences by [`fence_names`](super::fence_names). The last field of a frame has no
//! length. A link belongs to one launch, so frames do not name it. `fence.proto` documents the meaning of frames; gRPC calls use it
//! directly.

use std::sync::Arc;

use bytes::{Buf, BufMut, Bytes, BytesMut};

use super::fence_names::{ReceivedNames, SentNames};
use super::field::{Fields, Malformed, PutField};
use crate::limits::MESSAGE_MAX;
use crate::proto::v1::data_reply::Result as Reply;
use crate::proto::v1::{
    DataReply, DataRequest, FenceDown, FenceFailed, FenceKey, FenceUp, LinkFrame, NodePiece, link_frame::What,
};

/// Version of the layout. Sessions with different versions do not link.
pub(super) const VERSION: u8 = 1;

/// Length of a frame's length field in bytes.
const PREFIX: usize = 4;

const UP: u8 = 1;
const DOWN: u8 = 2;
const FAILED: u8 = 3;
const DATA_REQUEST: u8 = 4;
const DATA_REPLY: u8 = 5;
const AWAITED: u8 = 6;
const LEFT: u8 = 7;
const TO_SESSION: u8 = 8;

/// Flag of the last frame of its sender, in both directions.
const LAST: u8 = 1;
/// Flag of a run that ends with an incomplete segment; the next frame continues it.
const GOES_ON: u8 = 2;
/// Flag of an upward frame: the fence's data may stay on its nodes.
const MAY_WITHHOLD: u8 = 4;

/// Failure to read a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum FrameError {
    #[error("a frame of {len} bytes is announced; {MESSAGE_MAX} are the most")]
    TooLong { len: usize },
    #[error("a frame cannot be read: {0}")]
    Malformed(#[from] Malformed),
}

/// Writes the frames of one direction of a link.
#[derive(Debug)]
pub(super) struct FrameWriter {
    launch_id: Arc<str>,
    names: SentNames,
}

impl FrameWriter {
    pub(super) fn new(launch_id: Arc<str>) -> Self {
        Self { launch_id, names: SentNames::default() }
    }

    /// Appends a frame. Returns false, and writes nothing, for a frame of another launch, or beyond the size limit of the other end.
    pub(super) fn append(&mut self, frame: &LinkFrame, stream: &mut BytesMut) -> bool {
        let Some(what) = frame.what.as_ref().filter(|what| self.is_of_launch(what)) else { return false };
        let start = stream.len();
        stream.put_u32(0);
        match what {
            What::Up(up) => self.put_up(up, stream),
            What::Down(down) => self.put_down(down, stream),
            What::Failed(failed) => self.put_failed(failed, stream),
            What::DataRequest(request) => put_request(request, stream),
            What::DataReply(reply) => put_reply(reply, stream),
            What::Awaited(key) => {
                stream.put_u8(AWAITED);
                self.names.put(key, stream);
            }
            What::Left(_) => stream.put_u8(LEFT),
        }
        let len = stream.len() - start - PREFIX;
        if len > MESSAGE_MAX {
            stream.truncate(start);
            self.names.forget_last();
            return false;
        }
        stream[start..start + PREFIX].copy_from_slice(&(len as u32).to_be_bytes());
        true
    }

    fn is_of_launch(&self, what: &What) -> bool {
        let of_launch = |key: &Option<FenceKey>| key.as_ref().is_some_and(|key| *key.launch_id == *self.launch_id);
        match what {
            What::Up(frame) => of_launch(&frame.key),
            What::Down(frame) => of_launch(&frame.key),
            What::Failed(frame) => of_launch(&frame.key),
            What::Awaited(key) => *key.launch_id == *self.launch_id,
            What::DataRequest(request) => *request.launch_id == *self.launch_id,
            What::DataReply(reply) => *reply.launch_id == *self.launch_id,
            What::Left(launch_id) => **launch_id == *self.launch_id,
        }
    }

    fn put_up(&mut self, up: &FenceUp, stream: &mut BytesMut) {
        stream.put_u8(UP);
        self.put_fence(&up.key, stream);
        stream.put_u8(flag(LAST, up.last) | flag(MAY_WITHHOLD, up.may_withhold));
        stream.put_number(up.part.into());
        stream.put_number(up.withheld);
        for piece in &up.brought {
            stream.put_number(piece.position.into());
            stream.put_number((piece.run.len() as u64) << 1 | u64::from(piece.goes_on));
            stream.put_slice(&piece.run);
        }
    }

    fn put_down(&mut self, down: &FenceDown, stream: &mut BytesMut) {
        stream.put_u8(DOWN);
        self.put_fence(&down.key, stream);
        stream.put_u8(flag(LAST, down.last) | flag(GOES_ON, down.goes_on));
        stream.put_number(down.fan_out.into());
        stream.put_number(down.part.into());
        stream.put_number(down.withheld);
        stream.put_slice(&down.run);
    }

    fn put_failed(&mut self, failed: &FenceFailed, stream: &mut BytesMut) {
        stream.put_u8(FAILED);
        self.put_fence(&failed.key, stream);
        stream.put_number(failed.node.map_or(0, |node| u64::from(node) + 1));
        stream.put_slice(failed.reason.as_bytes());
    }

    fn put_fence(&mut self, key: &Option<FenceKey>, stream: &mut BytesMut) {
        key.iter().for_each(|key| self.names.put(key, stream));
    }
}

fn put_request(request: &DataRequest, stream: &mut BytesMut) {
    let (kind, content) = match request.to_session.is_empty() {
        true => (DATA_REQUEST, &request.question),
        false => (TO_SESSION, &request.to_session),
    };
    stream.put_u8(kind);
    stream.put_number(request.request_id);
    stream.put_number(request.from_node.into());
    stream.put_slice(content);
}

fn put_reply(reply: &DataReply, stream: &mut BytesMut) {
    stream.put_u8(DATA_REPLY);
    stream.put_number(reply.request_id);
    let (kind, content) = match &reply.result {
        None => (0, &[][..]),
        Some(Reply::Data(data)) if reply.goes_on => (3, &data[..]),
        Some(Reply::Data(data)) => (1, &data[..]),
        Some(Reply::Error(reason)) => (2, reason.as_bytes()),
    };
    stream.put_u8(kind);
    stream.put_slice(content);
}

fn flag(flag: u8, is_set: bool) -> u8 {
    if is_set { flag } else { 0 }
}

/// Reads the frames of one direction of a link.
#[derive(Debug)]
pub(super) struct FrameReader {
    launch_id: Arc<str>,
    names: ReceivedNames,
}

impl FrameReader {
    pub(super) fn new(launch_id: Arc<str>) -> Self {
        Self { names: ReceivedNames::new(Arc::clone(&launch_id)), launch_id }
    }

    /// Takes the first frame if it is complete. Its payloads share the memory of `stream` without copying. After an error no further
    /// frame can be read.
    pub(super) fn take(&mut self, stream: &mut BytesMut) -> Result<Option<LinkFrame>, FrameError> {
        let Some(prefix) = stream.first_chunk::<PREFIX>() else { return Ok(None) };
        let len = u32::from_be_bytes(*prefix) as usize;
        if len > MESSAGE_MAX {
            return Err(FrameError::TooLong { len });
        }
        if stream.len() < PREFIX + len {
            return Ok(None);
        }
        stream.advance(PREFIX);
        let what = self.read(stream.split_to(len).freeze())?;
        Ok(Some(LinkFrame { what: Some(what) }))
    }

    fn read(&mut self, frame: Bytes) -> Result<What, Malformed> {
        let mut fields = Fields::new(frame);
        let kind = fields.byte()?;
        let what = match kind {
            UP => What::Up(self.take_up(&mut fields)?),
            DOWN => What::Down(self.take_down(&mut fields)?),
            FAILED => What::Failed(self.take_failed(&mut fields)?),
            DATA_REQUEST | TO_SESSION => What::DataRequest(self.take_request(kind, &mut fields)?),
            DATA_REPLY => What::DataReply(self.take_reply(&mut fields)?),
            AWAITED => What::Awaited(self.names.take(&mut fields)?),
            LEFT => What::Left(self.launch_id()),
            _ => return Err(Malformed::Kind(kind)),
        };
        fields.end()?;
        Ok(what)
    }

    fn take_up(&mut self, fields: &mut Fields) -> Result<FenceUp, Malformed> {
        let key = Some(self.names.take(fields)?);
        let flags = fields.flags(LAST | MAY_WITHHOLD)?;
        let (part, withheld) = (fields.small()?, fields.number()?);
        let mut brought = Vec::new();
        while !fields.is_empty() {
            let (position, len) = (fields.small()?, fields.number()?);
            brought.push(NodePiece { position, run: fields.bytes(len >> 1)?, goes_on: len & 1 != 0 });
        }
        let (last, may_withhold) = (flags & LAST != 0, flags & MAY_WITHHOLD != 0);
        Ok(FenceUp { key, brought, last, part, may_withhold, withheld })
    }

    fn take_down(&mut self, fields: &mut Fields) -> Result<FenceDown, Malformed> {
        let key = Some(self.names.take(fields)?);
        let flags = fields.flags(LAST | GOES_ON)?;
        let (fan_out, part, withheld) = (fields.small()?, fields.small()?, fields.number()?);
        let (run, goes_on, last) = (fields.rest(), flags & GOES_ON != 0, flags & LAST != 0);
        Ok(FenceDown { key, run, goes_on, last, fan_out, part, withheld })
    }

    fn take_failed(&mut self, fields: &mut Fields) -> Result<FenceFailed, Malformed> {
        let key = Some(self.names.take(fields)?);
        let node = match fields.number()?.checked_sub(1) {
            None => None,
            Some(node) => Some(u32::try_from(node).map_err(|_| Malformed::Number)?),
        };
        Ok(FenceFailed { key, node, reason: fields.rest_in_utf8()? })
    }

    fn take_request(&self, kind: u8, fields: &mut Fields) -> Result<DataRequest, Malformed> {
        let (request_id, from_node, content) = (fields.number()?, fields.small()?, fields.rest());
        let (question, to_session) = if kind == TO_SESSION { (Bytes::new(), content) } else { (content, Bytes::new()) };
        Ok(DataRequest { launch_id: self.launch_id(), request_id, from_node, question, to_session })
    }

    fn take_reply(&self, fields: &mut Fields) -> Result<DataReply, Malformed> {
        let (request_id, kind) = (fields.number()?, fields.byte()?);
        let result = match kind {
            0 => None,
            1 | 3 => Some(Reply::Data(fields.rest())),
            2 => Some(Reply::Error(fields.rest_in_utf8()?)),
            kind => return Err(Malformed::Kind(kind)),
        };
        Ok(DataReply { launch_id: self.launch_id(), request_id, result, goes_on: kind == 3 })
    }

    fn launch_id(&self) -> String {
        self.launch_id.to_string()
    }
}

#[cfg(test)]
mod tests;
