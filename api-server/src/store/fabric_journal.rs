//! The journal of fabric credentials: lines of JSON in a table of the state file, in the order of their writing. No entry holds a key.

use std::io;
use std::sync::Arc;

use cxi_fabric::grants::Journal;
use cxi_fabric::ledger::Entry;
use redb::{Database, ReadableDatabase, ReadableTable, TableDefinition};

use super::StoreError;
use super::state_file::StateFile;

pub(super) const FABRIC: TableDefinition<'static, u64, &'static [u8]> = TableDefinition::new("fabric");

/// The journal in a state file.
pub(crate) struct FabricJournal {
    file: Arc<StateFile>,
}

impl FabricJournal {
    pub(super) fn new(file: Arc<StateFile>) -> Self {
        Self { file }
    }

    /// All entries, in the order of their writing.
    ///
    /// # Errors
    /// Fails if the journal cannot be read.
    pub(crate) fn entries(&self) -> Result<Vec<Entry>, StoreError> {
        let rows = self.file.ask(rows)?;
        Ok(rows.iter().map(|row| serde_json::from_slice(row)).collect::<Result<_, _>>()?)
    }
}

fn rows(database: &Database) -> Result<Vec<Vec<u8>>, redb::Error> {
    let table = database.begin_read()?.open_table(FABRIC)?;
    table.iter()?.map(|row| Ok(row?.1.value().to_vec())).collect()
}

fn put(database: &Database, lines: &[Vec<u8>], anew: bool) -> Result<(), redb::Error> {
    let transaction = database.begin_write()?;
    {
        let mut table = transaction.open_table(FABRIC)?;
        if anew {
            table.retain(|_, _| false)?;
        }
        let next = table.last()?.map_or(0, |(number, _)| number.value() + 1);
        for (number, line) in (next..).zip(lines) {
            table.insert(number, line.as_slice())?;
        }
    }
    Ok(transaction.commit()?)
}

fn lines(entries: &[Entry]) -> io::Result<Vec<Vec<u8>>> {
    entries.iter().map(|entry| serde_json::to_vec(entry).map_err(io::Error::from)).collect()
}

impl Journal for FabricJournal {
    fn write(&mut self, entries: &[Entry]) -> io::Result<()> {
        let lines = lines(entries)?;
        self.file.ask(|database| put(database, &lines, false)).map_err(io::Error::other)
    }

    fn replace(&mut self, entries: &[Entry]) -> io::Result<()> {
        let lines = lines(entries)?;
        self.file.ask(|database| put(database, &lines, true)).map_err(io::Error::other)
    }
}

#[cfg(test)]
mod tests {
    use cxi_fabric::fabric::ServiceName;

    use super::super::RedbStore;
    use super::*;

    #[test]
    fn entries_keep_their_order_and_can_be_replaced() {
        let entry = |serial| Entry::Ending { name: ServiceName::new(&"daint".parse().unwrap(), "a", serial).unwrap() };
        let store = RedbStore::in_memory().unwrap();
        let mut journal = store.fabric_journal();
        journal.write(&[entry(3), entry(1)]).unwrap();
        journal.write(&[entry(2)]).unwrap();
        assert_eq!(store.fabric_journal().entries().unwrap(), [entry(3), entry(1), entry(2)]);
        journal.replace(&[entry(9)]).unwrap();
        journal.write(&[entry(8)]).unwrap();
        assert_eq!(journal.entries().unwrap(), [entry(9), entry(8)]);
    }
}
