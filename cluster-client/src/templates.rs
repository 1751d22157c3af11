//! Templates of a cluster's nodes, as the API server has them: reported by the nodes, or from the administrator's list. Also the CPUs that
//! nodes leave to ranks.

use std::collections::HashMap;
use std::sync::Arc;

use lattice_inventory::picture::{Cores, View};
use lattice_inventory::{CpuSet, Template, UsableCores};
use pmi_transport::proto::v1 as proto;

use super::cluster::Cluster;
use super::error::ClusterError;

/// Templates by the names of nodes. Equal nodes share one.
#[derive(Debug, Default)]
pub struct Templates {
    known: Vec<KnownNode>,
    of_nodes: HashMap<String, usize>,
}

/// Data of a node. Equal nodes share it.
#[derive(Clone, Debug)]
pub struct KnownNode {
    /// Description of the node.
    pub template: Arc<Template>,
    /// CPUs that ranks may use there.
    pub usable: CpuSet,
}

impl KnownNode {
    /// Cores of the node, as far as ranks may use them.
    pub fn cores(&self) -> UsableCores {
        UsableCores::of(&self.template, &self.usable)
    }

    /// CPUs that ranks may use; `None` if these are all CPUs.
    pub fn limit(&self) -> Option<&CpuSet> {
        Some(&self.usable).filter(|usable| **usable != self.template.cpus)
    }

    /// View of the node, for a picture.
    pub fn view<'a>(&'a self, cores: Cores<'a>) -> View<'a> {
        View { template: &self.template, usable: &self.usable, cores }
    }
}

/// CPUs of nodes that leave only some of their CPUs to ranks. An unreadable set comes from a later version, and is ignored.
#[derive(Debug, Default)]
pub struct Limits(HashMap<String, CpuSet>);

impl Limits {
    /// The limits in an answer of the API server.
    pub fn of(limited: &[proto::UsableCpus]) -> Self {
        let mut limits = HashMap::new();
        for proto::UsableCpus { nodes, cpus } in limited {
            if let (Ok(nodes), Ok(cpus)) = (hostlist::expand(nodes), cpus.parse::<CpuSet>()) {
                limits.extend(nodes.into_iter().map(|node| (node, cpus.clone())));
            }
        }
        Self(limits)
    }

    /// Groups nodes of a kind by the CPUs that they leave to ranks, in the order of the first node of each group. `None` means all CPUs.
    pub fn parts(&self, nodes: Vec<String>, template: &Template) -> Vec<(Option<CpuSet>, Vec<String>)> {
        let limit = |node: &String| {
            let usable = self.0.get(node)?.intersection(&template.cpus);
            (usable != template.cpus).then_some(usable)
        };
        let mut numbers: HashMap<Option<CpuSet>, usize> = HashMap::new();
        let mut parts: Vec<(Option<CpuSet>, Vec<String>)> = Vec::new();
        for node in nodes {
            let usable = limit(&node);
            let number = *numbers.entry(usable.clone()).or_insert_with(|| {
                parts.push((usable, Vec::new()));
                parts.len() - 1
            });
            parts[number].1.push(node);
        }
        parts
    }
}

impl Cluster {
    async fn inventory_of_all(&self) -> Result<proto::ListInventoriesResponse, ClusterError> {
        self.ask_patiently(async || self.inventories().list_inventories(proto::ListInventoriesRequest {}).await).await
    }

    /// Queries the templates of all nodes, including listed and assumed ones. Sufficient to draw the nodes.
    ///
    /// # Errors
    /// Fails if the API server cannot be reached.
    pub async fn templates(&self) -> Result<Templates, ClusterError> {
        Ok(Templates::of_all(self.inventory_of_all().await?))
    }

    /// Queries the templates that nodes have reported. For other nodes, the administrator's list. Sufficient for a plan.
    ///
    /// # Errors
    /// Fails if the API server cannot be reached.
    pub async fn known_templates(&self) -> Result<Templates, ClusterError> {
        Ok(Templates::known(self.inventory_of_all().await?))
    }

    /// Queries only the templates that nodes have reported. Ranks that start are placed and refused by these alone.
    ///
    /// # Errors
    /// Fails if the API server cannot be reached.
    pub async fn told_templates(&self) -> Result<Templates, ClusterError> {
        Ok(Templates::told(self.inventory_of_all().await?))
    }
}

impl Templates {
    fn of_all(known: proto::ListInventoriesResponse) -> Self {
        let (mut templates, limits) = (Self::default(), Limits::of(&known.usable));
        for kind in known.kinds {
            // A template of a later version may have parts that this version cannot read. Some nodes have reported only a signature.
            if let (Ok(template), Ok(nodes)) = (serde_json::from_slice(&kind.template), hostlist::expand(&kind.nodes)) {
                templates.add(nodes, template, &limits);
            }
        }
        templates
    }

