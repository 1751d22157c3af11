//! The server's part in the state of nodes: registration, loss and drain of nodes, and notification of the launches that run on them.

use pmi_transport::task;
use std::collections::{BTreeSet, HashMap};
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hostlist::HostlistError;
use lattice_session::{timeouts, unix_time};
use pmi_core::ids::NodeIndex;
use pmi_transport::address::Address;
use pmi_transport::identity::{Caller, RevocationList, is_node_name};
use pmi_transport::signature::Serial;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, timeout};

use super::launching::end_if_revoked;
use super::{NotWritten, Server};
use crate::launch::{LaunchHandle, Request};
use crate::launch_id::LaunchId;
use crate::nodes::{Arrival, Drain, Judgement, NODES_MAX, PortAnswer, RegisterError, Registration, Registry, Suspect};
use crate::store::Change;
use crate::versions::{self, Fit};

/// Interval at which nodes are checked.
const TICK: Duration = Duration::from_millis(250);
/// The most ports that are probed at a time.
const ASKED_MAX: usize = 4096;
/// The longest reason for draining a node, in characters; the rest is cut off.
const REASON_MAX: usize = 1000;

/// An invalid list of nodes to drain or resume.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NodeListError {
    #[error("the list of nodes cannot be read: {0}")]
    Hostlist(#[from] HostlistError),
    #[error("{name:?} cannot be a node's name")]
    NodeName { name: String },
    #[error("no node is named")]
    Empty,
}

