//! Back end `vnid`: HPE's Virtual Network Identifier Daemon (its OpenAPI file, version 2.0.4). A service is one of its jobs with
//! one VNI, or with two if the configuration requests a VNI for ranks of several launches. The job's identifier is this
//! cluster's name of the service.
//!
//! ```text
//! POST   /vnis/{partition}/jobs           jobID, UID, vniLimit, vniCount  ->  VNIs: links that end in the number
//! GET    /vnis/{partition}/jobs[/{job}]
//! DELETE /vnis/{partition}/jobs/{job}
//! ```
//!
//! There is no key: the node's CXI service controls access.

use std::time::Instant;

use serde_json::json;

use crate::answer::Fields;
use crate::authorise::percent_encode;
use crate::client::{Client, Outcome};
use crate::error::FabricError;
use crate::fabric::{Credentials, FabricManager, Listed, Numbering, Service, ServiceId, ServiceName, ServiceRequest};
use crate::vni::Vni;
use crate::wire::{Body, Method};

/// Number of VNIs of each service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum VniCount {
    /// One, for the ranks of a launch.
    One = 1,
    /// Two: the second one is for ranks of several launches.
    Two = 2,
}

/// A vnid, and the partition with this cluster's VNIs. The base URL ends in `/apis/vnid/fabric` or a similar path.
pub(crate) struct VnidFabric {
    client: Client,
    partition: String,
    vnis: VniCount,
}

impl VnidFabric {
    pub(crate) fn new(client: Client, partition: &str, vnis: VniCount) -> Self {
        Self { client, partition: percent_encode(partition), vnis }
    }

    fn jobs(&self) -> String {
        format!("/vnis/{}/jobs", self.partition)
    }

    fn job(&self, id: &str) -> String {
        format!("/vnis/{}/jobs/{}", self.partition, percent_encode(id))
    }

    fn look_up(&self, id: &ServiceId, deadline: Instant) -> Result<Option<Service>, FabricError> {
        match self.client.call(Method::Get, &self.job(&id.0), None, None, deadline)? {
            Outcome::Done(answer) => answer.read(job).map(Some),
            Outcome::Absent(_) => Ok(None),
            Outcome::Conflict(answer) => Err(answer.refused(409)),
        }
    }
}

impl FabricManager for VnidFabric {
    fn create(&self, request: &ServiceRequest, deadline: Instant) -> Result<Service, FabricError> {
        let count = self.vnis as u8;
        let document =
            json!({ "jobID": request.name.as_str(), "UID": request.uid, "vniLimit": count, "vniCount": count });
        let body = Body { content_type: "application/json", bytes: document.to_string().into_bytes().into() };
        let name = request.name.as_str();
        match self.client.call(Method::Post, &self.jobs(), Some(name), Some(&body), deadline)? {
            Outcome::Done(answer) => answer.read(job),
            Outcome::Absent(answer) => Err(answer.refused(404)),
            Outcome::Conflict(answer) => {
                let (call, text) = (answer.call.clone(), answer.words());
                // Even if this look-up fails, the job exists.
                let existing = self.look_up(&ServiceId(name.to_owned()), deadline).map_err(FabricError::in_doubt)?;
                existing.ok_or(FabricError::Conflict { call, name: name.to_owned(), text })
            }
        }
    }

    fn credentials(&self, service: &Service, deadline: Instant) -> Result<Option<Credentials>, FabricError> {
        let job = self.look_up(&service.id, deadline)?;
        Ok(job.map(|job| Credentials::keyless(&job)))
    }

    fn delete(&self, id: &ServiceId, deadline: Instant) -> Result<(), FabricError> {
        self.client.call(Method::Delete, &self.job(&id.0), None, None, deadline).map(|_| ())
    }

    fn find(&self, request: &ServiceRequest, deadline: Instant) -> Result<Option<Service>, FabricError> {
        self.look_up(&ServiceId(request.name.to_string()), deadline)
    }

    fn list(&self, deadline: Instant) -> Result<Vec<Listed>, FabricError> {
        let answer = match self.client.call(Method::Get, &self.jobs(), None, None, deadline)? {
            Outcome::Done(answer) => answer,
            // Without a partition there are no jobs.
            Outcome::Absent(_) => return Ok(Vec::new()),
            Outcome::Conflict(answer) => return Err(answer.refused(409)),
        };
        let links = answer
            .read(|body| Ok(Fields::read(body)?.optional("documentSelfLinks", Fields::texts)?.unwrap_or_default()))?;
        let listed = |link: String| {
            let id = link.rsplit('/').next()?.to_owned();
            Some(Listed { name: ServiceName::try_from(id.clone()).ok(), id: ServiceId(id), vni: None })
        };
        Ok(links.into_iter().filter_map(listed).collect())
    }

    fn numbering(&self) -> Numbering {
        Numbering::Managers
    }
}

/// Parses a job of this cluster: its identifier, and the numbers at the end of its VNI links. A job may be older than the
/// setting for a second VNI.
fn job(body: &[u8]) -> Result<Service, String> {
    let fields = Fields::read(body)?;
    let links = fields.texts("VNIs")?;
    let (vni, job_vni) = match links.as_slice() {
        [own] => (number(own)?, None),
        [own, job] => (number(own)?, Some(number(job)?)),
        links => return Err(format!("field `VNIs` has {} links, not one or two", links.len())),
    };
    Ok(Service { id: ServiceId(fields.text("jobID")?), vni, job_vni })
}

/// Number at the end of a VNI link.
fn number(link: &str) -> Result<Vni, String> {
    let number = link.rsplit('/').next().and_then(|digits| digits.parse().ok());
    number
        .and_then(|number| Vni::new(number).ok())
        .ok_or_else(|| "field `VNIs` holds a link that ends in no VNI".into())
}
