//! Calls of administrators about fabric credentials: list them, examine problems, and return due credentials at once.

use pmi_transport::task;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cxi_fabric::FabricError;
use cxi_fabric::ledger::View;
use lattice_session::timeouts::RETIRE_ANSWER;
use pmi_transport::connect::{AgentChannels, reason};
use pmi_transport::identity::caller_of;
use pmi_transport::proto::v1::fabric_service_server::FabricService;
use pmi_transport::proto::v1::node_agent_service_client::NodeAgentServiceClient;
use pmi_transport::proto::v1::{
    CleanFabricRequest, CleanFabricResponse, ExamineFabricRequest, ExamineFabricResponse, FabricGrant,
    FabricGrantState, FabricNode, ListCxiServicesRequest, ListCxiServicesResponse, ListFabricRequest,
    ListFabricResponse,
};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tonic::{Request, Response, Status};

use super::audit::audited;
use super::fabric::tending::AT_ONCE;
use super::fabric::{Fabric, give_back};
use super::launch::fan_out::Recipient;
use super::nodes::{Listed, NodeState, Presence};
use super::server::{Server, to_its_end};

/// Time that the manager may take while a caller waits.
const MANAGER_WITHIN: Duration = Duration::from_secs(10);

/// Answers calls about fabric credentials.
pub(crate) struct Accounting(pub Arc<Server>);

#[tonic::async_trait]
impl FabricService for Accounting {
    async fn list_fabric(&self, _: Request<ListFabricRequest>) -> Result<Response<ListFabricResponse>, Status> {
        let grants = grants(self.fabric()?);
        Ok(Response::new(ListFabricResponse { grants }))
    }

    async fn examine_fabric(
        &self,
        _: Request<ExamineFabricRequest>,
    ) -> Result<Response<ExamineFabricResponse>, Status> {
        let fabric = self.fabric()?;
        let (nodes, strangers) = tokio::join!(self.nodes(), strangers(fabric));
        let (strangers, manager_trouble) = match strangers {
            Ok(strangers) => (strangers, String::new()),
            // A manager without a list has no unknown services.
            Err(FabricError::NotOffered { .. }) => (Vec::new(), String::new()),
            Err(error) => (Vec::new(), error.to_string()),
        };
        let settings = &fabric.settings;
        Ok(Response::new(ExamineFabricResponse {
            cluster: settings.cluster.to_string(),
            manager: settings.manager.url.clone().unwrap_or_else(|| format!("VNIs {}", settings.manager.vnis)),
            manager_trouble,
            strangers,
            grants: grants(fabric),
            nodes,
        }))
    }

    async fn clean_fabric(
        &self,
        request: Request<CleanFabricRequest>,
    ) -> Result<Response<CleanFabricResponse>, Status> {
        let fabric = self.fabric()?;
        let caller = caller_of(&request)?.clone();
        let CleanFabricRequest { dry_run, gone: list } = request.into_inner();
        let gone = self.gone(&list)?;
        if dry_run {
            return Ok(Response::new(plan(fabric, &gone).await));
        }
        let (server, fabric) = (Arc::clone(&self.0), Arc::clone(fabric));
        let made = |answer: &CleanFabricResponse| format!("{} done, {} failed", answer.done.len(), answer.failed.len());
        let cleaned = to_its_end(async move {
            let cleaned = async { Ok::<_, Status>(clean(&server, &fabric, gone).await) };
            audited(&caller, "clean fabric", &list, cleaned, made).await
        });
        Ok(Response::new(cleaned.await?))
    }
}

impl Accounting {
    fn fabric(&self) -> Result<&Arc<Fabric>, Status> {
        let nothing = "this cluster gives out no fabric credentials; its API server has no manager of a fabric\n\
             try: the section [fabric] in the configuration of the API server, if its nodes have Slingshot";
        self.0.fabric.as_ref().ok_or_else(|| Status::failed_precondition(nothing))
    }

    /// Asks all nodes that have registered about their NICs; returns the answers.
    async fn nodes(&self) -> Vec<FabricNode> {
        let nodes = self.0.nodes.lock().list(tokio::time::Instant::now(), |_| 0);
        let mut asked = JoinSet::new();
        let mut answers = Vec::new();
        for Listed { node, presence, .. } in nodes {
            if asked.len() >= AT_ONCE {
                answers.extend(asked.join_next().await.and_then(Result::ok));
            }
            let channels = self.0.channels.clone();
            asked.spawn(task::boxed(async move {
                let answer = match presence {
                    Some(Presence { state: NodeState::Up, facts, .. }) => {
                        let recipient = Recipient { name: node.clone(), address: facts.grpc_address };
                        list_services(&channels, &recipient).await
                    }
                    Some(Presence { state: NodeState::Away, .. }) => Err("its agent does not run".to_owned()),
                    Some(Presence { state: NodeState::Lost, .. }) => Err("it is lost".to_owned()),
                    None => Err("it has not registered".to_owned()),
                };
                let silence = answer.as_ref().err().cloned().unwrap_or_default();
                FabricNode { node_id: node, silence, cxi: answer.ok() }
            }));
        }
        answers.extend(asked.join_all().await);
        let mut nodes: Vec<FabricNode> = answers;
        nodes.sort_unstable_by(|one, other| one.node_id.cmp(&other.node_id));
        nodes
    }

