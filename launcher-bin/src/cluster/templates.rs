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
    /// Asks what the nodes are.
    ///
    /// # Errors
    /// Fails if the API server cannot be reached.
    pub(crate) async fn templates(&self) -> Result<Templates, ClusterError> {
        let request = proto::ListInventoriesRequest {};
        let known = self.ask(self.inventories().list_inventories(request)).await?;
        let mut templates = Templates::default();
        for kind in known.kinds {
            // One of a later version may have parts that this one cannot read, and some nodes have told no more than a signature.
            if let (Ok(template), Ok(nodes)) = (serde_json::from_slice(&kind.template), hostlist::expand(&kind.nodes)) {
                templates.add(nodes, template);
            }
        }
        Ok(templates)
    }
}

impl Templates {
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
