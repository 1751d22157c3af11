//! Calls with raw bytes, of any service.

use std::time::Duration;

use bytes::{Buf, BufMut, Bytes};
use pmi_transport::connect::Channel;
use tokio::time::timeout;
use tokio_stream::once;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::{Request, Status};

use crate::tests::world::soon;

/// Messages as raw bytes.
#[derive(Default)]
struct Raw;

impl Codec for Raw {
    type Encode = Vec<u8>;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for Raw {
    type Item = Vec<u8>;
    type Error = Status;

    fn encode(&mut self, item: Vec<u8>, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.put_slice(&item);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(buffer.copy_to_bytes(buffer.remaining())))
    }
}

/// Time after which a permitted call is in progress.
const UNDER_WAY: Duration = Duration::from_millis(200);

/// Makes a call with one message, and returns its first answer. The result is empty for a stream that ends without an answer, and for a
/// permitted call that continues without one.
pub(super) async fn make(channel: &Channel, path: &str, request: Vec<u8>, may: bool) -> Result<Bytes, Status> {
    let mut client = tonic::client::Grpc::new(channel.clone());
    client.ready().await.map_err(|error| Status::unavailable(error.to_string()))?;
    let answer = async {
        let path = path.parse().expect("it is a path");
        let mut answers = client.streaming(Request::new(once(request)), path, Raw).await?.into_inner();
        answers.message().await
    };
    let answer = if may { timeout(UNDER_WAY, answer).await.unwrap_or(Ok(None)) } else { soon(answer).await };
    answer.map(Option::unwrap_or_default)
}
