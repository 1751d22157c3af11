//! Records of the inventories of nodes. Their contents are checked where they are loaded, so that a damaged record does not prevent the
//! server from starting.

use redb::{ReadTransaction, ReadableTable, TableDefinition, WriteTransaction};

use super::Records;
use crate::inventories::{InventoryChanges, KeptInventories};

/// By node.
const NODES: Records = TableDefinition::new("node_inventories");
/// Templates by signature.
const KINDS: TableDefinition<'static, &'static [u8], &'static [u8]> = TableDefinition::new("node_kinds");

pub(super) fn make_tables(transaction: &WriteTransaction) -> Result<(), redb::Error> {
    transaction.open_table(NODES)?;
    transaction.open_table(KINDS)?;
    Ok(())
}

/// Writes and removes records.
pub(super) fn put(transaction: &WriteTransaction, changes: &InventoryChanges) -> Result<(), redb::Error> {
    let mut nodes = transaction.open_table(NODES)?;
    for (node, record) in &changes.nodes {
        match record {
            Some(record) => drop(nodes.insert(node.as_str(), record.as_slice())?),
            None => drop(nodes.remove(node.as_str())?),
        }
    }
    let mut kinds = transaction.open_table(KINDS)?;
    for (signature, template) in &changes.kinds {
        match template {
            Some(template) => drop(kinds.insert(signature.as_slice(), template.as_slice())?),
            None => drop(kinds.remove(signature.as_slice())?),
        }
    }
    Ok(())
}

/// All records.
pub(super) fn rows(transaction: &ReadTransaction) -> Result<KeptInventories, redb::Error> {
    let mut kept = KeptInventories::default();
    for row in transaction.open_table(NODES)?.iter()? {
        let (node, record) = row?;
        kept.nodes.push((node.value().to_owned(), record.value().to_vec()));
    }
    for row in transaction.open_table(KINDS)?.iter()? {
        let (signature, template) = row?;
        kept.kinds.push((signature.value().to_vec(), template.value().to_vec()));
    }
    Ok(kept)
}
