//! Key-value spaces. There is one for each job, and its name is the job's.

use std::ffi::c_int;
use std::sync::atomic::{AtomicU64, Ordering};

use pmi_c_abi::arguments::{Buffer, Out, Text, TextOut};
use pmi_c_abi::code::{Code, Failure};
use pmi_c_abi::process;
use pmi_client::Client;

use crate::call;
use crate::job::{name, number, with_nul};

/// Name of the job's key-value space.
#[unsafe(no_mangle)]
pub extern "C" fn PMI_KVS_Get_my_name(kvsname: TextOut<'_>, length: c_int) -> c_int {
    name(kvsname, length, |client| client.job_id().to_owned())
}

/// Size of the buffer that a name needs.
#[unsafe(no_mangle)]
pub extern "C" fn PMI_KVS_Get_name_length_max(length: Out<'_, c_int>) -> c_int {
    number(length, |client| Ok(with_nul(client.limits().job_id_max)))
}

/// Size of the buffer that a key needs.
#[unsafe(no_mangle)]
pub extern "C" fn PMI_KVS_Get_key_length_max(length: Out<'_, c_int>) -> c_int {
    number(length, |client| Ok(with_nul(client.limits().key_max)))
}

/// Size of the buffer that a value needs.
#[unsafe(no_mangle)]
pub extern "C" fn PMI_KVS_Get_value_length_max(length: Out<'_, c_int>) -> c_int {
    number(length, |client| Ok(with_nul(client.limits().value_max)))
}

/// Makes another key-value space: refused, as no launcher serves it.
#[unsafe(no_mangle)]
pub extern "C" fn PMI_KVS_Create(kvsname: TextOut<'_>, length: c_int) -> c_int {
    call(|| {
        if kvsname.is_null() {
            return Err(Code::ARGUMENT.into());
        }
        kvsname.with_size(length).ok_or(Code::LENGTH)?;
        process::with(|_| Err(Code::FAIL.into()))
    })
}

/// Removes a key-value space that was made; the job's own stays.
#[unsafe(no_mangle)]
pub extern "C" fn PMI_KVS_Destroy(kvsname: Text<'_>) -> c_int {
    call(|| {
        kvsname.bytes().ok_or(Code::ARGUMENT)?;
        process::with(|_| Err(Code::KVS.into()))
    })
}

/// Puts a pair.
#[unsafe(no_mangle)]
pub extern "C" fn PMI_KVS_Put(kvsname: Text<'_>, key: Text<'_>, value: Text<'_>) -> c_int {
    call(|| {
        in_space(kvsname, |client| {
            let key = key_of(client, key)?;
            let value = value.bytes().ok_or(Code::VALUE)?;
            client.limits().check_value(value).map_err(|_| Code::VALUE)?;
            Ok(client.put(key, value)?)
        })
    })
}

/// Offers what was put to the next barrier: nothing is left to do, as a put is sent at once.
#[unsafe(no_mangle)]
pub extern "C" fn PMI_KVS_Commit(kvsname: Text<'_>) -> c_int {
    call(|| {
        kvsname.bytes().ok_or(Code::ARGUMENT)?;
        in_space(kvsname, |_| Ok(()))
    })
}

/// Gets a value, whole or not at all.
#[unsafe(no_mangle)]
pub extern "C" fn PMI_KVS_Get(kvsname: Text<'_>, key: Text<'_>, value: TextOut<'_>, length: c_int) -> c_int {
    call(|| {
        in_space(kvsname, |client| {
            let key = key_of(client, key)?;
            let buffer = buffer((value, length), Code::VALUE, Code::LENGTH)?;
            let found = client.get(key)?.ok_or(Code::KEY)?;
            Ok(buffer.put_whole(&found).map_err(|_| Code::LENGTH)?)
        })
    })
}

/// Index of the pair that [`PMI_KVS_Iter_next`] gets. A process has one iterator.
static NEXT: AtomicU64 = AtomicU64::new(0);

/// Gets the first pair of a space; an empty key if there is none.
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

/// Gets the next pair of a space; an empty key behind the last one.
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

/// Gets the pair that is next, whole or not at all.
fn pair(kvsname: Text<'_>, key: (TextOut<'_>, c_int), value: (TextOut<'_>, c_int)) -> c_int {
    call(|| {
        in_space(kvsname, |client| {
            let key = buffer(key, Code::KEY, Code::KEY_LENGTH)?;
            let value = buffer(value, Code::VALUE, Code::VALUE_LENGTH)?;
            let Some(pair) = client.pair_at(NEXT.load(Ordering::Relaxed))? else {
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

/// Runs `body` if the name is that of the job's space.
fn in_space(name: Text<'_>, body: impl FnOnce(&mut Client) -> Result<(), Failure>) -> Result<(), Failure> {
    process::with(|client| match name.bytes() {
        Some(name) if name == client.job_id().as_bytes() => body(client),
        _ => Err(Code::KVS.into()),
    })
}

fn key_of<'c>(client: &Client, key: Text<'c>) -> Result<&'c str, Code> {
    let key = key.or(Code::KEY)?;
    client.limits().check_key(key).map_err(|_| Code::KEY)?;
    Ok(key)
}
