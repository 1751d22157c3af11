//! The only allocation of a private cluster: all of its nodes, once they are up. Also the release of all allocations that were made in the
//! cluster.

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::path::Path;
use std::time::Duration;

use lattice_console::formatting::{count, duration};
use nix::unistd::getuid;
use pmi_transport::address::Address;
use pmi_transport::connect::{Channel, ConnectError, channel, reason};
use pmi_transport::identity::{Caller, Security};
use pmi_transport::proto::v1::allocation_service_client::AllocationServiceClient;
use pmi_transport::proto::v1::fabric_service_client::FabricServiceClient;
use pmi_transport::proto::v1::node_service_client::NodeServiceClient;
use pmi_transport::proto::v1::{
    Allocation, AllocationState, CreateAllocationRequest, FabricGrant, FabricGrantState, ListAllocationsRequest,
    ListFabricRequest, ListNodesRequest, NodeState, ReleaseAllocationRequest,
};
use tokio::time::{Instant, sleep, timeout};
use tonic::{Code, Status};

/// Time limit for the end of the allocation's launches.
const RELEASED_WITHIN: Duration = Duration::from_secs(5);

/// Interval between checks for it.
const LOOK_EVERY: Duration = Duration::from_millis(3);

/// Longest interval between queries for the nodes that are up.
const LOOK_AT_LEAST_EVERY: Duration = Duration::from_millis(30);

/// A node may be detected late by the elapsed time divided by this number. Queries take processors that `ssh` needs meanwhile.
const LATE_BY: u32 = 40;

/// Time limit for the release of all fabric services.
const GIVEN_BACK_WITHIN: Duration = Duration::from_secs(5);

/// Failure to create the allocation.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AllocationError {
    /// The API server's socket cannot be used.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The API server refused a request.
    #[error("the API server refuses to make an allocation: {}", .0.message())]
    Refused(Box<Status>),
    /// Not all nodes came up in time, or the API server did not.
    #[error("after {}, {up} of {} can be used{}", duration(*limit), count(*nodes as u64, "node"), said(last))]
    Late {
        /// Time limit.
        limit: Duration,
        /// Number of nodes that are up.
        up: usize,
        /// Number of nodes of the cluster.
        nodes: usize,
        /// Last failure of the API server, if any.
        last: Option<Box<Status>>,
    },
}

fn said(last: &Option<Box<Status>>) -> String {
    last.as_ref().map_or_else(String::new, |status| format!(": {}", status.message()))
}

/// URL of the API server with this socket, for `--api`.
pub(super) fn url(socket: &Path) -> String {
    format!("unix:{}", socket.display())
}

/// Client of the API server, as the user of the cluster.
pub(crate) struct Holder {
    nodes: NodeServiceClient<Channel>,
    allocations: AllocationServiceClient<Channel>,
    fabric: FabricServiceClient<Channel>,
}

/// Description of a fabric service that is not released.
fn left(grant: &FabricGrant) -> String {
    let FabricGrant { name, vni, unconfirmed, .. } = grant;
    match (grant.state(), unconfirmed.as_str()) {
        (FabricGrantState::GrantHeld | FabricGrantState::GrantCreating, _) => {
            format!("VNI {vni} of {name} is still held by its allocation")
        }
        (_, "") => format!("{name} is not deleted at the fabric manager"),
        (_, nodes) => format!("VNI {vni} of {name} is not confirmed by {nodes}"),
    }
}

impl Holder {
    /// Creates a client of the API server at this socket, which need not exist yet.
    pub(crate) fn new(socket: &Path) -> Result<Self, AllocationError> {
        // The socket authenticates this user to the server.
        let security = Security::Insecure { name: Caller::User(getuid().as_raw()) };
        let channel = channel(&Address::Unix(socket.to_owned()), &Caller::Api, &security)?;
        let allocations = AllocationServiceClient::new(channel.clone());
        let fabric = FabricServiceClient::new(channel.clone());
        Ok(Self { nodes: NodeServiceClient::new(channel), allocations, fabric })
    }

    /// Waits until all nodes are up, and allocates them; returns the allocation's id. Calls `look` repeatedly with the names of the nodes
    /// that are up. `look` can end the wait.
    ///
    /// # Errors
    /// Fails if `look` does, if the API server refuses, or if not all nodes are up within `limit`.
    pub(crate) async fn allocate<E: From<AllocationError>>(
        &self,
        nodes: &[String],
        limit: Duration,
        mut look: impl FnMut(&[String]) -> Result<(), E>,
    ) -> Result<String, E> {
        let deadline = Instant::now() + limit;
        self.wait_for_nodes(nodes.len(), (limit, deadline), &mut look).await?;
        let request = CreateAllocationRequest { nodes: hostlist::fold(nodes), ..Default::default() };
        loop {
            match self.allocations.clone().create_allocation(request.clone()).await {
                Ok(made) => return Ok(made.into_inner().id),
                // On a loaded machine, a node may be lost again for a moment.
                Err(status) if status.code() == Code::FailedPrecondition && Instant::now() < deadline => {}
                Err(status) => return Err(AllocationError::Refused(Box::new(status)).into()),
            }
            look(nodes)?;
            sleep(LOOK_EVERY).await;
        }
    }

