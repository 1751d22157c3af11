//! Calls of gRPC with messages from the protocol's descriptors. The messages have some valid values, and are damaged.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http_body::{Body as HttpBody, Frame};
use pmi_transport::connect::Channel;
use pmi_transport::proto::DESCRIPTORS;
use prost::Message;
use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::{DescriptorProto, FieldDescriptorProto, FileDescriptorSet};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tonic::Status;
use tonic::body::Body;
use tower::{Service, ServiceExt};

use super::{Dice, damage};

/// Number of concurrent calls.
const AT_A_TIME: usize = 32;
/// Time limit for the start of an answer. Calls that take longer are cancelled.
const PATIENCE: Duration = Duration::from_millis(500);
/// Maximum depth of nested messages.
const DEPTH: usize = 5;

/// The protocol, and words for the values.
#[derive(Debug)]
pub struct Calls {
    files: FileDescriptorSet,
    words: Vec<String>,
}

/// A call: its path, the type of its messages, and whether it has several messages.
#[derive(Clone, Debug)]
struct Call {
    path: String,
    message: String,
    is_stream: bool,
}

impl Calls {
    /// Creates calls with these words, or nonsense, as strings.
    ///
    /// # Panics
    /// Panics if the descriptors of the protocol are invalid.
    pub fn new(words: &[String]) -> Self {
        let files = FileDescriptorSet::decode(DESCRIPTORS).expect("the descriptors were made with the protocol");
        let nonsense =
            ["", "node[0-99999999]", "node[0-", "\u{1b}]0;x\u{7}", "../../etc/passwd", "-1", "unix:/x", "0.0.0.0:0"];
        let mut words: Vec<String> = words.iter().cloned().chain(nonsense.map(str::to_owned)).collect();
        words.push("x".repeat(70_000));
        Self { files, words }
    }

    fn of(&self, services: &[String]) -> Vec<Call> {
        let mut calls = Vec::new();
        for file in &self.files.file {
            for service in file.service.iter().filter(|service| services.iter().any(|wanted| wanted == service.name()))
            {
                calls.extend(service.method.iter().map(|method| Call {
                    path: format!("/{}.{}/{}", file.package(), service.name(), method.name()),
                    message: method.input_type().to_owned(),
                    is_stream: method.client_streaming(),
                }));
            }
        }
        calls
    }

    fn descriptor(&self, name: &str) -> Option<&DescriptorProto> {
        let is_it = |message: &&DescriptorProto| name.strip_prefix(".lattice.v1.") == Some(message.name());
        self.files.file.iter().flat_map(|file| &file.message_type).find(is_it)
    }

    /// Returns a message of this type, with some of its fields.
    fn message(&self, name: &str, dice: &mut Dice, depth: usize) -> Vec<u8> {
        let mut message = Vec::new();
        let Some(descriptor) = self.descriptor(name) else { return message };
        for field in &descriptor.field {
            let times = match field.label() {
                Label::Repeated => dice.below(4),
                _ if depth == 0 => usize::from(!dice.once_in(6)),
                _ => dice.below(2),
            };
            (0..times).for_each(|_| self.append_field(field, &mut message, dice, depth));
        }
        message
    }

    fn append_field(&self, field: &FieldDescriptorProto, message: &mut Vec<u8>, dice: &mut Dice, depth: usize) {
        let number = u64::from(field.number().unsigned_abs());
        let content = match field.r#type() {
            Type::Message if depth < DEPTH => self.message(field.type_name(), dice, depth + 1),
            Type::Message => return,
            Type::String => dice.one_of(&self.words).clone().into_bytes(),
            Type::Bytes => {
                let length = *dice.one_of(&[0, 1, 16, 32, 64, 300]);
                dice.bytes(length)
            }
            Type::Fixed64 => {
                append_number(number << 3 | 1, message);
                return message.extend(dice.number().to_le_bytes());
            }
            _ => {
                let large = dice.number();
                append_number(number << 3, message);
                return append_number(*dice.one_of(&[0, 1, 2, 3, 9, 15, 1 << 16, u64::from(u32::MAX), large]), message);
            }
        };
        append_number(number << 3 | 2, message);
        append_number(content.len() as u64, message);
        message.extend(content);
    }

    /// Returns the body of a call: its messages, each after a byte and its length.
    fn body(&self, call: &Call, dice: &mut Dice) -> Vec<u8> {
        let mut body = Vec::new();
        for _ in 0..if call.is_stream { 1 + dice.below(5) } else { 1 } {
            let mut message = self.message(&call.message, dice, 0);
            if dice.once_in(2) {
                damage(&mut message, dice);
            }
            let mut frame = vec![0];
            frame.extend((message.len() as u32).to_be_bytes());
            if dice.once_in(10) {
                damage(&mut frame, dice);
            }
            body.extend(frame);
            body.extend(message);
        }
        body
    }

    /// Makes `count` calls of these services. Returns the number of answered calls.
    ///
    /// # Panics
    /// Panics if the services have no calls.
    pub async fn make(&self, channel: &Channel, services: &[String], count: usize, dice: &mut Dice) -> usize {
        let calls = self.of(services);
        let (mut running, mut answered) = (JoinSet::new(), 0);
        for _ in 0..count {
            let call = dice.one_of(&calls);
            let body = self.body(call, dice);
            if running.len() >= AT_A_TIME {
                answered += usize::from(matches!(running.join_next().await, Some(Ok(true))));
            }
            let body = Part { bytes: Some(body.into()), is_all: true };
            running.spawn(timeout_is_no_answer(make(channel.clone(), call.path.clone(), body)));
        }
        while let Some(done) = running.join_next().await {
            answered += usize::from(matches!(done, Ok(true)));
        }
        answered
    }
}

