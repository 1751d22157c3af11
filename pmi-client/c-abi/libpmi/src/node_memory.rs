//! Memory that the ranks of a node share.

use core::ffi::c_void;

use core::ffi::c_int;
use pmi_c_abi::arguments::Out;
use pmi_c_abi::code::Code;
use pmi_c_abi::lock::Lock;
use pmi_c_abi::process;
use pmi_client::NodeMemory;

use crate::call;

/// The memory, which stays mapped until the process ends.
static MAPPED: Lock<Option<NodeMemory>> = Lock::new(None);

/// Maps the memory, at the same address for all callers of a process.
#[unsafe(no_mangle)]
pub extern "C" fn PMI_Node_memory(memory: Out<'_, *mut c_void>, bytes: Out<'_, usize>) -> c_int {
    call(|| {
        let (memory, bytes) = (memory.or(Code::ARGUMENT)?, bytes.or(Code::ARGUMENT)?);
        process::with(|client| {
            let mut mapped = MAPPED.lock();
            if mapped.is_none() {
                *mapped = client.node_memory()?;
            }
            let found = mapped.as_ref().ok_or(Code::UNSUPPORTED)?;
            memory.set(found.as_ptr().cast());
            bytes.set(found.bytes().len());
            Ok(())
        })
    })
}
