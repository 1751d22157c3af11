//! A job and its programs, in a launch and in a spawn.

use pmi_core::ids::NodeIndex;
use pmi_core::job::{App, Block, Job, Placement};
use pmi_transport::proto::v1 as proto;

use super::{WireError, absolute, bytes, decode_variables, encode_variables, job_id, os_string, wrong};
use crate::process_set::{ProcessSetName, ProcessSetNameError};
use crate::spec::AppSpec;

/// Largest number of ranks of a job, because MPI counts ranks in an `int`.
const RANKS_MAX: u64 = i32::MAX as u64;

/// Encodes a job.
pub fn encode(job: &Job) -> proto::Job {
    let blocks = job.placement.blocks().iter();
    proto::Job {
        id: job.id.as_str().to_owned(),
        blocks: blocks
            .map(|block| proto::Block {
                first_node: block.first_node.0,
                nodes: block.nodes,
                ranks_per_node: block.ranks_per_node,
            })
            .collect(),
        apps: job.apps.iter().map(|app| proto::App { ranks: app.ranks, appnum: app.appnum }).collect(),
        universe_size: job.universe_size,
        spawner: job.spawner.as_ref().map(|id| id.as_str().to_owned()),
        preput: job.preput.iter().cloned().map(|(key, value)| proto::Pair { key, value }).collect(),
    }
}

/// Decodes a job of a launch on `nodes` nodes.
///
/// # Errors
/// Fails for a job without ranks, or with ranks on nodes that do not exist. Fails if the number of ranks differs from that of the programs.
pub fn decode(job: proto::Job, nodes: usize) -> Result<Job, WireError> {
    let placement = decode_blocks(&job.blocks, nodes)?;
    let of_programs: u64 = job.apps.iter().map(|app| u64::from(app.ranks)).sum();
    if of_programs != u64::from(placement.size()) {
        let seen = format!("{of_programs} in its programs");
        return Err(wrong("the number of ranks", seen, format!("{} as on its nodes", placement.size())));
    }
    Ok(Job {
        id: job_id("the job", &job.id)?,
        placement,
        apps: job.apps.iter().map(|app| App { ranks: app.ranks, appnum: app.appnum }).collect(),
        universe_size: job.universe_size,
        spawner: job.spawner.map(|id| job_id("the job that spawned it", &id)).transpose()?,
        preput: job.preput.into_iter().map(|pair| (pair.key, pair.value)).collect(),
    })
}

/// Decodes the placement of a job of a launch on `nodes` nodes.
///
/// # Errors
/// Fails without ranks, for ranks on nodes that do not exist, and for more ranks than MPI can count.
pub fn decode_blocks(blocks: &[proto::Block], nodes: usize) -> Result<Placement, WireError> {
    let mut placement = Placement::default();
    let mut size: u64 = 0;
    for block in blocks {
        let end = u64::from(block.first_node) + u64::from(block.nodes);
        if end > nodes as u64 {
            return Err(wrong("a node of the job", end - 1, format!("one of {nodes} nodes, counted from 0")));
        }
        size = size.saturating_add(u64::from(block.nodes).saturating_mul(u64::from(block.ranks_per_node)));
        if size > RANKS_MAX {
            return Err(wrong("the number of ranks", size, format!("1 to {RANKS_MAX}")));
        }
        placement.push(Block {
            first_node: NodeIndex(block.first_node),
            nodes: block.nodes,
            ranks_per_node: block.ranks_per_node,
        });
    }
    if size == 0 {
        return Err(wrong("the number of ranks", 0, format!("1 to {RANKS_MAX}")));
    }
    Ok(placement)
}

/// Encodes a program.
pub fn encode_app(app: &AppSpec) -> proto::AppSpec {
    proto::AppSpec {
        program: bytes(&app.program),
        args: app.args.iter().map(|argument| bytes(argument)).collect(),
        directory: bytes(app.directory.as_os_str()),
        set: encode_variables(&app.set),
        remove: app.remove.clone(),
        process_set: app.process_set.as_ref().map(ProcessSetName::to_string).unwrap_or_default(),
    }
}

/// Decodes the programs of a job, one for each of `job.apps`.
///
/// # Errors
/// Fails for a number of programs that differs from the job's, an empty program name, and a relative directory.
pub fn decode_apps(apps: Vec<proto::AppSpec>, job: &Job) -> Result<Vec<AppSpec>, WireError> {
    decode_programs(apps, job.apps.len())
}

/// Decodes `count` programs.
pub(super) fn decode_programs(apps: Vec<proto::AppSpec>, count: usize) -> Result<Vec<AppSpec>, WireError> {
    if apps.len() != count {
        return Err(wrong("the number of programs", apps.len(), format!("{count} as in the job")));
    }
    apps.into_iter().map(decode_app).collect()
}

fn decode_app(app: proto::AppSpec) -> Result<AppSpec, WireError> {
    if app.program.is_empty() {
        return Err(WireError::Missing { what: "program" });
    }
    Ok(AppSpec {
        program: os_string(app.program),
        args: app.args.into_iter().map(os_string).collect(),
        directory: absolute("the directory of a program", app.directory)?,
        set: decode_variables(app.set),
        remove: app.remove,
        process_set: decode_process_set(&app.process_set)?,
    })
}

fn decode_process_set(name: &str) -> Result<Option<ProcessSetName>, WireError> {
    let parsed = || {
        ProcessSetName::literal(name)
            .map_err(|error: ProcessSetNameError| wrong("the process set", name, error.to_string()))
    };
    (!name.is_empty()).then(parsed).transpose()
}
