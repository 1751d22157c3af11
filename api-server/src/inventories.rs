//! Inventories of the nodes: the kind of each node, and each kind once. Pure; the time is handed in.
//!
//! A node tells its signature. Who is the first of a kind is asked for the template, and the others are not, for as long as it takes to
//! answer: a thousand nodes of two kinds send two templates.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::time::Duration;

use bytes::Bytes;
use lattice_inventory::{Devices, NodeRecord, Signature, Template, deliver, differences};
use tokio::time::Instant;

use super::listed_nodes::{ListedNodes, Topology};

/// Time for which one node is waited for before another one is asked for the template of the same kind.
const ANSWER_TIME: Duration = Duration::from_secs(2);

/// The most memory of a node: more than any processor can address, and few enough to be counted in bytes.
const MEMORY_GIB_MAX: u64 = 1 << 33;

/// The most kinds of nodes. Those that no node is of any more make room; the templates of more are not kept.
const KINDS_MAX: usize = 1024;

/// The longest template and the longest list of addresses, in bytes.
const TEMPLATE_MAX: usize = 1 << 20;
const DEVICES_MAX: usize = 64 << 10;

/// The most CPUs of a node. Linux has 8,192 at most; a set of more can be written in a few bytes.
const CPUS_MAX: usize = 8192;

/// The most troubles of a node, and the longest one in bytes; more are left out.
const TROUBLES_MAX: usize = 16;
const TROUBLE_MAX: usize = 512;

/// All that nodes have told.
#[derive(Debug, Default)]
pub(crate) struct Inventories {
    nodes: BTreeMap<String, Told>,
    kinds: HashMap<Signature, Kind>,
    listed: ListedNodes,
    /// Nodes whose differences from their lists were told, with the kind that they were of.
    compared: HashMap<String, Signature>,
}

/// Message of one node, as it is kept.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Told {
    signature: Signature,
    /// In JSON, which takes a fraction of the memory.
    devices: Bytes,
    trouble: Vec<String>,
}

/// A kind of node.
#[derive(Debug)]
enum Kind {
    /// A node was asked for the template at this time.
    Asked(Instant),
    /// The template is known.
    Known(Box<Template>),
}

/// Message of a node, as it came.
#[derive(Clone, Debug, Default)]
pub(crate) struct Telling {
    pub signature: Bytes,
    pub devices: Bytes,
    pub trouble: Vec<String>,
    /// Empty unless it was asked for.
    pub template: Bytes,
}

/// Consequence of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Answer {
    /// The node is known, with its kind if there is room for that.
    Enough,
    /// Another node was asked for the template; this one is to tell again after so long, in case that one never sends it.
    AskedElsewhere(Duration),
    /// The node is to send the template.
    WantTemplate,
}

/// Consequences of a message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Heard {
    pub answer: Answer,
    /// Lines about nodes that are not what they should be, which were not told before.
    pub news: Vec<String>,
}

/// A kind of node with the nodes that are of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct KindOfNodes {
    pub signature: Signature,
    /// As a hostlist.
    pub nodes: String,
    /// In its canonical form; `None` while no node has told it.
    pub template: Option<Vec<u8>>,
    /// Name of the topology that its nodes should have, if it is the same for all.
    pub name: Option<String>,
    pub origin: Origin,
}

/// Who says that nodes are of a kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Origin {
    /// The nodes themselves.
    Told,
    /// A list of the administrator's; the nodes have told nothing.
    Listed,
    /// Nobody: it is the API server's own.
    Assumed,
}

/// Addresses of a node's devices, as the node has told them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct NodeDevices {
    pub node: String,
    pub devices: Bytes,
}

