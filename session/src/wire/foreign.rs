//! Launches in the format of the design document, with fields for each node instead of one spec for all nodes.
//!
//! Settings without a field in such a request get the simplest value. The ranks run as the agent's user, start in `/`, and may use any PMI.

use std::collections::HashMap;

use bytes::Bytes;
use pmi_transport::proto::v1 as proto;

use super::{WireError, wrong};

/// Values without a field in a request in the design document's format.
#[derive(Clone, Debug)]
pub struct Unsaid<'a> {
    /// Name of the receiving node.
    pub node_id: &'a str,
    /// gRPC address of the receiving node.
    pub address: &'a str,
    /// User id of the ranks.
    pub uid: u32,
    /// Secret of the launch: 128 random bits.
    pub secret: Bytes,
}

/// Returns the equivalent launch spec, and the receiver's index among its nodes.
///
/// # Errors
/// Fails for peers with a gap or an overlap in their ranks, and for peers with a list as name or address. Fails for peers without the
/// receiver, and for a head that is not the first node.
pub fn launch_spec(
    request: &proto::LaunchProcessesRequest,
    unsaid: &Unsaid<'_>,
) -> Result<(proto::LaunchSpec, u32), WireError> {
    let peers = peers(request, unsaid)?;
    if request.head_node_index != 0 {
        return Err(wrong("the head of the fences", format!("node {}", request.head_node_index), "node 0"));
    }
    if request.entrypoint.is_empty() {
        return Err(WireError::Missing { what: "entrypoint" });
    }
    let me = peers.iter().position(|peer| peer.node_id == unsaid.node_id).ok_or_else(|| {
        let names: Vec<_> = peers.iter().map(|peer| peer.node_id.as_str()).collect();
        wrong("this node", unsaid.node_id, format!("one of the peers {}", hostlist::fold(&names)))
    })?;
    if peers[me].first_rank != request.first_rank {
        let of_peer = format!("{} as among the peers", peers[me].first_rank);
        return Err(wrong("the first rank of this node", request.first_rank, of_peer));
    }
    let names: Vec<_> = peers.iter().map(|peer| peer.node_id.as_str()).collect();
    let addresses: Vec<_> = peers.iter().map(|peer| peer.grpc_address.as_str()).collect();
    let family = match request.pmi_mode() {
        // This is the default of the enumeration, so it expresses no choice.
        proto::PmiMode::Pmi2 => proto::PmiFamily::Auto,
        proto::PmiMode::Pmix => proto::PmiFamily::PmixOnly,
    };
    let spec = proto::LaunchSpec {
        launch_id: request.launch_id.clone(),
        allocation_id: request.allocation_id.clone(),
        uid: unsaid.uid,
        nodes: hostlist::fold(&names),
        addresses: hostlist::fold(&addresses),
        job: Some(proto::Job {
            id: format!("kvs_{}_0", request.launch_id),
            blocks: blocks(&peers, request.world_size)?,
            apps: vec![proto::App { ranks: request.world_size, appnum: 0 }],
            ..Default::default()
        }),
        apps: vec![proto::AppSpec {
            program: Bytes::copy_from_slice(request.entrypoint.as_bytes()),
            args: request.args.iter().map(|argument| Bytes::copy_from_slice(argument.as_bytes())).collect(),
            directory: Bytes::from_static(b"/"),
            ..Default::default()
        }],
        environment: environment(&request.env),
        pmi_family: family.into(),
        secret: unsaid.secret.clone(),
        output_window: u32::MAX,
        ..Default::default()
    };
    Ok((spec, me as u32))
}

/// Nodes of the launch. A request without peers is for this node alone.
fn peers(request: &proto::LaunchProcessesRequest, unsaid: &Unsaid<'_>) -> Result<Vec<proto::PeerInfo>, WireError> {
    let texts = request.peers.iter().flat_map(|peer| [&peer.node_id, &peer.grpc_address]);
    if let Some(text) = texts.into_iter().find(|text| !hostlist::is_name(text)) {
        return Err(wrong("the name or address of a peer", text, "one without commas, spaces and brackets of lists"));
    }
    if !request.peers.is_empty() {
        return Ok(request.peers.clone());
    }
    Ok(vec![proto::PeerInfo {
        node_id: unsaid.node_id.to_owned(),
        grpc_address: unsaid.address.to_owned(),
        first_rank: request.first_rank,
        num_ranks: request.tasks_per_node,
    }])
}

fn blocks(peers: &[proto::PeerInfo], world_size: u32) -> Result<Vec<proto::Block>, WireError> {
    let mut in_rank_order: Vec<_> = (0..).zip(peers).filter(|(_, peer)| peer.num_ranks > 0).collect();
    in_rank_order.sort_by_key(|(_, peer)| peer.first_rank);
    let mut next = 0_u32;
    let mut blocks = Vec::with_capacity(in_rank_order.len());
    for (first_node, peer) in in_rank_order {
        if peer.first_rank != next {
            return Err(wrong("the first rank of a peer", peer.first_rank, format!("{next}, after those before")));
        }
        next = next.saturating_add(peer.num_ranks);
        blocks.push(proto::Block { first_node, nodes: 1, ranks_per_node: peer.num_ranks });
    }
    if next != world_size {
        return Err(wrong("the number of ranks", world_size, format!("{next} as among the peers")));
    }
    Ok(blocks)
}

fn environment(variables: &HashMap<String, String>) -> Vec<proto::Variable> {
    let bytes = |text: &str| Bytes::copy_from_slice(text.as_bytes());
    variables.iter().map(|(name, value)| proto::Variable { name: bytes(name), value: bytes(value) }).collect()
}
