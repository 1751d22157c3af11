//! Kinds of nodes for `lattice nodes --topology`, and descriptions of nodes for `lattice nodes -v`.

use std::collections::HashMap;

use lattice_cluster_client::{Cluster, Limits};
use lattice_console::{print_json, print_lines};
use lattice_inventory::picture::{Cores, View};
use lattice_inventory::{Allowed, CpuSet, Inventory, PciKind, SOURCES, Template, ThisNode, picture, xml};
use pmi_transport::proto::v1 as proto;
use rank_spawner::usable_here;
use serde::{Serialize, Serializer};

use super::error::CommandError;
use super::questions::node_names;
use crate::args::TopologyFormat;

/// All kinds of nodes, and problems of nodes.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct Kinds {
    kinds: Vec<Kind>,
    trouble: Vec<Trouble>,
}

/// A kind of node in the JSON output.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct Kind {
    signature: String,
    /// Name of the topology that a list assigns to its nodes; empty if no list does.
    name: String,
    /// Source of the kind.
    origin: Origin,
    /// Nodes of this kind, as a hostlist.
    #[serde(serialize_with = "names")]
    #[cfg_attr(test, schemars(with = "Vec<String>"))]
    nodes: String,
    /// CPUs that ranks may use; `null` if these are all CPUs of a node. Nodes of a kind that differ in this are separate entries.
    #[cfg_attr(test, schemars(with = "Option<String>"))]
    usable_cpus: Option<CpuSet>,
    /// Description of the kind; `null` while nodes have reported only the signature.
    #[cfg_attr(test, schemars(with = "Option<serde_json::Map<String, serde_json::Value>>"))]
    template: Option<Template>,
    nics: Vec<String>,
    gpus: Vec<String>,
}

/// Source of the kind of a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
enum Origin {
    /// Reported by the nodes.
    Told,
    /// From the administrator's list.
    Listed,
    /// Assumed to be the API server's own kind.
    Assumed,
}

/// Problem of nodes, in the JSON output.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct Trouble {
    /// Nodes, as a hostlist; empty for a problem that no node detects by itself.
    #[serde(serialize_with = "names")]
    #[cfg_attr(test, schemars(with = "Vec<String>"))]
    nodes: String,
    text: String,
}

/// Serializes a hostlist as an array of names.
fn names<S: Serializer>(nodes: &str, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(node_names(nodes))
}

/// Description of one node in words.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct Described {
    /// Name of its topology, or the beginning of its signature.
    pub(super) kind: String,
    /// Result of [`support`].
    pub(super) support: String,
    /// CPUs that ranks may use, or `all`.
    pub(super) usable_cpus: String,
    pub(super) gpus: String,
    pub(super) nics: String,
}

/// Prints the kinds in this format; returns the exit code.
///
/// # Errors
/// Fails for a format that shows one kind, if there is not exactly one kind with a known template.
pub(super) fn show(kinds: &Kinds, format: TopologyFormat) -> Result<u8, CommandError> {
    let print = |text: String| print_lines(&text.lines().map(str::to_owned).collect::<Vec<_>>());
    Ok(match format {
        TopologyFormat::Text => print_lines(&kinds.lines())?,
        TopologyFormat::Json => print_json(&kinds)?,
        TopologyFormat::Svg => {
            let (kind, template) = kinds.only()?;
            print(picture::svg(kind.view(template, Cores::Plain), &kind.head(template)))?
        }
        TopologyFormat::Xml => {
            let (_, template) = kinds.only()?;
            let inventory = Inventory::of_kind(template.clone());
            print(xml::write(&inventory, &Allowed::all(template)).ok_or(CommandError::NoTemplate)?)?
        }
    })
}

impl Kinds {
    /// Queries the kinds of the nodes in a hostlist, or of all nodes.
    ///
    /// # Errors
    /// Fails if the API server does not answer, or a named node has reported nothing.
    pub(super) async fn ask(cluster: &Cluster, nodes: Option<&str>) -> Result<Self, CommandError> {
        let request = proto::ListInventoriesRequest {};
        let kinds = Self::from(cluster.ask(cluster.inventories().list_inventories(request)).await?);
        match nodes {
            None => Ok(kinds),
            Some(list) => kinds.of(&node_names(list)),
        }
    }

