//! The session spec of one node, from the launch spec that all nodes of a launch receive.

use pmi_core::ids::NodeIndex;
use pmi_transport::proto::v1 as proto;

pub use super::placed::{addresses, nodes};
use super::{WireError, placed, wrong};
use crate::spec::{LaunchSecret, SessionSpec};

/// Length of a launch's secret, in bytes.
pub const SECRET_LEN: usize = LaunchSecret::LEN;

/// Decodes the part of a launch for node `node`.
///
/// # Errors
/// Fails for a spec with inconsistent parts or without a secret, and for a node that is not in the spec.
pub fn decode(spec: proto::LaunchSpec, node: NodeIndex) -> Result<SessionSpec, WireError> {
    let hosts = nodes(&spec.nodes)?;
    if node.index() >= hosts.len() {
        return Err(wrong("the receiving node", node, format!("one of {} nodes, counted from 0", hosts.len())));
    }
    let secret = placed::secret(&spec.secret)?;
    let (list, nodes) = (spec.addresses.clone(), hosts.len());
    let launch = placed::decode_on(spec, hosts)?;
    // No other node connects to the node of a launch on one node.
    let addresses = if nodes == 1 { Vec::new() } else { addresses(&list, nodes)? };
    Ok(launch.session(node, addresses, secret))
}
