//! Conversion between the messages of `lattice.v1` and the types of a session. No other module depends on both.
//!
//! Encoding cannot fail. Decoding validates all input. The parts of a result are consistent: every rank has a node and a program, and every
//! node has a name. Times in a result can be added to a clock. Errors contain the invalid value and the valid values.

pub mod call;
pub mod cause;
pub mod command;
pub mod cxi;
pub mod death;
pub mod event;
pub mod fabric;
pub mod failure;
pub mod fence;
pub mod foreign;
pub mod gathered;
pub mod input;
pub mod job;
pub mod meeting;
pub mod nics;
mod node_selection;
pub mod order;
pub mod pass;
pub mod placed;
pub mod progress;
pub mod question;
pub mod rendezvous;
pub mod report_relay;
pub mod request;
mod settings;
mod shell_limits;
pub mod signed_credentials;
pub mod spec;
pub mod start;
pub mod terminal;

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use hostlist::HostlistError;
use pmi_core::ids::{JobId, JobIdError};
use pmi_transport::proto::v1 as proto;
use rank_spawner::{CpuBindParseError, LimitParseError, MemBindParseError};

use crate::gpus::GpuBindParseError;
use crate::rank_ranges::RankRangesError;
use crate::request::ProgramsError;
use crate::template::TemplateError;

/// Reason why a message is refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WireError {
    /// The bytes are no protobuf message of this kind.
    #[error("the message cannot be read: {0}")]
    Format(#[from] prost::DecodeError),
    /// A required field is missing.
    #[error("the message has no {what}")]
    Missing {
        /// Name of the field.
        what: &'static str,
    },
    /// A value that this version does not support.
    #[error("{what} is {seen}; possible is {possible}")]
    Value {
        /// Name of the value.
        what: &'static str,
        /// The received value.
        seen: String,
        /// The valid values.
        possible: String,
    },
    /// An invalid name of a job or launch.
    #[error("{what}: {source}")]
    Name {
        /// Owner of the name.
        what: &'static str,
        /// Reason why it is invalid.
        source: JobIdError,
    },
    /// An unreadable list of nodes or addresses.
    #[error("{what}: {source}")]
    Hosts {
        /// Name of the list.
        what: &'static str,
        /// Reason why it is unreadable.
        source: HostlistError,
    },
    /// An invalid binding of ranks to CPUs.
    #[error("the binding to CPUs: {0}")]
    CpuBind(#[from] CpuBindParseError),
    /// An invalid binding of memory.
    #[error("the binding of memory: {0}")]
    MemBind(#[from] MemBindParseError),
    /// An invalid binding of ranks to GPUs.
    #[error("the binding to GPUs: {0}")]
    GpuBind(#[from] GpuBindParseError),
    /// An unknown limit of a resource.
    #[error(transparent)]
    Limit(#[from] LimitParseError),
    /// Ranges without ranks.
    #[error(transparent)]
    Ranks(#[from] RankRangesError),
    /// Programs that form no valid launch.
    #[error(transparent)]
    Programs(#[from] ProgramsError),
    /// A file name with unknown escapes.
    #[error("the file for standard input: {0}")]
    Template(#[from] TemplateError),
    /// Nodes are selected in two ways.
    #[error("both a node list and a hostfile name the nodes to use; give one of them")]
    NodesTwice,
}

/// Longest time in a message. All times up to this limit can be added to a clock.
const TIME_MAX: Duration = Duration::from_secs(366 * 24 * 60 * 60);

fn wrong(what: &'static str, seen: impl ToString, possible: impl Into<String>) -> WireError {
    WireError::Value { what, seen: seen.to_string(), possible: possible.into() }
}

fn job_id(what: &'static str, text: &str) -> Result<JobId, WireError> {
    JobId::new(text).map_err(|source| WireError::Name { what, source })
}

fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

fn time(what: &'static str, milliseconds: u64) -> Result<Duration, WireError> {
    let time = Duration::from_millis(milliseconds);
    if time > TIME_MAX {
        return Err(wrong(what, format!("{milliseconds} ms"), format!("at most {} ms", TIME_MAX.as_millis())));
    }
    Ok(time)
}

pub(crate) fn bytes(text: &OsStr) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}

fn os_string(bytes: Bytes) -> OsString {
    OsString::from_vec(bytes.into())
}

fn absolute(what: &'static str, bytes: Bytes) -> Result<PathBuf, WireError> {
    let path = PathBuf::from(os_string(bytes));
    if !Path::is_absolute(&path) {
        return Err(wrong(what, format!("{:?}", path.display()), "an absolute path"));
    }
    Ok(path)
}

fn encode_variables(variables: &[(OsString, OsString)]) -> Vec<proto::Variable> {
    variables.iter().map(|(name, value)| proto::Variable { name: bytes(name), value: bytes(value) }).collect()
}

/// Decodes the variables of an environment. The session detects variables that a program cannot receive.
pub fn decode_variables(variables: Vec<proto::Variable>) -> Vec<(OsString, OsString)> {
    variables.into_iter().map(|variable| (os_string(variable.name), os_string(variable.value))).collect()
}

#[cfg(test)]
mod tests;
