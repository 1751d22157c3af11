//! Interface of a fabric manager, whichever it is: a service that ties a VNI to nodes, its credentials, its deletion.
//!
//! Calls block, so they belong on a thread that may; each takes a deadline and returns by it. Back ends
//! come from a [`FabricConfig`](crate::FabricConfig): `rest`, `vnid` and `pool`.

use std::fmt;
use std::str::FromStr;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::error::FabricError;
use crate::secret::Secret;
use crate::vni::Vni;

/// Name of a cluster, by which it knows its own services at a manager that serves several: 1 to 32 letters, digits, `-` and `_`.
///
/// Without a dot, which would make the names of one cluster's services begin with another cluster's name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClusterName(String);

/// The text cannot name a cluster.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("`{0}` cannot name a cluster; a cluster's name has 1 to 32 letters, digits, `-` and `_`")]
pub struct ClusterNameError(String);

impl ClusterName {
    /// Greatest length of a name, in bytes.
    pub const LONGEST: usize = 32;

    /// The text.
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

/// Our name for a service; with it a request that is repeated finds what its first sending made.
///
/// Written `cluster.allocation.serial`, so that a cluster recognises its own in a list.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ServiceName(String);

/// The text cannot name a service.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("`{0}` cannot be part of a service's name; allowed are 1 to 128 letters, digits, `-`, `_` and `.`")]
pub struct NameError(String);

impl ServiceName {
    /// Greatest length of a name, in bytes.
    pub const LONGEST: usize = 128;

    /// The name of the service number `serial` that `cluster` wants for `allocation`.
    ///
    /// # Errors
    /// Of parts that do not fit into a URL or a file name.
    pub fn new(cluster: &ClusterName, allocation: &str, serial: u64) -> Result<Self, NameError> {
        Self::try_from(format!("{cluster}.{allocation}.{serial}"))
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// True for a name of `cluster`'s.
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
    /// Name of the service. Requests are idempotent by it: asking twice makes one service.
    pub name: ServiceName,
    /// The allocation.
    pub allocation: String,
    /// The VNI, where we choose it.
    pub vni: Option<Vni>,
    /// A second one, for ranks of several launches, where we choose it and one is wanted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job_vni: Option<Vni>,
    /// The allocation's nodes.
    pub nodes: Vec<String>,
    /// User whose ranks use it.
    pub uid: u32,
}

impl ServiceRequest {
    /// VNIs that we chose for it.
    pub(crate) fn vnis(&self) -> impl Iterator<Item = Vni> + use<> {
        self.vni.into_iter().chain(self.job_vni)
    }
}

/// The manager's name for a service.
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
    /// The manager's name for it.
    pub id: ServiceId,
    /// The VNI that its ranks talk on.
    pub vni: Vni,
    /// A second one, for ranks of several launches.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job_vni: Option<Vni>,
}

/// Credentials by which ranks use a service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Credentials {
    /// The VNI that they talk on.
    pub vni: Vni,
    /// A second one, for ranks of several launches; none unless the configuration wants it.
    pub job_vni: Option<Vni>,
    /// The manager's key; none where it gives none.
    pub auth_key: Option<Secret>,
    /// The CXI service on every NIC; 0 where each node makes its own, as real hardware wants it.
    pub svc_id: u32,
    /// Lifetime from now on; `None` until they are revoked.
    pub lifetime: Option<Duration>,
}

impl Credentials {
    /// Credentials of a service whose manager gives no key.
    pub(crate) fn keyless(service: &Service) -> Self {
        Self { vni: service.vni, job_vni: service.job_vni, auth_key: None, svc_id: 0, lifetime: None }
    }
}

/// A service in a manager's list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// The manager's name for it.
    pub id: ServiceId,
    /// Ours, if it is one of those that a launcher like us made.
    pub name: Option<ServiceName>,
    /// VNI, if the list tells it.
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

/// Something that gives out fabric services.
///
/// All calls are idempotent: a service is made once per name, and deleting one that is gone succeeds.
pub trait FabricManager: Send + Sync {
    /// Makes the service, or finds the one of that name.
    fn create(&self, request: &ServiceRequest, deadline: Instant) -> Result<Service, FabricError>;

    /// Credentials of a service; `None` if there is no such service any more.
    fn credentials(&self, service: &Service, deadline: Instant) -> Result<Option<Credentials>, FabricError>;

    /// Ends the service and with it its credentials.
    fn delete(&self, id: &ServiceId, deadline: Instant) -> Result<(), FabricError>;

    /// The service that a request may have made whose answer nobody heard. A manager that cannot be searched is asked for the
    /// service again, which may make it: whoever calls this is about to delete it.
    fn find(&self, request: &ServiceRequest, deadline: Instant) -> Result<Option<Service>, FabricError>;

    /// Lists all services; [`FabricError::NotOffered`] where the manager has no such call.
    fn list(&self, deadline: Instant) -> Result<Vec<Listed>, FabricError>;

    /// Source of the services' VNIs.
    fn numbering(&self) -> Numbering;
}

/// Source of VNIs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Numbering {
    /// We do, from a pool of our own. The service may be deleted at once; the number waits until no node uses it.
    Ours {
        /// Each service gets a second number, for ranks of several launches.
        job_vni: bool,
    },
    /// The manager does, and may give the number to others as soon as the service is deleted. So that waits for the nodes.
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
