//! The NICs of this node and the CXI services on them: looked at in one way, whether the API server asks the agent or an operator
//! asks on the node itself, and judged in one way.

use cxi_fabric::Vni;
use cxi_fabric::node::{self, CxiBackend, CxiError, FoundService, Nic, NicService, NodeBackend};
use pmi_transport::proto::v1 as proto;
use proto::{CxiDevice, CxiService, ListCxiServicesResponse};
use serde::Serialize;

/// Looks at every NIC. `owner` tells for whom a service was made, if that is known.
pub fn survey(
    kind: NodeBackend,
    backend: &dyn CxiBackend,
    owner: impl Fn(&NicService, &FoundService) -> Option<String>,
) -> ListCxiServicesResponse {
    let mut troubles = Vec::new();
    if kind.is_privileged() && !node::may_make_services() {
        troubles.push("CXI services take CAP_SYS_ADMIN, which this process does not have".to_owned());
    }
    let mut heard = |result: Result<Vec<FoundService>, CxiError>| {
        result.unwrap_or_else(|error| {
            troubles.push(error.to_string());
            Vec::new()
        })
    };
    let device = |nic: Nic, found: Vec<FoundService>| {
        let service = |found: FoundService| {
            let owner = owner(&NicService { nic: nic.name.clone(), svc_id: found.svc_id }, &found);
            CxiService {
                svc_id: found.svc_id,
                vnis: found.vnis.into_iter().map(Vni::into).collect(),
                uids: found.uids,
                launch_id: owner.unwrap_or_default(),
            }
        };
        let services = found.into_iter().map(service).collect();
        CxiDevice { device: nic.name.clone(), is_up: nic.is_up, services }
    };
    let devices = match backend.nics() {
        // One NIC that cannot be looked at hides none of the others.
        Ok(nics) => nics.into_iter().map(|nic| (heard(backend.list(&nic.name)), nic)).collect(),
        Err(error) => {
            troubles.push(error.to_string());
            Vec::new()
        }
    };
    let devices = devices.into_iter().map(|(found, nic)| device(nic, found)).collect();
    ListCxiServicesResponse { backend: kind.name().to_owned(), devices, trouble: troubles.join("; ") }
}

/// A node on which nothing can be looked at.
pub fn without_services(kind: NodeBackend, trouble: String) -> ListCxiServicesResponse {
    ListCxiServicesResponse { backend: kind.name().to_owned(), devices: Vec::new(), trouble }
}

/// Something that is wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// What.
    pub what: String,
    /// What an administrator can do about it.
    pub remedy: String,
}

impl Finding {
    /// What is wrong, and what can be done.
    pub fn new(what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { what: what.into(), remedy: remedy.into() }
    }
}

/// Everything that is wrong on a node, but for services that belong to nobody: who looks from where knows which those are.
pub fn findings(seen: &ListCxiServicesResponse) -> Vec<Finding> {
    let mut findings = Vec::new();
    if !seen.trouble.is_empty() {
        let remedy = "see whether the CXI driver runs, and that the agent runs as root";
        findings.push(Finding::new(seen.trouble.clone(), remedy));
    } else if seen.backend == NodeBackend::None.name() {
        let remedy = "set `backend` in the section fabric of the agent's configuration";
        findings.push(Finding::new("no CXI services are made; ranks here cannot use the fabric", remedy));
    } else if seen.devices.is_empty() {
        findings.push(Finding::new("there is no CXI device", "see whether the CXI driver is loaded"));
    }
    let down = seen.devices.iter().filter(|device| !device.is_up);
    findings.extend(down.map(|device| Finding::new(format!("{} has no link", device.device), "see cxi_stat")));
    findings
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
        assert!(seen.trouble.starts_with("cxi0: reading its services failed"), "{}", seen.trouble);
        let shown: Vec<_> = seen.devices.iter().map(|device| (device.device.as_str(), device.services.len())).collect();
        assert_eq!(shown, [("cxi0", 0), ("cxi1", 1)]);
        assert_eq!(seen.devices[1].services[0].launch_id, "launch");
        assert_eq!(findings(&seen).len(), 1);
    }

    #[test]
    fn a_node_without_services_is_told_why() {
        let what = |kind, trouble: &str| findings(&without_services(kind, trouble.to_owned()))[0].what.clone();
        assert_eq!(what(NodeBackend::None, ""), "no CXI services are made; ranks here cannot use the fabric");
        assert_eq!(what(NodeBackend::Libcxi, ""), "there is no CXI device");
        assert_eq!(what(NodeBackend::Libcxi, "the library is gone"), "the library is gone");
    }
}
