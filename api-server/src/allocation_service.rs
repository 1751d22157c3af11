//! The calls about allocations, and the call that starts a launch.

use std::sync::Arc;

use bytes::Bytes;
use lattice_session::wire;
use pmi_transport::identity::{caller_of, certificate_of};
use pmi_transport::proto::v1::allocation_service_server::AllocationService;
use pmi_transport::proto::v1::{
    self as proto, CreateAllocationRequest, GetAllocationRequest, LaunchTasksRequest, LaunchTasksResponse,
    ListAllocationsRequest, ListAllocationsResponse, ReleaseAllocationRequest,
};
use tonic::{Request, Response, Status};

use super::allocations::plan::AllocationRequest;
use super::allocations::{Allocation, AllocationError, AllocationState, may_use};
use super::audit::{audited, nothing};
use super::order::OrderError;
use super::server::launching::Planned;
use super::server::{Server, to_its_end};
use super::store::{self, StoreError};
use super::wire::{allocation, order};

/// Answers calls about allocations.
pub(crate) struct Allocating(pub Arc<Server>);

#[tonic::async_trait]
impl AllocationService for Allocating {
    async fn launch_tasks(
        &self,
        request: Request<LaunchTasksRequest>,
    ) -> Result<Response<LaunchTasksResponse>, Status> {
        let caller = caller_of(&request)?.clone();
        let certificate = certificate_of(&request).map(Bytes::copy_from_slice).unwrap_or_default();
        let mut message = request.into_inner();
        let (plan_only, plan_absent) = (message.plan_only, message.plan_absent);
        let allocation = std::mem::take(&mut message.allocation_id);
        let request = wire::request::decode(message).map_err(OrderError::from)?;
        let server = Arc::clone(&self.0);
        if plan_only {
            let Planned { order, notes, absent } = match plan_absent {
                true => server.plan_absent(&caller, &allocation, request).await?,
                false => server.plan(&caller, &allocation, request).await?,
            };
            let spec = Some(order::encode_for_user(&order));
            return Ok(Response::new(LaunchTasksResponse { spec, notes, absent, ..LaunchTasksResponse::default() }));
        }
        let lease_ms = self.0.config.lease.as_millis() as u64;
        let made = |planned: &Planned| format!("launch {}", planned.order.launch.launch_id);
        let launched = to_its_end(async move {
            let launched = server.launch(&caller, certificate, &allocation, request);
            audited(&caller, "launch", &allocation, launched, made).await
        });
        let Planned { order, notes, absent: _ } = launched.await?;
        let (spec, task_launch_id) = (Some(order::encode_for_user(&order)), order.launch.launch_id);
        Ok(Response::new(LaunchTasksResponse { task_launch_id, spec, notes, lease_ms, absent: Vec::new() }))
    }

    async fn create_allocation(
        &self,
        request: Request<CreateAllocationRequest>,
    ) -> Result<Response<proto::Allocation>, Status> {
        let caller = caller_of(&request)?.clone();
        let certificate = certificate_of(&request).map(Bytes::copy_from_slice).unwrap_or_default();
        let request = AllocationRequest { certificate, ..allocation::decode_request(request.into_inner())? };
        let server = Arc::clone(&self.0);
        let made = |made: &Allocation| match made.is_queued() {
            true => format!("allocation {}, queued", made.id),
            false => format!("allocation {} of {}", made.id, hostlist::fold(&made.nodes)),
        };
        let allocated =
            to_its_end(async move { audited(&caller, "allocate", "", server.allocate(&caller, &request), made).await });
        Ok(Response::new(allocation::encode(&allocated.await?)))
    }

    async fn get_allocation(
        &self,
        request: Request<GetAllocationRequest>,
    ) -> Result<Response<proto::Allocation>, Status> {
        let caller = caller_of(&request)?.clone();
        let id = request.into_inner().id;
        let live = self.0.allocations.lock().await.find(&id).cloned();
        // An allocation that was released in the meantime is in the store.
        let known = match live {
            Some(live) => Some(live),
            None => self.released(&id).await?,
        };
        match known {
            Some(known) if may_use(&caller, known.uid, &known.id) => Ok(Response::new(allocation::encode(&known))),
            Some(_) => Err(AllocationError::NotYours { id }.into()),
            None => Err(AllocationError::Unknown { id }.into()),
        }
    }

    async fn list_allocations(
        &self,
        request: Request<ListAllocationsRequest>,
    ) -> Result<Response<ListAllocationsResponse>, Status> {
        let caller = caller_of(&request)?.clone();
        let is_own = |allocation: &&Allocation| may_use(&caller, allocation.uid, &allocation.id);
        let allocations = match request.into_inner().all {
            true => {
                let kept = self.kept().await?;
                let live = self.0.allocations.lock().await;
                // Only live allocations have a reason to wait.
                let known = kept.iter().map(|kept| live.find(&kept.id).unwrap_or(kept));
                known.filter(is_own).map(allocation::encode_in_list).collect()
            }
            false => self.0.allocations.lock().await.iter().filter(is_own).map(allocation::encode_in_list).collect(),
        };
        Ok(Response::new(ListAllocationsResponse { allocations }))
    }

    async fn release_allocation(
        &self,
        request: Request<ReleaseAllocationRequest>,
    ) -> Result<Response<proto::Allocation>, Status> {
        let caller = caller_of(&request)?.clone();
        let id = request.into_inner().id;
        if let Some(released) = self.released(&id).await?.filter(|released| may_use(&caller, released.uid, &id)) {
            return Ok(Response::new(allocation::encode(&released)));
        }
        let server = Arc::clone(&self.0);
        let released = to_its_end(async move {
            audited(&caller, "release allocation", &id, server.release(&caller, &id), nothing).await
        });
        Ok(Response::new(allocation::encode(&released.await?)))
    }
}

impl Allocating {
    async fn kept(&self) -> Result<Vec<Allocation>, Status> {
        let kept = store::blocking(&self.0.store, |store| store.allocations()).await;
        kept.map_err(|error| unreadable(&error))
    }

    /// A released allocation, which only the store holds.
    async fn released(&self, id: &str) -> Result<Option<Allocation>, Status> {
        if self.0.allocations.lock().await.find(id).is_some() {
            return Ok(None);
        }
        let wanted = id.to_owned();
        let kept = store::blocking(&self.0.store, move |store| store.allocation(&wanted)).await;
        let kept = kept.map_err(|error| unreadable(&error))?;
        Ok(kept.filter(|allocation| allocation.state == AllocationState::Released))
    }
}

fn unreadable(error: &StoreError) -> Status {
    Status::unavailable(pmi_transport::error_chain::chain(error))
}
