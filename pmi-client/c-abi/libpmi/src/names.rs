//! Names with which jobs find each other.

use core::ffi::c_int;

use pmi_c_abi::arguments::{Text, TextOut};
use pmi_c_abi::code::Code;
use pmi_c_abi::process;

use crate::call;

/// Minimum size of the buffer of every caller of `PMI_Lookup_name`. The function has no parameter for the size.
const PORT_SIZE: c_int = 256;

/// Publishes a port.
#[unsafe(no_mangle)]
pub extern "C" fn PMI_Publish_name(service: Text<'_>, port: Text<'_>) -> c_int {
    call(|| {
        let (service, port) = (service.or(Code::ARGUMENT)?, port.bytes().ok_or(Code::ARGUMENT)?);
        process::with(|client| Ok(client.publish(service, port)?))
    })
}

/// Withdraws a name.
#[unsafe(no_mangle)]
pub extern "C" fn PMI_Unpublish_name(service: Text<'_>) -> c_int {
    call(|| {
        let service = service.or(Code::ARGUMENT)?;
        process::with(|client| Ok(client.unpublish(service)?))
    })
}

/// Looks up a name. Fails for a port of more than 255 bytes.
#[unsafe(no_mangle)]
pub extern "C" fn PMI_Lookup_name(service: Text<'_>, port: TextOut<'_>) -> c_int {
    call(|| {
        let (service, port) = (service.or(Code::ARGUMENT)?, port.with_size(PORT_SIZE).ok_or(Code::ARGUMENT)?);
        let found = process::with(|client| Ok(client.lookup(service)?))?.ok_or(Code::FAIL)?;
        Ok(port.put_whole(&found).map_err(|_| Code::FAIL)?)
    })
}
