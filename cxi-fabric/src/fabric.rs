//! Interface of all fabric managers: creates a service that ties a VNI to nodes, returns its credentials, deletes it.
//!
//! Calls block, so they need a thread that may block. Each takes a deadline and returns by it. A
//! [`FabricConfig`](crate::FabricConfig) makes the back ends: `rest`, `vnid` and `pool`.

use std::fmt;
use std::str::FromStr;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::error::FabricError;
use crate::secret::Secret;
use crate::vni::Vni;

/// Name of a cluster, which identifies its services at a manager of several clusters: 1 to 32 letters, digits, `-` and `_`.
///
/// Names have no dot. With a dot, the names of one cluster's services could start with another cluster's name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClusterName(String);

/// Error for a text that is not a cluster name.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("`{0}` cannot name a cluster; a cluster's name has 1 to 32 letters, digits, `-` and `_`")]
pub struct ClusterNameError(String);

impl ClusterName {
    /// Limit on the length of a name, in bytes.
    pub const LONGEST: usize = 32;

    /// Text of the name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for ClusterName {
    type Err = ClusterNameError;

    fn from_str(text: &str) -> Result<Self, ClusterNameError> {
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
        if (1..=Self::LONGEST).contains(&text.len()) && text.bytes().all(fits) {
            Ok(Self(text.to_owned()))
        } else {
            Err(ClusterNameError(text.chars().take(ServiceName::LONGEST).collect()))
        }
    }
}

impl fmt::Display for ClusterName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Name that this cluster gives a service. With it a repeated request finds the service of the first request.
///
/// Format `cluster.allocation.serial`, so that a cluster recognises its own services in a list.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ServiceName(String);

/// Error for a text that is not a service name.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("`{0}` cannot be part of a service's name; allowed are 1 to 128 letters, digits, `-`, `_` and `.`")]
pub struct NameError(String);

impl ServiceName {
    /// Limit on the length of a name, in bytes.
    pub const LONGEST: usize = 128;

    /// Name of service number `serial` of `cluster` for `allocation`.
    ///
    /// # Errors
    /// Fails for parts that do not fit into a URL or a file name.
    pub fn new(cluster: &ClusterName, allocation: &str, serial: u64) -> Result<Self, NameError> {
        Self::try_from(format!("{cluster}.{allocation}.{serial}"))
    }

    /// Text of the name.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// True for a name of `cluster`.
    pub fn is_of(&self, cluster: &ClusterName) -> bool {
        self.0.strip_prefix(cluster.as_str()).is_some_and(|rest| rest.starts_with('.'))
    }
}

impl TryFrom<String> for ServiceName {
    type Error = NameError;

    fn try_from(text: String) -> Result<Self, NameError> {
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
        if (1..=Self::LONGEST).contains(&text.len()) && text.bytes().all(fits) {
            Ok(Self(text))
        } else {
            Err(NameError(text.chars().take(Self::LONGEST).collect()))
        }
    }
}

impl From<ServiceName> for String {
    fn from(name: ServiceName) -> Self {
        name.0
    }
}

impl fmt::Display for ServiceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Request for a service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServiceRequest {
    /// Name of the service. It makes requests idempotent: two equal requests make one service.
    pub name: ServiceName,
    /// Name of the allocation.
    pub allocation: String,
    /// VNI, if this cluster assigns it.
    pub vni: Option<Vni>,
    /// Second VNI for ranks of several launches, if this cluster assigns it and the configuration requests one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job_vni: Option<Vni>,
    /// Nodes of the allocation.
    pub nodes: Vec<String>,
    /// User of the ranks.
    pub uid: u32,
}

impl ServiceRequest {
    /// VNIs that this cluster assigned to the service.
    pub(crate) fn vnis(&self) -> impl Iterator<Item = Vni> + use<> {
        self.vni.into_iter().chain(self.job_vni)
    }
}

/// The manager's identifier of a service.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ServiceId(pub String);

