//! The server's part in what becomes of nodes: they register, are lost, are drained, and what runs on them hears of it.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use lattice_session::unix_time;
use pmi_transport::identity::{Caller, is_node_name};
use pmi_transport::proto::v1::{Drain, DrainNodesRequest, RegisterNodeRequest, ResumeNodesRequest};
use tokio::time::{MissedTickBehavior, interval};
use tonic::Status;

use super::Server;
use crate::launch::{LaunchHandle, Request};
use crate::nodes::{Arrival, NODES_MAX, RegisterError, Registry};
use crate::store::Change;
use crate::versions::{self, Fit};

/// Interval at which nodes are looked at.
const TICK: Duration = Duration::from_millis(250);
/// The longest reason for draining a node, in characters; the rest is cut off.
const REASON_MAX: usize = 1000;

impl Server {
    /// An agent is there. Returns the launches that it must end.
    pub(crate) async fn register(&self, told: RegisterNodeRequest) -> Result<Vec<String>, RegisterError> {
        let node = told.node_id.clone();
        let version = told.version.clone();
        let claimed: BTreeSet<String> = told.launches.iter().cloned().collect();
        let arrival = self.nodes.lock().register(told, self.clock.now())?;
        if versions::fit(&version) != Fit::Same {
            tracing::warn!(node, version, ours = versions::OURS, "the node's agent is of another version");
        }
        if arrival == Arrival::Anew {
            self.channels.forget(&node);
        }
        let mut unknown = Vec::new();
        for id in &claimed {
            if !self.find(id).is_some_and(|handle| handle.runs_on(&node)) {
                unknown.push(id.clone());
            }
        }
        {
            let mut unclean_nodes = self.unclean.lock();
            unclean_nodes.forget(&node);
            unknown.iter().for_each(|launch| unclean_nodes.add(&node, launch));
        }
        self.finish_releases().await;
        match arrival {
            Arrival::Anew => self.lose(&node, &claimed, "its agent was started anew", |_| true).await,
            // A launch of the last server's that should run there and does not: the agent has been started anew since.
            Arrival::First => self.lose(&node, &claimed, "its agent was started anew", LaunchHandle::is_resumed).await,
            Arrival::Again => {}
        }
        self.begin_on(&node).await;
        if let Some(fabric) = &self.fabric {
            fabric.node_is_there();
        }
        Ok(unknown)
    }

    /// An agent says which launches are at work on its node.
    pub(crate) fn hear_of_work(self: &Arc<Self>, node: &str, launches: &[String]) {
        if self.unclean.lock().on_heartbeat(node, launches) {
            let server = Arc::clone(self);
            tokio::spawn(async move { server.finish_releases().await });
        }
    }

    /// Tells launches on a node that it is lost: those of a kind, but for those in `spared`.
    async fn lose(&self, node: &str, spared: &BTreeSet<String>, reason: &str, of_kind: fn(&LaunchHandle) -> bool) {
        for handle in self.handles() {
            if of_kind(&handle)
                && handle.runs_on(node)
                && !spared.contains(&handle.summary().id)
                && let Some(node) = handle.index_of(node)
            {
                handle.send(Request::NodeLost { node, reason: reason.to_owned() }).await;
            }
        }
    }

    /// Nothing new begins on these nodes from now on; returns those of them that have not registered yet.
    ///
    /// # Errors
    /// Fails for a list or a reason that makes no sense, and if it cannot be written down.
    pub(crate) async fn drain(&self, by: &Caller, request: &DrainNodesRequest) -> Result<Vec<String>, Status> {
        let reason: String = request.reason.chars().take(REASON_MAX).collect();
        if reason.trim().is_empty() {
            return Err(Status::invalid_argument("say why the nodes are drained: others will ask"));
        }
        let named = named(&request.nodes)?;
        let since = unix_time::seconds();
        let drain = |node: &String| Drain { node: node.clone(), reason: reason.clone(), by: by.to_string(), since };
        let drains: Vec<Drain> = named.iter().map(drain).collect();
        // No allocation is made of them meanwhile.
        let _allocations = self.allocations.lock().await;
        self.write(drains.iter().cloned().map(Change::Drain).collect()).await?;
        tracing::info!(nodes = request.nodes, %by, reason, "nodes are drained");
        let mut registry = self.nodes.lock();
        drains.into_iter().for_each(|drain| registry.drain(drain));
        Ok(named.into_iter().filter(|node| !registry.is_known(node)).collect())
    }

