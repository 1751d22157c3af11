//! New jobs.

use alloc::borrow::ToOwned;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;
use core::ffi::c_int;

use pmi_c_abi::arguments::{Array, ArrayOut, Text, TextOut};
use pmi_c_abi::code::Code;
use pmi_c_abi::process;
use pmi_c_abi::spawn::{self, KeyValue, Programs};
use pmi_client::{SpawnApp, SpawnRequest};

use crate::call;

/// Starts a job. On success `errors` receives 0 for each program. MPICH has one error for each rank, and clears them
/// before the call.
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
        errors.fill(count, core::iter::repeat(0));
        Ok(())
    })
}

/// Starts a job of one program. Returns its name if the launcher provides the name, and an empty name otherwise.
#[unsafe(no_mangle)]
pub extern "C" fn PMI_Spawn<'c>(
    command: Text<'c>,
    arguments: Array<'c, Text<'c>>,
    ranks: c_int,
    kvsname: TextOut<'c>,
    length: c_int,
) -> c_int {
    call(|| {
        let args = arguments.until_null().map(|argument| String::from_utf8(argument.to_vec()));
        let app = SpawnApp {
            program: command.or(Code::ARGUMENT)?.to_owned(),
            args: args.collect::<Result<_, _>>().map_err(|_| Code::ARGUMENT)?,
            ranks: u32::try_from(ranks).map_err(|_| Code::ARGUMENT)?,
            info: Vec::new(),
        };
        let buffer = kvsname.with_size(length);
        if buffer.is_none() && !kvsname.is_null() {
            return Err(Code::LENGTH.into());
        }
        let request = SpawnRequest { apps: vec![app], preput: Vec::new() };
        let name = process::with(|client| Ok(client.spawn(&request)?))?.unwrap_or_default();
        // The job runs, even if the buffer is too small for its name.
        Ok(buffer.map_or(Ok(()), |buffer| buffer.put_whole(name.as_bytes())).map_err(|_| Code::LENGTH)?)
    })
}
