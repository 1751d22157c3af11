//! Inventories of the nodes: the kind of each node, and each kind once. Pure; the time is passed in.
//!
//! A node reports its signature. The first node of a kind is asked for the template. Other nodes are not asked while that answer is
//! pending, so that a thousand nodes of two kinds send two templates.

#[cfg(test)]
mod tests;

mod kept;
mod telling;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::time::Duration;

use bytes::Bytes;
use lattice_inventory::{CpuSet, Devices, NodeRecord, Signature, Template, deliver, differences};
use tokio::time::Instant;

use self::kept::Unkept;
pub(crate) use self::kept::{InventoryChanges, KeptInventories};
use self::telling::StoredReport;
pub(crate) use self::telling::{ReceivedReport, TellingError};
use super::listed_nodes::{ListedNodes, Topology};

/// Time to wait for the template from one node, before another node of the same kind is asked.
const ANSWER_TIME: Duration = Duration::from_secs(2);

/// The most kinds of nodes. Kinds without nodes are removed to make room. The templates of further kinds are not stored.
const KINDS_MAX: usize = 1024;

/// All inventories that nodes have reported.
#[derive(Debug, Default)]
pub(crate) struct Inventories {
    nodes: BTreeMap<String, StoredReport>,
    kinds: HashMap<Signature, Kind>,
    listed: ListedNodes,
    /// Nodes for which the differences from their lists were reported, with their kind at that time.
    compared: HashMap<String, Signature>,
    unkept: Unkept,
}

/// A kind of node.
#[derive(Debug)]
enum Kind {
    /// A node was asked for the template at this time.
    Asked(Instant),
    /// The template is known.
    Known(Box<Template>),
}

/// Response to a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Answer {
    /// The node is known, and its kind as well if there is room for it.
    Enough,
    /// Another node was asked for the template. This node must report again after this time, in case the other node never sends it.
    AskedElsewhere(Duration),
    /// The node must send the template.
    WantTemplate,
}

/// Effects of a message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct MessageEffects {
    pub answer: Answer,
    /// New lines about differences between nodes and their lists.
    pub news: Vec<String>,
}

/// A kind of node, with the nodes of this kind.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct KindOfNodes {
    pub signature: Signature,
    /// As a hostlist.
    pub nodes: String,
    /// In its canonical form; `None` until a node has reported it.
    pub template: Option<Vec<u8>>,
    /// Name of the topology that its nodes should have, if it is the same for all.
    pub name: Option<String>,
    pub origin: Origin,
}

/// Source of the kind of a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Origin {
    /// The nodes themselves.
    Told,
    /// A list of the administrator; the nodes have not reported.
    Listed,
    /// No source: the API server assumes its own kind.
    Assumed,
}

/// Addresses of a node's devices, as the node reported them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct NodeDevices {
    pub node: String,
    pub devices: Bytes,
}

impl Inventories {
    /// No inventories yet; nodes should match the list.
    pub(crate) fn new(listed: ListedNodes) -> Self {
        Self { listed, ..Self::default() }
    }

    /// Stores the report of a node. The name of the node must be valid in a hostlist.
    pub(crate) fn tell(
        &mut self,
        node: &str,
        telling: ReceivedReport,
        now: Instant,
    ) -> Result<MessageEffects, TellingError> {
        let (mut told, template) = telling.check()?;
        let (signature, has_template) = (told.signature, template.is_some());
        told.kept = self.nodes.get(node).filter(|before| before.says_the_same(&told)).and_then(|before| before.kept);
        self.nodes.insert(node.to_owned(), told);
        self.unkept.nodes.insert(node.to_owned());
        let answer = self.take_in(signature, template, now);
        let news = if has_template { self.news_of_kind(signature) } else { self.news_of([node.to_owned()]) };
        Ok(MessageEffects { answer, news })
    }

