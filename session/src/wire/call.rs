//! Calls of ranks to the launcher: name service and spawns.

use bytes::Bytes;
use pmi_core::ids::{JobId, Rank};
use pmi_core::services::{
    Lifetime, NameCall, NameError, NamePeer, NameRange, NameRequest, NameUser, Names, Program, Published, Publisher,
    SpawnApp, SpawnError, SpawnRequest,
};
use pmi_transport::proto::v1 as proto;
use prost::Message;
use proto::name_answer::Outcome;
use proto::name_call::Kind;
use proto::name_range::Kind as RangeKind;

use super::{WireError, job_id, milliseconds, time, wrong};

/// Longest name of a launch, a job or a node, in bytes.
const ID_MAX: usize = 256;
/// Limit of processes in a range.
const PEERS_MAX: usize = 1024;

/// Encodes a request about names.
pub fn encode_name(NameRequest { user, call }: NameRequest) -> proto::NameCall {
    let NameUser { launch, job, rank, host, program: Program { name: program, line } } = user;
    let user = Some(proto::NameUser { launch, job, rank, host, program, line });
    match call {
        NameCall::Publish { service, port, lifetime, range } => proto::NameCall {
            kind: Kind::Publish.into(),
            service,
            port,
            lifetime: encode_lifetime(lifetime).into(),
            range: Some(encode_range(range)),
            user,
            ..Default::default()
        },
        NameCall::Lookup { service, timeout, range } => proto::NameCall {
            kind: Kind::Lookup.into(),
            service,
            patience_ms: timeout.map(milliseconds),
            range: Some(encode_range(range)),
            user,
            ..Default::default()
        },
        NameCall::Unpublish { service, publisher } => proto::NameCall {
            kind: Kind::Unpublish.into(),
            service,
            of_any_rank: publisher == Publisher::AnyOfLaunch,
            user,
            ..Default::default()
        },
        NameCall::Leave => proto::NameCall { kind: Kind::Leave.into(), user, ..Default::default() },
    }
}

/// Decodes a request about names.
///
/// # Errors
/// Fails for an unknown kind of call, lifetime or range. Fails for a timeout of more than a year, and for ids and ranges over the limits.
pub fn decode_name(call: proto::NameCall) -> Result<NameRequest, WireError> {
    let kind = Kind::try_from(call.kind).map_err(|_| wrong("the kind of a name call", call.kind, "0 to 3"))?;
    let user = decode_user(call.user.unwrap_or_default())?;
    let (service, range) = (call.service, decode_range(call.range.unwrap_or_default())?);
    let call = match kind {
        Kind::Publish => {
            NameCall::Publish { service, port: call.port, lifetime: decode_lifetime(call.lifetime)?, range }
        }
        Kind::Lookup => {
            let timeout = call.patience_ms.map(|timeout| time("the timeout of a lookup", timeout));
            NameCall::Lookup { service, timeout: timeout.transpose()?, range }
        }
        Kind::Unpublish => {
            let publisher = if call.of_any_rank { Publisher::AnyOfLaunch } else { Publisher::Itself };
            NameCall::Unpublish { service, publisher }
        }
        Kind::Leave => NameCall::Leave,
    };
    Ok(NameRequest { user, call })
}

/// Encodes a published name as bytes for storage.
pub fn published_to_bytes(service: Bytes, name: Published) -> Vec<u8> {
    let Published { publisher, port, lifetime, range } = name;
    let call = NameCall::Publish { service, port, lifetime, range };
    encode_name(NameRequest { user: publisher, call }).encode_to_vec()
}

/// Decodes a published name from such bytes; `None` for other content.
pub fn published_from_bytes(bytes: &[u8]) -> Option<(Bytes, Published)> {
    let NameRequest { user: publisher, call } = decode_name(proto::NameCall::decode(bytes).ok()?).ok()?;
    let NameCall::Publish { service, port, lifetime, range } = call else { return None };
    Some((service, Published { publisher, port, lifetime, range }))
}

fn decode_user(user: proto::NameUser) -> Result<NameUser, WireError> {
    let proto::NameUser { launch, job, rank, host, program, line } = user;
    for id in [&launch, &job, &host] {
        if id.len() > ID_MAX {
            return Err(wrong("the length of an id in a name call", id.len(), format!("at most {ID_MAX} bytes")));
        }
    }
    Ok(NameUser { launch, job, rank, host, program: Program { name: program, line } })
}