    /// Nodes that an administrator declares permanently gone. Refuses a node that is up.
    fn gone(&self, list: &str) -> Result<Vec<String>, Status> {
        if list.is_empty() {
            return Ok(Vec::new());
        }
        let nodes = hostlist::expand(list).map_err(|error| Status::invalid_argument(error.to_string()))?;
        let registry = self.0.nodes.lock();
        match nodes.iter().find(|node| registry.up(node).is_some()) {
            Some(up) => Err(Status::failed_precondition(format!("node {up} is up, and answers for itself"))),
            None => Ok(nodes),
        }
    }
}

/// Treats gone nodes as empty, and returns due credentials.
async fn clean(server: &Arc<Server>, fabric: &Arc<Fabric>, gone: Vec<String>) -> CleanFabricResponse {
    let (mut done, mut failed) = (Vec::new(), Vec::new());
    let before = fabric.grants.views();
    for node in gone {
        let name = node.clone();
        match fabric.blocking(move |grants| grants.node_is_empty(&name)).await {
            Ok(()) => done.push(format!("node {node} is taken to hold nothing")),
            Err(error) => failed.push(error.to_string()),
        }
    }
    let deadline = Instant::now() + MANAGER_WITHIN;
    match fabric.blocking(move |grants| grants.reap(deadline)).await {
        Ok(reaped) => {
            done.extend(reaped.names.iter().map(|name| format!("{name} is deleted, which no journal knew")));
            failed.extend(reaped.errors.iter().map(ToString::to_string));
        }
        Err(error) => failed.push(error.to_string()),
    }
    failed.extend(give_back(server, fabric).await);
    let left = fabric.grants.views();
    let is_left = |view: &&View| left.iter().any(|left| left.name == view.name);
    let over = before.iter().filter(|view| !is_left(view));
    done.extend(over.map(|view| format!("{} is given back, {} may be used again", view.name, number(view))));
    CleanFabricResponse { done, failed }
}

/// Steps that a clean-up would take.
async fn plan(fabric: &Arc<Fabric>, gone: &[String]) -> CleanFabricResponse {
    let mut done: Vec<String> = gone.iter().map(|node| format!("node {node} would be taken to hold nothing")).collect();
    let mut failed = Vec::new();
    match strangers(fabric).await {
        Ok(names) => done.extend(names.iter().map(|name| format!("{name} would be deleted, which no journal knows"))),
        Err(FabricError::NotOffered { .. }) => {}
        Err(error) => failed.push(error.to_string()),
    }
    for view in fabric.grants.views() {
        if view.state == "ending" {
            done.push(format!("{} would be deleted at the manager", view.name));
        }
        let asked: Vec<&String> = view.unconfirmed.iter().filter(|node| !gone.contains(node)).collect();
        if !asked.is_empty() {
            done.push(format!(
                "{} would be asked whether anything is left of {}",
                hostlist::fold(&asked),
                number(&view)
            ));
        }
    }
    CleanFabricResponse { done, failed }
}

async fn strangers(fabric: &Fabric) -> Result<Vec<String>, FabricError> {
    let deadline = Instant::now() + MANAGER_WITHIN;
    let strangers = fabric.blocking(move |grants| grants.strangers(deadline)).await?;
    Ok(strangers.iter().map(ToString::to_string).collect())
}

async fn list_services(channels: &AgentChannels, node: &Recipient) -> Result<ListCxiServicesResponse, String> {
    let channel = channels.to(&node.name, &node.address).map_err(|error| pmi_transport::error_chain::chain(&error))?;
    let mut client = NodeAgentServiceClient::new(channel);
    match timeout(RETIRE_ANSWER, client.list_cxi_services(ListCxiServicesRequest {})).await {
        Ok(answer) => answer.map(Response::into_inner).map_err(|status| reason(&status)),
        Err(_) => Err(format!("no answer for {RETIRE_ANSWER:?}")),
    }
}

fn grants(fabric: &Fabric) -> Vec<FabricGrant> {
    let grant = |view: View| FabricGrant {
        name: view.name.to_string(),
        allocation_id: view.allocation,
        vni: view.vni.map_or(0, u32::from),
        state: state(view.state).into(),
        unconfirmed: hostlist::fold(&view.unconfirmed),
    };
    fabric.grants.views().into_iter().map(grant).collect()
}

fn state(name: &str) -> FabricGrantState {
    match name {
        "creating" => FabricGrantState::GrantCreating,
        "held" => FabricGrantState::GrantHeld,
        "ending" => FabricGrantState::GrantEnding,
        "quarantined" => FabricGrantState::GrantQuarantined,
        _ => FabricGrantState::Unspecified,
    }
}

fn number(view: &View) -> String {
    view.vni.map_or_else(|| "a VNI that is not known".to_owned(), |vni| format!("VNI {vni}"))
}
