//! Functions of Cray's `pmi.h` that MPICH's lacks: collectives, which use puts, a barrier and gets, and the nodes of ranks.
//!
//! ```text
//! all-gather 3 of rank 1, 700 bytes:     collective-3-1-0 = 511 bytes, a letter from a to p for each half     collective-3-1-1 = 189 bytes
//! ```
//! A value of PMI-1 is usually a text of at most 1,023 bytes. The pairs stay in the job's key-value space.

use alloc::format;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;
use core::ffi::c_int;
use core::sync::atomic::{AtomicU32, Ordering};

use pmi_c_abi::arguments::{Array, ArrayOut, Out};
use pmi_c_abi::code::{Code, Failure};
use pmi_c_abi::lock::Lock;
use pmi_c_abi::process;
use pmi_client::Client;

use crate::job::{PMI_Get_clique_ranks, PMI_Get_clique_size};
use crate::{call, number};

/// Number of the next collective. All ranks call the same collectives in the same order.
static NEXT: AtomicU32 = AtomicU32::new(0);

/// Node of each rank.
static NODES: Lock<Option<&[c_int]>> = Lock::new(None);

/// Gathers the same number of bytes from each rank, in the order of ranks.
#[unsafe(no_mangle)]
pub extern "C" fn PMI_Allgather(own: Array<'_, u8>, all: ArrayOut<'_, u8>, length: c_int) -> c_int {
    call(|| {
        let own = own.with_length(length).ok_or(Code::ARGUMENT)?;
        process::with(|client| {
            let lengths = vec![own.len(); client.size() as usize];
            gather(client, own, &lengths, all)
        })
    })
}

/// Gathers the bytes of each rank, in the order of ranks. Every rank must pass the lengths of all ranks.
#[unsafe(no_mangle)]
pub extern "C" fn PMI_Allgatherv(
    own: Array<'_, u8>,
    length: c_int,
    all: ArrayOut<'_, u8>,
    lengths: Array<'_, c_int>,
) -> c_int {
    call(|| {
        let own = own.with_length(length).ok_or(Code::ARGUMENT)?;
        process::with(|client| {
            let lengths = lengths.with_length(client.size().cast_signed()).ok_or(Code::ARGUMENT)?;
            let lengths = lengths.iter().map(|&length| usize::try_from(length)).collect::<Result<Vec<_>, _>>();
            let lengths = lengths.map_err(|_| Code::LENGTH)?;
            match lengths[client.rank() as usize] == own.len() {
                true => gather(client, own, &lengths, all),
                false => Err(Code::LENGTH.into()),
            }
        })
    })
}

/// Sends bytes of rank 0 to all ranks.
#[unsafe(no_mangle)]
pub extern "C" fn PMI_Bcast(data: ArrayOut<'_, u8>, length: c_int) -> c_int {
    call(|| {
        let room = usize::try_from(length).ok().filter(|&room| room == 0 || !data.is_null()).ok_or(Code::ARGUMENT)?;
        process::with(|client| {
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            // Only the root has written to the buffer.
            let own = if client.rank() == 0 { data.values(length).ok_or(Code::ARGUMENT)? } else { Vec::new() };
            put_and_fence(client, number, &own)?;
            if client.rank() != 0 {
                data.fill(length, get(client, number, 0, room)?);
            }
            Ok(())
        })
    })
}

/// Version of this library.
#[unsafe(no_mangle)]
pub extern "C" fn PMI_Get_version_info(
    major: Out<'_, c_int>,
    minor: Out<'_, c_int>,
    revision: Out<'_, c_int>,
) -> c_int {
    call(|| {
        let places = [major.or(Code::ARGUMENT)?, minor.or(Code::ARGUMENT)?, revision.or(Code::ARGUMENT)?];
        for (place, number) in places.into_iter().zip(env!("CARGO_PKG_VERSION").split('.')) {
            place.set(number.parse().unwrap_or(0));
        }
        Ok(())
    })
}

