//! Attributes of the node and of the job.

use alloc::vec::Vec;
use core::ffi::c_int;

use pmi_c_abi::arguments::{ArrayOut, Out, Text, TextOut};
use pmi_c_abi::code::{Code, Failure};
use pmi_c_abi::process;
use pmi_client::{Client, ClientError};

use crate::call;
use crate::kvs::{pair_of, put_cut};

/// Puts an attribute for the job's ranks on this node.
#[unsafe(no_mangle)]
pub extern "C" fn PMI2_Info_PutNodeAttr(name: Text<'_>, value: Text<'_>) -> c_int {
    call(|| {
        process::with(|client| {
            let (name, value) = pair_of(client, name, value)?;
            Ok(client.put_node_attribute(name, value)?)
        })
    })
}

/// Gets an attribute of the node. If requested, waits until a rank puts the attribute.
#[unsafe(no_mangle)]
pub extern "C" fn PMI2_Info_GetNodeAttr(
    name: Text<'_>,
    value: TextOut<'_>,
    size: c_int,
    found: Out<'_, c_int>,
    wait: c_int,
) -> c_int {
    text(name, value, size, found, |client, name| match wait {
        0 => client.node_attribute(name),
        _ => client.await_node_attribute(name).map(Some),
    })
}

/// Gets an attribute of the node with a list of numbers as its value.
#[unsafe(no_mangle)]
pub extern "C" fn PMI2_Info_GetNodeAttrIntArray(
    name: Text<'_>,
    array: ArrayOut<'_, c_int>,
    length: c_int,
    written: Out<'_, c_int>,
    found: Out<'_, c_int>,
) -> c_int {
    numbers(name, array, length, written, found, Client::node_attribute)
}

/// Gets an attribute of the job.
#[unsafe(no_mangle)]
pub extern "C" fn PMI2_Info_GetJobAttr(
    name: Text<'_>,
    value: TextOut<'_>,
    size: c_int,
    found: Out<'_, c_int>,
) -> c_int {
    text(name, value, size, found, Client::job_attribute)
}

/// Gets an attribute of the job with a list of numbers as its value.
#[unsafe(no_mangle)]
pub extern "C" fn PMI2_Info_GetJobAttrIntArray(
    name: Text<'_>,
    array: ArrayOut<'_, c_int>,
    length: c_int,
    written: Out<'_, c_int>,
    found: Out<'_, c_int>,
) -> c_int {
    numbers(name, array, length, written, found, Client::job_attribute)
}

/// A request for an attribute by its name.
type Question = fn(&mut Client, &str) -> Result<Option<Vec<u8>>, ClientError>;

/// Writes an attribute, cut to the size of the buffer. An absent attribute is no failure.
fn text(
    name: Text<'_>,
    value: TextOut<'_>,
    size: c_int,
    found: Out<'_, c_int>,
    ask: impl FnOnce(&mut Client, &str) -> Result<Option<Vec<u8>>, ClientError>,
) -> c_int {
    call(|| {
        let found = found.or(Code::ARGUMENT)?;
        let buffer = value.with_size(size).ok_or(Code::ARGUMENT)?;
        let attribute = attribute(name, ask)?;
        if let Some(attribute) = &attribute {
            put_cut(Some(buffer), attribute);
        }
        found.set(attribute.is_some().into());
        Ok(())
    })
}

/// Writes the numbers of an attribute, up to the room of the caller.
fn numbers(
    name: Text<'_>,
    array: ArrayOut<'_, c_int>,
    length: c_int,
    written: Out<'_, c_int>,
    found: Out<'_, c_int>,
    ask: Question,
) -> c_int {
    call(|| {
        let (written, found) = (written.or(Code::ARGUMENT)?, found.or(Code::ARGUMENT)?);
        if array.is_null() {
            return Err(Code::ARGUMENT.into());
        }
        let attribute = attribute(name, ask)?;
        if let Some(attribute) = &attribute {
            let numbers = numbers_of(attribute).ok_or(Code::OTHER)?;
            // At most `length`.
            written.set(array.fill(length, numbers) as c_int);
        }
        found.set(attribute.is_some().into());
        Ok(())
    })
}

fn attribute(
    name: Text<'_>,
    ask: impl FnOnce(&mut Client, &str) -> Result<Option<Vec<u8>>, ClientError>,
) -> Result<Option<Vec<u8>>, Failure> {
    process::with(|client| {
        let name = name.key(&client.limits())?;
        Ok(ask(client, name)?)
    })
}

/// Numbers of a list such as `1,2,3`; `None` for anything else.
fn numbers_of(list: &[u8]) -> Option<Vec<c_int>> {
    str::from_utf8(list).ok()?.split(',').map(|number| number.trim().parse().ok()).collect()
}
