//! Names that launches which are not over have published: one row for each name, so that a new name adds one row.

use std::collections::HashMap;

use prost::Message;
use redb::{ReadTransaction, ReadableTable, TableDefinition, WriteTransaction};

use super::LAUNCHES;
use crate::launch_id::LaunchId;
use crate::store::{KeptNames, StoreError};

/// By launch and name: the values published under the name, in one range or in several.
const PUBLISHED: TableDefinition<'static, (&'static str, &'static [u8]), &'static [u8]> =
    TableDefinition::new("published_names");

/// Creates the table.
pub(super) fn make_table(transaction: &WriteTransaction) -> Result<(), redb::Error> {
    transaction.open_table(PUBLISHED)?;
    Ok(())
}

/// Stores the names of a launch under `service`, unless the launch has ended. Removes the row if there are none.
pub(super) fn put(
    transaction: &WriteTransaction,
    launch: &str,
    service: &[u8],
    names: &KeptNames,
) -> Result<(), redb::Error> {
    let is_there = transaction.open_table(LAUNCHES)?.get(launch)?.is_some();
    let mut rows = transaction.open_table(PUBLISHED)?;
    match is_there && !names.names.is_empty() {
        true => drop(rows.insert((launch, service), names.encode_to_vec().as_slice())?),
        false => drop(rows.remove((launch, service))?),
    }
    Ok(())
}

/// Removes all names of a launch.
pub(super) fn forget(transaction: &WriteTransaction, launch: &str) -> Result<(), redb::Error> {
    let next = format!("{launch}\0");
    let own = (launch, &b""[..])..(next.as_str(), &b""[..]);
    transaction.open_table(PUBLISHED)?.retain_in(own, |_, _| false)?;
    Ok(())
}

/// Rows of names, with their launch.
pub(super) fn rows(transaction: &ReadTransaction) -> Result<Vec<(String, Vec<u8>)>, redb::Error> {
    let mut rows = Vec::new();
    for row in transaction.open_table(PUBLISHED)?.iter()? {
        let (key, names) = row?;
        let (launch, _) = key.value();
        rows.push((launch.to_owned(), names.value().to_vec()));
    }
    Ok(rows)
}

/// The names of each launch.
///
/// # Errors
/// Fails for a row that cannot be read.
pub(super) fn by_launch(rows: Vec<(String, Vec<u8>)>) -> Result<HashMap<LaunchId, KeptNames>, StoreError> {
    let mut all: HashMap<LaunchId, KeptNames> = HashMap::new();
    for (launch, names) in rows {
        all.entry(launch.into()).or_default().names.extend(KeptNames::decode(names.as_slice())?.names);
    }
    Ok(all)
}
