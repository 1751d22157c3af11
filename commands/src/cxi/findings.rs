//! Diagnosis of a fabric: findings with remedies, derived from the report of the API server. No I/O.

use lattice_session::cxi::Finding;
use lattice_session::wire;
use pmi_transport::proto::v1 as proto;
use proto::{CxiService, ExamineFabricResponse, FabricGrantState, FabricNode, ListCxiServicesResponse};

/// All problems.
pub(super) fn findings(seen: &ExamineFabricResponse) -> Vec<Finding> {
    let mut findings = manager(seen);
    findings.extend(undone(seen));
    findings.extend(seen.nodes.iter().flat_map(|node| of_node(node, seen)));
    findings
}

fn manager(seen: &ExamineFabricResponse) -> Vec<Finding> {
    let trouble = (!seen.manager_trouble.is_empty()).then(|| {
        Finding::new(
            seen.manager_trouble.clone(),
            format!("look at {} from the API server's host, with curl", seen.manager),
        )
    });
    let strangers = seen.strangers.iter().map(|name| {
        Finding::new(
            format!("service {name} is at the manager and in no journal of ours"),
            "lattice cxi clean deletes it",
        )
    });
    trouble.into_iter().chain(strangers).collect()
}

/// Services that are not released yet.
fn undone(seen: &ExamineFabricResponse) -> Vec<Finding> {
    let undone = seen.grants.iter().filter(|grant| is_undone(grant.state()));
    let what = |grant: &proto::FabricGrant| match grant.unconfirmed.as_str() {
        "" => Finding::new(
            format!("service {} is not deleted at the manager yet", grant.name),
            "lattice cxi clean tries again at once, and prints the reason of a failure",
        ),
        nodes => Finding::new(
            format!("VNI {} of {} waits for {nodes}", grant.vni, grant.name),
            format!(
                "see that agents run there and processes of the job do not; for nodes that are gone for good: lattice cxi clean --gone {nodes}"
            ),
        ),
    };
    undone.map(what).collect()
}

fn is_undone(state: FabricGrantState) -> bool {
    matches!(state, FabricGrantState::GrantEnding | FabricGrantState::GrantQuarantined)
}

fn of_node(node: &FabricNode, seen: &ExamineFabricResponse) -> Vec<Finding> {
    let id = &node.node_id;
    let Some(cxi) = &node.cxi else {
        return vec![Finding::new(format!("node {id} does not answer: {}", node.silence), "see the log of its agent")];
    };
    let here = wire::cxi::decode(cxi.clone()).findings().into_iter();
    here.map(|Finding { detail, action }| Finding::new(format!("node {id}: {detail}"), action))
        .chain(strays(id, cxi, seen))
        .collect()
}

/// Services that use a VNI of this cluster and do not belong to a running launch.
fn strays(id: &str, cxi: &ListCxiServicesResponse, seen: &ExamineFabricResponse) -> Vec<Finding> {
    let stray = |device: &str, service: &CxiService| {
        let grant = seen.grants.iter().find(|grant| grant.vni != 0 && service.vnis.contains(&grant.vni))?;
        let which = format!("service {} of {device} on node {id}", service.svc_id);
        if is_undone(grant.state()) {
            let what = format!("{which} keeps VNI {} from being used again", grant.vni);
            Some(Finding::new(what, "end the process there that still uses it; the service is ended soon after"))
        } else if service.launch_id.is_empty() {
            let remedy = "the next launch of its allocation ends it there, or the release of the allocation";
            Some(Finding::new(format!("{which} belongs to no launch"), remedy))
        } else {
            None
        }
    };
    let on_device = |device: &proto::CxiDevice| {
        device.services.iter().filter_map(|service| stray(&device.device, service)).collect::<Vec<_>>()
    };
    cxi.devices.iter().flat_map(on_device).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn healthy() -> ExamineFabricResponse {
        let service = CxiService { svc_id: 11, vnis: vec![1024], uids: vec![1000], launch_id: "l".to_owned() };
        let device = proto::CxiDevice { device: "cxi0".to_owned(), is_up: true, services: vec![service] };
        let cxi =
            ListCxiServicesResponse { backend: "libcxi".to_owned(), devices: vec![device], trouble: String::new() };
        let grant = proto::FabricGrant {
            name: "daint.a.0".to_owned(),
            vni: 1024,
            state: FabricGrantState::GrantHeld.into(),
            ..Default::default()
        };
        let node = FabricNode { node_id: "node0".to_owned(), silence: String::new(), cxi: Some(cxi) };
        ExamineFabricResponse { grants: vec![grant], nodes: vec![node], ..Default::default() }
    }

    #[test]
    fn each_thing_that_is_wrong_is_found_and_nothing_else() {
        assert_eq!(findings(&healthy()), []);
        let check = |change: fn(&mut ExamineFabricResponse), expected: &str| {
            let mut seen = healthy();
            change(&mut seen);
            let found = findings(&seen);
            assert!(found.len() == 1 && found[0].detail.contains(expected), "{expected}: {found:?}");
            assert!(!found[0].action.is_empty());
        };
        fn cxi(seen: &mut ExamineFabricResponse) -> &mut ListCxiServicesResponse {
            seen.nodes[0].cxi.as_mut().unwrap()
        }
        check(|seen| seen.manager_trouble = "it answered 500".to_owned(), "it answered 500");
        check(|seen| seen.strangers.push("daint.old.3".to_owned()), "daint.old.3 is at the manager");
        check(
            |seen| {
                seen.grants[0].set_state(FabricGrantState::GrantEnding);
                cxi(seen).devices[0].services.clear();
            },
            "not deleted at the manager yet",
        );
        check(
            |seen| {
                cxi(seen).devices[0].services.clear();
                seen.grants[0].set_state(FabricGrantState::GrantQuarantined);
                seen.grants[0].unconfirmed = "node7".to_owned();
            },
            "VNI 1024 of daint.a.0 waits for node7",
        );
        check(|seen| seen.nodes[0].cxi = None, "node node0 does not answer");
        check(|seen| cxi(seen).trouble = "cxi0: not permitted".to_owned(), "node0: cxi0: not permitted");
        check(|seen| cxi(seen).backend = "none".to_owned(), "node0: no CXI services are made");
        check(|seen| cxi(seen).devices.clear(), "node0: there is no CXI device");
        check(|seen| cxi(seen).devices[0].is_up = false, "node0: cxi0 has no link");
        check(|seen| cxi(seen).devices[0].services[0].launch_id.clear(), "service 11 of cxi0 on node node0");
    }

    /// If a finding reports that a VNI waits for a node, another one must name the service on that node.
    #[test]
    fn what_keeps_a_vni_in_quarantine_is_named() {
        let mut seen = healthy();
        seen.grants[0].set_state(FabricGrantState::GrantQuarantined);
        seen.grants[0].unconfirmed = "node0".to_owned();
        let found: Vec<String> = findings(&seen).into_iter().map(|finding| finding.detail).collect();
        assert_eq!(
            found,
            [
                "VNI 1024 of daint.a.0 waits for node0",
                "service 11 of cxi0 on node node0 keeps VNI 1024 from being used again"
            ]
        );
    }
}
