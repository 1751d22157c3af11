//! Nodes of one allocation, for a command.

use std::time::Duration;

use lattice_console::formatting;
use lattice_session::unix_time;
use pmi_transport::proto::v1 as proto;
use proto::AllocationState;

use super::cluster::Cluster;
use super::error::ClusterError;

/// An allocation, and whether anything can start in it.
#[derive(Clone, Debug)]
pub struct AllocatedNodes {
    /// Id of the allocation.
    pub id: String,
    /// Its nodes as a hostlist, as sent by the API server.
    pub list: String,
    /// Names of its nodes.
    pub names: Vec<String>,
    /// Number of times that it was queued again.
    pub requeues: u32,
    /// Its state, if nothing can start in it any more; `None` otherwise.
    pub over: Option<&'static str>,
}

/// Facts about a node that has registered.
#[derive(Clone, Debug)]
pub struct NodeFacts {
    /// Name of the node.
    pub name: String,
    /// Number of its cores.
    pub cores: u32,
    /// Addresses at which it can be reached, without ports.
    pub addresses: Vec<String>,
}

impl Cluster {
    /// The nodes of an allocation.
    ///
    /// # Errors
    /// Fails if the allocation does not exist or belongs to another user, or the API server cannot be reached.
    pub async fn allocated_nodes(&self, id: &str) -> Result<AllocatedNodes, ClusterError> {
        let request = proto::GetAllocationRequest { id: id.to_owned() };
        let question = async || self.allocations().get_allocation(request.clone()).await;
        let allocation = self.ask_patiently(question).await?;
        let names = hostlist::expand(&allocation.nodes).map_err(|error| self.invalid_answer(error))?;
        let over = is_over(allocation.state()).then(|| state_word(allocation.state()));
        Ok(AllocatedNodes { id: allocation.id, list: allocation.nodes, names, requeues: allocation.requeues, over })
    }

    /// Returns the reason why nothing can start any more in an allocation that has run; `None` while it runs.
    ///
    /// # Errors
    /// As [`Cluster::allocated_nodes`], but without waiting for an API server that is away.
    pub async fn end_of_allocation(&self, id: &str) -> Result<Option<String>, ClusterError> {
        let request = proto::GetAllocationRequest { id: id.to_owned() };
        Ok(end_in_words(&self.ask(self.allocations().get_allocation(request)).await?))
    }

    /// Ends an allocation, with every launch in it.
    ///
    /// # Errors
    /// Fails if the allocation does not exist or belongs to another user, or the API server cannot be reached.
    pub async fn release_allocation(&self, id: &str) -> Result<(), ClusterError> {
        let request = proto::ReleaseAllocationRequest { id: id.to_owned() };
        self.ask(self.allocations().release_allocation(request)).await.map(drop)
    }

    /// Facts about all nodes.
    ///
    /// # Errors
    /// Fails if the API server cannot be reached.
    pub async fn node_facts(&self) -> Result<Vec<NodeFacts>, ClusterError> {
        let question = async || self.nodes().list_nodes(proto::ListNodesRequest {}).await;
        let nodes = self.ask_patiently(question).await?.nodes;
        Ok(nodes.into_iter().map(NodeFacts::from).collect())
    }
}

/// Word for a state of an allocation. Messages of the API server use the same word.
pub fn state_word(state: AllocationState) -> &'static str {
    match state {
        AllocationState::Unspecified => "unknown",
        AllocationState::Pending => "pending",
        AllocationState::Running => "running",
        AllocationState::Releasing => "releasing",
        AllocationState::Released => "released",
        AllocationState::Failed => "failed",
    }
}

/// Reason why an allocation that has run has lost its nodes, or is losing them.
fn end_in_words(allocation: &proto::Allocation) -> Option<String> {
    let &proto::Allocation { time_limit_s: limit, began_at, .. } = allocation;
    let word = match allocation.state() {
        AllocationState::Running => return None,
        AllocationState::Pending => "it was queued again",
        AllocationState::Releasing | AllocationState::Released
            if limit > 0 && began_at > 0 && began_at.saturating_add(limit) <= unix_time::seconds() =>
        {
            return Some(format!("its time limit of {} is over", formatting::duration(Duration::from_secs(limit))));
        }
        AllocationState::Releasing | AllocationState::Released => "it was released",
        other => state_word(other),
    };
    let reason = Some(&allocation.reason).filter(|reason| !reason.is_empty());
    Some(reason.map_or_else(|| word.to_owned(), |reason| format!("{word}: {reason}")))
}

/// True if nothing can start any more in an allocation in this state.
fn is_over(state: AllocationState) -> bool {
    matches!(state, AllocationState::Releasing | AllocationState::Released | AllocationState::Failed)
}

impl From<proto::Node> for NodeFacts {
    fn from(node: proto::Node) -> Self {
        let of_agent = node.grpc_address.rsplit_once(':').map(|(host, _)| host.trim_matches(['[', ']']).to_owned());
        Self {
            name: node.id,
            cores: node.cores,
            addresses: of_agent.into_iter().chain(node.network_addresses).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_are_called_as_in_messages_of_the_api_server() {
        for number in 0.. {
            let Ok(known) = AllocationState::try_from(number) else { break };
            assert_eq!(state_word(known), lattice_api_server::allocation_state::word(known));
        }
    }

    #[test]
    fn the_end_of_an_allocation_is_told_with_its_reason() {
        let check = |state: AllocationState, limit: u64, reason: &str, expected: Option<&str>| {
            let allocation = proto::Allocation {
                state: state.into(),
                time_limit_s: limit,
                began_at: 1,
                reason: reason.to_owned(),
                ..Default::default()
            };
            assert_eq!(end_in_words(&allocation).as_deref(), expected);
        };
        check(AllocationState::Running, 2, "", None);
        check(AllocationState::Releasing, 2, "", Some("its time limit of 2 s is over"));
        check(AllocationState::Released, 0, "", Some("it was released"));
        check(AllocationState::Released, u64::MAX, "", Some("it was released"));
        check(AllocationState::Pending, 0, "node0 was lost", Some("it was queued again: node0 was lost"));
        check(AllocationState::Failed, 0, "node0 was lost", Some("failed: node0 was lost"));
    }

    #[test]
    fn a_node_has_the_address_of_its_agent_and_those_of_its_network() {
        let facts = NodeFacts::from(proto::Node {
            id: "node7".to_owned(),
            grpc_address: "[fd00::7]:50052".to_owned(),
            network_addresses: vec!["10.0.0.7".to_owned()],
            ..proto::Node::default()
        });
        assert_eq!(facts.addresses, ["fd00::7", "10.0.0.7"]);
    }
}
