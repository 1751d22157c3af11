//! Back end `pool`: there is no fabric manager. A service is only a VNI from the cluster's own pool, as with Slurm and Flux.
//! Access is controlled on each node by the CXI service that its agent makes.

use std::time::Instant;

use crate::error::FabricError;
use crate::fabric::{Credentials, FabricManager, Listed, Numbering, Service, ServiceId, ServiceRequest};

/// Manager without a remote service.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LocalFabric {
    /// True if each service gets a second VNI.
    pub(crate) job_vni: bool,
}

impl LocalFabric {
    fn service(request: &ServiceRequest) -> Result<Service, FabricError> {
        let vni = request.vni.ok_or(FabricError::VniNeeded { backend: "pool" })?;
        Ok(Service { id: ServiceId(request.name.to_string()), vni, job_vni: request.job_vni })
    }
}

impl FabricManager for LocalFabric {
    fn create(&self, request: &ServiceRequest, _deadline: Instant) -> Result<Service, FabricError> {
        Self::service(request)
    }

    fn credentials(&self, service: &Service, _deadline: Instant) -> Result<Option<Credentials>, FabricError> {
        Ok(Some(Credentials::keyless(service)))
    }

    fn delete(&self, _id: &ServiceId, _deadline: Instant) -> Result<(), FabricError> {
        Ok(())
    }

    fn find(&self, request: &ServiceRequest, _deadline: Instant) -> Result<Option<Service>, FabricError> {
        Self::service(request).map(Some)
    }

    fn list(&self, _deadline: Instant) -> Result<Vec<Listed>, FabricError> {
        // Only the ledger has the services.
        Ok(Vec::new())
    }

    fn numbering(&self) -> Numbering {
        Numbering::Ours { job_vni: self.job_vni }
    }
}
