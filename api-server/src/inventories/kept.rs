//! Inventories across a restart of the API server. Changes are returned to the caller, which writes them. Records of an earlier server are
//! checked when they are loaded. A node that cannot report, for example because it is switched off, keeps its last inventory.
//!
//! A record is valid until its node reports again. A node reports after each registration, so at the latest after its next boot.

use std::collections::{BTreeSet, HashSet};

use bytes::Bytes;
use lattice_inventory::{CpuSet, Signature};
use pmi_transport::identity::is_node_name;
use prost::Message;

use super::{Inventories, Kind, ReceivedReport, StoredReport};
use crate::nodes::NODES_MAX;

/// Days for which a node that does not report stays known.
const KEPT_DAYS: u64 = 30;

/// The most records of nodes that are returned at a time: a transaction of about a megabyte.
const NODES_AT_ONCE: usize = 4096;

/// Record of a node.
#[derive(Clone, PartialEq, prost::Message)]
struct NodeRecord {
    #[prost(bytes = "bytes", tag = "1")]
    signature: Bytes,
    /// In JSON.
    #[prost(bytes = "bytes", tag = "2")]
    devices: Bytes,
    #[prost(string, repeated, tag = "3")]
    trouble: Vec<String>,
    /// The day of its writing, counted from 1970.
    #[prost(uint64, tag = "4")]
    day: u64,
    /// CPUs that ranks may use, as a list; empty for all online CPUs.
    #[prost(string, tag = "5")]
    usable_cpus: String,
}

/// Records from the store, which may be damaged.
#[derive(Debug, Default)]
pub(crate) struct KeptInventories {
    /// By the names of nodes.
    pub nodes: Vec<(String, Vec<u8>)>,
    /// Templates in their canonical form, by their signatures.
    pub kinds: Vec<(Vec<u8>, Vec<u8>)>,
}

/// Records to write; `None` removes the record of the key.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct InventoryChanges {
    pub nodes: Vec<(String, Option<Vec<u8>>)>,
    pub kinds: Vec<(Vec<u8>, Option<Vec<u8>>)>,
}

/// Keys of records that may differ from the store.
#[derive(Debug, Default)]
pub(super) struct Unkept {
    pub(super) nodes: BTreeSet<String>,
    pub(super) kinds: BTreeSet<Vec<u8>>,
}

/// Records that cannot be read.
#[derive(Debug, Default)]
struct Damage {
    count: usize,
    first: Option<String>,
}

impl Damage {
    fn note(&mut self, reason: impl FnOnce() -> String) {
        self.count += 1;
        self.first.get_or_insert_with(reason);
    }

    /// One line about all of them; `None` if there are none.
    fn line(self) -> Option<String> {
        let (count, first) = (self.count, self.first?);
        Some(format!(
            "{count} of the kept records about what nodes are cannot be used, and are removed; the nodes are asked again: {first}"
        ))
    }
}

impl Inventories {
    /// Loads the records of an earlier server, before any node reports. Returns a warning if some are damaged.
    pub(crate) fn take_up(&mut self, kept: KeptInventories, today: u64) -> Option<String> {
        let mut damage = Damage::default();
        for (signature, template) in kept.kinds {
            if let Err(reason) = self.take_up_kind(&signature, template) {
                damage.note(|| format!("a template: {reason}"));
                self.unkept.kinds.insert(signature);
            }
        }
        for (node, record) in kept.nodes {
            match read(&node, &record) {
                Ok(told) if told.kept.is_some_and(|day| day + KEPT_DAYS >= today) && self.nodes.len() < NODES_MAX => {
                    self.nodes.insert(node, told);
                    continue;
                }
                Ok(_) => {}
                Err(reason) => damage.note(|| format!("{node}: {reason}")),
            }
            self.unkept.nodes.insert(node);
        }
        self.forget_unused_kinds();
        damage.line()
    }

    fn take_up_kind(&mut self, signature: &[u8], template: Vec<u8>) -> Result<(), String> {
        let telling = ReceivedReport {
            signature: Bytes::copy_from_slice(signature),
            devices: "{}".into(),
            template: template.into(),
            ..ReceivedReport::default()
        };
        match telling.check().map_err(|error| error.to_string())? {
            (told, Some(template)) => self.kinds.insert(told.signature, Kind::Known(Box::new(template))),
            (_, None) => return Err("it is empty".to_owned()),
        };
        Ok(())
    }

