//! Names with which jobs find each other. Hints are not read, because no launcher uses them.

use core::ffi::{c_int, c_void};

use pmi_c_abi::arguments::{Array, Text, TextOut};
use pmi_c_abi::code::Code;
use pmi_c_abi::process;

use crate::call;

/// Publishes a port.
#[unsafe(no_mangle)]
pub extern "C" fn PMI2_Nameserv_publish(service: Text<'_>, _hints: Array<'_, c_void>, port: Text<'_>) -> c_int {
    call(|| {
        let (service, port) = (service.or(Code::ARGUMENT)?, port.bytes().ok_or(Code::ARGUMENT)?);
        process::with(|client| Ok(client.publish(service, port)?))
    })
}

/// Looks up a name. Fails for a port that is longer than the buffer, because a part of a port is useless.
#[unsafe(no_mangle)]
pub extern "C" fn PMI2_Nameserv_lookup(
    service: Text<'_>,
    _hints: Array<'_, c_void>,
    port: TextOut<'_>,
    size: c_int,
) -> c_int {
    call(|| {
        let (service, port) = (service.or(Code::ARGUMENT)?, port.with_size(size).ok_or(Code::ARGUMENT)?);
        let found = process::with(|client| Ok(client.lookup(service)?))?.ok_or(Code::OTHER)?;
        Ok(port.put_whole(&found).map_err(|_| Code::LENGTH)?)
    })
}

/// Withdraws a name.
#[unsafe(no_mangle)]
pub extern "C" fn PMI2_Nameserv_unpublish(service: Text<'_>, _hints: Array<'_, c_void>) -> c_int {
    call(|| {
        let service = service.or(Code::ARGUMENT)?;
        process::with(|client| Ok(client.unpublish(service)?))
    })
}
