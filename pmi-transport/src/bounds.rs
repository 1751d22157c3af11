//! Bounds of requests, checked on the encoded bytes: a refused list never uses a hundred times its encoded size in memory.
//!
//! A table has the bounds of each field. `pmi-transport/codegen` generates it from its rules and the protocol files. A singular field may
//! occur only once, because protobuf would merge repeated occurrences without a bound. Unknown fields are skipped, as in protobuf.

use std::marker::PhantomData;

use bytes::Buf;
use prost::{Message as ProstMessage, Name};
use tonic::Status;
use tonic::codec::{Codec, DecodeBuf, Decoder};
use tonic_prost::{ProstCodec, ProstDecoder, ProstEncoder};

/// Bounds of a message within a request.
struct Message {
    /// Its name; for a nested message, its path.
    name: &'static str,
    fields: &'static [Field],
}

/// Bounds of a field.
struct Field {
    number: u32,
    name: &'static str,
    /// Maximum number of occurrences.
    most: u32,
    /// Maximum bytes of each occurrence, for length-delimited encodings.
    longest: u32,
    /// Index of its message type in the table.
    inner: Option<usize>,
}

/// All messages that requests can contain, by name.
const MESSAGES: &[Message] = include!("generated/bounds.rs");

/// Maximum fields of one message.
const FIELDS_MAX: usize = 64;

/// A request that exceeds a bound.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
enum OutOfBounds {
    #[error("{message}.{field} comes more often than {most} times in one request; send less of it")]
    Many { message: &'static str, field: &'static str, most: u32 },
    #[error("{message}.{field} has {length} bytes; {longest} are the most that it may have")]
    Long { message: &'static str, field: &'static str, length: u64, longest: u32 },
    #[error("the request is no message of this protocol: it has groups")]
    Groups,
}

/// Checks an encoded request against the table entry `place`. Malformed encodings pass: protobuf reports them.
fn check(mut bytes: &[u8], place: usize) -> Result<(), OutOfBounds> {
    let message = &MESSAGES[place];
    let mut counts = [0_u32; FIELDS_MAX];
    while let Some((number, wire_type)) = tag(&mut bytes) {
        let length = match wire_type {
            0 if varint(&mut bytes).is_some() => 0,
            1 if bytes.len() >= 8 => 8,
            2 => match varint(&mut bytes) {
                Some(length) => length,
                None => return Ok(()),
            },
            3 | 4 => return Err(OutOfBounds::Groups),
            5 if bytes.len() >= 4 => 4,
            _ => return Ok(()),
        };
        let found = message.fields.iter().position(|field| field.number == number);
        if let Some(index) = found {
            let Field { name, most, longest, .. } = message.fields[index];
            counts[index] += 1;
            if counts[index] > most {
                return Err(OutOfBounds::Many { message: message.name, field: name, most });
            }
            if wire_type == 2 && length > longest.into() {
                return Err(OutOfBounds::Long { message: message.name, field: name, length, longest });
            }
        }
        let Some(value) = usize::try_from(length).ok().and_then(|length| bytes.split_off(..length)) else {
            return Ok(());
        };
        if wire_type == 2
            && let Some(inner) = found.and_then(|index| message.fields[index].inner)
        {
            check(value, inner)?;
        }
    }
    Ok(())
}

/// Returns the number and wire type of the next field; `None` at the end and for a malformed tag.
fn tag(bytes: &mut &[u8]) -> Option<(u32, u8)> {
    let tag = varint(bytes)?;
    Some((u32::try_from(tag >> 3).ok()?, (tag & 7) as u8))
}

fn varint(bytes: &mut &[u8]) -> Option<u64> {
    prost::encoding::decode_varint(bytes).ok()
}

/// Codec of all calls: refuses requests that exceed their bounds, and decodes all other messages as protobuf.
#[derive(Clone, Debug)]
pub(crate) struct BoundedCodec<T, U>(PhantomData<(T, U)>);

impl<T, U> Default for BoundedCodec<T, U> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<T, U> Codec for BoundedCodec<T, U>
where
    T: ProstMessage + Send + 'static,
    U: ProstMessage + Name + Default + Send + 'static,
{
    type Encode = T;
    type Decode = U;
    type Encoder = ProstEncoder<T>;
    type Decoder = BoundedDecoder<U>;

    fn encoder(&mut self) -> Self::Encoder {
        ProstEncoder::default()
    }

    fn decoder(&mut self) -> Self::Decoder {
        // Responses have only a length limit, because their senders are authenticated.
        let place = MESSAGES.binary_search_by_key(&U::NAME, |message| message.name).ok();
        BoundedDecoder { inner: ProstCodec::<T, U>::default().decoder(), place }
    }
}