    fn take_in(&mut self, signature: Signature, template: Option<Template>, now: Instant) -> Answer {
        let (kind, answer) = match (template, self.kinds.get(&signature)) {
            (Some(template), _) => (Kind::Known(Box::new(template)), Answer::Enough),
            (None, Some(Kind::Known(_))) => return Answer::Enough,
            (None, Some(Kind::Asked(asked))) if now.duration_since(*asked) < ANSWER_TIME => {
                return Answer::AskedElsewhere(ANSWER_TIME - now.duration_since(*asked));
            }
            (None, Some(Kind::Asked(_)) | None) => (Kind::Asked(now), Answer::WantTemplate),
        };
        if !self.has_room_for(signature) {
            return Answer::Enough;
        }
        if let Kind::Known(_) = kind {
            self.unkept.kinds.insert(signature.0.to_vec());
        }
        self.kinds.insert(signature, kind);
        answer
    }

    /// Differences of all nodes of a kind that were not reported before.
    fn news_of_kind(&mut self, kind: Signature) -> Vec<String> {
        let of_kind = self.nodes.iter().filter(|(_, told)| told.signature == kind);
        let nodes: Vec<String> = of_kind.map(|(node, _)| node.clone()).collect();
        self.news_of(nodes)
    }

    fn news_of(&mut self, nodes: impl IntoIterator<Item = String>) -> Vec<String> {
        let mut by_line: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for node in nodes {
            let Some((kind, lines)) = self.differences(&node) else { continue };
            if self.compared.insert(node.clone(), kind) != Some(kind) {
                lines.into_iter().for_each(|line| by_line.entry(line).or_default().push(node.clone()));
            }
        }
        let line = |(line, nodes): (String, Vec<String>)| {
            format!("{}: {line}", folded(nodes.iter().map(String::as_str).collect()))
        };
        by_line.into_iter().map(line).collect()
    }

    /// The kind of a node, and its differences from its list; `None` if either is unknown.
    fn differences(&self, node: &str) -> Option<(Signature, Vec<String>)> {
        let Topology { name, template } = self.listed.of(node)?;
        let kind = self.nodes.get(node)?.signature;
        match self.kinds.get(&kind)? {
            Kind::Known(seen) => Some((kind, differences(name, template, seen))),
            Kind::Asked(_) => None,
        }
    }

    /// Removes kinds without nodes if there are too many. Returns true if there is room for this kind.
    fn has_room_for(&mut self, kind: Signature) -> bool {
        if self.kinds.len() >= KINDS_MAX && !self.kinds.contains_key(&kind) {
            self.forget_unused_kinds();
        }
        self.kinds.len() < KINDS_MAX || self.kinds.contains_key(&kind)
    }

    /// The names of the nodes with a known inventory, from their own report or from a list.
    pub(crate) fn known_nodes(&self) -> impl Iterator<Item = &str> {
        self.nodes.keys().map(String::as_str).chain(self.listed.iter().map(|(node, _)| node))
    }

    /// The template of a node and its source: the last report, or else the list. `None` if the template is unknown.
    pub(crate) fn of(&self, node: &str) -> Option<(&Template, Origin)> {
        let told = self.nodes.get(node).and_then(|told| match self.kinds.get(&told.signature)? {
            Kind::Known(template) => Some((&**template, Origin::Told)),
            Kind::Asked(_) => None,
        });
        told.or_else(|| Some((&self.listed.of(node)?.template, Origin::Listed)))
    }

    /// Number of CPUs that ranks may use on a node; `None` if it is unknown.
    pub(crate) fn usable_cpus(&self, node: &str) -> Option<usize> {
        let (template, origin) = self.of(node)?;
        let told = self.nodes.get(node).filter(|_| origin == Origin::Told);
        let usable = told.and_then(|told| told.usable.as_ref());
        Some(usable.map_or(template.cpus.len(), |usable| usable.intersection(&template.cpus).len()))
    }

    /// Sets of CPUs to which ranks are limited, each with its nodes as a hostlist.
    pub(crate) fn limited(&self) -> Vec<(String, CpuSet)> {
        let mut nodes: BTreeMap<&CpuSet, Vec<&str>> = BTreeMap::new();
        for (node, told) in &self.nodes {
            told.usable.iter().for_each(|cpus| nodes.entry(cpus).or_default().push(node));
        }
        nodes.into_iter().map(|(cpus, nodes)| (folded(nodes), cpus.clone())).collect()
    }

