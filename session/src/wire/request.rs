//! A launch request, in both formats of `LaunchTasksRequest`: with a [`proto::LaunchSpec`], from `lattice launch`, and with only the plain
//! fields of the design document.
//!
//! In a message, 0 and the empty text mean an absent value, which decodes to `None`. A message may contain the number of ranks twice, as
//! `num_tasks` and with the programs. Decoding refuses contradictions, and returns the number once.

use std::num::NonZeroU32;

use pmi_transport::proto::v1 as proto;

use super::{WireError, job, settings, wrong};
use crate::request::{
    Candidates, Distribution, HostSlots, LaunchRequest, NODES_MAX, Numbering, Ownership, PlacementRequest,
    ProgramRequest, Programs, UniverseSize,
};
use crate::settings::{LaunchSettings, PmiFamily, PmiSpec};
use crate::spec::AppSpec;

/// `PATH` of programs in a request without an environment.
const PLAIN_PATH: &str = "/usr/local/bin:/usr/bin:/bin";

/// Encodes a request for a launch in an allocation.
pub fn encode(request: &LaunchRequest, allocation_id: String) -> proto::LaunchTasksRequest {
    let app = |program: &ProgramRequest| proto::App {
        ranks: number(program.ranks),
        appnum: i32::try_from(program.number).unwrap_or(i32::MAX),
    };
    let apps = request.programs.iter().map(app).collect();
    let universe_size = match request.universe_size {
        Some(UniverseSize::Number(size)) => Some(size),
        Some(UniverseSize::Slots) | None => None,
    };
    let spec = proto::LaunchSpec {
        job: Some(proto::Job { apps, universe_size, ..proto::Job::default() }),
        apps: request.programs.iter().map(|program| job::encode_app(&program.app)).collect(),
        ..settings::encode(&request.settings)
    };
    proto::LaunchTasksRequest {
        allocation_id,
        placement: Some(encode_placement(&request.placement)),
        detached: request.ownership == Ownership::Detached,
        spec: Some(spec),
        universe_of_slots: request.universe_size == Some(UniverseSize::Slots),
        ..proto::LaunchTasksRequest::default()
    }
}

/// Decodes a request for a launch.
///
/// # Errors
/// Fails for a request that is invalid on all nodes.
pub fn decode(mut request: proto::LaunchTasksRequest) -> Result<LaunchRequest, WireError> {
    let (ranks, per_node) = (NonZeroU32::new(request.num_tasks), NonZeroU32::new(request.tasks_per_node));
    let mut placement = decode_placement(request.placement.take().unwrap_or_default())?;
    placement.tasks_per_node = placement.tasks_per_node.or(per_node);
    // A client that sends only the plain fields has no support for following a launch.
    let is_detached = request.detached || request.spec.is_none();
    let ownership = if is_detached { Ownership::Detached } else { Ownership::Client };
    match request.spec.take() {
        Some(mut spec) => {
            let settings = settings::take(&mut spec)?;
            let universe_size = match spec.job.as_ref().and_then(|job| job.universe_size) {
                Some(size) => Some(UniverseSize::Number(size)),
                None => request.universe_of_slots.then_some(UniverseSize::Slots),
            };
            let programs = decode_programs(spec, ranks)?;
            Ok(LaunchRequest { programs, placement, universe_size, settings, ownership })
        }
        None => {
            let (program, settings) = plain(request)?;
            let programs = Programs::new(vec![program])?;
            Ok(LaunchRequest { programs, placement, universe_size: None, settings, ownership })
        }
    }
}

/// Decodes the programs of a spec. A single program may get its number of ranks from `num_tasks`.
fn decode_programs(spec: proto::LaunchSpec, asked: Option<NonZeroU32>) -> Result<Programs, WireError> {
    let wanted: Vec<proto::App> = spec.job.map(|job| job.apps).unwrap_or_default();
    let apps = job::decode_programs(spec.apps, wanted.len())?;
    let program = |(app, wanted): (AppSpec, proto::App)| {
        let number = wanted.appnum.try_into().map_err(|_| wrong("appnum", wanted.appnum, "0 and more"))?;
        Ok(ProgramRequest { app, ranks: NonZeroU32::new(wanted.ranks), number })
    };
    let mut programs = apps.into_iter().zip(wanted).map(program).collect::<Result<Vec<_>, WireError>>()?;
    if let [program] = programs.as_mut_slice() {
        program.ranks = program.ranks.or(asked);
    }
    let programs = Programs::new(programs)?;
    match (asked, programs.size()) {
        (Some(asked), Some(size)) if asked.get() != size => {
            Err(wrong("num_tasks", asked, format!("0, or {size} as in the programs")))
        }
        _ => Ok(programs),
    }
}

/// Returns the program and settings of a request in the design document's format.
fn plain(request: proto::LaunchTasksRequest) -> Result<(ProgramRequest, LaunchSettings), WireError> {
    let family = match request.pmi_mode.as_str() {
        // In the design document, pmi2 means every protocol other than pmix. Most programs use PMI-1 on that socket.
        "" | "auto" | "pmi2" => PmiFamily::Auto,
        "pmi1" => PmiFamily::Pmi1,
        "pmix" => PmiFamily::Pmix,
        "none" => PmiFamily::None,
        mode => return Err(wrong("pmi_mode", format!("{mode:?}"), "auto, pmi1, pmi2, pmix and none")),
    };
    if request.entrypoint.is_empty() {
        return Err(WireError::Missing { what: "program" });
    }
    let app = AppSpec {
        program: request.entrypoint.into(),
        args: request.args.into_iter().map(Into::into).collect(),
        directory: "/".into(),
        set: request.env.into_iter().map(|(name, value)| (name.into(), value.into())).collect(),
        remove: Vec::new(),
        process_set: None,
    };
    let settings = LaunchSettings {
        environment: vec![("PATH".into(), PLAIN_PATH.into())],
        pmi: PmiSpec { family, ..PmiSpec::default() },
        ..LaunchSettings::default()
    };
    Ok((ProgramRequest { app, ranks: NonZeroU32::new(request.num_tasks), number: 0 }, settings))
}

