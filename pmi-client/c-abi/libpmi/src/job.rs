//! A process and its job.

use alloc::borrow::ToOwned;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::ffi::c_int;

use pmi_c_abi::arguments::{ArrayOut, Out, Text, TextOut};
use pmi_c_abi::code::{Code, Failure};
use pmi_c_abi::process;
use pmi_client::{Client, Protocol};

use crate::resources::{self, End};
use crate::{call, number};

/// Joins the job. A second call only returns the result.
#[unsafe(no_mangle)]
pub extern "C" fn PMI_Init(spawned: Out<'_, c_int>) -> c_int {
    call(|| {
        let spawned = spawned.or(Code::ARGUMENT)?;
        process::join(Protocol::Pmi1, |client| {
            spawned.set(client.is_spawned().into());
            Ok(())
        })
    })
}

/// Reports whether this process has joined and has not left.
#[unsafe(no_mangle)]
pub extern "C" fn PMI_Initialized(initialized: Out<'_, c_int>) -> c_int {
    call(|| {
        initialized.or(Code::ARGUMENT)?.set(process::is_joined().into());
        Ok(())
    })
}

/// Leaves the job in good order.
#[unsafe(no_mangle)]
pub extern "C" fn PMI_Finalize() -> c_int {
    call(|| {
        resources::run_handlers(End::Exit);
        process::leave()
    })
}

/// Number of ranks.
#[unsafe(no_mangle)]
pub extern "C" fn PMI_Get_size(size: Out<'_, c_int>) -> c_int {
    number(size, |client| Ok(client.size().cast_signed()))
}

/// Rank of this process.
#[unsafe(no_mangle)]
pub extern "C" fn PMI_Get_rank(rank: Out<'_, c_int>) -> c_int {
    number(rank, |client| Ok(client.rank().cast_signed()))
}

/// Maximum number of ranks; -1 if the launcher sets none.
#[unsafe(no_mangle)]
pub extern "C" fn PMI_Get_universe_size(size: Out<'_, c_int>) -> c_int {
    number(size, |client| Ok(client.universe_size()?.map_or(-1, u32::cast_signed)))
}

/// Index of this process's program; -1 if the launcher provides none.
#[unsafe(no_mangle)]
pub extern "C" fn PMI_Get_appnum(appnum: Out<'_, c_int>) -> c_int {
    number(appnum, |client| Ok(client.appnum().and_then(|appnum| c_int::try_from(appnum).ok()).unwrap_or(-1)))
}

/// Name of the job.
#[unsafe(no_mangle)]
pub extern "C" fn PMI_Get_id(id: TextOut<'_>, length: c_int) -> c_int {
    name(id, length, |client| client.job_id().to_owned())
}

/// Name of the domain that shares key-value spaces, as `N.M`. Open MPI reads two numbers, and uses them to name shared
/// memory.
#[unsafe(no_mangle)]
pub extern "C" fn PMI_Get_kvs_domain_id(id: TextOut<'_>, length: c_int) -> c_int {
    name(id, length, |client| {
        let (launch, number) = launch_and_number(client.job_id());
        format!("{}.{number}", hash(launch))
    })
}

/// Size of the buffer for the two names above.
#[unsafe(no_mangle)]
pub extern "C" fn PMI_Get_id_length_max(length: Out<'_, c_int>) -> c_int {
    number(length, |client| Ok(with_nul(client.limits().job_id_max)))
}

/// Waits for all ranks.
#[unsafe(no_mangle)]
pub extern "C" fn PMI_Barrier() -> c_int {
    call(|| process::with(|client| Ok(client.fence()?)))
}

/// Number of the job's ranks on this node.
#[unsafe(no_mangle)]
pub extern "C" fn PMI_Get_clique_size(size: Out<'_, c_int>) -> c_int {
    number(size, |client| c_int::try_from(client.local_ranks()?.len()).map_err(|_| Code::FAIL.into()))
}

/// The job's ranks on this node.
#[unsafe(no_mangle)]
pub extern "C" fn PMI_Get_clique_ranks(ranks: ArrayOut<'_, c_int>, length: c_int) -> c_int {
    call(|| put_ranks(ranks, length, |client| Ok(client.local_ranks()?)))
}

/// Ends the job. Does not return.
#[unsafe(no_mangle)]
pub extern "C" fn PMI_Abort(exit_code: c_int, message: Text<'_>) -> c_int {
    call(|| {
        process::wait_for_no_other_call();
        resources::run_handlers(End::Abort);
        process::abort(Some(exit_code), &String::from_utf8_lossy(message.bytes().unwrap_or_default()))
    })
}

/// Writes all ranks, or none.
pub(crate) fn put_ranks(
    place: ArrayOut<'_, c_int>,
    length: c_int,
    of: fn(&mut Client) -> Result<Vec<u32>, Failure>,
) -> Result<(), Failure> {
    if place.is_null() {
        return Err(Code::ARGUMENT.into());
    }
    let ranks = process::with(of)?;
    if usize::try_from(length).is_ok_and(|length| length >= ranks.len()) {
        place.fill(length, ranks.into_iter().map(u32::cast_signed));
        Ok(())
    } else {
        Err(Code::LENGTH.into())
    }
}

/// Runs a function that writes a whole name, or nothing.
pub(crate) fn name(buffer: TextOut<'_>, length: c_int, of: impl FnOnce(&Client) -> String) -> c_int {
    call(|| {
        if buffer.is_null() {
            return Err(Code::ARGUMENT.into());
        }
        let name = process::with(|client| Ok(of(client)))?;
        let buffer = buffer.with_size(length).ok_or(Code::LENGTH)?;
        Ok(buffer.put_whole(name.as_bytes()).map_err(|_| Code::LENGTH)?)
    })
}

/// Size of a buffer for a text of this number of bytes.
pub(crate) fn with_nul(bytes: usize) -> c_int {
    c_int::try_from(bytes + 1).unwrap_or(c_int::MAX)
}

/// Splits a job's name into the name without the number at its end, and the number. Lattice numbers the jobs of a launch
/// this way.
fn launch_and_number(job_id: &str) -> (&str, u16) {
    let launch = job_id.trim_end_matches(|c: char| c.is_ascii_digit());
    job_id[launch.len()..].parse().map_or((job_id, 0), |number| (launch, number))
}

/// A hash of 16 bits: FNV-1a, folded. One pair of launches in 65,536 has the same hash.
fn hash(launch: &str) -> u32 {
    let full = launch.bytes().fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    full >> 16 ^ full & 0xffff
}