fn encode_lifetime(lifetime: Lifetime) -> proto::name_call::Lifetime {
    match lifetime {
        Lifetime::Withdrawn => proto::name_call::Lifetime::Withdrawn,
        Lifetime::FirstRead => proto::name_call::Lifetime::FirstRead,
        Lifetime::Process => proto::name_call::Lifetime::Process,
    }
}

fn decode_lifetime(number: i32) -> Result<Lifetime, WireError> {
    let lifetime = proto::name_call::Lifetime::try_from(number);
    Ok(match lifetime.map_err(|_| wrong("the lifetime of a name", number, "0 to 2"))? {
        proto::name_call::Lifetime::Withdrawn => Lifetime::Withdrawn,
        proto::name_call::Lifetime::FirstRead => Lifetime::FirstRead,
        proto::name_call::Lifetime::Process => Lifetime::Process,
    })
}

fn encode_range(range: NameRange) -> proto::NameRange {
    let (kind, peers) = match range {
        NameRange::User => (RangeKind::User, Vec::new()),
        NameRange::Session => (RangeKind::Session, Vec::new()),
        NameRange::Node => (RangeKind::Node, Vec::new()),
        NameRange::Job => (RangeKind::Job, Vec::new()),
        NameRange::Process => (RangeKind::Process, Vec::new()),
        NameRange::Listed(peers) => (RangeKind::Listed, peers),
        NameRange::Host => (RangeKind::Host, Vec::new()),
    };
    let peers = peers.into_iter().map(|NamePeer { job, rank }| proto::NamePeer { job, rank }).collect();
    proto::NameRange { kind: kind.into(), peers }
}

fn decode_range(range: proto::NameRange) -> Result<NameRange, WireError> {
    let proto::NameRange { kind, peers } = range;
    if peers.len() > PEERS_MAX || peers.iter().any(|peer| peer.job.len() > ID_MAX) {
        let most = format!("at most {PEERS_MAX} processes of jobs with names of {ID_MAX} bytes");
        return Err(wrong("the range of a name", peers.len(), most));
    }
    Ok(match RangeKind::try_from(kind).map_err(|_| wrong("the range of a name", kind, "0 to 6"))? {
        RangeKind::User => NameRange::User,
        RangeKind::Session => NameRange::Session,
        RangeKind::Node => NameRange::Node,
        RangeKind::Job => NameRange::Job,
        RangeKind::Process => NameRange::Process,
        RangeKind::Listed => {
            NameRange::Listed(peers.into_iter().map(|proto::NamePeer { job, rank }| NamePeer { job, rank }).collect())
        }
        RangeKind::Host => NameRange::Host,
    })
}

/// Encodes an answer of the name service. Only the answer to a lookup has a port.
pub fn encode_name_answer(answer: &Result<Bytes, NameError>) -> proto::NameAnswer {
    let of = |outcome: Outcome| proto::NameAnswer { outcome: outcome.into(), ..Default::default() };
    match answer {
        Ok(port) => proto::NameAnswer { port: port.clone(), ..of(Outcome::Done) },
        Err(NameError::AlreadyPublished { holder }) => {
            proto::NameAnswer { message: holder.clone(), ..of(Outcome::AlreadyPublished) }
        }
        Err(NameError::NotPublisher { holder }) => {
            proto::NameAnswer { message: holder.clone(), ..of(Outcome::NotPublisher) }
        }
        Err(NameError::Ambiguous { launches }) => {
            proto::NameAnswer { launches: launches.clone(), ..of(Outcome::Ambiguous) }
        }
        Err(NameError::TooLong { bytes }) => proto::NameAnswer { bytes: *bytes as u64, ..of(Outcome::TooLong) },
        Err(NameError::NotFound) => of(Outcome::NotFound),
        Err(NameError::TimedOut) => of(Outcome::TimedOut),
        Err(NameError::Full { .. }) => of(Outcome::Full),
        Err(NameError::Unavailable { reason }) => {
            proto::NameAnswer { message: reason.clone(), ..of(Outcome::Unavailable) }
        }
        Err(other) => proto::NameAnswer { message: other.to_string(), ..of(Outcome::Unavailable) },
    }
}

