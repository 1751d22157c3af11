//! A launch's services on this node: one per NIC with a link, all or none.
//!
//! ```text
//! for each NIC:  create ──ok──> next NIC
//!                  │ short: reserve the available amount, warn, again
//!                  │ busy: pause, again, until the deadline
//!                  └ any other error: destroy the services made so far, fail
//! ```

use std::time::{Duration, Instant};

use thiserror::Error;

use super::{CxiBackend, CxiError, Limits, ServiceSpec, TrafficClasses, VNIS_PER_SERVICE, Warning};
use crate::clock::Clock;
use crate::vni::Vni;

/// Pauses between retries of a busy operation: doubling from the first to the last.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LAST_PAUSE: Duration = Duration::from_secs(1);
/// Time beyond the deadline to destroy the services of a failed claim.
const UNWIND: Duration = Duration::from_secs(5);

/// Request of a launch for services on this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// User of the ranks.
    pub uid: u32,
    /// Number of ranks on this node.
    pub ranks: u32,
    /// VNIs that they may use; the launch's own first.
    pub vnis: Vec<Vni>,
    /// Traffic classes that they may use.
    pub traffic_classes: TrafficClasses,
}

/// One service.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NicService {
    /// The NIC.
    pub nic: String,
    /// Number of the service on the NIC.
    pub svc_id: u32,
}

/// Services of a launch on this node, in the order of the NICs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeServices {
    /// One service per NIC with a link.
    pub services: Vec<NicService>,
    /// Restrictions of the launch's services.
    pub warnings: Vec<Warning>,
}

/// Error of a launch that gets no services on this node. It leaves no service, except those in `stuck`.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ClaimError {
    /// A service cannot have that number of VNIs.
    #[error("{0} VNIs for one launch; a CXI service can name 1 to 4")]
    Vnis(usize),
    /// The NICs cannot be listed.
    #[error("cannot look for CXI devices: {0}")]
    Nics(#[source] CxiError),
    /// No NIC has a link.
    #[error("none of the {0} CXI devices of this node has a link; see `cxi_stat`")]
    NoLink(usize),
    /// A service could not be made on one NIC.
    #[error("cannot make a CXI service: {source}{}", left(stuck))]
    Create {
        /// Error of the back end.
        source: CxiError,
        /// Services on other NICs that could not be destroyed again.
        stuck: Vec<Stuck>,
    },
}

fn left(stuck: &[Stuck]) -> String {
    stuck.iter().map(|stuck| format!("; and {stuck}")).collect()
}

/// Service that could not be destroyed.
#[derive(Debug, Error)]
#[error("service {} of {} is left: {error}", service.svc_id, service.nic)]
pub struct Stuck {
    /// The service.
    pub service: NicService,
    /// Error of the back end.
    #[source]
    pub error: CxiError,
}

/// Makes the services of a launch. A node without a CXI device has none, which is not an error.
///
/// # Errors
/// Returns a [`ClaimError`]; then the services that were made are destroyed again.
pub fn claim(
    backend: &dyn CxiBackend,
    clock: &dyn Clock,
    claim: &Claim,
    deadline: Instant,
) -> Result<NodeServices, ClaimError> {
    if !(1..=VNIS_PER_SERVICE).contains(&claim.vnis.len()) {
        return Err(ClaimError::Vnis(claim.vnis.len()));
    }
    let nics = backend.nics().map_err(ClaimError::Nics)?;
    if !nics.is_empty() && nics.iter().all(|nic| !nic.is_up) {
        return Err(ClaimError::NoLink(nics.len()));
    }
    let mut claimed = NodeServices::default();
    for nic in nics.iter().filter(|nic| nic.is_up) {
        match create(backend, clock, &nic.name, claim, deadline, &mut claimed.warnings) {
            Ok(svc_id) => claimed.services.push(NicService { nic: nic.name.clone(), svc_id }),
            Err(source) => {
                let stuck = release(backend, clock, &claimed.services, clock.now().max(deadline) + UNWIND);
                return Err(ClaimError::Create { source, stuck });
            }
        }
    }
    Ok(claimed)
}

/// Services of a launch for which the manager has made one, with one number on every NIC of every node. The manager must end
/// them.
///
/// # Errors
/// Fails if the NICs cannot be listed.
pub fn given(backend: &dyn CxiBackend, svc_id: u32) -> Result<Vec<NicService>, ClaimError> {
    let nics = backend.nics().map_err(ClaimError::Nics)?;
    Ok(nics.into_iter().filter(|nic| nic.is_up).map(|nic| NicService { nic: nic.name, svc_id }).collect())
}

fn create(
    backend: &dyn CxiBackend,
    clock: &dyn Clock,
    nic: &str,
    claim: &Claim,
    deadline: Instant,
    warnings: &mut Vec<Warning>,
) -> Result<u32, CxiError> {
    let limits = Limits::for_ranks(claim.ranks);
    let Claim { uid, vnis, traffic_classes, .. } = claim.clone();
    let mut spec = ServiceSpec { uid, vnis, traffic_classes, limits };
    loop {
        let error = match patiently(clock, deadline, || backend.create(nic, &spec)) {
            Err(CxiError::Short { nic, shortage }) => match spec.limits.lowered(shortage) {
                Some(limits) => {
                    // Each round lowers a limit, so there are few rounds.
                    spec.limits = limits;
                    warnings.push(Warning::lowered(&nic, shortage));
                    continue;
                }
                None => CxiError::Short { nic, shortage },
            },
            Err(error) => error,
            Ok(svc_id) => return Ok(svc_id),
        };
        return Err(error);
    }
}

/// Destroys services; retries busy ones until the deadline. Returns the remaining services; a node confirms only an empty
/// list. The deadline applies to all services together, and each is tried at least once.
pub fn release(backend: &dyn CxiBackend, clock: &dyn Clock, services: &[NicService], deadline: Instant) -> Vec<Stuck> {
    let destroy =
        |service: &NicService| match patiently(clock, deadline, || backend.destroy(&service.nic, service.svc_id)) {
            Ok(()) | Err(CxiError::Unknown { .. }) => None,
            Err(error) => Some(Stuck { service: service.clone(), error }),
        };
    services.iter().filter_map(destroy).collect()
}

/// Services of this node with a VNI, made by any process: a restarted agent has to end them.
///
/// # Errors
/// Fails if a NIC cannot be read. The result is then unknown, and the node must not confirm.
pub fn holders(backend: &dyn CxiBackend, vni: Vni) -> Result<Vec<NicService>, CxiError> {
    let mut holders = Vec::new();
    for nic in backend.nics()? {
        let found = backend.list(&nic.name)?.into_iter().filter(|service| service.vnis.contains(&vni));
        holders.extend(found.map(|service| NicService { nic: nic.name.clone(), svc_id: service.svc_id }));
    }
    Ok(holders)
}

/// Retries while the driver reports that the service is busy.
fn patiently<T>(
    clock: &dyn Clock,
    deadline: Instant,
    mut attempt: impl FnMut() -> Result<T, CxiError>,
) -> Result<T, CxiError> {
    let mut pause = FIRST_PAUSE;
    loop {
        match attempt() {
            Err(CxiError::Busy { .. }) if clock.now() + pause < deadline => {
                clock.sleep(pause);
                pause = (pause * 2).min(LAST_PAUSE);
            }
            result => return result,
        }
    }
}

#[cfg(test)]
mod tests;
