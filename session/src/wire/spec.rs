//! The launch spec, which is the same for all nodes, and the session spec that a node makes of it.

use bytes::Bytes;
use pmi_core::ids::{NodeIndex, Rank};
use pmi_core::job::{Block, Placement};
use pmi_transport::proto::v1 as proto;
use proto::stdin_target::Target;

use super::{WireError, bytes, decode_variables, encode_variables, job, job_id, milliseconds, os_string, time, wrong};
use crate::spec::{Entrance, Patience, PmiFamily, PmiSpec, SessionSpec, StdinTarget};

/// The length of a launch's secret in bytes.
pub const SECRET_LEN: usize = 16;

/// The most ranks of one node.
const LOCAL_RANKS_MAX: u64 = 16 * 1024;

/// A session spec in a message, without what is the API server's to say: user, addresses, fan-outs and windows.
pub fn encode(spec: &SessionSpec) -> proto::LaunchSpec {
    proto::LaunchSpec {
        launch_id: spec.launch_id.clone(),
        allocation_id: spec.allocation_id.clone().unwrap_or_default(),
        nodes: hostlist::fold(&spec.hosts),
        job: Some(job::encode(&spec.job)),
        apps: spec.apps.iter().map(job::encode_app).collect(),
        environment: encode_variables(&spec.environment),
        pmi_family: encode_family(spec.pmi.family).into(),
        pmi_port: spec.pmi.entrance == Entrance::Port,
        pmi_group_barriers: spec.pmi.group_barriers,
        slurm_environment: spec.slurm_environment,
        cpu_bind: spec.cpu_bind.to_string(),
        stdin: Some(encode_stdin(&spec.stdin)),
        patience: Some(encode_patience(&spec.patience)),
        // A secret that is none is seen by whoever decodes this.
        secret: u128::from_str_radix(&spec.secret, 16)
            .map_or_else(|_| Bytes::new(), |secret| Bytes::copy_from_slice(&secret.to_be_bytes())),
        ..proto::LaunchSpec::default()
    }
}

/// What node `node` shall do for a launch.
///
/// # Errors
/// Refuses a spec whose parts do not fit together, and a node that it does not have.
pub fn decode(spec: proto::LaunchSpec, node: NodeIndex) -> Result<SessionSpec, WireError> {
    let launch_id = job_id("the launch's id", &spec.launch_id)?.to_string();
    let hosts = expand("the nodes", &spec.nodes)?;
    if node.index() >= hosts.len() {
        return Err(wrong("the receiving node", node, format!("one of {} nodes, counted from 0", hosts.len())));
    }
    let job = job::decode(spec.job.ok_or(WireError::Missing { what: "job" })?, hosts.len())?;
    let here = local_ranks(&job.placement, node);
    if here > LOCAL_RANKS_MAX {
        return Err(wrong("the number of ranks of one node", here, format!("at most {LOCAL_RANKS_MAX}")));
    }
    Ok(SessionSpec {
        launch_id,
        allocation_id: Some(spec.allocation_id).filter(|id| !id.is_empty()),
        node,
        address: address(&spec.addresses, hosts.len(), node)?,
        hosts,
        secret: secret(&spec.secret)?,
        apps: job::decode_apps(spec.apps, &job)?,
        environment: decode_variables(spec.environment),
        pmi: PmiSpec {
            family: family(spec.pmi_family)?,
            entrance: if spec.pmi_port { Entrance::Port } else { Entrance::Socket },
            group_barriers: spec.pmi_group_barriers,
        },
        slurm_environment: spec.slurm_environment,
        cpu_bind: if spec.cpu_bind.is_empty() { rank_spawner::CpuBind::None } else { spec.cpu_bind.parse()? },
        stdin: stdin(spec.stdin, job.size())?,
        patience: patience(spec.patience)?,
        job,
    })
}

/// Number of ranks of one node, counted without a list of them: a spec of a few bytes can name two billion.
fn local_ranks(placement: &Placement, node: NodeIndex) -> u64 {
    let ends = |block: &Block| block.first_node.0..block.first_node.0.saturating_add(block.nodes);
    let here = placement.blocks().iter().filter(|block| ends(block).contains(&node.0));
    here.map(|block| u64::from(block.ranks_per_node)).sum()
}

/// The addresses of a launch's nodes, by node index, from [`proto::LaunchSpec::addresses`].
///
/// # Errors
/// Refuses a list that cannot be read, and one of another length than the nodes'.
pub fn addresses(list: &str, nodes: usize) -> Result<Vec<String>, WireError> {
    let addresses = expand("the addresses", list)?;
    if addresses.len() != nodes {
        return Err(wrong("the number of addresses", addresses.len(), format!("{nodes} as of nodes")));
    }
    Ok(addresses)
}