/// Reason why nodes are not drained.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DrainError {
    #[error("give a reason for the drain, for other administrators\ntry: lattice nodes drain --reason TEXT NODES")]
    NoReason,
    #[error(transparent)]
    Nodes(#[from] NodeListError),
    #[error(transparent)]
    NotWritten(#[from] NotWritten),
}

/// Reason why nodes stay drained.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ResumeError {
    #[error(transparent)]
    Nodes(#[from] NodeListError),
    #[error(transparent)]
    Unknown(#[from] UnknownNodes),
    #[error(transparent)]
    NotWritten(#[from] NotWritten),
}

/// Nodes that are neither registered nor drained.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{}: there {}, registered or drained; {there}\ntry: lattice nodes, which lists them with their states",
    hostlist::fold(nodes),
    if nodes.len() == 1 { "is no such node" } else { "are no such nodes" }
)]
pub(crate) struct UnknownNodes {
    nodes: Vec<String>,
    /// The known nodes, in words.
    there: String,
}

impl Server {
    /// Registers an agent. Returns the launches that the agent must end.
    ///
    /// # Errors
    /// See the variants of [`RegisterError`].
    pub(crate) async fn register(
        &self,
        registration: Registration,
        last: Serial,
    ) -> Result<Vec<LaunchId>, RegisterError> {
        let node = registration.node.clone();
        let (fit, version) = (registration.facts.fit(), registration.facts.version.clone().unwrap_or_default());
        let claimed: BTreeSet<LaunchId> = registration.launches.iter().map(|id| id.as_str().into()).collect();
        self.refuse_rival(&registration).await?;
        let arrival = self.nodes.lock().register(registration, self.clock.now())?;
        if fit != Fit::Same {
            tracing::warn!(node, version, ours = versions::OURS, "the node's agent is of another version");
        }
        // A connection that was attempted while the node could not be reached may still wait for an answer.
        self.channels.forget(&node);
        let mut unknown = Vec::new();
        for id in &claimed {
            if !self.find(id).is_some_and(|handle| handle.needs(&node)) {
                unknown.push(id.clone());
            }
        }
        {
            let mut unclean_nodes = self.unclean.lock();
            unclean_nodes.forget(&node);
            unknown.iter().for_each(|launch| unclean_nodes.add(&node, launch));
        }
        self.settle_allocations().await;
        match arrival {
            Arrival::Anew => {
                // Later launches are requested from this agent itself.
                let is_older = |launch: &LaunchHandle| launch.is_signed_by(last);
                self.tell_unclaimed(&node, &claimed, is_older, |node| Request::AgentAnew { node }).await;
            }
            // Launches of the previous server that should run on the node, and do not.
            Arrival::First => {
                let not_there = |node| Request::NotThere { node };
                self.tell_unclaimed(&node, &claimed, LaunchHandle::is_resumed, not_there).await;
            }
            Arrival::Again => {}
        }
        // Launches that the agent has taken over by this time.
        self.tell(&node, |node| Request::NodeBack { node }).await;
        self.nodes_are_there(std::slice::from_ref(&node)).await;
        if let Some(fabric) = &self.fabric {
            fabric.node_is_there();
        }
        Ok(unknown)
    }

    /// Refuses an agent if another agent serves its node, sent a heartbeat lately, and has a port that does not refuse connections.
    async fn refuse_rival(&self, registration: &Registration) -> Result<(), RegisterError> {
        let Some(first) = self.nodes.lock().contested(registration, self.clock.now()) else { return Ok(()) };
        let (node, answer) = ask_port(first).await;
        let (mut nodes, now) = (self.nodes.lock(), self.clock.now());
        match nodes.contested(registration, now) {
            Some(Suspect { address: first, .. }) if answer != PortAnswer::Refused => {
                let theirs = registration.facts.grpc_address.clone();
                let is_news = nodes.refuse_rival(&node, &theirs, now);
                let refused = RegisterError::Rival { node, first, theirs };
                // A refused agent retries every second.
                if is_news {
                    tracing::warn!("{refused}");
                }
                Err(refused)
            }
            _ => Ok(()),
        }
    }

    /// Processes the list of launches that still have processes on a node, as its agent reports it.
    pub(crate) fn hear_of_work(self: &Arc<Self>, node: &str, launches: &[String]) {
        if self.unclean.lock().on_heartbeat(node, launches) {
            let server = Arc::clone(self);
            task::spawn(async move { server.settle_allocations().await });
        }
    }

    /// Sends a request to launches of one kind that should run on a node, except to the launches that its agent claims.
    async fn tell_unclaimed(
        &self,
        node: &str,
        claimed: &BTreeSet<LaunchId>,
        of_kind: impl Fn(&LaunchHandle) -> bool,
        what: impl Fn(NodeIndex) -> Request,
    ) {
        for handle in self.handles() {
            if of_kind(&handle)
                && handle.runs_on(node)
                && !claimed.contains(&handle.summary().id)
                && let Some(node) = handle.index_of(node)
            {
                handle.send(what(node)).await;
            }
        }
    }

    /// Drains these nodes: no new work begins on them. Returns the nodes among them that have not registered yet.
    ///
    /// # Errors
    /// Fails for an invalid list or an empty reason, and if the drain cannot be written.
    pub(crate) async fn drain(&self, by: &Caller, nodes: &str, reason: &str) -> Result<Vec<String>, DrainError> {
        let reason: String = reason.chars().take(REASON_MAX).collect();
        if reason.trim().is_empty() {
            return Err(DrainError::NoReason);
        }
        let named = named(nodes)?;
        let since = unix_time::seconds();
        let drain = |node: &String| Drain { node: node.clone(), reason: reason.clone(), by: by.to_string(), since };
        let drains: Vec<Drain> = named.iter().map(drain).collect();
        // The lock prevents new allocations of these nodes in the meantime.
        let _allocations = self.allocations.lock().await;
        self.write(drains.iter().cloned().map(Change::Drain).collect()).await?;
        tracing::info!(nodes, %by, reason, "nodes are drained");
        let mut registry = self.nodes.lock();
        drains.into_iter().for_each(|drain| registry.drain(drain));
        Ok(named.into_iter().filter(|node| !registry.is_known(node)).collect())
    }

    /// Ends the drain of these nodes.
    ///
    /// # Errors
    /// Fails for an invalid list, for a node that is neither registered nor drained, and if the change cannot be written. On an error
    /// nothing changes.
    pub(crate) async fn undrain(&self, by: &Caller, nodes: &str) -> Result<(), ResumeError> {
        let named = named(nodes)?;
        {
            let _allocations = self.allocations.lock().await;
            refuse_unknown(&named, &self.nodes.lock())?;
            self.write(named.iter().cloned().map(Change::Resume).collect()).await?;
            tracing::info!(nodes, %by, "nodes are not drained any more");
            named.iter().for_each(|node| self.nodes.lock().resume(node));
        }
        self.nodes_are_there(&named).await;
        Ok(())
    }

    /// Sends a request to all launches on a node.
    async fn tell(&self, node: &str, request: impl Fn(NodeIndex) -> Request) {
        self.tell_unclaimed(node, &BTreeSet::new(), |_| true, request).await;
    }

    /// Watches the nodes indefinitely.
    pub(crate) async fn watch_nodes(self: Arc<Self>) {
        self.resume_releases().await;
        let mut tick = interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut asking = JoinSet::new();
        // Empty, so that the first tick also processes certificates that were revoked while no server ran.
        let mut revoked = Bytes::new();
        loop {
            tokio::select! {
                _ = tick.tick() => {
                    let list = self.security.revocations();
                    if *list.digest() != revoked {
                        revoked = list.digest().clone();
                        self.shut_out(&list).await;
                    }
                    self.keep_names();
                    self.keep_inventories();
                    let room = ASKED_MAX.saturating_sub(asking.len());
                    for suspect in self.nodes.lock().suspects(room, self.clock.now()) {
                        asking.spawn(task::boxed(ask_port(suspect)));
                    }
                }
                Some(Ok((node, answer))) = asking.join_next() => self.judge(&node, answer).await,
            }
        }
    }

    /// Writes the names of new nodes, and removes the names of nodes that did not return. If the write fails, a name is written when its
    /// node registers with the next server.
    fn keep_names(self: &Arc<Self>) {
        let (new, missing) = {
            let mut nodes = self.nodes.lock();
            (nodes.take_new(), nodes.give_up_expected(self.clock.now()))
        };
        if new.is_empty() && missing.is_empty() {
            return;
        }
        if !missing.is_empty() {
            tracing::warn!(nodes = hostlist::fold(&missing), "nodes have not come back since the server was started");
            self.queue_due.notify_one();
        }
        let server = Arc::clone(self);
        task::spawn(async move {
            // The error is already in the log.
            let _ = server.write(vec![Change::Registered(new), Change::Missing(missing)]).await;
        });
    }

    /// Writes the inventories that nodes have reported. If the write fails, the nodes report to the next server.
    pub(crate) fn keep_inventories(self: &Arc<Self>) {
        if let Some(changes) = self.inventories.lock().take_changes(super::today()) {
            let server = Arc::clone(self);
            task::spawn(async move {
                // The error is already in the log.
                let _ = server.write(vec![Change::Inventories(changes)]).await;
            });
        }
    }

    /// Applies a list of revoked certificates. Nodes with such a certificate are lost; launches and allocations that were created with one
    /// end.
    async fn shut_out(&self, list: &RevocationList) {
        let nodes = self.nodes.lock().lose_revoked(|certificate| list.revokes(certificate));
        for node in nodes {
            self.lose_node(&node, "its certificate was revoked").await;
        }
        for launch in self.handles() {
            end_if_revoked(&launch, list).await;
        }
        self.release_revoked(list).await;
    }

    /// Applies the result of a probe of a node's port.
    async fn judge(&self, node: &str, answer: PortAnswer) {
        let judgement = self.nodes.lock().judge(node, answer, self.config.lease, self.clock.now());
        match judgement {
            None => {}
            Some(Judgement::Away) => {
                self.channels.forget(node);
                tracing::warn!(node, "the agent of a node is away; its launches go on");
                self.tell(node, |node| Request::NodeAway { node }).await;
            }
            Some(Judgement::Lost { reason }) => self.lose_node(node, reason).await,
        }
    }

    /// Processes the loss of a node and of everything that runs on it.
    async fn lose_node(&self, node: &str, reason: &str) {
        tracing::warn!(node, "a node is lost: {reason}");
        self.channels.forget(node);
        let freed = self.unclean.lock().forget(node);
        let lost = |node| Request::NodeLost { node, reason: reason.to_owned() };
        self.tell(node, lost).await;
        if freed {
            self.settle_allocations().await;
        }
    }

    /// Returns the number of launches on each node that has any.
    pub(crate) fn launches_by_node(&self) -> HashMap<String, u32> {
        let mut counts = HashMap::new();
        for node in self.handles().iter().flat_map(LaunchHandle::runs_on_nodes) {
            *counts.entry(node).or_default() += 1;
        }
        counts
    }
}

/// Probes the port of an agent.
async fn ask_port(suspect: Suspect) -> (String, PortAnswer) {
    let Suspect { node, address } = suspect;
    let connected = timeout(timeouts::PORT_ANSWER, TcpStream::connect(&address)).await;
    let answer = match connected {
        Ok(Ok(_)) => PortAnswer::Accepted,
        Ok(Err(error)) if error.kind() == io::ErrorKind::ConnectionRefused => PortAnswer::Refused,
        Ok(Err(_)) | Err(_) => PortAnswer::Nothing,
    };
    (node, answer)
}

/// Refuses a loopback address from an agent on another machine: a client that connects there reaches its own machine.
pub(crate) fn refuse_loopback(address: &str, from: Option<IpAddr>) -> Result<(), RegisterError> {
    // An invalid address is refused later.
    let (Some(from), Ok(address)) = (from.map(|from| from.to_canonical()), address.parse()) else { return Ok(()) };
    let here = |host: &str| host == "localhost" || host.parse().is_ok_and(|ip: IpAddr| ip.is_loopback());
    let is_loopback = matches!(&address, Address::Tcp { host, .. } if here(host));
    if !is_loopback || from.is_loopback() || lattice_daemon::network_addresses().contains(&from) {
        return Ok(());
    }
    Err(RegisterError::Loopback { address, from })
}

/// The most characters of a list of known nodes in a message.
const KNOWN_MAX: usize = 400;

/// Refuses nodes that are neither registered nor drained. The error names the known nodes.
fn refuse_unknown(named: &[String], registry: &Registry) -> Result<(), UnknownNodes> {
    let known = registry.all_known();
    let unknown: Vec<String> = named.iter().filter(|node| !known.contains(node)).cloned().collect();
    if unknown.is_empty() {
        return Ok(());
    }
    let list = hostlist::fold(&Vec::from_iter(&known));
    let there = match known.len() {
        0 => "there are none yet".to_owned(),
        1 => format!("there is {list}"),
        count if list.len() > KNOWN_MAX => format!("there are {count}"),
        _ => format!("there are {list}"),
    };
    Err(UnknownNodes { nodes: unknown, there })
}

/// The nodes of a list, each with a valid name.
fn named(list: &str) -> Result<Vec<String>, NodeListError> {
    let nodes = hostlist::expand_at_most(list, NODES_MAX)?;
    match nodes.iter().find(|node| !is_node_name(node)) {
        Some(name) => Err(NodeListError::NodeName { name: name.clone() }),
        None if nodes.is_empty() => Err(NodeListError::Empty),
        None => Ok(nodes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nodes::tests::{drain, registry};

    #[test]
    fn a_list_of_nodes_that_makes_no_sense_is_refused() {
        let check = |list: &str, expected: &str| assert_eq!(named(list).unwrap_err().to_string(), expected);
        check("", "no node is named");
        check("a/0", "\"a/0\" cannot be a node's name");
        let many = "the list of nodes cannot be read: the list \"x[0-1048575]\" stands for more than 131072 names";
        check("x[0-1048575]", many);
        assert_eq!(named("a[0-1],b").unwrap(), ["a0", "a1", "b"]);
    }

    #[tokio::test]
    async fn nodes_that_nobody_knows_are_named_with_those_that_there_are() {
        let check = |known: &[&str], asked: &str, expected: &str| {
            let error = refuse_unknown(&named(asked).unwrap(), &registry(known)).unwrap_err();
            let told = error.to_string();
            assert_eq!(told.split_once("\ntry: lattice nodes,").unwrap().0, expected);
        };
        check(&[], "b0", "b0: there is no such node, registered or drained; there are none yet");
        check(&["a0"], "b[0-1]", "b[0-1]: there are no such nodes, registered or drained; there is a0");
        check(&["a0", "a1"], "a0,b0", "b0: there is no such node, registered or drained; there are a[0-1]");
        let many: Vec<String> = (0..100_u32).map(|number| format!("n{}x", number * number)).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        let expected = "b0: there is no such node, registered or drained; there are 100";
        check(&many, "b0", expected);
    }

    #[test]
    fn an_agent_of_another_machine_does_not_register_a_loopback_address() {
        let check =
            |address: &str, from: &str| refuse_loopback(address, from.parse().ok()).map_err(|error| error.to_string());
        for (address, from) in
            [("127.0.0.1:1", ""), ("127.0.0.1:1", "127.0.0.3"), ("203.0.113.7:1", "203.0.113.9"), ("x", "203.0.113.9")]
        {
            assert_eq!(check(address, from), Ok(()), "{address} {from}");
        }
        for (address, from) in
            [("127.0.0.1:1", "203.0.113.9"), ("localhost:1", "::ffff:203.0.113.9"), ("[::1]:1", "203.0.113.9")]
        {
            let refused = check(address, from).unwrap_err();
            assert!(
                refused.contains("the agent registers from 203.0.113.9; have it listen at an address"),
                "{refused}"
            );
        }
        let own = lattice_daemon::network_addresses().first().map(ToString::to_string).unwrap_or_default();
        assert_eq!(check("127.0.0.1:1", &own), Ok(()));
    }

    #[tokio::test]
    async fn a_node_that_is_only_drained_is_known() {
        let mut registry = registry(&[]);
        registry.drain(drain("a0", "new memory"));
        assert_eq!(refuse_unknown(&["a0".to_owned()], &registry), Ok(()));
    }
}