    /// Drops listed and assumed templates: such a node may differ from its template. An API server that sends no origin has only reported
    /// templates.
    fn told(mut known: proto::ListInventoriesResponse) -> Self {
        known.kinds.retain(|kind| matches!(kind.origin(), proto::Origin::Unspecified | proto::Origin::Told));
        Self::of_all(known)
    }

    /// Drops assumed templates.
    fn known(mut known: proto::ListInventoriesResponse) -> Self {
        known.kinds.retain(|kind| kind.origin() != proto::Origin::Assumed);
        Self::of_all(known)
    }

    /// Names of the nodes, in natural order.
    pub fn nodes(&self) -> Vec<String> {
        let mut nodes: Vec<String> = self.of_nodes.keys().cloned().collect();
        nodes.sort_unstable_by(|one, other| hostlist::natural_order(one, other));
        nodes
    }

    /// Adds nodes of one kind.
    pub fn add(&mut self, nodes: Vec<String>, template: Template, limits: &Limits) {
        let template = Arc::new(template);
        for (usable, nodes) in limits.parts(nodes, &template) {
            let number = self.known.len();
            let usable = usable.unwrap_or_else(|| template.cpus.clone());
            self.known.push(KnownNode { template: Arc::clone(&template), usable });
            self.of_nodes.extend(nodes.into_iter().map(|node| (node, number)));
        }
    }

    /// Data of a node, and the number of the data. Nodes with the same template and the same usable CPUs share it. `None` if no template is
    /// known.
    pub fn of(&self, node: &str) -> Option<(usize, &KnownNode)> {
        let number = *self.of_nodes.get(node)?;
        Some((number, self.known.get(number)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_nodes_have_told_counts_for_placement() {
        let template = serde_json::to_vec(&Template::default()).unwrap();
        let kind = |nodes: &str, origin: proto::Origin| proto::NodeKind {
            nodes: nodes.to_owned(),
            template: template.clone().into(),
            origin: origin.into(),
            ..Default::default()
        };
        let kinds = vec![
            kind("a[0-1]", proto::Origin::Told),
            kind("b0", proto::Origin::Listed),
            kind("c0", proto::Origin::Assumed),
            kind("d0", proto::Origin::Unspecified),
        ];
        let known = proto::ListInventoriesResponse { kinds, ..Default::default() };
        let of = |templates: &Templates| {
            let nodes = ["a0", "a1", "b0", "c0", "d0"];
            nodes.into_iter().filter(|node| templates.of(node).is_some()).collect::<Vec<_>>()
        };
        assert_eq!(of(&Templates::told(known.clone())), ["a0", "a1", "d0"]);
        assert_eq!(of(&Templates::known(known.clone())), ["a0", "a1", "b0", "d0"]);
        assert_eq!(Templates::known(known.clone()).nodes(), ["a0", "a1", "b0", "d0"]);
        assert_eq!(of(&Templates::of_all(known)), ["a0", "a1", "b0", "c0", "d0"]);
    }

    #[test]
    fn nodes_have_the_cpus_that_they_leave_ranks() {
        let template = Template { cpus: "0-7".parse().unwrap(), ..Template::default() };
        let kind = |nodes: &str, origin: proto::Origin| proto::NodeKind {
            nodes: nodes.to_owned(),
            template: template.encode().into(),
            origin: origin.into(),
            ..Default::default()
        };
        let usable = |nodes: &str, cpus: &str| proto::UsableCpus { nodes: nodes.to_owned(), cpus: cpus.to_owned() };
        let known = proto::ListInventoriesResponse {
            kinds: vec![kind("a[0-5]", proto::Origin::Told)],
            // More CPUs than the node has, all of its CPUs, and an unreadable set.
            usable: vec![usable("a[1,4]", "0-3,100"), usable("a2", "0-100"), usable("a3", "?"), usable("a5", "9")],
            ..Default::default()
        };
        let templates = Templates::told(known);
        let seen = ["a0", "a1", "a2", "a3", "a4", "a5"].map(|node| {
            let (number, known) = templates.of(node).unwrap();
            (number, known.usable.to_string())
        });
        let seen = seen.each_ref().map(|(number, cpus)| (*number, cpus.as_str()));
        assert_eq!(seen, [(0, "0-7"), (1, "0-3"), (0, "0-7"), (0, "0-7"), (1, "0-3"), (2, "")]);
    }
}