    async fn wait_for_nodes<E: From<AllocationError>>(
        &self,
        nodes: usize,
        (limit, deadline): (Duration, Instant),
        look: &mut impl FnMut(&[String]) -> Result<(), E>,
    ) -> Result<(), E> {
        let begin = Instant::now();
        loop {
            let (up, last) = match self.nodes.clone().list_nodes(ListNodesRequest {}).await {
                Ok(answer) => {
                    let listed = answer.into_inner().nodes;
                    let up = listed.into_iter().filter(|node| node.state() == NodeState::Up);
                    (up.map(|node| node.id).collect(), None)
                }
                Err(status) if status.code() == Code::PermissionDenied => {
                    return Err(AllocationError::Refused(Box::new(status)).into());
                }
                // The API server has not created its socket yet.
                Err(status) => (Vec::new(), Some(Box::new(status))),
            };
            look(&up)?;
            if up.len() == nodes {
                return Ok(());
            }
            if Instant::now() > deadline {
                return Err(AllocationError::Late { limit, up: up.len(), nodes, last }.into());
            }
            sleep((begin.elapsed() / LATE_BY).clamp(LOOK_EVERY, LOOK_AT_LEAST_EVERY)).await;
        }
    }

    /// Number of processors that each node may use, by name of the node. For a pod, its limit.
    ///
    /// # Errors
    /// Fails if the API server does not answer.
    pub(crate) async fn cores(&self) -> Result<HashMap<String, NonZeroU32>, AllocationError> {
        let answer = self.nodes.clone().list_nodes(ListNodesRequest {}).await;
        let nodes = answer.map_err(|status| AllocationError::Refused(Box::new(status)))?.into_inner().nodes;
        Ok(nodes.into_iter().filter_map(|node| Some((node.id, NonZeroU32::new(node.cores)?))).collect())
    }

    /// Ends the launches of all allocations of this user, and waits for their end. A launch that does not end by then ends with its node.
    pub(crate) async fn release_all(&self) {
        let released = async {
            for id in self.ours().await?.into_iter().map(|allocation| allocation.id) {
                self.allocations.clone().release_allocation(ReleaseAllocationRequest { id }).await?;
            }
            while self.ours().await?.iter().any(|allocation| allocation.state() == AllocationState::Releasing) {
                sleep(LOOK_EVERY).await;
            }
            Ok::<(), Status>(())
        };
        // The daemons are stopped next, also after the time limit.
        let _ = timeout(RELEASED_WITHIN, released).await;
    }

    /// Allocations of this user that have not ended.
    async fn ours(&self) -> Result<Vec<Allocation>, Status> {
        let request = ListAllocationsRequest { all: false };
        Ok(self.allocations.clone().list_allocations(request).await?.into_inner().allocations)
    }

    /// Waits until all released fabric resources are returned, with a time limit.
    ///
    /// # Errors
    /// Returns a description of the resources that are left.
    pub(crate) async fn fabric_is_given_back(&self) -> Result<(), String> {
        let mut last = "the API server does not answer".to_owned();
        let given_back = async {
            loop {
                let answer = self.fabric.clone().list_fabric(ListFabricRequest {}).await;
                let grants = answer.map_err(|status| reason(&status))?.into_inner().grants;
                if grants.is_empty() {
                    return Ok(());
                }
                last = grants.iter().map(left).collect::<Vec<_>>().join("; ");
                sleep(LOOK_EVERY).await;
            }
        };
        timeout(GIVEN_BACK_WITHIN, given_back).await.unwrap_or(Err(last))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_of_the_fabric_is_told_by_its_state() {
        let check = |state: FabricGrantState, unconfirmed: &str, expected: &str| {
            let grant = FabricGrant {
                name: "dev.k3jq.0".to_owned(),
                vni: 1024,
                state: state.into(),
                unconfirmed: unconfirmed.to_owned(),
                ..FabricGrant::default()
            };
            assert_eq!(left(&grant), expected);
        };
        check(FabricGrantState::GrantHeld, "", "VNI 1024 of dev.k3jq.0 is still held by its allocation");
        check(FabricGrantState::GrantCreating, "", "VNI 1024 of dev.k3jq.0 is still held by its allocation");
        check(FabricGrantState::GrantEnding, "", "dev.k3jq.0 is not deleted at the fabric manager");
        check(FabricGrantState::GrantQuarantined, "node1", "VNI 1024 of dev.k3jq.0 is not confirmed by node1");
    }

    #[test]
    fn nodes_that_are_late_are_counted_with_what_the_server_said_last() {
        let late = |up, nodes, last: Option<Status>| {
            let (limit, last) = (Duration::from_secs(60), last.map(Box::new));
            AllocationError::Late { limit, up, nodes, last }.to_string()
        };
        assert_eq!(late(3, 4, None), "after 1 min, 3 of 4 nodes can be used");
        let said = Status::unavailable("no socket");
        assert_eq!(late(0, 1, Some(said)), "after 1 min, 0 of 1 node can be used: no socket");
        let refused = AllocationError::Refused(Box::new(Status::permission_denied("not yours")));
        assert_eq!(refused.to_string(), "the API server refuses to make an allocation: not yours");
    }
}