/// A message that is refused.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TellingError {
    #[error("a signature of {length} bytes; it has {}", Signature::LEN)]
    Signature { length: usize },
    #[error("{what} of {length} bytes; there can be {max}")]
    TooLong { what: &'static str, length: usize, max: usize },
    #[error("the {what} cannot be read: {source}")]
    Unreadable { what: &'static str, source: serde_json::Error },
    #[error("a template of {count} CPUs; there can be {CPUS_MAX}")]
    TooManyCpus { count: usize },
    #[error("a template of more than {MEMORY_GIB_MAX} GiB of memory")]
    TooMuchMemory,
    #[error("the template has the signature {seen}, and {told} was told")]
    OtherTemplate { told: Signature, seen: Signature },
}

impl Telling {
    /// Checks the message, which for a template takes milliseconds.
    fn check(self) -> Result<(Told, Option<Template>), TellingError> {
        let Self { signature, devices, mut trouble, template } = self;
        let length = signature.len();
        let signature = Signature(signature[..].try_into().map_err(|_| TellingError::Signature { length })?);
        let _: Devices = read("addresses", within("addresses", &devices, DEVICES_MAX)?)?;
        trouble.truncate(TROUBLES_MAX);
        trouble.iter_mut().for_each(|text| text.truncate(text.floor_char_boundary(TROUBLE_MAX)));
        // A copy, for these bytes may be a part of a message that is much longer.
        let told = Told { signature, devices: Bytes::copy_from_slice(&devices), trouble };
        if template.is_empty() {
            return Ok((told, None));
        }
        let template: Template = read("template", within("a template", &template, TEMPLATE_MAX)?)?;
        let count = template.cpus.len();
        if count > CPUS_MAX {
            return Err(TellingError::TooManyCpus { count });
        }
        if template.memory_gib() > MEMORY_GIB_MAX {
            return Err(TellingError::TooMuchMemory);
        }
        let seen = template.signature();
        if seen != signature {
            return Err(TellingError::OtherTemplate { told: signature, seen });
        }
        Ok((told, Some(template)))
    }
}

impl Inventories {
    /// No inventories yet, of nodes that should be what a list says.
    pub(crate) fn new(listed: ListedNodes) -> Self {
        Self { listed, ..Self::default() }
    }

    /// Takes in what a node tells, under a name that can stand in a hostlist.
    pub(crate) fn tell(&mut self, node: &str, telling: Telling, now: Instant) -> Result<Heard, TellingError> {
        let (told, template) = telling.check()?;
        let (signature, has_template) = (told.signature, template.is_some());
        self.nodes.insert(node.to_owned(), told);
        let answer = self.take_in(signature, template, now);
        let news = if has_template { self.news_of_kind(signature) } else { self.news_of([node.to_owned()]) };
        Ok(Heard { answer, news })
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
        self.kinds.insert(signature, kind);
        answer
    }

    /// Differences of all nodes of a kind that were not told before.
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

    /// A node's kind, and what it has less or more of than its list says; `None` if either is not known.
    fn differences(&self, node: &str) -> Option<(Signature, Vec<String>)> {
        let Topology { name, template } = self.listed.of(node)?;
        let kind = self.nodes.get(node)?.signature;
        match self.kinds.get(&kind)? {
            Kind::Known(seen) => Some((kind, differences(name, template, seen))),
            Kind::Asked(_) => None,
        }
    }

    /// Forgets kinds that no node is of when there are very many, and returns true if there is room for this one.
    fn has_room_for(&mut self, kind: Signature) -> bool {
        if self.kinds.len() >= KINDS_MAX && !self.kinds.contains_key(&kind) {
            let used: HashSet<Signature> = self.nodes.values().map(|told| told.signature).collect();
            self.kinds.retain(|signature, _| used.contains(signature));
        }
        self.kinds.len() < KINDS_MAX || self.kinds.contains_key(&kind)
    }

    /// The kinds, by their first nodes' names. Of those among `registered` that nobody says anything of, it is that of the `head`.
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

    /// The kinds that nodes have told.
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

    /// Parts that nodes could not read, and differences from their lists, with the nodes, as a hostlist.
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
        let has_some = |told: &Told| told.devices[..] != *b"{}";
        let nodes = self.nodes.iter().filter(|(_, told)| has_some(told));
        nodes.map(|(node, told)| NodeDevices { node: node.clone(), devices: told.devices.clone() }).collect()
    }
}

