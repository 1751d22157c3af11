//! New jobs, in either of the two layouts that are in use under the name `PMI2_Job_Spawn`.
//!
//! In Slurm's `pmi2.h` the pairs are structures of type `MPID_Info`, and the pairs for the new job are an array of pointers to them. MPI
//! libraries that were built for Slurm's library have the same layout, among them Intel's. Since 4.1 MPICH's `pmi2.h` has structures of
//! two pointers, and an array of them. A call has no mark of its layout. Therefore the second layout has a separate name, which
//! `include/pmi2.h` defines.

use alloc::string::String;
use alloc::vec::Vec;
use core::ffi::c_int;

use pmi_c_abi::arguments::{Array, ArrayOut, Text, TextOut};
use pmi_c_abi::code::{Code, Failure};
use pmi_c_abi::process;
use pmi_c_abi::spawn::{self, Info, KeyValue, Pair, Programs};

use crate::call;

/// Starts a job. `job_id` may be NULL.
#[unsafe(no_mangle)]
pub extern "C" fn PMI2_Job_Spawn<'c>(
    count: c_int,
    commands: Array<'c, Text<'c>>,
    argument_counts: Array<'c, c_int>,
    arguments: Array<'c, Array<'c, Text<'c>>>,
    ranks: Array<'c, c_int>,
    hint_counts: Array<'c, c_int>,
    hints: Array<'c, Array<'c, Info<'c>>>,
    preput_count: c_int,
    preput: Array<'c, Array<'c, Info<'c>>>,
    job_id: TextOut<'c>,
    job_id_size: c_int,
    errors: ArrayOut<'c, c_int>,
) -> c_int {
    call(|| {
        let programs = Programs { count, commands, arguments, argument_counts, ranks, hint_counts, hints };
        let pointers = preput.with_length(preput_count).ok_or(Code::ARGUMENT)?;
        let preput = pointers.iter().map(|pointer| pointer.first().ok_or(Code::ARGUMENT)?.pair());
        start(&programs, preput.collect::<Result<_, _>>()?, job_id, job_id_size, errors)
    })
}

/// The same with the structures of MPICH 4.1 and later.
#[unsafe(no_mangle)]
pub extern "C" fn PMI2_Job_Spawn_keyvals<'c>(
    count: c_int,
    commands: Array<'c, Text<'c>>,
    argument_counts: Array<'c, c_int>,
    arguments: Array<'c, Array<'c, Text<'c>>>,
    ranks: Array<'c, c_int>,
    hint_counts: Array<'c, c_int>,
    hints: Array<'c, Array<'c, KeyValue<'c>>>,
    preput_count: c_int,
    preput: Array<'c, KeyValue<'c>>,
    job_id: TextOut<'c>,
    job_id_size: c_int,
    errors: ArrayOut<'c, c_int>,
) -> c_int {
    call(|| {
        let programs = Programs { count, commands, arguments, argument_counts, ranks, hint_counts, hints };
        let preput = spawn::pairs(preput.with_length(preput_count).ok_or(Code::ARGUMENT)?)?;
        start(&programs, preput, job_id, job_id_size, errors)
    })
}

/// Starts a job. On success `errors` receives 0 for each program. MPICH has one error for each rank, and clears them before the call.
fn start<P: Pair + Copy>(
    programs: &Programs<'_, P>,
    preput: Vec<(String, String)>,
    job_id: TextOut<'_>,
    job_id_size: c_int,
    errors: ArrayOut<'_, c_int>,
) -> Result<(), Failure> {
    let buffer = job_id.with_size(job_id_size);
    if buffer.is_none() && !job_id.is_null() {
        return Err(Code::LENGTH.into());
    }
    let request = programs.request(preput)?;
    let started = process::with(|client| Ok(client.spawn(&request)?))?.unwrap_or_default();
    errors.fill(programs.count, core::iter::repeat(0));
    // The job runs, even if the buffer is too small for its name.
    Ok(buffer.map_or(Ok(()), |buffer| buffer.put_whole(started.as_bytes())).map_err(|_| Code::LENGTH)?)
}