/// The names of a launch's nodes, by node index, from [`proto::LaunchSpec::nodes`].
///
/// # Errors
/// Refuses a list that cannot be read.
pub fn nodes(list: &str) -> Result<Vec<String>, WireError> {
    expand("the nodes", list)
}

fn expand(what: &'static str, list: &str) -> Result<Vec<String>, WireError> {
    hostlist::expand(list).map_err(|source| WireError::Hosts { what, source })
}

/// The host part of the node's own address, where there are other nodes to reach it.
fn address(list: &str, nodes: usize, node: NodeIndex) -> Result<Option<String>, WireError> {
    if nodes == 1 {
        return Ok(None);
    }
    let addresses = addresses(list, nodes)?;
    let address = &addresses[node.index()];
    let host = address.rsplit_once(':').map_or(address.as_str(), |(host, _)| host);
    Ok(Some(host.trim_start_matches('[').trim_end_matches(']').to_owned()))
}

fn secret(bytes: &[u8]) -> Result<String, WireError> {
    if bytes.len() != SECRET_LEN {
        return Err(wrong("the length of the secret", bytes.len(), format!("{SECRET_LEN} bytes")));
    }
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

fn encode_family(family: PmiFamily) -> proto::PmiFamily {
    match family {
        PmiFamily::Auto => proto::PmiFamily::Auto,
        PmiFamily::Pmi1 => proto::PmiFamily::Pmi1,
        PmiFamily::Pmi2 => proto::PmiFamily::Pmi2,
        PmiFamily::Pmix => proto::PmiFamily::PmixOnly,
        PmiFamily::None => proto::PmiFamily::None,
    }
}

fn family(number: i32) -> Result<PmiFamily, WireError> {
    let family =
        proto::PmiFamily::try_from(number).map_err(|_| wrong("the kind of PMI", number, "0 (auto) to 4 (none)"))?;
    Ok(match family {
        proto::PmiFamily::Auto => PmiFamily::Auto,
        proto::PmiFamily::Pmi1 => PmiFamily::Pmi1,
        proto::PmiFamily::Pmi2 => PmiFamily::Pmi2,
        proto::PmiFamily::PmixOnly => PmiFamily::Pmix,
        proto::PmiFamily::None => PmiFamily::None,
    })
}

fn encode_stdin(stdin: &StdinTarget) -> proto::StdinTarget {
    let target = match stdin {
        StdinTarget::None => None,
        StdinTarget::Rank(rank) => Some(Target::Rank(rank.0)),
        StdinTarget::All => Some(Target::All(proto::Nothing {})),
        StdinTarget::File(path) => Some(Target::File(bytes(path.as_os_str()))),
    };
    proto::StdinTarget { target }
}

fn stdin(stdin: Option<proto::StdinTarget>, size: u32) -> Result<StdinTarget, WireError> {
    Ok(match stdin.and_then(|stdin| stdin.target) {
        None => StdinTarget::None,
        Some(Target::Rank(rank)) if rank >= size => {
            return Err(wrong("the rank that reads standard input", rank, format!("0 to {}", size - 1)));
        }
        Some(Target::Rank(rank)) => StdinTarget::Rank(Rank(rank)),
        Some(Target::All(_)) => StdinTarget::All,
        Some(Target::File(path)) => StdinTarget::File(os_string(path).into()),
    })
}

/// How long a session waits for what, in a message.
pub fn encode_patience(patience: &Patience) -> proto::Patience {
    proto::Patience {
        silent_ms: milliseconds(patience.silent),
        stuck_ms: milliseconds(patience.stuck),
        after_failure_ms: milliseconds(patience.after_failure),
        after_interrupt_ms: milliseconds(patience.after_interrupt),
        prompt_ms: patience.prompt.map(milliseconds),
        timeout_ms: patience.timeout.map(milliseconds),
        fence_ms: patience.fence.map(milliseconds),
    }
}

/// A launch without times gets the usual ones.
fn patience(patience: Option<proto::Patience>) -> Result<Patience, WireError> {
    let Some(patience) = patience else { return Ok(Patience::default()) };
    let optional = |what, milliseconds: Option<u64>| milliseconds.map(|number| time(what, number)).transpose();
    Ok(Patience {
        silent: time("the patience with silent ranks", patience.silent_ms)?,
        stuck: time("the patience with a start-up", patience.stuck_ms)?,
        after_failure: time("the time to end after a failure", patience.after_failure_ms)?,
        after_interrupt: time("the time to end after an interrupt", patience.after_interrupt_ms)?,
        prompt: optional("the patience with a line", patience.prompt_ms)?,
        timeout: optional("the time limit", patience.timeout_ms)?,
        fence: optional("the time limit of a fence", patience.fence_ms)?,
    })
}
