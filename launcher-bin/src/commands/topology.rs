//! `lattice nodes --topology`: each kind of node with a picture, and the nodes that are of it.

use lattice_inventory::{PciKind, Template, picture};
use pmi_transport::proto::v1 as proto;
use serde::Serialize;

use super::{CommandError, ask};
use crate::args::TableArgs;
use crate::console::{print_json, print_lines};

/// A kind of node, as it is printed for programs.
#[derive(Debug, Serialize)]
struct Kind {
    signature: String,
    /// The nodes, as a hostlist.
    nodes: String,
    /// What is known; `null` while no node has told more than the signature.
    template: Option<Template>,
    nics: Vec<String>,
    gpus: Vec<String>,
}

/// Trouble of nodes, as it is printed for programs.
#[derive(Debug, Serialize)]
struct Trouble {
    /// The nodes, as a hostlist; empty for what no node sees by itself.
    nodes: String,
    text: String,
}

/// All kinds, with what is odd about nodes.
#[derive(Debug, Serialize)]
struct Kinds {
    kinds: Vec<Kind>,
    trouble: Vec<Trouble>,
}

/// Shows what the nodes of the cluster are; returns the exit code.
pub(super) fn topology(table: &TableArgs) -> Result<u8, CommandError> {
    let request = proto::ListInventoriesRequest {};
    let answer =
        ask(&table.api, async |cluster| Ok(cluster.ask(cluster.inventories().list_inventories(request)).await?))?;
    let kinds = Kinds::from(answer);
    if table.json { Ok(print_json(&kinds)?) } else { Ok(print_lines(&kinds.lines())?) }
}

impl From<proto::ListInventoriesResponse> for Kinds {
    fn from(answer: proto::ListInventoriesResponse) -> Self {
        let trouble = |proto::NodeTrouble { nodes, text }| Trouble { nodes, text };
        Self {
            kinds: answer.kinds.into_iter().map(Kind::from).collect(),
            trouble: answer.trouble.into_iter().map(trouble).collect(),
        }
    }
}

impl From<proto::NodeKind> for Kind {
    fn from(kind: proto::NodeKind) -> Self {
        let proto::NodeKind { signature, nodes, template } = kind;
        // One of a later version may have parts that this one cannot read.
        let template = serde_json::from_slice::<Template>(&template).ok();
        let devices = |kind| template.as_ref().map(|template| picture::devices(template, kind)).unwrap_or_default();
        Self {
            signature: signature.iter().map(|byte| format!("{byte:02x}")).collect(),
            nodes,
            nics: devices(PciKind::Nic),
            gpus: devices(PciKind::Gpu),
            template,
        }
    }
}

impl Kinds {
    fn lines(&self) -> Vec<String> {
        let trouble = self.trouble.iter().map(|trouble| match trouble.nodes.as_str() {
            "" => trouble.text.clone(),
            nodes => format!("{nodes}: {}", trouble.text),
        });
        self.kinds.iter().flat_map(Kind::lines).chain(trouble).collect()
    }
}

impl Kind {
    fn lines(&self) -> Vec<String> {
        let short = self.signature.get(..8).unwrap_or_default();
        let Some(template) = &self.template else {
            return vec![format!("{}  {short}  not told yet", self.nodes)];
        };
        let head = format!("{}  {short}  {}  {}", self.nodes, picture::summary(template), template.model);
        let picture = picture::lines(template);
        [head.trim_end().to_owned()].into_iter().chain(picture.into_iter().map(|line| format!(" {line}"))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_of_a_kind_are_shown_together() {
        let template = Template { arch: "x86_64".into(), cpus: "0-3".parse().unwrap(), ..Template::default() };
        let kind = |nodes: &str, signature: &[u8], template: &[u8]| proto::NodeKind {
            signature: signature.to_vec().into(),
            nodes: nodes.to_owned(),
            template: template.to_vec().into(),
        };
        let trouble = |nodes: &str, text: &str| proto::NodeTrouble { nodes: nodes.to_owned(), text: text.to_owned() };
        let kinds = Kinds::from(proto::ListInventoriesResponse {
            kinds: vec![kind("m0", &[0xff; 16], b""), kind("n[0-1]", &[0x3f; 16], &template.encode())],
            trouble: vec![trouble("n1", "pci: cannot be read"), trouble("", "two are one")],
        });
        assert_eq!(
            kinds.lines(),
            [
                "m0  ffffffff  not told yet",
                "n[0-1]  3f3f3f3f  4 threads",
                " CPUs 0-3",
                "n1: pci: cannot be read",
                "two are one"
            ]
        );
        let json = serde_json::to_value(&kinds).unwrap();
        assert_eq!((&json["kinds"][1]["template"]["cpus"], &json["kinds"][0]["template"]), (&"0-3".into(), &().into()));
    }
}
