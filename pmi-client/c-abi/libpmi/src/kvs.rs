//! Key-value spaces: the job's space, which has the name of the job, and spaces that ranks create.

use alloc::borrow::ToOwned;
use core::ffi::c_int;
use core::sync::atomic::{AtomicU64, Ordering};

use pmi_c_abi::arguments::{Buffer, Out, Text, TextOut};
use pmi_c_abi::code::{Code, Failure};
use pmi_c_abi::process;
use pmi_client::{Client, ClientError};

use crate::job::{name, with_nul};
use crate::{call, number};

/// Name of the job's key-value space.
#[unsafe(no_mangle)]
pub extern "C" fn PMI_KVS_Get_my_name(kvsname: TextOut<'_>, length: c_int) -> c_int {
    name(kvsname, length, |client| client.job_id().to_owned())
}

/// Size of the buffer for a name.
#[unsafe(no_mangle)]
pub extern "C" fn PMI_KVS_Get_name_length_max(length: Out<'_, c_int>) -> c_int {
    number(length, |client| Ok(with_nul(client.limits().job_id_max)))
}

/// Size of the buffer for a key.
#[unsafe(no_mangle)]
pub extern "C" fn PMI_KVS_Get_key_length_max(length: Out<'_, c_int>) -> c_int {
    number(length, |client| Ok(with_nul(client.limits().key_max)))
}

/// Size of the buffer for a value.
#[unsafe(no_mangle)]
pub extern "C" fn PMI_KVS_Get_value_length_max(length: Out<'_, c_int>) -> c_int {
    number(length, |client| Ok(with_nul(client.limits().value_max)))
}

/// Creates another key-value space. Returns PMI_FAIL under launchers other than Lattice.
#[unsafe(no_mangle)]
pub extern "C" fn PMI_KVS_Create(kvsname: TextOut<'_>, length: c_int) -> c_int {
    call(|| {
        if kvsname.is_null() {
            return Err(Code::ARGUMENT.into());
        }
        let buffer = kvsname.with_size(length).ok_or(Code::LENGTH)?;
        process::with(|client| {
            let name = client.create_space().map_err(|_| Code::FAIL)?;
            buffer.put_whole(name.as_bytes()).map_err(|_| {
                // The caller cannot receive the name of the space.
                let _ = client.destroy_space(&name);
                Code::LENGTH.into()
            })
        })
    })
}

/// Removes a created key-value space; the job's own space remains.
#[unsafe(no_mangle)]
pub extern "C" fn PMI_KVS_Destroy(kvsname: Text<'_>) -> c_int {
    call(|| {
        let name = kvsname.or(Code::ARGUMENT)?;
        process::with(|client| match name == client.job_id() {
            true => Err(Code::KVS.into()),
            false => client.destroy_space(name).map_err(of_space),
        })
    })
}

/// Puts a pair.
#[unsafe(no_mangle)]
pub extern "C" fn PMI_KVS_Put(kvsname: Text<'_>, key: Text<'_>, value: Text<'_>) -> c_int {
    call(|| {
        in_space(kvsname, |client, space| {
            let key = key.key(&client.limits())?;
            let value = value.value(&client.limits())?;
            match space {
                None => Ok(client.put(key, value)?),
                space => client.put_to(space, key, value).map_err(of_space),
            }
        })
    })
}

/// Publishes puts at the next barrier. Does nothing, as a put is sent at once.
#[unsafe(no_mangle)]
pub extern "C" fn PMI_KVS_Commit(kvsname: Text<'_>) -> c_int {
    call(|| {
        kvsname.bytes().ok_or(Code::ARGUMENT)?;
        in_space(kvsname, |_, _| Ok(()))
    })
}

/// Gets a whole value, or nothing.
#[unsafe(no_mangle)]
pub extern "C" fn PMI_KVS_Get(kvsname: Text<'_>, key: Text<'_>, value: TextOut<'_>, length: c_int) -> c_int {
    call(|| {
        in_space(kvsname, |client, space| {
            let key = key.key(&client.limits())?;
            let buffer = buffer((value, length), Code::VALUE, Code::LENGTH)?;
            let found = match space {
                None => client.get(key)?,
                space => client.get_from(space, key).map_err(of_space)?,
            };
            let found = found.ok_or(Code::KEY)?;
            Ok(buffer.put_whole(&found).map_err(|_| Code::LENGTH)?)
        })
    })
}

/// Index of the pair that [`PMI_KVS_Iter_next`] gets. A process has one iterator.
static NEXT: AtomicU64 = AtomicU64::new(0);

/// Gets the first pair of a space; an empty key if the space is empty.
#[unsafe(no_mangle)]
pub extern "C" fn PMI_KVS_Iter_first(
    kvsname: Text<'_>,
    key: TextOut<'_>,
    key_length: c_int,
    value: TextOut<'_>,
    value_length: c_int,
) -> c_int {
    NEXT.store(0, Ordering::Relaxed);
    pair(kvsname, (key, key_length), (value, value_length))
}

/// Gets the next pair of a space; an empty key after the last pair.
#[unsafe(no_mangle)]
pub extern "C" fn PMI_KVS_Iter_next(
    kvsname: Text<'_>,
    key: TextOut<'_>,
    key_length: c_int,
    value: TextOut<'_>,
    value_length: c_int,
) -> c_int {
    pair(kvsname, (key, key_length), (value, value_length))
}

/// Gets the whole next pair, or nothing.
fn pair(kvsname: Text<'_>, key: (TextOut<'_>, c_int), value: (TextOut<'_>, c_int)) -> c_int {
    call(|| {
        in_space(kvsname, |client, space| {
            let key = buffer(key, Code::KEY, Code::KEY_LENGTH)?;
            let value = buffer(value, Code::VALUE, Code::VALUE_LENGTH)?;
            let next = client.pair_at(space, NEXT.load(Ordering::Relaxed));
            let next = if space.is_some() { next.map_err(of_space) } else { next.map_err(Failure::from) };
            let Some(pair) = next? else {
                key.put_cut(b"").map_err(|_| Code::KEY_LENGTH)?;
                return Ok(value.put_cut(b"").map_err(|_| Code::VALUE_LENGTH)?);
            };
            key.put_whole(pair.key.as_bytes()).map_err(|_| Code::KEY_LENGTH)?;
            value.put_whole(&pair.value).map_err(|_| Code::VALUE_LENGTH)?;
            NEXT.store(pair.next, Ordering::Relaxed);
            Ok(())
        })
    })
}

fn buffer((start, length): (TextOut<'_>, c_int), missing: Code, too_small: Code) -> Result<Buffer<'_>, Code> {
    if start.is_null() { Err(missing) } else { start.with_size(length).ok_or(too_small) }
}

/// Runs `body` with the name of a created space, or without a name for the job's space.
fn in_space(
    name: Text<'_>,
    body: impl FnOnce(&mut Client, Option<&str>) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let name = name.or(Code::KVS)?;
    process::with(|client| {
        // The names of spaces start with the job's name.
        let rest = name.strip_prefix(client.job_id()).ok_or(Code::KVS)?;
        match rest {
            "" => body(client, None),
            rest if rest.starts_with(".k") => body(client, Some(name)),
            _ => Err(Code::KVS.into()),
        }
    })
}

/// Converts the refusal of a server that does not have the space.
fn of_space(error: ClientError) -> Failure {
    match error {
        ClientError::Refused { .. } | ClientError::Unsupported { .. } => Code::KVS.into(),
        error => error.into(),
    }
}
