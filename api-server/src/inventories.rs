//! Inventories of the nodes: the kind of each node, and each kind once. Pure; the time is handed in.
//!
//! A node tells its signature. Who is the first of a kind is asked for the template, and the others are not, for as long as it takes to
//! answer: a thousand nodes of two kinds send two templates.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

use bytes::Bytes;
use lattice_inventory::{Devices, NodeRecord, Signature, Template, deliver};
use tokio::time::Instant;

/// Time for which one node is waited for before another one is asked for the template of the same kind.
const ANSWER_TIME: Duration = Duration::from_secs(2);

/// The most kinds of nodes. Those that no node is of any more make room; the templates of more are not kept.
const KINDS_MAX: usize = 1024;

/// The longest template and the longest list of addresses, in bytes.
const TEMPLATE_MAX: usize = 1 << 20;
const DEVICES_MAX: usize = 64 << 10;

/// The most troubles of a node, and the longest one in bytes; more are left out.
const TROUBLES_MAX: usize = 16;
const TROUBLE_MAX: usize = 512;

/// All that nodes have told.
#[derive(Debug, Default)]
pub(crate) struct Inventories {
    nodes: BTreeMap<String, Told>,
    kinds: HashMap<Signature, Kind>,
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
    /// The node is known with its kind, or soon will be.
    Enough,
    /// The node is to send the template.
    WantTemplate,
}

/// A kind of node with the nodes that are of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct KindOfNodes {
    pub signature: Signature,
    /// As a hostlist.
    pub nodes: String,
    /// In its canonical form; `None` while no node has told it.
    pub template: Option<Vec<u8>>,
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
        let seen = template.signature();
        if seen != signature {
            return Err(TellingError::OtherTemplate { told: signature, seen });
        }
        Ok((told, Some(template)))
    }
}

impl Inventories {
    /// Takes in what a node tells, under a name that can stand in a hostlist.
    pub(crate) fn tell(&mut self, node: &str, telling: Telling, now: Instant) -> Result<Answer, TellingError> {
        let (told, template) = telling.check()?;
        let signature = told.signature;
        self.nodes.insert(node.to_owned(), told);
        let (kind, answer) = match (template, self.kinds.get(&signature)) {
            (Some(template), _) => (Kind::Known(Box::new(template)), Answer::Enough),
            (None, Some(Kind::Known(_))) => return Ok(Answer::Enough),
            (None, Some(Kind::Asked(asked))) if now.duration_since(*asked) < ANSWER_TIME => return Ok(Answer::Enough),
            (None, Some(Kind::Asked(_)) | None) => (Kind::Asked(now), Answer::WantTemplate),
        };
        if !self.has_room_for(signature) {
            return Ok(Answer::Enough);
        }
        self.kinds.insert(signature, kind);
        Ok(answer)
    }

    /// Forgets kinds that no node is of when there are very many, and returns true if there is room for this one.
    fn has_room_for(&mut self, kind: Signature) -> bool {
        if self.kinds.len() >= KINDS_MAX && !self.kinds.contains_key(&kind) {
            let used: HashSet<Signature> = self.nodes.values().map(|told| told.signature).collect();
            self.kinds.retain(|signature, _| used.contains(signature));
        }
        self.kinds.len() < KINDS_MAX || self.kinds.contains_key(&kind)
    }

    /// The kinds, by their first nodes' names.
    pub(crate) fn kinds(&self) -> Vec<KindOfNodes> {
        let mut nodes: HashMap<Signature, Vec<&str>> = HashMap::new();
        for (node, told) in &self.nodes {
            nodes.entry(told.signature).or_default().push(node);
        }
        let kind = |(signature, nodes): (Signature, Vec<&str>)| KindOfNodes {
            signature,
            nodes: folded(nodes),
            template: match self.kinds.get(&signature) {
                Some(Kind::Known(template)) => Some(template.encode()),
                Some(Kind::Asked(_)) | None => None,
            },
        };
        let mut kinds: Vec<KindOfNodes> = nodes.into_iter().map(kind).collect();
        kinds.sort_by(|one, other| hostlist::natural_order(&one.nodes, &other.nodes));
        kinds
    }

    /// Parts that nodes could not read, with the nodes that have told it, as a hostlist.
    pub(crate) fn trouble(&self) -> Vec<(String, &str)> {
        let mut nodes: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for (node, told) in &self.nodes {
            told.trouble.iter().for_each(|text| nodes.entry(text).or_default().push(node));
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
    nodes.sort_by(|one, other| hostlist::natural_order(one, other));
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
    use super::*;

    fn template(arch: &str) -> Template {
        Template { arch: arch.to_owned(), cpus: "0-3".parse().unwrap(), ..Template::default() }
    }

    fn telling(template: &Template) -> Telling {
        Telling { signature: template.signature().0.to_vec().into(), devices: "{}".into(), ..Telling::default() }
    }

    #[test]
    fn a_thousand_nodes_of_two_kinds_send_two_templates() {
        let (mut inventories, now) = (Inventories::default(), Instant::now());
        let kinds = ["x86_64", "aarch64"].map(template);
        let mut sent = 0;
        for number in 0..1000 {
            let (node, kind) = (format!("node{number}"), &kinds[number % 2]);
            if inventories.tell(&node, telling(kind), now).unwrap() == Answer::WantTemplate {
                let whole = Telling { template: kind.encode().into(), ..telling(kind) };
                assert_eq!(inventories.tell(&node, whole, now).unwrap(), Answer::Enough);
                sent += 1;
            }
        }
        let kinds = inventories.kinds();
        assert_eq!((sent, kinds.len()), (2, 2));
        assert!(kinds[0].nodes.starts_with("node[0,2,4,6,8,10,12,"), "{}", kinds[0].nodes);
        assert_eq!(kinds[0].template, Some(template("x86_64").encode()));
    }

    #[test]
    fn another_node_is_asked_when_the_first_does_not_answer() {
        let (mut inventories, now) = (Inventories::default(), Instant::now());
        let kind = template("x86_64");
        assert_eq!(inventories.tell("n1", telling(&kind), now).unwrap(), Answer::WantTemplate);
        assert_eq!(inventories.tell("n2", telling(&kind), now).unwrap(), Answer::Enough);
        assert_eq!(inventories.tell("n2", telling(&kind), now + ANSWER_TIME).unwrap(), Answer::WantTemplate);
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
        check(Telling { template: template("other").encode().into(), ..telling(&kind) }, "was told");
        assert_eq!(inventories.kinds(), []);
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
        let known = inventories.kinds().iter().filter(|kind| kind.template.is_some()).count();
        assert_eq!((known, inventories.kinds().len()), (KINDS_MAX, KINDS_MAX + 2));
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
        assert_eq!(inventories.trouble(), [("n[1-2,10]".to_owned(), "pci: permission denied")]);
        let between = trouble_between(&inventories.devices());
        assert_eq!(between.len(), 2, "{between:?}");
        assert_eq!(between[0], "mlx5_0 of n10 and mlx5_0 of n1 have the same node GUID, b8ce");
    }
}