    /// The kinds, sorted by the names of their first nodes. A node among `registered` without a source has the kind of the `head`.
    pub(crate) fn kinds(&self, registered: &BTreeSet<String>, head: &Template) -> Vec<KindOfNodes> {
        let mut kinds = self.told_kinds();
        let mut listed: BTreeMap<&str, (&Template, Vec<&str>)> = BTreeMap::new();
        for (node, Topology { name, template }) in
            self.listed.iter().filter(|(node, _)| !self.nodes.contains_key(*node))
        {
            listed.entry(name).or_insert_with(|| (template, Vec::new())).1.push(node);
        }
        let untold = |template: &Template, nodes: Vec<&str>, name: Option<&str>, origin: Origin| KindOfNodes {
            signature: template.signature(),
            nodes: folded(nodes),
            template: Some(template.encode()),
            name: name.map(str::to_owned),
            origin,
        };
        let listed = listed.into_iter();
        kinds.extend(listed.map(|(name, (template, nodes))| untold(template, nodes, Some(name), Origin::Listed)));
        let is_unknown = |node: &&String| !self.nodes.contains_key(*node) && self.listed.of(node).is_none();
        let unknown: Vec<&str> = registered.iter().filter(is_unknown).map(String::as_str).collect();
        if !unknown.is_empty() {
            kinds.push(untold(head, unknown, None, Origin::Assumed));
        }
        kinds.sort_unstable_by(|one, other| hostlist::natural_order(&one.nodes, &other.nodes));
        kinds
    }

    /// The kinds that nodes have reported.
    fn told_kinds(&self) -> Vec<KindOfNodes> {
        let mut nodes: HashMap<Signature, Vec<&str>> = HashMap::new();
        for (node, told) in &self.nodes {
            nodes.entry(told.signature).or_default().push(node);
        }
        let kind = |(signature, nodes): (Signature, Vec<&str>)| {
            let names: HashSet<Option<&str>> =
                nodes.iter().map(|node| Some(self.listed.of(node)?.name.as_str())).collect();
            let only = if names.len() == 1 { names.into_iter().next().flatten() } else { None };
            KindOfNodes {
                signature,
                nodes: folded(nodes),
                template: match self.kinds.get(&signature) {
                    Some(Kind::Known(template)) => Some(template.encode()),
                    Some(Kind::Asked(_)) | None => None,
                },
                name: only.map(str::to_owned),
                origin: Origin::Told,
            }
        };
        nodes.into_iter().map(kind).collect()
    }

    /// Parts that nodes could not read, and differences from their lists, each with its nodes as a hostlist.
    pub(crate) fn trouble(&self) -> Vec<(String, String)> {
        let mut nodes: BTreeMap<String, Vec<&str>> = BTreeMap::new();
        for (node, told) in &self.nodes {
            let differences = self.differences(node).map(|(_, lines)| lines).unwrap_or_default();
            told.trouble.iter().cloned().chain(differences).for_each(|text| nodes.entry(text).or_default().push(node));
        }
        nodes.into_iter().map(|(text, nodes)| (folded(nodes), text)).collect()
    }

    /// Devices of all nodes that have some.
    pub(crate) fn devices(&self) -> Vec<NodeDevices> {
        let has_some = |told: &StoredReport| told.devices[..] != *b"{}";
        let nodes = self.nodes.iter().filter(|(_, told)| has_some(told));
        nodes.map(|(node, told)| NodeDevices { node: node.clone(), devices: told.devices.clone() }).collect()
    }
}

/// Problems that no single node can detect, such as two devices with one address. This takes a second for 100,000 nodes.
pub(crate) fn trouble_between(nodes: &[NodeDevices]) -> Vec<String> {
    let read = |node: &NodeDevices| serde_json::from_slice::<Devices>(&node.devices).unwrap_or_default();
    let devices: Vec<Devices> = nodes.iter().map(read).collect();
    let records: Vec<NodeRecord<'_>> =
        nodes.iter().zip(&devices).map(|(node, devices)| NodeRecord { node: &node.node, devices }).collect();
    deliver(&records).into_iter().map(|trouble| trouble.reason).collect()
}

fn folded(mut nodes: Vec<&str>) -> String {
    nodes.sort_unstable_by(|one, other| hostlist::natural_order(one, other));
    hostlist::fold(&nodes)
}
