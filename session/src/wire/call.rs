//! Calls of ranks to their launcher: the name service and spawns.

use std::time::Duration;

use bytes::Bytes;
use pmi_core::ids::{JobId, Rank};
use pmi_core::services::{Lifetime, NameError, Names, SpawnApp, SpawnError, SpawnRequest};
use pmi_transport::proto::v1 as proto;
use proto::name_answer::Outcome;
use proto::name_call::Kind;

use super::{WireError, job_id, milliseconds, time, wrong};

/// One call to the name service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NameCall {
    /// Make a port known.
    Publish {
        /// The name.
        service: Bytes,
        /// The port.
        port: Bytes,
        /// Lifetime of the name.
        lifetime: Lifetime,
    },
    /// Find a port.
    Lookup {
        /// The name.
        service: Bytes,
        /// Time to wait for the name to be published; `None` does not wait.
        timeout: Option<Duration>,
    },
    /// Withdraw a name.
    Unpublish {
        /// The name.
        service: Bytes,
    },
}

/// Encodes a call to the name service.
pub fn encode_name(call: NameCall) -> proto::NameCall {
    match call {
        NameCall::Publish { service, port, lifetime } => proto::NameCall {
            kind: Kind::Publish.into(),
            service,
            port,
            first_read: lifetime == Lifetime::FirstRead,
            patience_ms: None,
        },
        NameCall::Lookup { service, timeout } => proto::NameCall {
            kind: Kind::Lookup.into(),
            service,
            patience_ms: timeout.map(milliseconds),
            ..Default::default()
        },
        NameCall::Unpublish { service } => {
            proto::NameCall { kind: Kind::Unpublish.into(), service, ..Default::default() }
        }
    }
}

/// Decodes a call to the name service.
///
/// # Errors
/// Refuses a kind of call that this version does not know, and a timeout beyond a year.
pub fn decode_name(call: proto::NameCall) -> Result<NameCall, WireError> {
    let kind = Kind::try_from(call.kind).map_err(|_| wrong("the kind of a name call", call.kind, "0 to 2"))?;
    let service = call.service;
    Ok(match kind {
        Kind::Publish => {
            let lifetime = if call.first_read { Lifetime::FirstRead } else { Lifetime::Withdrawn };
            NameCall::Publish { service, port: call.port, lifetime }
        }
        Kind::Lookup => {
            let timeout = call.patience_ms.map(|timeout| time("the timeout of a lookup", timeout));
            NameCall::Lookup { service, timeout: timeout.transpose()? }
        }
        Kind::Unpublish => NameCall::Unpublish { service },
    })
}

/// Encodes an answer of the name service; the port is empty but for a lookup.
pub fn encode_name_answer(answer: &Result<Bytes, NameError>) -> proto::NameAnswer {
    let outcome = match answer {
        Ok(port) => {
            return proto::NameAnswer { outcome: Outcome::Done.into(), port: port.clone(), message: String::new() };
        }
        Err(NameError::AlreadyPublished) => Outcome::AlreadyPublished,
        Err(NameError::NotFound) => Outcome::NotFound,
        Err(NameError::TimedOut) => Outcome::TimedOut,
        Err(NameError::Full { .. }) => Outcome::Full,
        Err(NameError::Unavailable { reason }) => {
            let outcome = Outcome::Unavailable.into();
            return proto::NameAnswer { outcome, port: Bytes::new(), message: reason.clone() };
        }
        Err(other) => {
            let outcome = Outcome::Unavailable.into();
            return proto::NameAnswer { outcome, port: Bytes::new(), message: other.to_string() };
        }
    };
    proto::NameAnswer { outcome: outcome.into(), ..Default::default() }
}

/// Decodes an answer of the name service.
///
/// # Errors
/// Returns the error of the service; [`NameError::Unavailable`] for an outcome that this version does not know.
pub fn decode_name_answer(answer: proto::NameAnswer) -> Result<Bytes, NameError> {
    match Outcome::try_from(answer.outcome) {
        Ok(Outcome::Done) => Ok(answer.port),
        Ok(Outcome::AlreadyPublished) => Err(NameError::AlreadyPublished),
        Ok(Outcome::NotFound) => Err(NameError::NotFound),
        Ok(Outcome::TimedOut) => Err(NameError::TimedOut),
        Ok(Outcome::Full) => Err(NameError::Full { limit: Names::LIMIT }),
        Ok(Outcome::Unavailable) => Err(NameError::Unavailable { reason: answer.message }),
        Err(_) => {
            let reason = format!("it answered with {}, which means nothing here", answer.outcome);
            Err(NameError::Unavailable { reason })
        }
    }
}

/// Encodes a spawn that `rank` of `job` asks for; the parent in `request` does not count.
pub fn encode_spawn(job: &JobId, rank: Rank, request: &SpawnRequest) -> proto::SpawnCall {
    proto::SpawnCall {
        parent_job: job.as_str().to_owned(),
        parent_rank: rank.0,
        apps: request.apps.iter().map(encode_app).collect(),
        preput: encode_pairs(&request.preput),
    }
}

/// Decodes a spawn, with the job and the rank that ask for it.
///
/// # Errors
/// Refuses a name of a job that cannot be one.
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

/// Decodes the result of a spawn: the job that runs.
///
/// # Errors
/// Fails with [`SpawnError::Failed`] if the job does not run.
pub fn decode_spawn_answer(answer: proto::SpawnAnswer) -> Result<JobId, SpawnError> {
    if !answer.refusal.is_empty() {
        return Err(SpawnError::Failed { reason: answer.refusal });
    }
    JobId::new(&answer.job_id).map_err(|error| SpawnError::Failed { reason: error.to_string() })
}
