//! Work on the CXI services of this node. Services belong to root: a daemon of root works on them on a thread, any other daemon in a process of
//! its fork server ([`errand`]).

pub(crate) mod errand;

use std::time::{Duration, Instant};

use cxi_fabric::Vni;
use cxi_fabric::clock::SystemClock;
use cxi_fabric::node::{self, Claim, CxiBackend, NicService, NodeBackend, Stuck};
use lattice_session::cxi;
use lattice_session::nics::{NicsAnswer, NicsTask};
use lattice_session::timeouts;

/// Time limit for ending a service after the end of its launch. After that, it is ended when its VNI is retired.
const RELEASE_WITHIN: Duration = Duration::from_secs(10);

/// Runs the task, for a launch of this user. Blocks.
pub(crate) fn carry_out(kind: NodeBackend, backend: &dyn CxiBackend, uid: u32, task: NicsTask) -> NicsAnswer {
    let result = match task {
        NicsTask::Claim { credentials, ranks, spared } => match credentials.claims() {
            Ok(claims) => {
                let vnis: Vec<Vni> =
                    std::iter::once(claims.credentials.vni).chain(claims.credentials.job_vni).collect();
                let claim = Claim { uid, ranks: ranks.max(1), vnis, traffic_classes: claims.traffic_classes };
                make(backend, &claim, spared.as_deref())
            }
            Err(error) => Err(error.to_string()),
        },
        NicsTask::Find(svc_id) => match node::given(backend, svc_id) {
            Ok(services) => Ok(NicsAnswer { services, ..NicsAnswer::default() }),
            Err(error) => Err(error.to_string()),
        },
        NicsTask::Release(services) => end(backend, &services, RELEASE_WITHIN),
        NicsTask::Sweep { vni, spared, within } => sweep(backend, vni, &spared, within.min(timeouts::RETIRE)),
        NicsTask::Survey => Ok(NicsAnswer { survey: cxi::survey(kind, backend, |_, _| None), ..NicsAnswer::default() }),
    };
    result.unwrap_or_else(|trouble| NicsAnswer { trouble: Some(trouble), ..NicsAnswer::default() })
}

/// Makes services. If `spared` is given, first ends all services of the VNI that are not in it.
fn make(backend: &dyn CxiBackend, claim: &Claim, spared: Option<&[NicService]>) -> Result<NicsAnswer, String> {
    if let (Some(spared), Some(&vni)) = (spared, claim.vnis.first()) {
        sweep(backend, vni, spared, timeouts::CLAIM)
            .map_err(|reason| format!("cannot end what is left of VNI {vni}: {reason}"))?;
    }
    let made = node::claim(backend, &SystemClock, claim, Instant::now() + timeouts::CLAIM);
    let node::NodeServices { services, warnings } = made.map_err(|error| error.to_string())?;
    let warnings = warnings.iter().map(ToString::to_string).collect();
    Ok(NicsAnswer { services, warnings, ..NicsAnswer::default() })
}

/// Ends all services of a VNI that are not in `spared`. The error lists the services that remain.
fn sweep(backend: &dyn CxiBackend, vni: Vni, spared: &[NicService], within: Duration) -> Result<NicsAnswer, String> {
    let mut strays = node::holders(backend, vni).map_err(|error| error.to_string())?;
    strays.retain(|stray| !spared.contains(stray));
    if !strays.is_empty() {
        tracing::warn!(%vni, services = words(&strays), "CXI services that no process uses are ended");
    }
    end(backend, &strays, within)
}

fn end(backend: &dyn CxiBackend, services: &[NicService], within: Duration) -> Result<NicsAnswer, String> {
    match &node::release(backend, &SystemClock, services, Instant::now() + within)[..] {
        [] => Ok(NicsAnswer::default()),
        stuck => Err(stuck.iter().map(Stuck::to_string).collect::<Vec<_>>().join("; ")),
    }
}

/// Text such as `cxi0:11,cxi1:21`.
pub(crate) fn words(services: &[NicService]) -> String {
    let word = |service: &NicService| format!("{}:{}", service.nic, service.svc_id);
    services.iter().map(word).collect::<Vec<_>>().join(",")
}