    /// Removes the kinds without nodes.
    pub(super) fn forget_unused_kinds(&mut self) {
        let used: HashSet<Signature> = self.nodes.values().map(|told| told.signature).collect();
        let unkept = &mut self.unkept.kinds;
        self.kinds.retain(|signature, _| {
            let is_used = used.contains(signature);
            if !is_used {
                unkept.insert(signature.0.to_vec());
            }
            is_used
        });
    }

    /// Records to write today, limited in number; `None` if there are none. If the write fails, the nodes report again to the next server.
    pub(crate) fn take_changes(&mut self, today: u64) -> Option<InventoryChanges> {
        let mut changes = InventoryChanges::default();
        for _ in 0..NODES_AT_ONCE {
            let Some(node) = self.unkept.nodes.pop_first() else { break };
            match self.nodes.get_mut(&node) {
                Some(told) if told.kept == Some(today) => {}
                Some(told) => {
                    told.kept = Some(today);
                    changes.nodes.push((node, Some(record(told, today))));
                }
                None => changes.nodes.push((node, None)),
            }
        }
        for signature in std::mem::take(&mut self.unkept.kinds) {
            let kind =
                <[u8; Signature::LEN]>::try_from(&signature[..]).ok().and_then(|key| self.kinds.get(&Signature(key)));
            let template = match kind {
                Some(Kind::Known(template)) => Some(template.encode()),
                Some(Kind::Asked(_)) | None => None,
            };
            changes.kinds.push((signature, template));
        }
        Some(changes).filter(|changes| *changes != InventoryChanges::default())
    }
}

fn record(told: &StoredReport, day: u64) -> Vec<u8> {
    let StoredReport { signature, devices, trouble, usable, kept: _ } = told;
    let signature = Bytes::copy_from_slice(&signature.0);
    let usable_cpus = usable.as_ref().map(CpuSet::to_string).unwrap_or_default();
    NodeRecord { signature, devices: devices.clone(), trouble: trouble.clone(), day, usable_cpus }.encode_to_vec()
}

