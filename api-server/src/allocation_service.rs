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
use super::server::{Server, to_its_end};
use super::store::{self, StoreError};

/// Answers calls about allocations.
pub(crate) struct Allocating(pub Arc<Server>);

#[tonic::async_trait]
impl AllocationService for Allocating {
    async fn launch_tasks(
        &self,
        request: Request<LaunchTasksRequest>,
    ) -> Result<Response<LaunchTasksResponse>, Status> {
        let caller = caller_of(&request)?.clone();
        if request.get_ref().plan_only {
            return Ok(Response::new(self.0.plan(&caller, request.into_inner()).await?));
        }
        let server = Arc::clone(&self.0);
        let launched = to_its_end(async move { server.launch(&caller, request.into_inner()).await });
        Ok(Response::new(launched.await?))
    }

    async fn create_allocation(
        &self,
        request: Request<CreateAllocationRequest>,
    ) -> Result<Response<Allocation>, Status> {
        let caller = caller_of(&request)?.clone();
        let server = Arc::clone(&self.0);
        let allocated = to_its_end(async move { server.allocate(&caller, request.get_ref()).await });
        Ok(Response::new(allocated.await?))
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
        let kept = match request.into_inner().all {
            true => self.kept().await?,
            false => self.0.allocations.lock().await.iter().cloned().collect(),
        };
        let allocations = kept.into_iter().filter(|allocation| may_use(&caller, allocation.uid)).collect();
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
        let server = Arc::clone(&self.0);
        Ok(Response::new(to_its_end(async move { server.release(&caller, &id).await }).await?))
    }
}

impl Allocating {
    async fn kept(&self) -> Result<Vec<Allocation>, Status> {
        let kept = store::blocking(&self.0.store, |store| store.read()).await;
        kept.map(|kept| kept.allocations).map_err(|error| unreadable(&error))
    }

    /// An allocation that was released already: only the store knows it.
    async fn released(&self, id: &str) -> Result<Option<Allocation>, Status> {
        if self.0.allocations.lock().await.find(id).is_some() {
            return Ok(None);
        }
        let wanted = id.to_owned();
        let kept = store::blocking(&self.0.store, move |store| store.allocation(&wanted)).await;
        let kept = kept.map_err(|error| unreadable(&error))?;
        Ok(kept.filter(|allocation| allocation.state() == AllocationState::Released))
    }
}

fn unreadable(error: &StoreError) -> Status {
    Status::unavailable(pmi_transport::error_chain::chain(error))
}