fn encode_placement(request: &PlacementRequest) -> proto::PlacementRequest {
    let (only, hosts) = match &request.candidates {
        Candidates::All => (String::new(), Vec::new()),
        Candidates::Listed(nodes) => (hostlist::fold(nodes), Vec::new()),
        Candidates::Hostfile(hosts) => (String::new(), hosts.iter().map(encode_slots).collect()),
    };
    let distribution = match request.distribution {
        Some(Distribution::Block) => proto::Distribution::Block,
        Some(Distribution::Cyclic) => proto::Distribution::Cyclic,
        Some(Distribution::Plane(_)) => proto::Distribution::Plane,
        None if hosts.is_empty() => proto::Distribution::Block,
        None => proto::Distribution::Explicit,
    };
    proto::PlacementRequest {
        nodes: number(request.nodes),
        tasks_per_node: number(request.tasks_per_node),
        only,
        except: hostlist::fold(&request.except),
        distribution: distribution.into(),
        hosts,
        plane: match request.distribution {
            Some(Distribution::Plane(ranks)) => ranks.get(),
            _ => 0,
        },
        relative: request.relative,
        numbering: match request.numbering {
            None => proto::Numbering::OfDistribution,
            Some(Numbering::NodeByNode) => proto::Numbering::NodeByNode,
            Some(Numbering::InTurn) => proto::Numbering::InTurn,
        }
        .into(),
        cpus_per_rank: number(request.cpus_per_rank),
    }
}

fn decode_placement(request: proto::PlacementRequest) -> Result<PlacementRequest, WireError> {
    let only = expand("the nodes to use", &request.only)?;
    let candidates = match (only.is_empty(), request.hosts.is_empty()) {
        (true, true) => Candidates::All,
        (false, true) => Candidates::Listed(only),
        (true, false) => Candidates::Hostfile(request.hosts.into_iter().filter_map(decode_slots).collect()),
        (false, false) => return Err(WireError::NodesTwice),
    };
    let unknown = |_| {
        let possible = "0 (block), 1 (cyclic), 3 (plane) or, with a hostfile, 2 (explicit)";
        wrong("the distribution", request.distribution, possible)
    };
    let distribution = match (proto::Distribution::try_from(request.distribution).map_err(unknown)?, &candidates) {
        (proto::Distribution::Cyclic, _) => Some(Distribution::Cyclic),
        (proto::Distribution::Plane, _) => {
            let no_ranks = || wrong("the number of ranks of a plane", request.plane, "1 or more");
            Some(Distribution::Plane(NonZeroU32::new(request.plane).ok_or_else(no_ranks)?))
        }
        (proto::Distribution::Block, Candidates::Hostfile(_)) => Some(Distribution::Block),
        (proto::Distribution::Explicit, Candidates::Hostfile(_)) | (proto::Distribution::Block, _) => None,
        (proto::Distribution::Explicit, _) => {
            return Err(wrong(
                "the distribution",
                "explicit without a hostfile",
                "block, cyclic, plane, or one with a hostfile",
            ));
        }
    };
    Ok(PlacementRequest {
        nodes: NonZeroU32::new(request.nodes),
        tasks_per_node: NonZeroU32::new(request.tasks_per_node),
        candidates,
        relative: request.relative,
        except: expand("the nodes not to use", &request.except)?,
        distribution,
        numbering: decode_numbering(request.numbering)?,
        cpus_per_rank: NonZeroU32::new(request.cpus_per_rank),
    })
}

fn decode_numbering(number: i32) -> Result<Option<Numbering>, WireError> {
    let possible = "0 (of the distribution), 1 (node by node) or 2 (in turn)";
    let numbering =
        proto::Numbering::try_from(number).map_err(|_| wrong("the numbering of ranks", number, possible))?;
    Ok(match numbering {
        proto::Numbering::OfDistribution => None,
        proto::Numbering::NodeByNode => Some(Numbering::NodeByNode),
        proto::Numbering::InTurn => Some(Numbering::InTurn),
    })
}

fn encode_slots(host: &HostSlots) -> proto::HostSlots {
    proto::HostSlots { node: host.node.clone(), slots: host.slots.get() }
}

/// Decodes a line of a hostfile; `None` for a line without slots, which accepts no rank.
fn decode_slots(host: proto::HostSlots) -> Option<HostSlots> {
    Some(HostSlots { node: host.node, slots: NonZeroU32::new(host.slots)? })
}

fn expand(what: &'static str, list: &str) -> Result<Vec<String>, WireError> {
    if list.is_empty() {
        return Ok(Vec::new());
    }
    hostlist::expand_at_most(list, NODES_MAX).map_err(|source| WireError::Hosts { what, source })
}

fn number(number: Option<NonZeroU32>) -> u32 {
    number.map_or(0, NonZeroU32::get)
}

#[cfg(test)]
mod tests;
