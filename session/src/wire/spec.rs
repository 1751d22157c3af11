//! The session spec that a node makes of the launch spec which all nodes of a launch are told.

use pmi_core::ids::NodeIndex;
use pmi_transport::proto::v1 as proto;

pub use super::placed::{addresses, nodes};
use super::{WireError, placed, wrong};
use crate::spec::{LaunchSecret, SessionSpec};

/// Length of a launch's secret in bytes.
pub const SECRET_LEN: usize = LaunchSecret::LEN;

/// Part of a launch that node `node` shall run.
///
/// # Errors
/// Refuses a spec whose parts do not fit together, one without a secret, and a node that it does not have.
pub fn decode(spec: proto::LaunchSpec, node: NodeIndex) -> Result<SessionSpec, WireError> {
    let hosts = nodes(&spec.nodes)?;
    if node.index() >= hosts.len() {
        return Err(wrong("the receiving node", node, format!("one of {} nodes, counted from 0", hosts.len())));
    }
    let secret = placed::secret(&spec.secret)?;
    let (list, count) = (spec.addresses.clone(), hosts.len());
    let launch = placed::decode_on(spec, hosts)?;
    Ok(launch.session(node, address(&list, count, node)?, secret))
}

/// Host part of the node's own address, where there are other nodes to reach it.
fn address(list: &str, nodes: usize, node: NodeIndex) -> Result<Option<String>, WireError> {
    if nodes == 1 {
        return Ok(None);
    }
    let addresses = addresses(list, nodes)?;
    let address = &addresses[node.index()];
    let host = address.rsplit_once(':').map_or(address.as_str(), |(host, _)| host);
    Ok(Some(host.trim_start_matches('[').trim_end_matches(']').to_owned()))
}