/// Troubles that no node sees by itself, such as two devices of one address. It takes a second for 100,000 nodes.
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

fn within<'a>(what: &'static str, bytes: &'a [u8], max: usize) -> Result<&'a [u8], TellingError> {
    let length = bytes.len();
    if length <= max { Ok(bytes) } else { Err(TellingError::TooLong { what, length, max }) }
}

fn read<T: serde::de::DeserializeOwned>(what: &'static str, bytes: &[u8]) -> Result<T, TellingError> {
    serde_json::from_slice(bytes).map_err(|source| TellingError::Unreadable { what, source })
}

#[cfg(test)]
mod tests {
    use lattice_inventory::NumaNode;

    use super::*;
    use crate::listed_nodes;

    fn template(arch: &str) -> Template {
        Template { arch: arch.to_owned(), cpus: "0-3".parse().unwrap(), ..Template::default() }
    }

    fn telling(template: &Template) -> Telling {
        Telling { signature: template.signature().0.to_vec().into(), devices: "{}".into(), ..Telling::default() }
    }

    /// The kinds of nodes that nobody else knows.
    fn told(inventories: &Inventories) -> Vec<KindOfNodes> {
        inventories.kinds(&BTreeSet::new(), &Template::default())
    }

    #[test]
    fn a_thousand_nodes_of_two_kinds_send_two_templates() {
        let (mut inventories, now) = (Inventories::default(), Instant::now());
        let kinds = ["x86_64", "aarch64"].map(template);
        let mut sent = 0;
        for number in 0..1000 {
            let (node, kind) = (format!("node{number}"), &kinds[number % 2]);
            if inventories.tell(&node, telling(kind), now).unwrap().answer == Answer::WantTemplate {
                let whole = Telling { template: kind.encode().into(), ..telling(kind) };
                assert_eq!(inventories.tell(&node, whole, now).unwrap().answer, Answer::Enough);
                sent += 1;
            }
        }
        let kinds = told(&inventories);
        assert_eq!((sent, kinds.len()), (2, 2));
        assert!(kinds[0].nodes.starts_with("node[0,2,4,6,8,10,12,"), "{}", kinds[0].nodes);
        assert_eq!(kinds[0].template, Some(template("x86_64").encode()));
    }

    #[test]
    fn another_node_is_asked_when_the_first_does_not_answer() {
        let (mut inventories, now) = (Inventories::default(), Instant::now());
        let kind = template("x86_64");
        assert_eq!(inventories.tell("n1", telling(&kind), now).unwrap().answer, Answer::WantTemplate);
        let half = ANSWER_TIME / 2;
        // It is told when to come again: it would never be asked otherwise.
        let answer = inventories.tell("n2", telling(&kind), now + half).unwrap().answer;
        assert_eq!(answer, Answer::AskedElsewhere(ANSWER_TIME - half));
        assert_eq!(inventories.tell("n2", telling(&kind), now + ANSWER_TIME).unwrap().answer, Answer::WantTemplate);
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let (mut inventories, now) = (Inventories::default(), Instant::now());
        let kind = template("x86_64");
        let mut check = |telling: Telling, expected: &str| {
            let error = inventories.tell("n1", telling, now).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        };
        check(Telling { signature: vec![0; 4].into(), ..telling(&kind) }, "a signature of 4 bytes; it has 16");
        check(Telling { devices: vec![b' '; DEVICES_MAX + 1].into(), ..telling(&kind) }, "addresses of 65537 bytes");
        check(Telling { devices: "[]".into(), ..telling(&kind) }, "the addresses cannot be read");
        check(
            Telling { template: vec![b' '; TEMPLATE_MAX + 1].into(), ..telling(&kind) },
            "a template of 1048577 bytes",
        );
        let vast = Template { cpus: "0-8192".parse().unwrap(), ..Template::default() };
        check(Telling { template: vast.encode().into(), ..telling(&vast) }, "a template of 8193 CPUs");
        let numa = NumaNode { memory_gib: u64::MAX, ..NumaNode::default() };
        let vast = Template { numa: vec![numa.clone(), numa], ..Template::default() };
        check(Telling { template: vast.encode().into(), ..telling(&vast) }, "of more than 8589934592 GiB of memory");
        check(Telling { template: template("other").encode().into(), ..telling(&kind) }, "was told");
        assert_eq!(told(&inventories), []);
    }

