//! A placed launch as a launch spec, which is equal for all nodes. Users receive it without secret and environment.

use bytes::Bytes;
use lattice_overlay::address::SetId;
use pmi_core::job::Job;
use pmi_transport::proto::v1 as proto;
use pmi_transport::session_link::LinkKey;

use super::{WireError, job, job_id, settings, wrong};
use crate::limits::NODE_RANKS_MAX;
use crate::placed::{ClusterTerms, PlacedLaunch};
use crate::settings::{LaunchSettings, StdinTarget};
use crate::spec::LaunchSecret;

/// Encodes a launch and the API server's decisions about it, for nodes.
pub fn encode(launch: &PlacedLaunch, terms: &ClusterTerms) -> proto::LaunchSpec {
    proto::LaunchSpec {
        launch_id: launch.launch_id.clone(),
        allocation_id: launch.allocation_id.clone().unwrap_or_default(),
        uid: terms.uid,
        nodes: hostlist::fold(&launch.hosts),
        addresses: hostlist::fold(&terms.addresses),
        job: Some(job::encode(&launch.job)),
        apps: launch.apps.iter().map(job::encode_app).collect(),
        secret: Bytes::copy_from_slice(terms.secret.as_bytes()),
        link_key: terms.link_key.as_ref().map_or_else(Bytes::new, |key| Bytes::copy_from_slice(key.as_bytes())),
        set_id: terms.set.map_or(0, SetId::bits),
        barrier_fan_out: terms.barrier_fan_out.map_or(0, Into::into),
        data_fan_out: terms.data_fan_out.map_or(0, Into::into),
        output_window: terms.output_window,
        stdin_window: terms.stdin_window,
        ..settings::encode(&launch.settings)
    }
}

/// Encodes a launch for display to a user, with only the displayed fields, and without its environment.
pub fn encode_shown(launch: &PlacedLaunch) -> proto::LaunchSpec {
    proto::LaunchSpec {
        launch_id: launch.launch_id.clone(),
        allocation_id: launch.allocation_id.clone().unwrap_or_default(),
        nodes: hostlist::fold(&launch.hosts),
        job: Some(job::encode(&launch.job)),
        apps: launch.apps.iter().map(job::encode_app).collect(),
        ..settings::encode(&LaunchSettings { environment: Vec::new(), ..launch.settings.clone() })
    }
}

/// Decodes a launch. The secret, addresses and windows of the message are ignored.
///
/// # Errors
/// Fails for a launch with inconsistent parts, and for more ranks on a node than a session can serve.
pub fn decode(spec: proto::LaunchSpec) -> Result<PlacedLaunch, WireError> {
    let hosts = nodes(&spec.nodes)?;
    decode_on(spec, hosts)
}

/// Decodes a launch on nodes that the caller has already decoded.
pub(super) fn decode_on(mut spec: proto::LaunchSpec, hosts: Vec<String>) -> Result<PlacedLaunch, WireError> {
    let launch_id = job_id("the launch's id", &spec.launch_id)?.to_string();
    let settings = settings::take(&mut spec)?;
    let job = job::decode(spec.job.ok_or(WireError::Missing { what: "job" })?, hosts.len())?;
    check_nodes(&job)?;
    match settings.stdin {
        StdinTarget::Rank(rank) if rank.0 >= job.size() => {
            let possible = format!("0 to {}", job.size() - 1);
            return Err(wrong("the rank that reads standard input", rank, possible));
        }
        _ => {}
    }
    let apps = job::decode_apps(spec.apps, &job)?;
    let allocation_id = Some(spec.allocation_id).filter(|id| !id.is_empty());
    Ok(PlacedLaunch { launch_id, allocation_id, job, hosts, apps, settings })
}

/// Decodes the names of a launch's nodes, by node index, from [`proto::LaunchSpec::nodes`].
///
/// # Errors
/// Fails for an unreadable list.
pub fn nodes(list: &str) -> Result<Vec<String>, WireError> {
    hostlist::expand(list).map_err(|source| WireError::Hosts { what: "the nodes", source })
}

/// Decodes the addresses of a launch's nodes, by node index, from [`proto::LaunchSpec::addresses`].
///
/// # Errors
/// Fails for an unreadable list, and for a length that differs from the number of nodes.
pub fn addresses(list: &str, nodes: usize) -> Result<Vec<String>, WireError> {
    let addresses = hostlist::expand(list).map_err(|source| WireError::Hosts { what: "the addresses", source })?;
    if addresses.len() != nodes {
        return Err(wrong("the number of addresses", addresses.len(), format!("{nodes} as of nodes")));
    }
    Ok(addresses)
}

/// Decodes the secret in a message to nodes.
///
/// # Errors
/// Fails for a wrong length.
pub(super) fn secret(bytes: &[u8]) -> Result<LaunchSecret, WireError> {
    match bytes.try_into() {
        Ok(bytes) => Ok(LaunchSecret::from_bytes(bytes)),
        Err(_) => Err(wrong("the length of the secret", bytes.len(), format!("{} bytes", LaunchSecret::LEN))),
    }
}

/// Decodes the key of a launch's links in a message to nodes; `None` without a key.
///
/// # Errors
/// Fails for a wrong length.
pub fn link_key(bytes: &[u8]) -> Result<Option<LinkKey>, WireError> {
    match bytes.try_into() {
        Ok(bytes) => Ok(Some(LinkKey::from_bytes(bytes))),
        Err(_) if bytes.is_empty() => Ok(None),
        Err(_) => Err(wrong("the length of the link key", bytes.len(), format!("{} bytes, or none", LinkKey::LEN))),
    }
}

/// Decodes the id of a set; `None` without a set.
pub fn set(id: u32) -> Option<SetId> {
    Some(SetId::from_bits(id)).filter(|_| id != 0)
}

/// Fails for more ranks on a node than a session can serve. A short message can name two billion ranks, and several blocks may have the
/// same node. The ranks are therefore summed from the starts and ends of blocks.
fn check_nodes(job: &Job) -> Result<(), WireError> {
    let mut changes = vec![0_i64; job.placement.nodes() as usize + 1];
    for block in job.placement.blocks() {
        let (first, end) = (block.first_node.index(), block.first_node.index() + block.nodes as usize);
        changes[first] += i64::from(block.ranks_per_node);
        changes[end] -= i64::from(block.ranks_per_node);
    }
    let here = changes.into_iter().scan(0, |ranks, change| {
        *ranks += change;
        Some(*ranks)
    });
    match here.max() {
        Some(here) if here > NODE_RANKS_MAX as i64 => {
            Err(wrong("the number of ranks of one node", here, format!("at most {NODE_RANKS_MAX}")))
        }
        _ => Ok(()),
    }
}
