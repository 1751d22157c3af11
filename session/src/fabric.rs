//! Fabric variables for the ranks of one node. They replace the variables of an outer launcher.
//!
//! [`cxi_fabric::environment`] lists the variables. This module decides their precedence relative to variables of users and
//! programs. A launch on one machine has no [`NodeFabric`]. Its ranks run in the allocation of the surrounding resource manager
//! and inherit its variables. On the nodes of a cluster the same variables would name another node's services.

use std::ffi::{OsStr, OsString};

use cxi_fabric::Credentials;
use cxi_fabric::environment::{Provider, RankFabric, Variables, is_stale};
use cxi_fabric::node::{NicService, TrafficClasses};

/// Fabric that the ranks of a cluster node may use; none by default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeFabric {
    /// Provider for libfabric, unless the user sets another one. `None` leaves the selection to libfabric.
    pub provider: Option<Provider>,
    /// Credentials and services of the launch; `None` on a fabric that needs none.
    pub claims: Option<Claims>,
}

/// Credentials of a launch, and the services that the agent of a node has made for its ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claims {
    /// The VNIs and the key.
    pub credentials: Credentials,
    /// The services; empty until they are made.
    pub services: Vec<NicService>,
    /// Traffic classes that the services allow.
    pub traffic_classes: TrafficClasses,
}

impl NodeFabric {
    /// Returns true if the inherited variable `name` must not reach a rank: an outer launcher's credentials belong to another
    /// job.
    pub(crate) fn replaces(&self, name: &str) -> bool {
        is_stale(name)
    }

    /// Returns the variables of every rank of a program. `is_set` returns true for a variable that the user has set for it.
    pub(crate) fn variables(&self, is_set: impl Fn(&str) -> bool) -> Vec<(OsString, OsString)> {
        let Some(provider) = self.provider else { return Vec::new() };
        let claims = self.claims.as_ref();
        let fabric = RankFabric {
            provider,
            credentials: claims.map(|claims| &claims.credentials),
            services: claims.map_or(&[], |claims| &claims.services),
            traffic_classes: claims.map(|claims| claims.traffic_classes).unwrap_or_default(),
        };
        owned(&fabric.variables(is_set))
    }
}

fn owned(variables: &Variables) -> Vec<(OsString, OsString)> {
    variables.expose().map(|(name, value)| (OsStr::new(name).to_owned(), OsStr::new(value).to_owned())).collect()
}

#[cfg(test)]
mod tests {
    use cxi_fabric::Vni;

    use super::*;

    #[test]
    fn a_node_of_a_cluster_takes_out_what_an_outer_launcher_left_and_sets_what_it_has() {
        let names = |fabric: &NodeFabric| {
            let variables = fabric.variables(|_| false).into_iter();
            variables.map(|(name, _)| name.into_string().unwrap()).collect::<Vec<_>>()
        };
        let nothing = NodeFabric::default();
        let provider = NodeFabric { provider: Some(Provider::Verbs), claims: None };
        let credentials =
            Credentials { vni: Vni::new(1024).unwrap(), job_vni: None, auth_key: None, svc_id: 0, lifetime: None };
        let claims = Claims { credentials, services: Vec::new(), traffic_classes: TrafficClasses::default() };
        let both = NodeFabric { provider: Some(Provider::Cxi), claims: Some(claims) };
        assert_eq!(names(&nothing), [""; 0]);
        assert_eq!(names(&provider), ["FI_PROVIDER"]);
        assert_eq!(names(&both), ["FI_PROVIDER", "FI_CXI_DEFAULT_VNI"]);
        for fabric in [nothing, provider, both] {
            assert!(fabric.replaces("SLINGSHOT_VNIS") && fabric.replaces("FI_CXI_COLL_JOB_ID"));
            assert!(
                fabric.replaces("FI_CXI_COLL_USE_DMA_PUT") && fabric.replaces("FI_CXI_HWCOLL_NEW"),
                "whatever the version"
            );
            assert!(!fabric.replaces("FI_PROVIDER") && !fabric.replaces("FI_CXI_DEVICE_NAME"), "the user's own");
        }
    }
}
