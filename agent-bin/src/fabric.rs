//! The fabric as the ranks of one node see it: variables, in place of those that an outer launcher left.
//!
//! What the variables are is written in [`cxi_fabric::environment`]; when they are set, beside what users and programs set, is
//! decided here.

use std::ffi::{OsStr, OsString};

use cxi_fabric::environment::{Provider, RankFabric, Variables, is_stale};

use crate::wire::fabric::Claims;

/// What the ranks of this node may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeFabric {
    /// What libfabric is to use, unless the user says otherwise.
    pub provider: Provider,
    /// The launch's credentials and services; none on a fabric that needs none.
    pub claims: Option<Claims>,
}

impl NodeFabric {
    /// Whether an inherited variable must not reach a rank: an outer launcher's credentials open another job's network.
    pub(crate) fn replaces(&self, name: &str) -> bool {
        self.claims.is_some() && is_stale(name)
    }

    /// The variables of every rank of a program; `is_set` tells what the user has set for it.
    pub(crate) fn variables(&self, is_set: impl Fn(&str) -> bool) -> Vec<(OsString, OsString)> {
        let claims = self.claims.as_ref();
        let fabric = RankFabric {
            provider: self.provider,
            credentials: claims.map(|claims| &claims.credentials),
            job_vni: claims.and_then(|claims| claims.job_vni),
            services: claims.map_or(&[], |claims| &claims.services),
            traffic_classes: claims.map(|claims| claims.traffic_classes).unwrap_or_default(),
        };
        owned(&fabric.variables(is_set))
    }
}

fn owned(variables: &Variables) -> Vec<(OsString, OsString)> {
    variables.expose().map(|(name, value)| (OsStr::new(name).to_owned(), OsStr::new(value).to_owned())).collect()
}