    #[test]
    fn kinds_of_no_node_make_room() {
        let (mut inventories, now) = (Inventories::default(), Instant::now());
        let mut tell = |node: &str, number: usize| {
            let kind = template(&number.to_string());
            inventories.tell(node, Telling { template: kind.encode().into(), ..telling(&kind) }, now).unwrap();
            inventories.kinds.len()
        };
        for number in 0..KINDS_MAX * 2 {
            assert!(tell("n", number) <= KINDS_MAX);
        }
        // Kinds that there are nodes of are kept.
        for number in 0..=KINDS_MAX {
            assert!(tell(&format!("n{number}"), number) <= KINDS_MAX);
        }
        let known = told(&inventories).iter().filter(|kind| kind.template.is_some()).count();
        assert_eq!((known, told(&inventories).len()), (KINDS_MAX, KINDS_MAX + 2));
    }

    #[test]
    fn trouble_is_told_once_for_all_its_nodes() {
        let (mut inventories, now) = (Inventories::default(), Instant::now());
        let kind = template("x86_64");
        let devices = r#"{"mlx5_0":[{"kind":"node_guid","value":"b8ce"}]}"#;
        for node in ["n2", "n10", "n1"] {
            let trouble = vec!["pci: permission denied".to_owned()];
            inventories.tell(node, Telling { trouble, devices: devices.into(), ..telling(&kind) }, now).unwrap();
        }
        assert_eq!(inventories.trouble(), [("n[1-2,10]".to_owned(), "pci: permission denied".to_owned())]);
        let between = trouble_between(&inventories.devices());
        assert_eq!(between.len(), 2, "{between:?}");
        assert_eq!(between[0], "mlx5_0 of n10 and mlx5_0 of n1 have the same node GUID, b8ce");
    }

    #[test]
    fn a_node_that_is_not_what_its_list_says_is_told_once() {
        let list = "[[topology]]\nname = 'milan'\nfile = 'node.xml'\n[[nodes]]\nlist = 'n[0-3]'\ntopology = 'milan'";
        let (mut inventories, now) = (Inventories::new(listed_nodes::tests::read(list).unwrap()), Instant::now());
        let kind = |cpus: &str| Template { cpus: cpus.parse().unwrap(), ..template("x86_64") };
        let (whole, half) = (kind("0-3"), kind("0-1"));
        let mut tell = |node: &str, kind: &Template| {
            let first = inventories.tell(node, telling(kind), now).unwrap();
            let message = Telling { template: kind.encode().into(), ..telling(kind) };
            let second = inventories.tell(node, message, now).unwrap();
            [first.news, second.news].concat()
        };
        let text = "2 of 4 CPUs of \"milan\" are missing";
        let packages = "1 of 1 package of \"milan\" is missing";
        assert_eq!(tell("n0", &whole), [format!("n0: {packages}")]);
        assert_eq!(tell("n1", &half), [format!("n1: {packages}"), format!("n1: {text}")]);
        assert_eq!((tell("n1", &half), tell("other", &half)), (vec![], vec![]));
        assert_eq!(
            inventories.trouble(),
            [("n[0-1]".to_owned(), packages.to_owned()), ("n1".to_owned(), text.to_owned())]
        );
        let registered = ["n0", "n1", "n2", "other", "unheard"].map(str::to_owned).into();
        let kinds = inventories.kinds(&registered, &template("head"));
        let seen: Vec<_> = kinds.iter().map(|kind| (kind.nodes.as_str(), kind.name.as_deref(), kind.origin)).collect();
        assert_eq!(
            seen,
            [
                ("n0", Some("milan"), Origin::Told),
                ("n1,other", None, Origin::Told),
                ("n[2-3]", Some("milan"), Origin::Listed),
                ("unheard", None, Origin::Assumed),
            ]
        );
    }
}
