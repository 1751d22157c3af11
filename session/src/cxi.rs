//! The NICs of one node and their CXI services, as agent, API server and operator see them, and the findings about them.

use cxi_fabric::Vni;
use cxi_fabric::node::{self, CxiBackend, CxiError, FoundService, Nic, NicService, NodeBackend};

/// NICs of one node, with the CXI services on them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CxiSurvey {
    /// Back end that makes services on the node, as spelled in the agent's configuration.
    pub backend: String,
    /// NICs, in the order of their names.
    pub nics: Vec<SurveyedNic>,
    /// Reason why NICs or services could not be listed.
    pub trouble: Option<String>,
}

/// One NIC of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SurveyedNic {
    /// Name, such as `cxi0`.
    pub name: String,
    /// True if the NIC has a link.
    pub is_up: bool,
    /// CXI services on it.
    pub services: Vec<SurveyedService>,
}

/// One CXI service of a NIC.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SurveyedService {
    /// Id of the service on its NIC.
    pub svc_id: u32,
    /// VNIs that its users may use; empty for all VNIs.
    pub vnis: Vec<u32>,
    /// Users that may use the service; empty for all users.
    pub uids: Vec<u32>,
    /// Launch or process that owns the service, if known.
    pub owner: Option<String>,
}

/// Lists every NIC of this node. `owner` returns the launch or process that owns a service, if known.
pub fn survey(
    kind: NodeBackend,
    backend: &dyn CxiBackend,
    owner: impl Fn(&NicService, &FoundService) -> Option<String>,
) -> CxiSurvey {
    let mut troubles = Vec::new();
    if kind.is_privileged() && !node::may_make_services() {
        troubles.push("CXI services take CAP_SYS_ADMIN, which this process does not have".to_owned());
    }
    let mut listed = |result: Result<Vec<FoundService>, CxiError>| {
        result.unwrap_or_else(|error| {
            troubles.push(error.to_string());
            Vec::new()
        })
    };
    let nics = match backend.nics() {
        // A NIC that cannot be read hides no other NIC.
        Ok(nics) => nics.into_iter().map(|nic| (listed(backend.list(&nic.name)), nic)).collect(),
        Err(error) => {
            troubles.push(error.to_string());
            Vec::new()
        }
    };
    let nics = nics.into_iter().map(|(found, nic)| surveyed(nic, found, &owner)).collect();
    let trouble = Some(troubles.join("; ")).filter(|trouble| !trouble.is_empty());
    CxiSurvey { backend: kind.name().to_owned(), nics, trouble }
}

fn surveyed(
    nic: Nic,
    found: Vec<FoundService>,
    owner: impl Fn(&NicService, &FoundService) -> Option<String>,
) -> SurveyedNic {
    let service = |found: FoundService| SurveyedService {
        svc_id: found.svc_id,
        owner: owner(&NicService { nic: nic.name.clone(), svc_id: found.svc_id }, &found),
        vnis: found.vnis.into_iter().map(Vni::into).collect(),
        uids: found.uids,
    };
    let services = found.into_iter().map(service).collect();
    SurveyedNic { name: nic.name.clone(), is_up: nic.is_up, services }
}

impl CxiSurvey {
    /// Survey of a node that makes no services, or cannot list its NICs because of `trouble`.
    pub fn without_services(kind: NodeBackend, trouble: Option<String>) -> Self {
        Self { backend: kind.name().to_owned(), nics: Vec::new(), trouble }
    }

    /// Problems of the node, except services without an owner: an API server and a node have different lists of owners.
    pub fn findings(&self) -> Vec<Finding> {
        let mut findings = Vec::new();
        if let Some(trouble) = &self.trouble {
            findings.push(Finding::new(trouble, "see whether the CXI driver runs, and that the agent runs as root"));
        } else if self.backend == NodeBackend::None.name() {
            let remedy = "set `backend` in the section fabric of the agent's configuration";
            findings.push(Finding::new("no CXI services are made; ranks here cannot use the fabric", remedy));
        } else if self.nics.is_empty() {
            findings.push(Finding::new("there is no CXI device", "see whether the CXI driver is loaded"));
        }
        let down = self.nics.iter().filter(|nic| !nic.is_up);
        findings.extend(down.map(|nic| Finding::new(format!("{} has no link", nic.name), "see cxi_stat")));
        findings
    }
}

/// A problem of the fabric on a node, with the next step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The problem.
    pub detail: String,
    /// Action of an administrator that can solve it.
    pub action: String,
}

impl Finding {
    /// Finding of the problem `detail`, which `action` can solve.
    pub fn new(detail: impl Into<String>, action: impl Into<String>) -> Self {
        Self { detail: detail.into(), action: action.into() }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use cxi_fabric::node::PaperNics;

    use super::*;

    #[test]
    fn a_nic_that_cannot_be_looked_at_hides_none_of_the_others() {
        let directory = tempfile::tempdir().unwrap();
        for nic in ["cxi0", "cxi1"] {
            fs::create_dir(directory.path().join(nic)).unwrap();
        }
        let sheet = r#"{"uid": 1000, "vnis": [1024], "traffic_classes": "0xa"}"#;
        fs::write(directory.path().join("cxi0/11"), "no JSON").unwrap();
        fs::write(directory.path().join("cxi1/21"), sheet).unwrap();
        let owner = |service: &NicService, _: &FoundService| (service.svc_id == 21).then(|| "launch".to_owned());
        let seen = survey(NodeBackend::Paper, &PaperNics::new(directory.path()), owner);
        let trouble = seen.trouble.as_deref().unwrap();
        assert!(trouble.starts_with("cxi0: reading its services failed"), "{trouble}");
        let shown: Vec<_> = seen.nics.iter().map(|nic| (nic.name.as_str(), nic.services.len())).collect();
        assert_eq!(shown, [("cxi0", 0), ("cxi1", 1)]);
        assert_eq!(seen.nics[1].services[0].owner.as_deref(), Some("launch"));
        assert_eq!(seen.findings().len(), 1);
    }

    #[test]
    fn each_problem_of_a_node_is_a_finding_and_a_healthy_node_has_none() {
        let nic = |is_up| SurveyedNic { name: "cxi0".to_owned(), is_up, services: Vec::new() };
        let check = |kind, nics: Vec<SurveyedNic>, trouble: Option<&str>, expected: &[&str]| {
            let survey = CxiSurvey { nics, ..CxiSurvey::without_services(kind, trouble.map(str::to_owned)) };
            let found: Vec<_> = survey.findings().into_iter().map(|finding| finding.detail).collect();
            assert_eq!(found, expected);
        };
        check(NodeBackend::Libcxi, vec![nic(true)], None, &[]);
        check(NodeBackend::Libcxi, vec![nic(false)], None, &["cxi0 has no link"]);
        check(NodeBackend::Libcxi, Vec::new(), None, &["there is no CXI device"]);
        check(NodeBackend::Libcxi, Vec::new(), Some("the library is gone"), &["the library is gone"]);
        check(NodeBackend::None, Vec::new(), None, &["no CXI services are made; ranks here cannot use the fabric"]);
    }
}
