//! Resources that outlive their process, and functions of the program that remove them before its end.

use alloc::borrow::ToOwned;
use alloc::string::String;
use alloc::vec::Vec;
use core::ffi::c_int;

use pmi_c_abi::arguments::Text;
use pmi_c_abi::code::{Code, Failure};
use pmi_c_abi::handler::{Extra, Function, Handler};
use pmi_c_abi::lock::{Lock, Locked};
use pmi_c_abi::process;
use pmi_client::{Client, ClientError};

use crate::call;

/// Handlers of the registered resources, in the order of the registrations.
static HANDLERS: Lock<Vec<Handlers>> = Lock::new(Vec::new());

struct Handlers {
    name: String,
    at_exit: Option<Handler>,
    at_abort: Option<Handler>,
}

/// Kind of process end at which handlers run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Exit,
    Abort,
}

/// Announces that a resource is about to be created.
#[unsafe(no_mangle)]
pub extern "C" fn PMI_Resource_intend(name: Text<'_>) -> c_int {
    call(|| with_name(name, Client::intend_resource))
}

/// Registers a resource, and the functions that remove it at the process end.
#[unsafe(no_mangle)]
pub extern "C" fn PMI_Resource_register(
    name: Text<'_>,
    at_exit: Function,
    at_exit_extra: Extra,
    at_abort: Function,
    at_abort_extra: Extra,
) -> c_int {
    call(|| {
        with_name(name, Client::register_resource)?;
        let name = name.or(Code::ARGUMENT)?.to_owned();
        let at_exit = Handler::new(at_exit, at_exit_extra);
        let at_abort = Handler::new(at_abort, at_abort_extra);
        forget(&name);
        handlers().push(Handlers { name, at_exit, at_abort });
        Ok(())
    })
}

/// Announces that a resource is about to be removed, within `timeout` seconds.
#[unsafe(no_mangle)]
pub extern "C" fn PMI_Resource_release_begin(name: Text<'_>, timeout: c_int) -> c_int {
    call(|| {
        let seconds = u32::try_from(timeout).map_err(|_| Code::ARGUMENT)?;
        with_name(name, |client, name| client.begin_release(name, seconds))
    })
}

/// Reports that a resource was removed.
#[unsafe(no_mangle)]
pub extern "C" fn PMI_Resource_release_end(name: Text<'_>) -> c_int {
    call(|| {
        with_name(name, Client::end_release)?;
        forget(name.or(Code::ARGUMENT)?);
        Ok(())
    })
}

/// Runs each handler of the registered resources once, from the last to the first. Handlers may call PMI.
pub(crate) fn run_handlers(end: End) {
    loop {
        // The list is not locked while the handler runs.
        let last = handlers().pop();
        let Some(Handlers { at_exit, at_abort, .. }) = last else { return };
        let handler = if end == End::Exit { at_exit } else { at_abort };
        if let Some(handler) = handler {
            handler.call();
        }
    }
}

fn with_name(name: Text<'_>, body: impl FnOnce(&mut Client, &str) -> Result<(), ClientError>) -> Result<(), Failure> {
    let name = name.or(Code::ARGUMENT)?;
    process::with(|client| {
        body(client, name).map_err(|error| match error {
            ClientError::Unsupported { .. } => Code::UNSUPPORTED.into(),
            ClientError::ResourceName { .. } => Code::ARGUMENT.into(),
            error => error.into(),
        })
    })
}

fn forget(name: &str) {
    handlers().retain(|handlers| handlers.name != name);
}

fn handlers() -> Locked<Vec<Handlers>> {
    HANDLERS.lock()
}
