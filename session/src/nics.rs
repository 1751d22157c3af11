//! Work on the CXI services of a node, as an agent that is not root asks its fork server for it, and what comes of it.

use std::time::Duration;

use cxi_fabric::Vni;
use cxi_fabric::node::NicService;

use crate::cxi::CxiSurvey;
use crate::wire::signed_credentials::SignedCredentials;

/// Work on the services of a node.
#[derive(Clone, Debug, PartialEq)]
pub enum NicsTask {
    /// Services for the launch of the order are made.
    Claim {
        /// Its credentials.
        credentials: SignedCredentials,
        /// Number of its ranks on this node.
        ranks: u32,
        /// Services that name the VNI and stay, where all others are ended first.
        spared: Option<Vec<NicService>>,
    },
    /// Services of this number are looked for, which somebody else has made.
    Find(u32),
    /// Services are ended.
    Release(Vec<NicService>),
    /// All services that name a VNI are ended.
    Sweep {
        /// The VNI.
        vni: Vni,
        /// Services that stay.
        spared: Vec<NicService>,
        /// Time limit.
        within: Duration,
    },
    /// All services are listed.
    Survey,
}

/// Result of the work.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NicsAnswer {
    /// Services that were made or found.
    pub services: Vec<NicService>,
    /// Restrictions of what was made.
    pub warnings: Vec<String>,
    /// Reason why it was not done, or what is left.
    pub trouble: Option<String>,
    /// List of all services.
    pub survey: CxiSurvey,
}
