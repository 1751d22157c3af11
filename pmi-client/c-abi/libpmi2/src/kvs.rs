//! The key-value space of the job, and the ring.

use core::ffi::c_int;

use pmi_c_abi::arguments::{Buffer, Out, Text, TextOut};
use pmi_c_abi::code::Code;
use pmi_c_abi::process;
use pmi_client::Client;

use crate::call;

/// Puts a pair.
#[unsafe(no_mangle)]
pub extern "C" fn PMI2_KVS_Put(key: Text<'_>, value: Text<'_>) -> c_int {
    call(|| {
        process::with(|client| {
            let (key, value) = pair_of(client, key, value)?;
            Ok(client.put(key, value)?)
        })
    })
}

/// Waits for all ranks, and makes their pairs available.
#[unsafe(no_mangle)]
pub extern "C" fn PMI2_KVS_Fence() -> c_int {
    call(|| process::with(|client| Ok(client.fence()?)))
}

/// Gets a value. A value that is longer than the buffer is cut, and its length is negative. The buffer may be
/// absent.
#[unsafe(no_mangle)]
pub extern "C" fn PMI2_KVS_Get(
    job_id: Text<'_>,
    _source: c_int,
    key: Text<'_>,
    value: TextOut<'_>,
    size: c_int,
    length: Out<'_, c_int>,
) -> c_int {
    call(|| {
        process::with(|client| {
            let key = key.key(&client.limits())?;
            if !is_own(client, job_id) {
                return Err(Code::OTHER.into());
            }
            let found = client.get(key)?.ok_or(Code::OTHER)?;
            length.set(put_cut(value.with_size(size), &found));
            Ok(())
        })
    })
}

/// Sends a value to both neighbours and receives their values. Waits for all ranks.
#[unsafe(no_mangle)]
pub extern "C" fn PMIX_Ring(
    value: Text<'_>,
    rank: Out<'_, c_int>,
    ranks: Out<'_, c_int>,
    left: TextOut<'_>,
    right: TextOut<'_>,
    size: c_int,
) -> c_int {
    call(|| {
        let value = value.bytes().ok_or(Code::ARGUMENT)?;
        let (rank, ranks) = (rank.or(Code::ARGUMENT)?, ranks.or(Code::ARGUMENT)?);
        let buffers = (left.with_size(size), right.with_size(size));
        let (Some(left), Some(right)) = buffers else { return Err(Code::ARGUMENT.into()) };
        process::with(|client| {
            client.limits().check_value(value).map_err(|_| Code::VALUE)?;
            let neighbours = client.ring(value)?;
            rank.set(neighbours.position.cast_signed());
            ranks.set(client.size().cast_signed());
            put_cut(Some(left), &neighbours.left);
            put_cut(Some(right), &neighbours.right);
            Ok(())
        })
    })
}

/// NULL and the empty text name the caller's own job. No launcher provides pairs of another job.
fn is_own(client: &Client, job_id: Text<'_>) -> bool {
    job_id.bytes().is_none_or(|id| id.is_empty() || id == client.job_id().as_bytes())
}

/// Writes a value, cut to the size of the buffer. Returns its length, negative if it was cut.
pub(crate) fn put_cut(buffer: Option<Buffer<'_>>, value: &[u8]) -> c_int {
    // A value is never longer than a message.
    let length = value.len() as c_int;
    match buffer.map(|buffer| buffer.put_cut(value)) {
        Some(Ok(())) => length,
        _ => -length,
    }
}

/// Returns a key and a value that the launcher accepts.
pub(crate) fn pair_of<'c>(client: &Client, key: Text<'c>, value: Text<'c>) -> Result<(&'c str, &'c [u8]), Code> {
    let limits = client.limits();
    let value = value.value(&limits)?;
    Ok((key.key(&limits)?, value))
}
