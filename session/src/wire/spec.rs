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
    let (list, nodes) = (spec.addresses.clone(), hosts.len());
    let launch = placed::decode_on(spec, hosts)?;
    // A node without others has nobody to be reached by.
    let addresses = if nodes == 1 { Vec::new() } else { addresses(&list, nodes)? };
    Ok(launch.session(node, addresses, secret))
}
