//! New jobs.

use std::ffi::c_int;

use pmi_c_abi::arguments::{Array, ArrayOut, Text};
use pmi_c_abi::code::Code;
use pmi_c_abi::process;
use pmi_c_abi::spawn::{self, KeyValue, Programs};

use crate::call;

/// Starts a job. On success `errors` gets 0 for each program; MPICH, which has one for each rank, clears them beforehand.
#[unsafe(no_mangle)]
pub extern "C" fn PMI_Spawn_multiple<'c>(
    count: c_int,
    commands: Array<'c, Text<'c>>,
    arguments: Array<'c, Array<'c, Text<'c>>>,
    ranks: Array<'c, c_int>,
    hint_counts: Array<'c, c_int>,
    hints: Array<'c, Array<'c, KeyValue<'c>>>,
    preput_count: c_int,
    preput: Array<'c, KeyValue<'c>>,
    errors: ArrayOut<'c, c_int>,
) -> c_int {
    call(|| {
        let programs = Programs { count, commands, arguments, argument_counts: Array::NULL, ranks, hint_counts, hints };
        let request = programs.request(spawn::pairs(preput.with_length(preput_count).ok_or(Code::ARGUMENT)?)?)?;
        process::with(|client| Ok(client.spawn(&request)?))?;
        errors.fill(count, std::iter::repeat(0));
        Ok(())
    })
}
