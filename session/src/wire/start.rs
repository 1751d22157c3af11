//! Start data of a session process, which it decodes after it has changed to its user. The launch and this node's part of it come from the
//! order. The agent adds data about the node.

use std::sync::Arc;

use bytes::Bytes;
use pmi_transport::fence::{FanOut, Member};
use pmi_transport::proto::v1 as proto;
use pmi_transport::session_link::LinkKey;
use prost::Message;

use super::order::StartOrder;
use super::{WireError, fabric, placed, spec};
use crate::fabric::NodeFabric;
use crate::set::MemberTerms;
use crate::spec::SessionSpec;

/// A session that an agent starts in a session process.
#[derive(Clone, Debug)]
pub struct SessionStart {
    /// This node's part of the launch.
    pub spec: SessionSpec,
    /// Output, in bytes, that the session may send before the first grant.
    pub output_window: u64,
    /// Limit of input on its way to the ranks, in bytes.
    pub stdin_window: u64,
    /// Fabric that the ranks may use.
    pub fabric: NodeFabric,
    /// Links to the sessions of other nodes; `None` for a launch on one node, and for a launch with fences through the agents.
    pub links: Option<LinkTerms>,
    /// The launch's set; `None` for a launch without a set.
    pub set: Option<MemberTerms>,
}

/// Settings of a launch's links, equal in all of its sessions.
#[derive(Clone, Debug)]
pub struct LinkTerms {
    /// Key of the links.
    pub key: LinkKey,
    /// Nodes of the launch, with the addresses of their agents.
    pub nodes: Arc<[Member]>,
    /// Shape of the fence trees.
    pub fan_out: FanOut,
}

/// Decodes the launch of an order with an agent's first message. Only the fabric of that message is used. An agent must not determine the
/// programs that run.
///
/// # Errors
/// Fails for invalid bytes, and like [`spec::decode`] and [`fabric::decode_node`].
pub fn decode(order: StartOrder, message: impl Into<Bytes>) -> Result<SessionStart, WireError> {
    let start = proto::StartSession::decode(message.into())?;
    let launch = proto::LaunchSpec::decode(order.spec)?;
    let (output_window, stdin_window) = (launch.output_window.into(), launch.stdin_window.into());
    let links = link_terms(&launch)?;
    let key = placed::link_key(&launch.link_key)?;
    let set = placed::set(launch.set_id).zip(key).map(|(set, key)| MemberTerms { set, key });
    Ok(SessionStart {
        fabric: start.fabric.as_ref().map(fabric::decode_node).transpose()?.unwrap_or_default(),
        spec: spec::decode(launch, order.node)?,
        output_window,
        stdin_window,
        links,
        set,
    })
}

fn link_terms(launch: &proto::LaunchSpec) -> Result<Option<LinkTerms>, WireError> {
    let Some(key) = placed::link_key(&launch.link_key)? else { return Ok(None) };
    let names = placed::nodes(&launch.nodes)?;
    if names.len() < 2 {
        return Ok(None);
    }
    let addresses = placed::addresses(&launch.addresses, names.len())?;
    let fan_out = FanOut::from_spec(launch.barrier_fan_out, launch.data_fan_out, names.len());
    let nodes = names.into_iter().zip(addresses).map(|(name, address)| Member { name, address }).collect();
    Ok(Some(LinkTerms { key, nodes, fan_out }))
}