    /// Keeps only the kinds and problems of some nodes.
    fn of(mut self, nodes: &[String]) -> Result<Self, CommandError> {
        let is_of = |list: &str| node_names(list).iter().any(|node| nodes.contains(node));
        let known: Vec<String> = self.kinds.iter().flat_map(|kind| node_names(&kind.nodes)).collect();
        if let Some(unknown) = nodes.iter().find(|node| !known.contains(node)) {
            return Err(CommandError::NoInventory { node: unknown.clone() });
        }
        self.kinds.retain(|kind| is_of(&kind.nodes));
        // A problem that no node detects by itself names its nodes in its text.
        self.trouble.retain(|trouble| trouble.nodes.is_empty() || is_of(&trouble.nodes));
        Ok(self)
    }

    /// The kind of this machine, which has this name, as determined without an API server.
    pub(super) fn here(name: &str) -> Self {
        let node = ThisNode::default();
        let Inventory { template, trouble, .. } = node.inventory();
        let (nodes, signature) = (name.to_owned(), template.signature());
        let kind = Kind::of(&signature.0, String::new(), Origin::Told, nodes.clone(), Some(template.clone()));
        let usable = usable_here(&node).ok().map(|usable| usable.cpus()).filter(|usable| *usable != template.cpus);
        let text = |trouble: &lattice_inventory::Trouble| format!("{}: {}", trouble.source, trouble.reason);
        Self {
            kinds: vec![Kind { usable_cpus: usable, ..kind }],
            trouble: trouble.iter().map(|trouble| Trouble { nodes: nodes.clone(), text: text(trouble) }).collect(),
        }
    }

    /// The only kind, with its template.
    fn only(&self) -> Result<(&Kind, &Template), CommandError> {
        let kind = match &self.kinds[..] {
            [only] => only,
            [] => return Err(CommandError::NoTemplate),
            [one, other, ..] => {
                return Err(CommandError::SeveralKinds {
                    number: self.kinds.len(),
                    one: one.nodes.clone(),
                    other: other.nodes.clone(),
                });
            }
        };
        Ok((kind, kind.template.as_ref().ok_or(CommandError::NoTemplate)?))
    }

    /// Description of each node.
    pub(super) fn by_node(&self) -> HashMap<String, Described> {
        let mut trouble: HashMap<String, Vec<&str>> = HashMap::new();
        for one in &self.trouble {
            node_names(&one.nodes).into_iter().for_each(|node| trouble.entry(node).or_default().push(&one.text));
        }
        let mut described = HashMap::new();
        for kind in &self.kinds {
            let (gpus, nics) = (counted(&kind.gpus), kind.nics.join(","));
            let usable_cpus = kind.usable_cpus.as_ref().map_or("all".to_owned(), CpuSet::to_string);
            for node in node_names(&kind.nodes) {
                let support = match kind.origin {
                    Origin::Told => support(kind.template.as_ref(), trouble.get(&node).map_or(&[], Vec::as_slice)),
                    Origin::Listed => "generic".to_owned(),
                    Origin::Assumed => "assumed".to_owned(),
                };
                let name = if kind.name.is_empty() { kind.short() } else { &kind.name };
                let one = Described {
                    kind: name.to_owned(),
                    support,
                    usable_cpus: usable_cpus.clone(),
                    gpus: gpus.clone(),
                    nics: nics.clone(),
                };
                described.insert(node, one);
            }
        }
        described
    }

    fn lines(&self) -> Vec<String> {
        let trouble = self.trouble.iter().map(|trouble| match trouble.nodes.as_str() {
            "" => trouble.text.clone(),
            nodes => format!("{nodes}: {}", trouble.text),
        });
        self.kinds.iter().flat_map(Kind::lines).chain(trouble).collect()
    }
}

impl From<proto::ListInventoriesResponse> for Kinds {
    fn from(answer: proto::ListInventoriesResponse) -> Self {
        let trouble = |proto::NodeTrouble { nodes, text }| Trouble { nodes, text };
        let limits = Limits::of(&answer.usable);
        Self {
            kinds: answer.kinds.into_iter().flat_map(|kind| Kind::from(kind).parts(&limits)).collect(),
            trouble: answer.trouble.into_iter().map(trouble).collect(),
        }
    }
}

impl From<proto::NodeKind> for Kind {
    fn from(kind: proto::NodeKind) -> Self {
        let origin = match kind.origin() {
            proto::Origin::Unspecified | proto::Origin::Told => Origin::Told,
            proto::Origin::Listed => Origin::Listed,
            proto::Origin::Assumed => Origin::Assumed,
        };
        let proto::NodeKind { signature, nodes, template, name, origin: _ } = kind;
        // A template of a later version may have parts that this version cannot read.
        Self::of(&signature, name, origin, nodes, serde_json::from_slice(&template).ok())
    }
}