/// Decodes an answer of the name service.
///
/// # Errors
/// Returns the error of the service; [`NameError::Unavailable`] for an unknown outcome.
pub fn decode_name_answer(answer: proto::NameAnswer) -> Result<Bytes, NameError> {
    let holder = answer.message;
    match Outcome::try_from(answer.outcome) {
        Ok(Outcome::Done) => Ok(answer.port),
        Ok(Outcome::AlreadyPublished) => Err(NameError::AlreadyPublished { holder }),
        Ok(Outcome::NotPublisher) => Err(NameError::NotPublisher { holder }),
        Ok(Outcome::Ambiguous) => Err(NameError::Ambiguous { launches: answer.launches }),
        Ok(Outcome::TooLong) => Err(NameError::TooLong { bytes: answer.bytes.try_into().unwrap_or(usize::MAX) }),
        Ok(Outcome::NotFound) => Err(NameError::NotFound),
        Ok(Outcome::TimedOut) => Err(NameError::TimedOut),
        Ok(Outcome::Full) => Err(NameError::Full { limit: Names::LIMIT }),
        Ok(Outcome::Unavailable) => Err(NameError::Unavailable { reason: holder }),
        Err(_) => {
            let reason = format!("it answered with {}, which means nothing here", answer.outcome);
            Err(NameError::Unavailable { reason })
        }
    }
}

/// Encodes a spawn request of `rank` of `job`. The parent in `request` is ignored.
pub fn encode_spawn(job: &JobId, rank: Rank, request: &SpawnRequest) -> proto::SpawnCall {
    proto::SpawnCall {
        parent_job: job.as_str().to_owned(),
        parent_rank: rank.0,
        apps: request.apps.iter().map(encode_app).collect(),
        preput: encode_pairs(&request.preput),
    }
}

/// Decodes a spawn request, with its job and rank.
///
/// # Errors
/// Fails for an invalid job name.
pub fn decode_spawn(call: proto::SpawnCall) -> Result<(JobId, Rank, SpawnRequest), WireError> {
    let job = job_id("the job that spawns", &call.parent_job)?;
    let apps = call.apps.into_iter().map(decode_app).collect();
    let request = SpawnRequest { apps, preput: decode_pairs(call.preput), parent: Some(job.clone()) };
    Ok((job, Rank(call.parent_rank), request))
}

fn encode_app(app: &SpawnApp) -> proto::SpawnApp {
    let variable = |(name, value): &(Bytes, Bytes)| proto::Variable { name: name.clone(), value: value.clone() };
    proto::SpawnApp {
        program: app.program.clone(),
        args: app.args.clone(),
        ranks: app.ranks,
        info: encode_pairs(&app.info),
        variables: app.variables.iter().map(variable).collect(),
        directory: app.directory.clone(),
    }
}

fn decode_app(app: proto::SpawnApp) -> SpawnApp {
    SpawnApp {
        program: app.program,
        args: app.args,
        ranks: app.ranks,
        info: decode_pairs(app.info),
        variables: app.variables.into_iter().map(|variable| (variable.name, variable.value)).collect(),
        directory: app.directory,
    }
}

fn encode_pairs(pairs: &[(Bytes, Bytes)]) -> Vec<proto::SpawnPair> {
    pairs.iter().cloned().map(|(key, value)| proto::SpawnPair { key, value }).collect()
}

fn decode_pairs(pairs: Vec<proto::SpawnPair>) -> Vec<(Bytes, Bytes)> {
    pairs.into_iter().map(|pair| (pair.key, pair.value)).collect()
}

/// Encodes the result of a spawn.
pub fn encode_spawn_answer(answer: &Result<JobId, SpawnError>) -> proto::SpawnAnswer {
    match answer {
        Ok(job) => proto::SpawnAnswer { job_id: job.as_str().to_owned(), refusal: String::new() },
        Err(error) => proto::SpawnAnswer { job_id: String::new(), refusal: error.reason().to_owned() },
    }
}

/// Decodes the result of a spawn: the running job.
///
/// # Errors
/// Fails with [`SpawnError::Failed`] if the job does not run.
pub fn decode_spawn_answer(answer: proto::SpawnAnswer) -> Result<JobId, SpawnError> {
    if !answer.refusal.is_empty() {
        return Err(SpawnError::Failed { reason: answer.refusal });
    }
    JobId::new(&answer.job_id).map_err(|error| SpawnError::Failed { reason: error.to_string() })
}