impl fmt::Display for ServiceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Existing service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Service {
    /// The manager's identifier.
    pub id: ServiceId,
    /// VNI of the ranks' traffic.
    pub vni: Vni,
    /// Second VNI, for ranks of several launches.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job_vni: Option<Vni>,
}

/// Credentials with which ranks use a service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Credentials {
    /// VNI of the ranks' traffic.
    pub vni: Vni,
    /// Second VNI, for ranks of several launches; `None` unless the configuration requests it.
    pub job_vni: Option<Vni>,
    /// The manager's key; `None` if it issues none.
    pub auth_key: Option<Secret>,
    /// CXI service on every NIC; 0 if each node makes its own, as real hardware requires.
    pub svc_id: u32,
    /// Lifetime from the time of receipt; `None` if it lasts until revocation.
    pub lifetime: Option<Duration>,
}

impl Credentials {
    /// Credentials of a service without a key.
    pub(crate) fn keyless(service: &Service) -> Self {
        Self { vni: service.vni, job_vni: service.job_vni, auth_key: None, svc_id: 0, lifetime: None }
    }
}

/// Service in a manager's list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// The manager's identifier.
    pub id: ServiceId,
    /// Service name, if a launcher of this kind made the service.
    pub name: Option<ServiceName>,
    /// VNI, if the list has it.
    pub vni: Option<Vni>,
}

impl fmt::Display for Listed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.name {
            Some(name) => name.fmt(f),
            None => self.id.fmt(f),
        }
    }
}

/// Source of fabric services.
///
/// All calls are idempotent: a name has one service, and deleting a deleted service succeeds.
pub trait FabricManager: Send + Sync {
    /// Makes the service, or finds the existing one with that name.
    fn create(&self, request: &ServiceRequest, deadline: Instant) -> Result<Service, FabricError>;

    /// Credentials of a service; `None` if the service no longer exists.
    fn credentials(&self, service: &Service, deadline: Instant) -> Result<Option<Credentials>, FabricError>;

    /// Deletes the service, and thereby its credentials.
    fn delete(&self, id: &ServiceId, deadline: Instant) -> Result<(), FabricError>;

    /// Finds the service of a request without an answer. If the manager has no search, this repeats the request, which may make
    /// the service. The caller must delete the result.
    fn find(&self, request: &ServiceRequest, deadline: Instant) -> Result<Option<Service>, FabricError>;

    /// Lists all services; [`FabricError::NotOffered`] if the manager does not support it.
    fn list(&self, deadline: Instant) -> Result<Vec<Listed>, FabricError>;

    /// Source of the services' VNIs.
    fn numbering(&self) -> Numbering;
}

/// Source of VNIs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Numbering {
    /// This cluster, from its own pool. The service may be deleted at once; the number stays taken until no node uses it.
    Ours {
        /// True if each service gets a second number, for ranks of several launches.
        job_vni: bool,
    },
    /// The manager. It may assign the number again as soon as the service is deleted, so the deletion waits for the nodes.
    Managers,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_tells_its_cluster_and_fits_into_a_url() {
        let cluster = |text: &str| text.parse::<ClusterName>().expect("a name");
        let daint = cluster("daint");
        let name = ServiceName::new(&daint, "4711", 2).expect("a name");
        assert_eq!(name.as_str(), "daint.4711.2");
        assert!(name.is_of(&daint) && !name.is_of(&cluster("dain")) && !name.is_of(&cluster("daint-2")));
        for allocation in ["a/b", "a b", "ä", "a?b", &"x".repeat(200)] {
            assert!(ServiceName::new(&daint, allocation, 0).is_err(), "{allocation} was taken");
        }
    }

    #[test]
    fn no_clusters_services_begin_with_anothers_name() {
        for text in ["daint", "Daint_2-b", &"x".repeat(32)] {
            assert_eq!(text.parse::<ClusterName>().expect("a name").to_string(), text);
        }
        for text in ["", "daint.gpu", "da int", "dä", &"x".repeat(33)] {
            let error = text.parse::<ClusterName>().expect_err(text).to_string();
            assert!(error.contains(text) && error.contains("1 to 32"), "{error}");
        }
    }
}