impl Kind {
    fn of(signature: &[u8], name: String, origin: Origin, nodes: String, template: Option<Template>) -> Self {
        let devices = |kind| template.as_ref().map(|template| picture::devices(template, kind)).unwrap_or_default();
        Self {
            signature: signature.iter().map(|byte| format!("{byte:02x}")).collect(),
            name,
            origin,
            nodes,
            usable_cpus: None,
            nics: devices(PciKind::Nic),
            gpus: devices(PciKind::Gpu),
            template,
        }
    }

    /// Splits the nodes by the CPUs that ranks may use there.
    fn parts(self, limits: &Limits) -> Vec<Self> {
        let Some(template) = &self.template else { return vec![self] };
        match &limits.parts(node_names(&self.nodes), template)[..] {
            [] | [(None, _)] => vec![self],
            parts => {
                let part = |(usable_cpus, nodes): &(Option<CpuSet>, Vec<String>)| Self {
                    nodes: hostlist::fold(nodes),
                    usable_cpus: usable_cpus.clone(),
                    ..self.clone()
                };
                parts.iter().map(part).collect()
            }
        }
    }

    fn view<'a>(&'a self, template: &'a Template, cores: Cores<'a>) -> View<'a> {
        View { template, usable: self.usable_cpus.as_ref().unwrap_or(&template.cpus), cores }
    }

    /// Beginning of the signature.
    fn short(&self) -> &str {
        self.signature.get(..8).unwrap_or_default()
    }

    /// Nodes, signature and summary.
    fn head(&self, template: &Template) -> String {
        let name = if self.name.is_empty() { String::new() } else { format!("\"{}\" ", self.name) };
        let head =
            format!("{}  {name}{}  {}  {}", self.nodes, self.short(), picture::summary(template), template.model);
        let origin = match self.origin {
            Origin::Told => "",
            Origin::Listed => "  (as listed)",
            Origin::Assumed => "  (assumed: the API server's own)",
        };
        format!("{}{origin}", head.trim_end())
    }

    fn lines(&self) -> Vec<String> {
        let Some(template) = &self.template else {
            return vec![format!("{}  {}  not reported yet", self.nodes, self.short())];
        };
        let picture = picture::lines(self.view(template, Cores::Plain));
        [self.head(template)].into_iter().chain(picture.into_iter().map(|line| format!(" {line}"))).collect()
    }
}

/// Support of a node in words: `full`, the missing parts with their sources, or differences from its list. `none` for a node that has
/// reported nothing useful.
///
/// A problem of a source starts with the name of the source and a colon.
fn support(template: Option<&Template>, trouble: &[&str]) -> String {
    if template.is_none() {
        return "none".to_owned();
    }
    let failed = SOURCES.iter().filter(|source| {
        trouble.iter().any(|text| text.split_once(": ").is_some_and(|(name, _)| name == source.name()))
    });
    let without = failed.map(|source| format!("no {} ({})", source.gives(), source.name()));
    let is_of_a_source =
        |text: &str| text.split_once(": ").is_some_and(|(name, _)| SOURCES.iter().any(|source| source.name() == name));
    // For example, differences from its list.
    let others = trouble.iter().filter(|text| !is_of_a_source(text)).map(|text| (*text).to_owned());
    let told: Vec<String> = without.chain(others).collect();
    if told.is_empty() { "full".to_owned() } else { told.join(", ") }
}