/// The same as [`PMI_Get_clique_size`].
#[unsafe(no_mangle)]
pub extern "C" fn PMI_Get_numpes_on_smp(number: Out<'_, c_int>) -> c_int {
    PMI_Get_clique_size(number)
}

/// The same as [`PMI_Get_clique_ranks`].
#[unsafe(no_mangle)]
pub extern "C" fn PMI_Get_pes_on_smp(ranks: ArrayOut<'_, c_int>, length: c_int) -> c_int {
    PMI_Get_clique_ranks(ranks, length)
}

/// Number of a rank's node among the nodes of the job.
#[unsafe(no_mangle)]
pub extern "C" fn PMI_Get_nid(rank: c_int, node: Out<'_, c_int>) -> c_int {
    number(node, |client| {
        let index = usize::try_from(rank).map_err(|_| Code::ARGUMENT)?;
        Ok(nodes(client)?.get(index).copied().ok_or(Code::ARGUMENT)?)
    })
}

/// The nodes of all ranks, at an address that is valid until the process ends.
#[unsafe(no_mangle)]
pub extern "C" fn PMI_Get_nidlist_ptr(list: Out<'_, *const c_int>) -> c_int {
    call(|| {
        let list = list.or(Code::ARGUMENT)?;
        process::with(|client| {
            list.set(nodes(client)?.as_ptr());
            Ok(())
        })
    })
}

fn nodes(client: &mut Client) -> Result<&'static [c_int], Failure> {
    let mut known = NODES.lock();
    if known.is_none() {
        let nodes = client.nodes()?.ok_or(Code::FAIL)?;
        *known = Some(nodes.into_iter().map(u32::cast_signed).collect::<Vec<_>>().leak());
    }
    Ok(known.ok_or(Code::FAIL)?)
}

fn gather(client: &mut Client, own: &[u8], lengths: &[usize], all: ArrayOut<'_, u8>) -> Result<(), Failure> {
    let room = c_int::try_from(lengths.iter().sum::<usize>()).map_err(|_| Code::LENGTH)?;
    if room > 0 && all.is_null() {
        return Err(Code::ARGUMENT.into());
    }
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    put_and_fence(client, number, own)?;
    let mut gathered = Vec::new();
    for (rank, &length) in (0..).zip(lengths) {
        gathered.extend(get(client, number, rank, length)?);
    }
    all.fill(room, gathered);
    Ok(())
}

/// Enters the fence even if the put fails. The other ranks wait in the fence, and detect the missing value.
fn put_and_fence(client: &mut Client, number: u32, bytes: &[u8]) -> Result<(), Failure> {
    let put = put(client, number, bytes);
    client.fence()?;
    put
}

fn put(client: &mut Client, number: u32, bytes: &[u8]) -> Result<(), Failure> {
    for (part, bytes) in bytes.chunks(bytes_of_a_value(client)).enumerate() {
        let digits: Vec<u8> = bytes.iter().flat_map(|byte| [byte >> 4, byte & 15].map(|half| b'a' + half)).collect();
        client.put(&key(number, client.rank(), part), digits)?;
    }
    Ok(())
}

/// Returns `length` bytes of a rank.
fn get(client: &mut Client, number: u32, rank: u32, length: usize) -> Result<Vec<u8>, Failure> {
    let mut bytes = Vec::new();
    for part in 0..length.div_ceil(bytes_of_a_value(client)) {
        let digits = client.get(&key(number, rank, part))?.ok_or(Code::FAIL)?;
        bytes.extend(
            digits.chunks_exact(2).map(|halves| halves[0].wrapping_sub(b'a') << 4 | halves[1].wrapping_sub(b'a')),
        );
    }
    if bytes.len() == length { Ok(bytes) } else { Err(Code::LENGTH.into()) }
}

fn bytes_of_a_value(client: &Client) -> usize {
    (client.limits().value_max / 2).max(1)
}

fn key(number: u32, rank: u32, part: usize) -> String {
    format!("collective-{number}-{rank}-{part}")
}
