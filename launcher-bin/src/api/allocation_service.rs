//! The calls about allocations, and the one that starts a launch.

use std::sync::Arc;

use pmi_transport::identity::caller_of;
use pmi_transport::proto::v1::allocation_service_server::AllocationService;
use pmi_transport::proto::v1::{
    Allocation, AllocationState, CreateAllocationRequest, GetAllocationRequest, LaunchTasksRequest,
    LaunchTasksResponse, ListAllocationsRequest, ListAllocationsResponse, ReleaseAllocationRequest,
};
use tonic::{Request, Response, Status};

use super::allocations::{AllocationError, may_use};
use super::server::Server;
use super::store::{self, Change};
use crate::request::random_id;

/// Answers calls about allocations.
pub(crate) struct Allocating(pub Arc<Server>);

#[tonic::async_trait]
impl AllocationService for Allocating {
    async fn launch_tasks(
        &self,
        request: Request<LaunchTasksRequest>,
    ) -> Result<Response<LaunchTasksResponse>, Status> {
        let caller = caller_of(&request)?.clone();
        Ok(Response::new(self.0.launch(&caller, request.into_inner()).await?))
    }

    async fn create_allocation(
        &self,
        request: Request<CreateAllocationRequest>,
    ) -> Result<Response<Allocation>, Status> {
        let caller = caller_of(&request)?.clone();
        let request = request.into_inner();
        let server = &self.0;
        let id = random_id().map_err(|error| Status::internal(format!("no random number can be had: {error}")))?;
        let mut all = server.allocations.lock().await;
        let planned = all.plan(&request, &caller, server.config.create_allocations, &server.nodes.lock(), id)?;
        server.write(vec![Change::Allocation(planned.clone())]).await?;
        all.put(planned.clone());
        if let Some(fabric) = &server.fabric {
            fabric.follow(&planned);
        }
        tracing::info!(allocation = planned.id, uid = planned.uid, nodes = planned.nodes, "an allocation is created");
        Ok(Response::new(planned))
    }

    async fn get_allocation(&self, request: Request<GetAllocationRequest>) -> Result<Response<Allocation>, Status> {
        let caller = caller_of(&request)?.clone();
        let id = request.into_inner().id;
        if let Some(allocation) = self.released(&id).await? {
            return match may_use(&caller, allocation.uid) {
                true => Ok(Response::new(allocation)),
                false => Err(AllocationError::NotYours { id }.into()),
            };
        }
        Ok(Response::new(self.0.allocations.lock().await.of(&caller, &id)?.clone()))
    }

    async fn list_allocations(
        &self,
        request: Request<ListAllocationsRequest>,
    ) -> Result<Response<ListAllocationsResponse>, Status> {
        let caller = caller_of(&request)?.clone();
        let all = request.into_inner().all;
        let kept = match all {
            true => self.kept().await?,
            false => self.0.allocations.lock().await.iter().cloned().collect(),
        };
        let visible = |allocation: &Allocation| all || may_use(&caller, allocation.uid);
        let allocations = kept.into_iter().filter(visible).collect();
        Ok(Response::new(ListAllocationsResponse { allocations }))
    }

    async fn release_allocation(
        &self,
        request: Request<ReleaseAllocationRequest>,
    ) -> Result<Response<Allocation>, Status> {
        let caller = caller_of(&request)?.clone();
        let id = request.into_inner().id;
        if let Some(allocation) = self.released(&id).await?.filter(|allocation| may_use(&caller, allocation.uid)) {
            return Ok(Response::new(allocation));
        }
        Ok(Response::new(self.0.release(&caller, &id).await?))
    }
}

impl Allocating {
    async fn kept(&self) -> Result<Vec<Allocation>, Status> {
        let kept = store::blocking(&self.0.store, |store| store.read()).await;
        kept.map(|kept| kept.allocations).map_err(|error| Status::unavailable(crate::chain(&error)))
    }

    /// An allocation that was released already: only the store knows it.
    async fn released(&self, id: &str) -> Result<Option<Allocation>, Status> {
        if self.0.allocations.lock().await.find(id).is_some() {
            return Ok(None);
        }
        let released = |allocation: &Allocation| allocation.id == id && allocation.state() == AllocationState::Released;
        Ok(self.kept().await?.into_iter().find(released))
    }
}
