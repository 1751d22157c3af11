//! Back end `rest`: the three endpoints of the design document, described in `openapi.json`.
//!
//! ```text
//! POST   /fabric/cxi/services             name, allocation_id, vni, nodes, uid  ->  id, vni
//! GET    /fabric/cxi/services/{id}/auth                                         ->  auth_key, svc_id, vni, expires_in
//! DELETE /fabric/cxi/services/{id}
//! ```
//!
//! `GET /fabric/cxi/services` lists all services, if the manager supports it. Without it, this back end works without the list.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::answer::Fields;
use crate::authorise::percent_encode;
use crate::client::{Answer, Client, Outcome};
use crate::error::{Call, FabricError};
use crate::fabric::{Credentials, FabricManager, Listed, Numbering, Service, ServiceId, ServiceName, ServiceRequest};
use crate::vni::Vni;
use crate::wire::{Body, Method};

const SERVICES: &str = "/fabric/cxi/services";

/// Fabric manager with the endpoints of the design document.
pub(crate) struct RestFabric {
    client: Client,
}

impl RestFabric {
    pub(crate) fn new(client: Client) -> Self {
        Self { client }
    }

    fn post(&self, request: &ServiceRequest, deadline: Instant) -> Result<Outcome, FabricError> {
        let document = json!({
            "name": request.name.as_str(),
            "allocation_id": request.allocation,
            "vni": request.vni,
            "nodes": request.nodes,
            "uid": request.uid,
        });
        let body = Body { content_type: "application/json", bytes: document.to_string().into_bytes().into() };
        self.client.call(Method::Post, SERVICES, Some(request.name.as_str()), Some(&body), deadline)
    }

    /// Existing service that caused a conflict, if it has the requested name: the answer to 409 may have it, or the list. A service of
    /// another name holds the requested VNI; this cluster must neither use its key nor delete it.
    fn existing(&self, conflict: &Answer, request: &ServiceRequest, deadline: Instant) -> Result<Service, FabricError> {
        let told = conflict.read(|body| {
            let fields = Fields::read(body)?;
            Ok((fields.text("name")?, service(&fields)?))
        });
        if let Ok((name, service)) = told
            && name == request.name.as_str()
        {
            return Ok(service);
        }
        match self.named(request, deadline) {
            Ok(Some(service)) => Ok(service),
            Ok(None) | Err(FabricError::NotOffered { .. }) => Err(FabricError::Conflict {
                call: conflict.call.clone(),
                name: request.name.to_string(),
                text: conflict.words(),
            }),
            // Even if the list fails, a conflicting service exists.
            Err(error) => Err(error.in_doubt()),
        }
    }

    fn named(&self, request: &ServiceRequest, deadline: Instant) -> Result<Option<Service>, FabricError> {
        let listed = self.list(deadline)?.into_iter().find(|listed| listed.name.as_ref() == Some(&request.name));
        Ok(listed.and_then(|Listed { id, vni, .. }| Some(Service { id, vni: vni.or(request.vni)?, job_vni: None })))
    }

    /// Makes or finds the service, and returns it with the call that reported it.
    fn make(&self, request: &ServiceRequest, deadline: Instant) -> Result<(Service, Call), FabricError> {
        match self.post(request, deadline)? {
            Outcome::Done(answer) => Ok((answer.read(|body| service(&Fields::read(body)?))?, answer.call)),
            Outcome::Conflict(answer) => Ok((self.existing(&answer, request, deadline)?, answer.call)),
            Outcome::Absent(answer) => Err(answer.refused(404)),
        }
    }
}

impl FabricManager for RestFabric {
    fn create(&self, request: &ServiceRequest, deadline: Instant) -> Result<Service, FabricError> {
        let asked = request.vni.ok_or(FabricError::VniNeeded { backend: "rest" })?;
        let (service, call) = self.make(request, deadline)?;
        if service.vni == asked {
            Ok(service)
        } else {
            Err(FabricError::OtherVni { call, asked: asked.get(), given: service.vni.get() })
        }
    }

    fn credentials(&self, service: &Service, deadline: Instant) -> Result<Option<Credentials>, FabricError> {
        let path = format!("{SERVICES}/{}/auth", percent_encode(&service.id.0));
        let answer = match self.client.call(Method::Get, &path, None, None, deadline)? {
            Outcome::Done(answer) => answer,
            Outcome::Absent(_) => return Ok(None),
            Outcome::Conflict(answer) => return Err(answer.refused(409)),
        };
        let credentials = answer.read(|body| {
            let fields = Fields::read(body)?;
            let seconds = fields.optional("expires_in", Fields::number)?;
            Ok(Credentials {
                vni: fields.optional("vni", vni)?.unwrap_or(service.vni),
                job_vni: None,
                auth_key: Some(fields.hex("auth_key")?),
                svc_id: fields.optional("svc_id", Fields::number)?.unwrap_or(0),
                lifetime: seconds.map(|seconds| Duration::from_secs(seconds.into())),
            })
        })?;
        if let Some(key) = &credentials.auth_key {
            self.client.learn(key);
        }
        if credentials.vni == service.vni {
            Ok(Some(credentials))
        } else {
            let (asked, given) = (service.vni.get(), credentials.vni.get());
            Err(FabricError::OtherVni { call: answer.call, asked, given })
        }
    }

    fn delete(&self, id: &ServiceId, deadline: Instant) -> Result<(), FabricError> {
        let path = format!("{SERVICES}/{}", percent_encode(&id.0));
        self.client.call(Method::Delete, &path, None, None, deadline).map(|_| ())
    }

    fn find(&self, request: &ServiceRequest, deadline: Instant) -> Result<Option<Service>, FabricError> {
        match self.named(request, deadline) {
            Err(FabricError::NotOffered { .. }) => self.make(request, deadline).map(|(service, _)| Some(service)),
            found => found,
        }
    }

    fn list(&self, deadline: Instant) -> Result<Vec<Listed>, FabricError> {
        let answer = match self.client.call(Method::Get, SERVICES, None, None, deadline) {
            Ok(Outcome::Done(answer)) => answer,
            Ok(Outcome::Absent(answer) | Outcome::Conflict(answer)) => {
                return Err(FabricError::NotOffered { call: answer.call });
            }
            Err(FabricError::Refused { call, status: 405 | 501, .. }) => return Err(FabricError::NotOffered { call }),
            Err(error) => return Err(error),
        };
        answer.read(|body| {
            let services = Fields::read(body)?.objects("services")?;
            services
                .iter()
                .map(|fields| {
                    let name = fields.optional("name", Fields::text)?;
                    Ok(Listed {
                        id: ServiceId(fields.text("id")?),
                        name: name.and_then(|name| ServiceName::try_from(name).ok()),
                        vni: fields.optional("vni", vni)?,
                    })
                })
                .collect()
        })
    }

    fn numbering(&self) -> Numbering {
        // Its services have one VNI each.
        Numbering::Ours { job_vni: false }
    }
}

fn service(fields: &Fields<'_>) -> Result<Service, String> {
    let id = fields.text("id")?;
    if id.is_empty() || id.len() > ServiceName::LONGEST * 2 {
        return Err(format!("field `id` has {} bytes; 1 to {} are possible", id.len(), ServiceName::LONGEST * 2));
    }
    Ok(Service { id: ServiceId(id), vni: vni(fields, "vni")?, job_vni: None })
}

fn vni(fields: &Fields<'_>, name: &str) -> Result<Vni, String> {
    Vni::new(fields.number(name)?).map_err(|error| format!("field `{name}`: {error}"))
}