/// Begins `count` calls of this path. The messages announce `length` bytes, and send all but one of them. Returns the number of calls that
/// were refused or cancelled within `time`. The other calls stay open for this time.
///
/// # Panics
/// Panics if a message cannot have this length.
pub async fn begin(channels: &[Channel], path: &str, count: usize, length: usize, time: Duration) -> usize {
    let mut bytes = vec![0];
    bytes.extend(u32::try_from(length).expect("a length").to_be_bytes());
    bytes.resize(4 + length, b'x');
    let bytes = Bytes::from(bytes);
    let mut running = JoinSet::new();
    for channel in channels.iter().cycle().take(count) {
        let (channel, path, body) =
            (channel.clone(), path.to_owned(), Part { bytes: Some(bytes.clone()), is_all: false });
        running.spawn(async move { timeout(time, make(channel, path, body)).await.is_ok() });
    }
    running.join_all().await.into_iter().filter(|is_over| *is_over).count()
}

/// A body that is sent at once, and then ends or stays open.
struct Part {
    bytes: Option<Bytes>,
    is_all: bool,
}

impl HttpBody for Part {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        match self.bytes.take() {
            None if !self.is_all => Poll::Pending,
            bytes => Poll::Ready(bytes.map(|bytes| Ok(Frame::data(bytes)))),
        }
    }
}

async fn timeout_is_no_answer(call: impl Future<Output = bool>) -> bool {
    timeout(PATIENCE, call).await.unwrap_or(false)
}

/// Makes a call with this body. Returns true after any answer.
async fn make(mut channel: Channel, path: String, body: Part) -> bool {
    let request = Request::post(format!("http://server{path}"));
    let request = request.header("content-type", "application/grpc").header("te", "trailers");
    let Ok(request) = request.body(Body::new(body)) else { return false };
    match channel.ready().await {
        Ok(channel) => channel.call(request).await.is_ok(),
        Err(_) => false,
    }
}

/// Appends a number in the encoding of protobuf: seven bits per byte, the lowest bits first.
fn append_number(mut number: u64, message: &mut Vec<u8>) {
    while number >= 0x80 {
        message.push(number as u8 | 0x80);
        number >>= 7;
    }
    message.push(number as u8);
}

#[cfg(test)]
mod tests {
    use pmi_transport::proto::v1::LaunchTasksRequest;

    use super::*;

    #[test]
    fn messages_are_what_the_descriptors_say() {
        let calls = Calls::new(&["node0".to_owned()]);
        let mut dice = Dice::new(3);
        let decoded: Vec<_> = (0..200)
            .map(|_| {
                LaunchTasksRequest::decode(&*calls.message(".lattice.v1.LaunchTasksRequest", &mut dice, 0)).unwrap()
            })
            .collect();
        assert!(decoded.iter().any(|request| request.allocation_id == "node0"));
        assert!(decoded.iter().any(|request| request.args.len() == 3));
    }

    #[test]
    fn every_service_has_its_calls() {
        let calls = Calls::new(&[]);
        let count = |service: &str| calls.of(&[service.to_owned()]).len();
        assert!(
            ["AllocationService", "LaunchService", "NodeService", "NodeAgentService"]
                .iter()
                .all(|name| count(name) > 3)
        );
        assert!(calls.of(&["LaunchService".to_owned()]).iter().any(|call| call.is_stream));
    }
}