    /// These nodes are not drained any more.
    ///
    /// # Errors
    /// Refuses a list that makes no sense or names a node that is neither registered nor drained, and fails if it cannot be
    /// written down; then nothing is changed.
    pub(crate) async fn undrain(&self, by: &Caller, request: &ResumeNodesRequest) -> Result<(), Status> {
        let named = named(&request.nodes)?;
        {
            let _allocations = self.allocations.lock().await;
            refuse_unknown(&named, &self.nodes.lock())?;
            self.write(named.iter().cloned().map(Change::Resume).collect()).await?;
            tracing::info!(nodes = request.nodes, %by, "nodes are not drained any more");
            named.iter().for_each(|node| self.nodes.lock().resume(node));
        }
        for node in &named {
            self.begin_on(node).await;
        }
        Ok(())
    }

    /// Watches the nodes, for ever.
    pub(crate) async fn watch_nodes(self: Arc<Self>) {
        self.resume_releases().await;
        let mut tick = interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tick.tick().await;
            let lost = self.nodes.lock().expire(self.clock.now());
            for node in lost {
                tracing::warn!(node, "a node is lost: no heartbeat came for too long");
                self.channels.forget(&node);
                let freed = self.unclean.lock().forget(&node);
                self.lose(&node, &BTreeSet::new(), "no heartbeat came for too long", |_| true).await;
                if freed {
                    self.finish_releases().await;
                }
            }
        }
    }

    /// Returns the number of launches on each node on which any runs.
    pub(crate) fn launches_by_node(&self) -> HashMap<String, u32> {
        let mut counts = HashMap::new();
        for node in self.handles().iter().flat_map(LaunchHandle::runs_on_nodes) {
            *counts.entry(node).or_default() += 1;
        }
        counts
    }
}

/// The most characters of a list of known nodes in a message.
const KNOWN_MAX: usize = 400;

/// Refuses nodes that are neither registered nor drained, and names those that are.
fn refuse_unknown(named: &[String], registry: &Registry) -> Result<(), Status> {
    let known = registry.all_known();
    let unknown: Vec<&String> = named.iter().filter(|node| !known.contains(node)).collect();
    if unknown.is_empty() {
        return Ok(());
    }
    let such = if unknown.len() == 1 { "is no such node" } else { "are no such nodes" };
    let list = hostlist::fold(&Vec::from_iter(&known));
    let there = match known.len() {
        0 => "there are none yet".to_owned(),
        1 => format!("there is {list}"),
        count if list.len() > KNOWN_MAX => format!("there are {count}, which `lattice nodes` lists"),
        _ => format!("there are {list}"),
    };
    let unknown = hostlist::fold(&unknown);
    Err(Status::not_found(format!("{unknown}: there {such}, registered or drained; {there}")))
}

/// The nodes of a list, each of which could be one.
fn named(list: &str) -> Result<Vec<String>, Status> {
    let nodes = hostlist::expand_at_most(list, NODES_MAX)
        .map_err(|error| Status::invalid_argument(format!("the list of nodes cannot be read: {error}")))?;
    match nodes.iter().find(|node| !is_node_name(node)) {
        Some(name) => Err(Status::invalid_argument(format!("{name:?} cannot be a node's name"))),
        None if nodes.is_empty() => Err(Status::invalid_argument("no node is named")),
        None => Ok(nodes),
    }
}