/// Decoder of one message type.
#[derive(Debug)]
pub(crate) struct BoundedDecoder<U> {
    inner: ProstDecoder<U>,
    /// Index of the message in the table; `None` for a message that is not a request.
    place: Option<usize>,
}

impl<U: ProstMessage + Default> Decoder for BoundedDecoder<U> {
    type Item = U;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<U>, Status> {
        if let Some(place) = self.place {
            // The buffer is contiguous.
            let whole = &buffer.chunk()[..buffer.remaining().min(buffer.chunk().len())];
            check(whole, place).map_err(|error| Status::invalid_argument(error.to_string()))?;
        }
        self.inner.decode(buffer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::v1::{
        AppSpec, AttachRequest, AttachTo, LaunchSpec, LaunchTasksRequest, RankRange, SignalLaunchRequest,
        attach_request,
    };

    fn checked<M: ProstMessage + Name>(message: &M) -> Result<(), String> {
        let place = MESSAGES.binary_search_by_key(&M::NAME, |message| message.name).expect("it is a request");
        check(&message.encode_to_vec(), place).map_err(|error| error.to_string())
    }

    fn launch(spec: LaunchSpec) -> LaunchTasksRequest {
        LaunchTasksRequest { spec: Some(spec), ..Default::default() }
    }

    #[test]
    fn the_table_is_in_order_and_its_messages_are_small_enough() {
        assert!(MESSAGES.is_sorted_by(|one, next| one.name < next.name));
        let inner = |field: &Field| field.inner.is_none_or(|inner| inner < MESSAGES.len());
        assert!(MESSAGES.iter().all(|message| message.fields.len() <= FIELDS_MAX && message.fields.iter().all(inner)));
    }

    /// Tests lists in user requests, and strings that are parsed or written, once within their bound and once beyond it.
    #[test]
    fn a_request_beyond_a_bound_is_refused_before_it_is_decoded() {
        let signal = |id: usize, ranks| SignalLaunchRequest {
            id: "i".repeat(id),
            signal: 9,
            ranks: vec![RankRange::default(); ranks],
        };
        assert_eq!(checked(&signal(64, 1000)), Ok(()));
        assert_eq!(
            checked(&signal(3 << 20, 1)).unwrap_err(),
            "SignalLaunchRequest.id has 3145728 bytes; 64 are the most that it may have"
        );
        assert!(checked(&signal(1, (1 << 20) + 1)).unwrap_err().contains("ranks comes more often"));
        let attach = AttachTo { launch_id: "i".repeat(65), ..Default::default() };
        let attach = AttachRequest { what: Some(attach_request::What::Attach(attach)) };
        assert!(checked(&attach).unwrap_err().starts_with("AttachTo.launch_id has 65 bytes"));
        let words = |length: usize| ["0,".repeat(length / 2), String::new(), String::new()];
        for turn in 0..3 {
            for (length, passes) in [(64 << 10, true), ((64 << 10) + 2, false)] {
                let [mut one, mut other, mut third] = words(length);
                match turn {
                    0 => {}
                    1 => std::mem::swap(&mut one, &mut other),
                    _ => std::mem::swap(&mut one, &mut third),
                }
                let spec = LaunchSpec { cpu_bind: one, mem_bind: other, gpu_bind: third, ..Default::default() };
                assert_eq!(checked(&launch(spec)).is_ok(), passes, "{turn} {length}");
            }
        }
        for (apps, passes) in [(16_384, true), (16_385, false)] {
            let spec = LaunchSpec { apps: vec![AppSpec::default(); apps], ..Default::default() };
            assert_eq!(checked(&launch(spec)).is_ok(), passes, "{apps}");
        }
    }

    /// Protobuf merges a repeated message, which would merge lists beyond their bound.
    #[test]
    fn a_message_that_comes_twice_is_refused() {
        let once = launch(LaunchSpec { uid: 1, ..Default::default() }).encode_to_vec();
        let place = MESSAGES.binary_search_by_key(&"LaunchTasksRequest", |message| message.name).unwrap();
        assert_eq!(check(&once, place), Ok(()));
        assert!(
            check(&once.repeat(2), place).unwrap_err().to_string().starts_with("LaunchTasksRequest.spec comes more")
        );
    }

    proptest::proptest! {
        /// Arbitrary bytes never make the check panic.
        #[test]
        fn any_bytes_are_checked(bytes in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..200), place in 0..MESSAGES.len()) {
            let _ = check(&bytes, place);
        }
    }
}
