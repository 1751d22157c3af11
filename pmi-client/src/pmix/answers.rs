//! Parses the replies of a PMIx server.

use std::collections::BTreeMap;

use pmix_core::wire::reader::Reader;
use pmix_core::wire::value::{Info, Value as WireValue};
use pmix_core::wire::{WireError, status};

use super::connection::Answer;
use super::{PmixError, Value};

/// Keys with their values.
type Values = BTreeMap<String, Value>;

/// Returns the status at the start of a reply.
pub(super) fn status(request: &'static str, answer: &Answer) -> Result<i32, PmixError> {
    take_status(&mut answer.reader()).map_err(|source| PmixError::malformed(request, source))
}

/// Returns an error for a reply without success.
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

/// Returns facts about the whole job. Skips facts about nodes, programs and single ranks.
pub(super) fn job_facts(answer: &Answer) -> Result<Values, WireError> {
    let mut reader = answer.reader();
    reader.one()?;
    reader.text()?;
    let (mut facts, mut nested) = (Values::new(), Vec::new());
    for (key, (value, infos)) in pairs(&mut reader)? {
        facts.insert(key, value);
        // Servers of libpmix send them in a nested array.
        nested.extend(infos);
    }
    for (key, value) in nested.into_iter().flatten() {
        facts.entry(key).or_insert(value);
    }
    Ok(facts)
}

/// Returns the values of a rank in the reply to a get. Skips values of other ranks.
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

/// Returns the namespace in the reply to a successful spawn. Servers of libpmix may append more facts about the
/// job.
pub(super) fn spawned(answer: &Answer) -> Result<String, WireError> {
    let mut reader = answer.reader();
    take_status(&mut reader)?;
    reader.one()?;
    Ok(text(reader.required_text("the namespace of the new job")?))
}

/// Returns the infos in the reply to a query; none if the status reports that there are none.
pub(super) fn infos(answer: &Answer) -> Result<Values, WireError> {
    let mut reader = answer.reader();
    match take_status(&mut reader)? {
        status::SUCCESS | status::PARTIAL_SUCCESS if !reader.is_empty() => Ok(named(&reader.counted_infos()?)),
        _ => Ok(Values::new()),
    }
}

/// Reads keys with their values up to the end. If a value is an array of infos, reads these as well.
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
