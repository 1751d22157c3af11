//! Reads the answers of a PMIx server.

use std::collections::BTreeMap;

use pmix_core::wire::reader::Reader;
use pmix_core::wire::value::{Info, Value as WireValue};
use pmix_core::wire::{WireError, status};

use super::connection::Answer;
use super::{PmixError, Value};

/// Keys with their values.
type Values = BTreeMap<String, Value>;

/// The status that an answer begins with.
pub(super) fn status(request: &'static str, answer: &Answer) -> Result<i32, PmixError> {
    take_status(&mut answer.reader()).map_err(|source| PmixError::malformed(request, source))
}

/// Refuses an answer that does not begin with success.
pub(super) fn success(request: &'static str, answer: &Answer) -> Result<(), PmixError> {
    match status(request, answer)? {
        status::SUCCESS => Ok(()),
        status => Err(PmixError::Refused { request, status }),
    }
}

fn take_status(reader: &mut Reader<'_>) -> Result<i32, WireError> {
    reader.one()?;
    reader.i32()
}

/// Facts about the job as a whole; those about nodes, programs and single ranks are passed over.
pub(super) fn job_facts(answer: &Answer) -> Result<Values, WireError> {
    let mut reader = answer.reader();
    reader.one()?;
    reader.text()?;
    let (mut facts, mut nested) = (Values::new(), Vec::new());
    for (key, (value, infos)) in pairs(&mut reader)? {
        facts.insert(key, value);
        // Servers of libpmix put them into an array of their own.
        nested.extend(infos);
    }
    for (key, value) in nested.into_iter().flatten() {
        facts.entry(key).or_insert(value);
    }
    Ok(facts)
}

/// The values of a rank in an answer to a get; other ranks' are passed over.
pub(super) fn values(answer: &Answer, rank: u32) -> Result<Values, WireError> {
    let mut reader = answer.reader();
    take_status(&mut reader)?;
    let mut values = Values::new();
    while !reader.is_empty() {
        reader.one()?;
        let mut object = Reader::new(reader.encoding(), reader.byte_object()?);
        object.one()?;
        if object.proc()?.rank == rank {
            values.extend(pairs(&mut object)?.into_iter().map(|(key, (value, _))| (key, value)));
        }
    }
    Ok(values)
}

/// The namespace in an answer to a spawn that succeeded; servers of libpmix may tell more about the job behind it.
pub(super) fn spawned(answer: &Answer) -> Result<String, WireError> {
    let mut reader = answer.reader();
    take_status(&mut reader)?;
    reader.one()?;
    Ok(text(reader.required_text("the namespace of the new job")?))
}

/// The infos of an answer to a query; none if its status says that there are none.
pub(super) fn infos(answer: &Answer) -> Result<Values, WireError> {
    let mut reader = answer.reader();
    match take_status(&mut reader)? {
        status::SUCCESS | status::PARTIAL_SUCCESS if !reader.is_empty() => Ok(named(&reader.counted_infos()?)),
        _ => Ok(Values::new()),
    }
}

/// Keys with their values to the end; of a value that is an array of infos, these as well.
fn pairs(reader: &mut Reader<'_>) -> Result<BTreeMap<String, (Value, Option<Values>)>, WireError> {
    let mut pairs = BTreeMap::new();
    while !reader.is_empty() {
        for _ in 0..reader.group()? {
            let key = text(reader.required_text("a key")?);
            let value = reader.value()?;
            let infos = match &value {
                WireValue::Infos(infos) if key == "pmix.job.arr" => Some(named(infos)),
                _ => None,
            };
            pairs.insert(key, (Value::read(&value), infos));
        }
    }
    Ok(pairs)
}

fn named(infos: &[Info<'_>]) -> Values {
    let mut values = Values::new();
    for info in infos {
        values.insert(text(info.key), Value::read(&info.value));
    }
    values
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