/// Names without repetitions, with a count where a name repeats: `4x NVIDIA H100`.
fn counted(names: &[String]) -> String {
    let groups = names.chunk_by(|one, next| one == next);
    let word = |group: &[String]| match group {
        [one] => one.clone(),
        several => format!("{}x {}", several.len(), several[0]),
    };
    groups.map(word).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use lattice_inventory::Group;

    use super::*;

    fn kinds(template: &Template) -> Kinds {
        let kind = |nodes: &str, signature: &[u8], template: &[u8]| proto::NodeKind {
            signature: signature.to_vec().into(),
            nodes: nodes.to_owned(),
            template: template.to_vec().into(),
            ..Default::default()
        };
        let trouble = |nodes: &str, text: &str| proto::NodeTrouble { nodes: nodes.to_owned(), text: text.to_owned() };
        Kinds::from(proto::ListInventoriesResponse {
            kinds: vec![kind("m0", &[0xff; 16], b""), kind("n[0-1]", &[0x3f; 16], &template.encode())],
            trouble: vec![trouble("n1", "pci: cannot be read"), trouble("", "two are one")],
            usable: Vec::new(),
        })
    }

    fn template() -> Template {
        Template { arch: "x86_64".into(), cpus: "0-3".parse().unwrap(), ..Template::default() }
    }

    #[test]
    fn nodes_of_a_kind_are_shown_together() {
        let kinds = kinds(&template());
        assert_eq!(
            kinds.lines(),
            [
                "m0  ffffffff  not reported yet",
                "n[0-1]  3f3f3f3f  4 threads",
                " CPUs 0-3",
                "n1: pci: cannot be read",
                "two are one"
            ]
        );
        let json = serde_json::to_value(&kinds).unwrap();
        assert_eq!((&json["kinds"][1]["template"]["cpus"], &json["kinds"][0]["template"]), (&"0-3".into(), &().into()));
    }

    #[test]
    fn a_node_is_described_with_what_is_missing() {
        let by_node = kinds(&template()).by_node();
        let support = |node: &str| by_node[node].support.as_str();
        assert_eq!(
            (support("m0"), support("n0"), support("n1")),
            ("none", "full", "no complete list of devices, and no topology for ranks (pci)")
        );
        let mut listed = kinds(&template());
        (listed.kinds[1].name, listed.kinds[1].origin) = ("milan".to_owned(), Origin::Listed);
        let by_node = listed.by_node();
        assert_eq!((by_node["n0"].kind.as_str(), by_node["n0"].support.as_str()), ("milan", "generic"));
        assert_eq!(listed.kinds[1].lines()[0], "n[0-1]  \"milan\" 3f3f3f3f  4 threads  (as listed)");
        assert_eq!(counted(&["a", "a", "b"].map(str::to_owned)), "2x a,b");
    }

    #[test]
    fn nodes_that_leave_ranks_a_part_of_their_cpus_stand_apart() {
        let core = |cpus: &str| Group { cpus: cpus.parse().unwrap(), id: None };
        let template = Template { cores: vec![core("0,2"), core("1,3")], ..template() };
        let usable = |nodes: &str, cpus: &str| proto::UsableCpus { nodes: nodes.to_owned(), cpus: cpus.to_owned() };
        let kinds = Kinds::from(proto::ListInventoriesResponse {
            kinds: vec![proto::NodeKind {
                signature: vec![0x3f; 16].into(),
                nodes: "n[0-4]".to_owned(),
                template: template.encode().into(),
                ..Default::default()
            }],
            usable: vec![usable("n1", "0,2-3"), usable("n[2,4]", "0")],
            ..Default::default()
        });
        assert_eq!(
            kinds.lines(),
            [
                "n[0,3]  3f3f3f3f  2 cores, 4 threads",
                " CPUs 0-3  cores 0-1  ▪▪",
                "n1  3f3f3f3f  2 cores, 4 threads",
                " CPUs 0-3  cores 0-1  ▪▫",
                " ranks may use CPUs 0,2-3 only; ▫ marks cores with others as well",
                "n[2,4]  3f3f3f3f  2 cores, 4 threads",
                " CPUs 0-3  cores 0-1  ▫×",
                " ranks may use CPUs 0 only; × marks cores without one, ▫ cores with others as well",
            ]
        );
        let by_node = kinds.by_node();
        let usable = |node: &str| by_node[node].usable_cpus.as_str();
        assert_eq!((usable("n0"), usable("n1"), usable("n4")), ("all", "0,2-3", "0"));
        assert_eq!(serde_json::to_value(&kinds).unwrap()["kinds"][2]["usable_cpus"], "0");
        let chosen = kinds.of(&["n4".to_owned()]).unwrap();
        assert_eq!(chosen.only().unwrap().0.nodes, "n[2,4]");
    }

    #[test]
    fn one_kind_can_be_chosen_by_a_node() {
        let of = |nodes: &[&str]| kinds(&template()).of(&nodes.iter().map(|&node| node.to_owned()).collect::<Vec<_>>());
        let chosen = of(&["n1"]).unwrap();
        assert_eq!((chosen.kinds.len(), chosen.trouble.len()), (1, 2));
        assert_eq!(chosen.only().unwrap().1, &template());
        assert_eq!(of(&["n0", "m0"]).unwrap().kinds.len(), 2);
        let words = |error: CommandError| error.to_string();
        assert!(words(of(&["x"]).unwrap_err()).starts_with("x is no known launch, and no node"));
        let several = words(kinds(&template()).only().unwrap_err());
        assert!(
            several.contains("2 kinds of nodes") && several.contains("m0") && several.contains("n[0-1]"),
            "{several}"
        );
        assert!(words(of(&["m0"]).unwrap().only().unwrap_err()).contains("not known"));
    }
}
