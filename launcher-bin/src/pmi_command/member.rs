//! A rank of a job, over any connection to its launcher: PMI-1 and PMI-2, PMIx, or a library for programs in C.

use std::env;
use std::path::Path;

use pmi_client::library::{LibraryApi, LibraryClient, LibraryError};
use pmi_client::pmix::{Collect, PmixClient, PmixError, Value};
use pmi_client::{Client, ClientError, Protocol, SpawnRequest};

use crate::args::pmi_command::Method;

/// A call that failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    /// Error of PMI-1 or PMI-2.
    #[error(transparent)]
    Pmi(#[from] ClientError),
    /// Error of PMIx.
    #[error(transparent)]
    Pmix(#[from] PmixError),
    /// Error of a library.
    #[error(transparent)]
    Library(#[from] LibraryError),
}

/// A rank of a job.
#[derive(Debug)]
pub(super) enum Member {
    Pmi(Client),
    Pmix(PmixClient),
    Library(LibraryClient),
}

impl Member {
    /// Joins the job that the environment names.
    pub(super) fn join(method: Method, library: Option<&Path>) -> Result<Self, CallError> {
        let given = |variable: &str| env::var_os(variable).is_some();
        let only_pmix = !given("PMI_FD") && !given("PMI_PORT") && given("PMIX_NAMESPACE");
        let load = |name: &str, api| LibraryClient::load(library.unwrap_or(Path::new(name)), api);
        Ok(match method {
            Method::Auto if only_pmix => Self::Pmix(PmixClient::from_env()?),
            Method::Auto => Self::Pmi(Client::from_env(Protocol::Auto)?),
            Method::Pmi1 => Self::Pmi(Client::from_env(Protocol::Pmi1)?),
            Method::Pmi2 => Self::Pmi(Client::from_env(Protocol::Pmi2)?),
            Method::Pmix => Self::Pmix(PmixClient::from_env()?),
            Method::Lib => Self::Library(load("libpmi.so.0", LibraryApi::Pmi1)?),
            Method::Lib2 => Self::Library(load("libpmi2.so.0", LibraryApi::Pmi2)?),
        })
    }

    pub(super) fn rank(&self) -> u32 {
        match self {
            Self::Pmi(client) => client.rank(),
            Self::Pmix(client) => client.rank(),
            Self::Library(client) => client.rank(),
        }
    }

    pub(super) fn size(&self) -> u32 {
        match self {
            Self::Pmi(client) => client.size(),
            Self::Pmix(client) => client.size(),
            Self::Library(client) => client.size(),
        }
    }

    pub(super) fn put(&mut self, key: &str, value: &[u8]) -> Result<(), CallError> {
        match self {
            Self::Pmi(client) => client.put(key, value)?,
            Self::Pmix(client) => client.put(key, Value::Bytes(value.to_vec())),
            Self::Library(client) => client.put(key, value)?,
        }
        Ok(())
    }

    /// Waits for all ranks, and exchanges the values that they have put.
    pub(super) fn fence(&mut self) -> Result<(), CallError> {
        match self {
            Self::Pmi(client) => client.fence()?,
            Self::Pmix(client) => {
                // Without data, a barrier costs as little as with the other protocols.
                let data = if client.has_staged() { Collect::Data } else { Collect::Nothing };
                if data == Collect::Data {
                    client.commit()?;
                }
                client.fence(data)?;
            }
            Self::Library(client) => client.fence()?,
        }
        Ok(())
    }

    /// Value that `owner` has put under `key`. No other rank puts this key.
    pub(super) fn get(&mut self, owner: u32, key: &str) -> Result<Option<Vec<u8>>, CallError> {
        Ok(match self {
            Self::Pmi(client) => client.get(key)?,
            Self::Pmix(client) => client.get(owner, key)?.map(bytes),
            Self::Library(client) => client.get(key)?,
        })
    }

    pub(super) fn job_attribute(&mut self, key: &str) -> Result<Option<Vec<u8>>, CallError> {
        Ok(match self {
            Self::Pmi(client) => client.job_attribute(key)?,
            Self::Pmix(client) => match client.job_attribute(key)? {
                Some(value) => Some(bytes(value)),
                None => client.query(key)?.map(bytes),
            },
            Self::Library(client) => client.job_attribute(key)?,
        })
    }

    /// Starts a job. Returns its name, if the protocol reports it.
    pub(super) fn spawn(&mut self, request: &SpawnRequest) -> Result<Option<String>, CallError> {
        match self {
            Self::Pmi(client) => Ok(client.spawn(request)?),
            Self::Pmix(client) => Ok(Some(client.spawn(request)?)),
            Self::Library(client) => Ok(client.spawn(request)?),
        }
    }

    pub(super) fn finalize(self) -> Result<(), CallError> {
        match self {
            Self::Pmi(client) => client.finalize()?,
            Self::Pmix(client) => client.finalize()?,
            Self::Library(client) => client.finalize()?,
        }
        Ok(())
    }
}

fn bytes(value: Value) -> Vec<u8> {
    match value {
        Value::Bytes(bytes) | Value::Text(bytes) => bytes,
        other => other.to_string().into_bytes(),
    }
}
