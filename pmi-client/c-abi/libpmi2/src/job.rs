//! A process and its job.

use alloc::string::String;
use core::ffi::{c_int, c_void};

use pmi_c_abi::arguments::{Out, Text, TextOut};
use pmi_c_abi::code::Code;
use pmi_c_abi::process;
use pmi_client::Protocol;

use crate::{call, number};

/// Joins the job. A second call only returns the result.
#[unsafe(no_mangle)]
pub extern "C" fn PMI2_Init(
    spawned: Out<'_, c_int>,
    size: Out<'_, c_int>,
    rank: Out<'_, c_int>,
    appnum: Out<'_, c_int>,
) -> c_int {
    call(|| {
        let (spawned, size) = (spawned.or(Code::ARGUMENT)?, size.or(Code::ARGUMENT)?);
        let (rank, appnum) = (rank.or(Code::ARGUMENT)?, appnum.or(Code::ARGUMENT)?);
        process::join(Protocol::Pmi2, |client| {
            spawned.set(client.is_spawned().into());
            size.set(client.size().cast_signed());
            rank.set(client.rank().cast_signed());
            appnum.set(client.appnum().and_then(|appnum| c_int::try_from(appnum).ok()).unwrap_or(-1));
            Ok(())
        })
    })
}

/// Leaves the job in good order.
#[unsafe(no_mangle)]
pub extern "C" fn PMI2_Finalize() -> c_int {
    call(process::leave)
}

/// Returns 1 if this process has joined and has not left, else 0. This is not an error code.
#[unsafe(no_mangle)]
pub extern "C" fn PMI2_Initialized() -> c_int {
    let mut initialized = false;
    call(|| {
        initialized = process::is_joined();
        Ok(())
    });
    initialized.into()
}

/// Ends the job, or only this process if `whole_job` is 0. Does not return. MPI libraries write their exit code into the message.
#[unsafe(no_mangle)]
pub extern "C" fn PMI2_Abort(whole_job: c_int, message: Text<'_>) -> c_int {
    call(|| match whole_job {
        0 => process::end(1),
        _ => process::abort(None, &String::from_utf8_lossy(message.bytes().unwrap_or_default())),
    })
}

/// Name of the job. Fails without a launcher; MVAPICH uses this to detect a singleton.
#[unsafe(no_mangle)]
pub extern "C" fn PMI2_Job_GetId(id: TextOut<'_>, size: c_int) -> c_int {
    call(|| {
        let id = id.with_size(size).ok_or(Code::ARGUMENT)?;
        process::with(|client| match client.is_singleton() {
            true => Err(Code::OTHER.into()),
            false => Ok(id.put_whole(client.job_id().as_bytes()).map_err(|_| Code::LENGTH)?),
        })
    })
}

/// Rank of this process.
#[unsafe(no_mangle)]
pub extern "C" fn PMI2_Job_GetRank(rank: Out<'_, c_int>) -> c_int {
    number(rank, |client| Ok(client.rank().cast_signed()))
}

/// Number of ranks of the job. The header defines it as the number of the node's ranks. But every library returns the size of the
/// job, and MPI libraries rely on it.
#[unsafe(no_mangle)]
pub extern "C" fn PMI2_Info_GetSize(size: Out<'_, c_int>) -> c_int {
    number(size, |client| Ok(client.size().cast_signed()))
}

/// Connects to another job. Always fails, as no launcher serves the request. MPI libraries connect by published names.
#[unsafe(no_mangle)]
pub extern "C" fn PMI2_Job_Connect(id: Text<'_>, _connection: Out<'_, *const c_void>) -> c_int {
    not_served(id)
}

/// Disconnects from another job. Always fails, as there is no connection.
#[unsafe(no_mangle)]
pub extern "C" fn PMI2_Job_Disconnect(id: Text<'_>) -> c_int {
    not_served(id)
}

fn not_served(id: Text<'_>) -> c_int {
    call(|| {
        id.bytes().ok_or(Code::ARGUMENT)?;
        process::with(|_| Err(Code::OTHER.into()))
    })
}
