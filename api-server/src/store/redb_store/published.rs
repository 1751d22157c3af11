//! Names that launches which are not over have published: a row for each, so that one more name is one more row.

use std::collections::HashMap;

use prost::Message;
use redb::{ReadTransaction, ReadableTable, TableDefinition, WriteTransaction};

use super::{LAUNCHES, Records};
use crate::store::{KeptName, KeptNames, StoreError};

/// By launch and name.
const PUBLISHED: TableDefinition<'static, (&'static str, &'static [u8]), &'static [u8]> =
    TableDefinition::new("published");
/// All names of a launch in one row, as servers up to now had them.
const WHOLE: Records = TableDefinition::new("names");

/// Makes the table, with what an earlier server kept.
pub(super) fn make_table(transaction: &WriteTransaction) -> Result<(), redb::Error> {
    let mut rows = transaction.open_table(PUBLISHED)?;
    let mut whole = transaction.open_table(WHOLE)?;
    for row in whole.extract_if(|_, _| true)? {
        let (launch, names) = row?;
        // What cannot be read is withdrawn: ranks publish it again, or find out.
        for name in KeptNames::decode(names.value()).unwrap_or_default().names {
            rows.insert((launch.value(), &name.service[..]), name.encode_to_vec().as_slice())?;
        }
    }
    Ok(())
}

/// Keeps a name of a launch, unless that has ended meanwhile; without one, it is withdrawn.
pub(super) fn put(
    transaction: &WriteTransaction,
    launch: &str,
    service: &[u8],
    name: Option<&KeptName>,
) -> Result<(), redb::Error> {
    let is_there = transaction.open_table(LAUNCHES)?.get(launch)?.is_some();
    let mut rows = transaction.open_table(PUBLISHED)?;
    match name.filter(|_| is_there) {
        Some(name) => drop(rows.insert((launch, service), name.encode_to_vec().as_slice())?),
        None => drop(rows.remove((launch, service))?),
    }
    Ok(())
}

/// Forgets all names of a launch.
pub(super) fn forget(transaction: &WriteTransaction, launch: &str) -> Result<(), redb::Error> {
    let next = format!("{launch}\0");
    let own = (launch, &b""[..])..(next.as_str(), &b""[..]);
    transaction.open_table(PUBLISHED)?.retain_in(own, |_, _| false)?;
    Ok(())
}

/// Rows of names by their launch.
pub(super) fn rows(transaction: &ReadTransaction) -> Result<Vec<(String, Vec<u8>)>, redb::Error> {
    let mut rows = Vec::new();
    for row in transaction.open_table(PUBLISHED)?.iter()? {
        let (key, name) = row?;
        let (launch, _) = key.value();
        rows.push((launch.to_owned(), name.value().to_vec()));
    }
    Ok(rows)
}

/// The names of each launch.
///
/// # Errors
/// Fails for a row that cannot be read.
pub(super) fn by_launch(rows: Vec<(String, Vec<u8>)>) -> Result<HashMap<String, KeptNames>, StoreError> {
    let mut all: HashMap<String, KeptNames> = HashMap::new();
    for (launch, name) in rows {
        all.entry(launch).or_default().names.push(KeptName::decode(name.as_slice())?);
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_an_earlier_server_are_taken_over() {
        let backend = redb::backends::InMemoryBackend::new();
        let database = redb::Database::builder().create_with_backend(backend).unwrap();
        let name = |service: &'static str| KeptName { service: service.into(), ..KeptName::default() };
        let names = KeptNames { names: vec![name("ice"), name("ocean")] };
        let transaction = database.begin_write().unwrap();
        transaction.open_table(WHOLE).unwrap().insert("l", names.encode_to_vec().as_slice()).unwrap();
        (0..2).for_each(|_| make_table(&transaction).unwrap());
        transaction.commit().unwrap();
        let kept = by_launch(rows(&redb::ReadableDatabase::begin_read(&database).unwrap()).unwrap()).unwrap();
        assert_eq!(kept, HashMap::from([("l".to_owned(), names)]));
    }
}
