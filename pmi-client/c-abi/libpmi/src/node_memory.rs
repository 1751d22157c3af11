//! Memory that the ranks of a node share.

use std::ffi::c_void;
use std::sync::OnceLock;

use pmi_c_abi::arguments::Out;
use pmi_c_abi::code::Code;
use pmi_c_abi::process;
use pmi_client::NodeMemory;
use std::ffi::c_int;

use crate::call;

/// The memory, which stays mapped for as long as the process lives.
static MAPPED: OnceLock<NodeMemory> = OnceLock::new();

/// Maps the memory, at the same place for all callers of a process.
#[unsafe(no_mangle)]
pub extern "C" fn PMI_Node_memory(memory: Out<'_, *mut c_void>, bytes: Out<'_, usize>) -> c_int {
    call(|| {
        let (memory, bytes) = (memory.or(Code::ARGUMENT)?, bytes.or(Code::ARGUMENT)?);
        let found = process::with(|client| match MAPPED.get() {
            Some(mapped) => Ok(mapped),
            // The client's lock is held, so nobody maps it a second time.
            None => Ok(client.node_memory()?.map(|mapped| MAPPED.get_or_init(|| mapped)).ok_or(Code::UNSUPPORTED)?),
        })?;
        memory.set(found.as_ptr().cast());
        bytes.set(found.bytes().len());
        Ok(())
    })
}
