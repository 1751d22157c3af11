//! Templates of a cluster's nodes, as the API server knows them: told by the nodes, or by the administrator's list.

use std::collections::HashMap;

use lattice_inventory::Template;
use pmi_transport::proto::v1 as proto;

use super::{Cluster, ClusterError};

/// Templates by the names of nodes; equal nodes share one.
#[derive(Debug, Default)]
pub(crate) struct Templates {
    templates: Vec<Template>,
    of_nodes: HashMap<String, usize>,
}

impl Cluster {
    async fn inventory_of_all(&self) -> Result<proto::ListInventoriesResponse, ClusterError> {
        self.ask_patiently(async || self.inventories().list_inventories(proto::ListInventoriesRequest {}).await).await
    }

    /// Asks what the nodes are, listed and assumed ones included: enough to draw them.
    ///
    /// # Errors
    /// Fails if the API server cannot be reached.
    pub(crate) async fn templates(&self) -> Result<Templates, ClusterError> {
        Ok(Templates::of_all(self.inventory_of_all().await?))
    }

    /// Asks what the nodes are by themselves, or by the administrator's list where they have told nothing: enough for a plan.
    ///
    /// # Errors
    /// Fails if the API server cannot be reached.
    pub(crate) async fn known_templates(&self) -> Result<Templates, ClusterError> {
        Ok(Templates::known(self.inventory_of_all().await?))
    }

    /// Asks what the nodes that have told it are. Ranks that start are placed and refused by these alone.
    ///
    /// # Errors
    /// Fails if the API server cannot be reached.
    pub(crate) async fn told_templates(&self) -> Result<Templates, ClusterError> {
        Ok(Templates::told(self.inventory_of_all().await?))
    }
}

impl Templates {
    fn of_all(known: proto::ListInventoriesResponse) -> Self {
        let mut templates = Self::default();
        for kind in known.kinds {
            // One of a later version may have parts that this one cannot read, and some nodes have told no more than a signature.
            if let (Ok(template), Ok(nodes)) = (serde_json::from_slice(&kind.template), hostlist::expand(&kind.nodes)) {
                templates.add(nodes, template);
            }
        }
        templates
    }

    /// Leaves out what an administrator has listed and what is assumed: such a node may be another machine than that. An API server that does
    /// not say who told it knows told ones only.
    fn told(mut known: proto::ListInventoriesResponse) -> Self {
        known.kinds.retain(|kind| matches!(kind.origin(), proto::Origin::Unspecified | proto::Origin::Told));
        Self::of_all(known)
    }

    /// Leaves out what is assumed.
    fn known(mut known: proto::ListInventoriesResponse) -> Self {
        known.kinds.retain(|kind| kind.origin() != proto::Origin::Assumed);
        Self::of_all(known)
    }

    /// The names of the nodes, in natural order.
    pub(crate) fn nodes(&self) -> Vec<String> {
        let mut nodes: Vec<String> = self.of_nodes.keys().cloned().collect();
        nodes.sort_unstable_by(|one, other| hostlist::natural_order(one, other));
        nodes
    }

    pub(crate) fn add(&mut self, nodes: Vec<String>, template: Template) {
        let number = self.templates.len();
        self.templates.push(template);
        self.of_nodes.extend(nodes.into_iter().map(|node| (node, number)));
    }

    /// Template of a node, and its number; `None` if nobody has told it.
    pub(crate) fn of(&self, node: &str) -> Option<(usize, &Template)> {
        let number = *self.of_nodes.get(node)?;
        Some((number, self.templates.get(number)?))
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
}
