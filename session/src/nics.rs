//! Work on the CXI services of a node, and its result. An agent that is not root sends this work to its fork server.

use std::time::Duration;

use cxi_fabric::Vni;
use cxi_fabric::node::NicService;

use crate::cxi::CxiSurvey;
use crate::wire::signed_credentials::SignedCredentials;

/// Work on the services of a node.
#[derive(Clone, Debug, PartialEq)]
pub enum NicsTask {
    /// Make services for the launch of the order.
    Claim {
        /// Its credentials.
        credentials: SignedCredentials,
        /// Number of its ranks on this node.
        ranks: u32,
        /// If set, all services with the VNI except these are ended first.
        spared: Option<Vec<NicService>>,
    },
    /// Find the services with this id, which another program has made.
    Find(u32),
    /// End services.
    Release(Vec<NicService>),
    /// End all services that name a VNI.
    Sweep {
        /// The VNI.
        vni: Vni,
        /// Services that stay.
        spared: Vec<NicService>,
        /// Time limit.
        within: Duration,
    },
    /// List all services.
    Survey,
}

/// Result of the work.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NicsAnswer {
    /// Services that were made or found.
    pub services: Vec<NicService>,
    /// Restrictions of the new services.
    pub warnings: Vec<String>,
    /// Reason of a failure, or a description of services that remain.
    pub trouble: Option<String>,
    /// List of all services.
    pub survey: CxiSurvey,
}