fn read(node: &str, record: &[u8]) -> Result<StoredReport, String> {
    let NodeRecord { signature, devices, trouble, day, usable_cpus } =
        NodeRecord::decode(record).map_err(|error| error.to_string())?;
    if !is_node_name(node) {
        return Err("it cannot be a node's name".to_owned());
    }
    let telling = ReceivedReport { signature, devices, trouble, template: Bytes::new(), usable_cpus };
    let (told, _) = telling.check().map_err(|error| error.to_string())?;
    Ok(StoredReport { kept: Some(day), ..told })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use lattice_inventory::Template;
    use tokio::time::Instant;

    use super::*;
    use crate::inventories::{Answer, KindOfNodes};

    const TODAY: u64 = 20_000;

    fn template(arch: &str) -> Template {
        Template { arch: arch.to_owned(), cpus: "0-3".parse().unwrap(), ..Template::default() }
    }

    fn telling(kind: &Template) -> ReceivedReport {
        ReceivedReport {
            signature: kind.signature().0.to_vec().into(),
            devices: "{}".into(),
            ..ReceivedReport::default()
        }
    }

    fn tell(inventories: &mut Inventories, node: &str, kind: &Template) -> Answer {
        let first = inventories.tell(node, telling(kind), Instant::now()).unwrap().answer;
        if first == Answer::WantTemplate {
            let whole = ReceivedReport { template: kind.encode().into(), ..telling(kind) };
            inventories.tell(node, whole, Instant::now()).unwrap();
        }
        first
    }

    fn known(inventories: &Inventories) -> Vec<(String, bool)> {
        let kinds = inventories.kinds(&BTreeSet::new(), &Template::default());
        kinds.into_iter().map(|KindOfNodes { nodes, template, .. }| (nodes, template.is_some())).collect()
    }

    /// Contents of the store after these changes.
    fn written(changes: InventoryChanges) -> KeptInventories {
        KeptInventories {
            nodes: changes.nodes.into_iter().filter_map(|(node, record)| Some((node, record?))).collect(),
            kinds: changes.kinds.into_iter().filter_map(|(kind, record)| Some((kind, record?))).collect(),
        }
    }

    /// Records of two nodes of one kind and one node of another.
    fn kept() -> KeptInventories {
        let mut inventories = Inventories::default();
        let [one, other] = ["x86_64", "aarch64"].map(template);
        for (node, kind) in [("n1", &one), ("n2", &one), ("n3", &other)] {
            tell(&mut inventories, node, kind);
        }
        let limited = ReceivedReport { usable_cpus: "0,2".to_owned(), ..telling(&one) };
        inventories.tell("n2", limited, Instant::now()).unwrap();
        written(inventories.take_changes(TODAY).unwrap())
    }

    #[test]
    fn a_server_that_starts_knows_what_nodes_told_the_one_before() {
        let mut next = Inventories::default();
        assert_eq!(next.take_up(kept(), TODAY), None);
        assert_eq!(known(&next), [("n3".to_owned(), true), ("n[1-2]".to_owned(), true)]);
        assert_eq!(next.limited(), [("n2".to_owned(), "0,2".parse().unwrap())]);
        assert_eq!(next.take_changes(TODAY), None);
        // An unchanged node is not asked for its template, and causes one record a day.
        assert_eq!(tell(&mut next, "n1", &template("x86_64")), Answer::Enough);
        assert_eq!(next.take_changes(TODAY), None);
        tell(&mut next, "n1", &template("x86_64"));
        assert_eq!(next.take_changes(TODAY + 1).unwrap().nodes.len(), 1);
        // A node that differs from its record after a boot is known by its report.
        assert_eq!(tell(&mut next, "n3", &template("x86_64")), Answer::Enough);
        assert_eq!(known(&next), [("n[1-3]".to_owned(), true)]);
        assert_eq!(next.take_changes(TODAY).unwrap().nodes.len(), 1);
        // The agent may use all CPUs in this report.
        assert_eq!(tell(&mut next, "n2", &template("x86_64")), Answer::Enough);
        assert_eq!((next.limited(), next.take_changes(TODAY).unwrap().nodes.len()), (Vec::new(), 1));
    }

    #[test]
    fn damaged_records_cost_one_warning_and_are_asked_for_again() {
        let mut kept = kept();
        kept.nodes[0].1 = vec![0xff; 4];
        let one = template("x86_64").signature().0.to_vec();
        let damaged = kept.kinds.iter_mut().find(|(signature, _)| *signature == one).unwrap();
        damaged.1[10] ^= 1;
        kept.kinds.push((vec![1, 2], b"{}".to_vec()));
        let mut next = Inventories::default();
        let warning = next.take_up(kept, TODAY).unwrap();
        assert!(warning.starts_with("3 of the kept records"), "{warning}");
        assert_eq!(known(&next), [("n2".to_owned(), false), ("n3".to_owned(), true)]);
        let removed = next.take_changes(TODAY).unwrap();
        assert_eq!(removed.nodes, [("n1".to_owned(), None)]);
        assert_eq!(removed.kinds, [(vec![1, 2], None), (one, None)].into_iter().collect::<Vec<_>>());
        assert_eq!(tell(&mut next, "n2", &template("x86_64")), Answer::WantTemplate);
    }

    #[test]
    fn a_record_cut_anywhere_is_no_panic() {
        for (node, record) in kept().nodes {
            for length in 0..record.len() {
                let nodes = vec![(node.clone(), record[..length].to_vec())];
                Inventories::default().take_up(KeptInventories { nodes, kinds: Vec::new() }, TODAY);
            }
        }
    }

    #[test]
    fn nodes_that_have_not_told_for_a_month_are_forgotten_with_their_kinds() {
        let mut next = Inventories::default();
        next.take_up(kept(), TODAY + KEPT_DAYS);
        assert_eq!(known(&next).len(), 2);
        let mut next = Inventories::default();
        assert_eq!(next.take_up(kept(), TODAY + KEPT_DAYS + 1), None);
        assert_eq!(known(&next), []);
        let removed = next.take_changes(TODAY).unwrap();
        assert_eq!((removed.nodes.len(), removed.kinds.len()), (3, 2));
    }
}
