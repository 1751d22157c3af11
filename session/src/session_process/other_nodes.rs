//! Connections of a session process to the sessions of other nodes: tasks that answer them, and tasks that send questions to them.
//!
//! ```text
//!            links                 ┌─ questions ──> the session (`control`)
//! sessions ═══════════> NodeLinks ─┼─ failures ───> Failures ──> the first cause of all (`chosen`)     <── from the agent's side
//!            (`arriving`)          ├─ questions to several nodes ──> Gatherer   <── from the API server (`gathering`)
//!                                  ├─ input ──────> InputRelay ──> ranks here   <── from the API server (`passing`)
//!                                  └─ calls ──────> the launch's set
//! ```

use std::sync::{Arc, OnceLock};

use lattice_overlay::directory::Contact;
use parking_lot::Mutex;
use pmi_transport::session_link::Handed;
use pmi_transport::task;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

use super::agent_calls::AgentCalls;
use super::failure_policy::{FailurePolicy, SentCause, Stage};
use super::failures::{self, Failures};
use super::frames::ToAgent;
use super::gatherer::Gatherer;
use super::input_relay::InputRelay;
use super::node_links::{Arrived, NodeLinks, NodeQuestion, Receivers};
use super::stdin::Input;
use super::{EVENTS, LinkTimes};
use crate::cause::Cause;
use crate::session_io::{Control, Nodes};
use crate::set::{ClusterSet, CommunicatorSource, MemberTerms, Sessions};
use crate::spec::SessionSpec;
use crate::wire::start::LinkTerms;

/// Parts of a session that receive messages from the sessions of other nodes.
pub(super) struct Here<'s> {
    pub(super) spec: &'s SessionSpec,
    /// The session; this weak sender does not keep it alive.
    pub(super) control: mpsc::WeakSender<Control>,
    pub(super) input: &'s Arc<Mutex<Input>>,
    pub(super) calls: &'s AgentCalls,
    /// Sender to the agent, for warnings.
    pub(super) urgent: &'s mpsc::Sender<ToAgent>,
}

/// Ends of the channels to and from the agent's side of the session.
pub(super) struct Ends {
    /// Receiver of the API server's questions to several nodes.
    pub(super) gathering: mpsc::Sender<NodeQuestion>,
    /// Receiver of the API server's input for several nodes.
    pub(super) passing: mpsc::Sender<Arrived>,
    /// The first cause, if the sessions have selected it.
    pub(super) chosen: mpsc::Receiver<Cause>,
    /// Receiver of the cause that was sent to the API server.
    pub(super) told: watch::Sender<SentCause>,
}

/// This session's connections to the sessions of other nodes.
pub(super) struct OtherNodes {
    /// `None` for a launch on one node, and for a launch with fences through the agents.
    links: Option<Arc<NodeLinks>>,
    /// The launch's set, once this session is a member.
    set: Arc<OnceLock<ClusterSet>>,
    relay: JoinHandle<()>,
    gatherer: Option<JoinHandle<()>>,
    /// Stage of the launch's failure.
    failure: watch::Receiver<Stage>,
}

impl OtherNodes {
    /// Starts the tasks of these connections. `arriving` receives links from the door.
    pub(super) fn serve(
        here: &Here<'_>,
        terms: Option<LinkTerms>,
        times: LinkTimes,
        arriving: mpsc::Receiver<Handed>,
    ) -> (Self, Ends) {
        let (passing, arrived) = mpsc::channel(EVENTS);
        let (gathering, gathered) = mpsc::channel(EVENTS);
        let (hearing, heard) = mpsc::channel(EVENTS);
        let (choice, chosen) = mpsc::channel(1);
        let (telling, told) = watch::channel(SentCause::default());
        let (stage, failure) = watch::channel(Stage::default());
        let Here { spec, control, input, urgent, .. } = here;
        let set = Arc::default();
        let receivers = Receivers {
            server: control.clone(),
            session: hearing,
            set: Arc::clone(&set),
            gathering: gathering.clone(),
            input: passing.clone(),
            nodes: spec.hosts.len(),
        };
        let links = terms.map(|terms| NodeLinks::new(spec, terms, times, receivers));
        let (own_links, input, urgent) = (links.clone(), Arc::clone(input), (*urgent).clone());
        let relay = task::spawn(InputRelay { me: spec.node, links: own_links, input, urgent }.run(arrived));
        let mut gatherer = None;
        if let Some(links) = &links {
            let gathers = Gatherer { links: Arc::clone(links), control: control.clone() };
            gatherer = Some(task::spawn(gathers.run(gathered)));
            task::spawn(Arc::clone(links).accept_all(arriving));
            let policy = FailurePolicy::new(links.me(), links.nodes());
            let (links, control) = (Arc::clone(links), control.clone());
            task::spawn(Failures { policy, links, told, heard, chosen: choice, control, stage }.run());
        }
        (Self { links, set, relay, gatherer, failure }, Ends { gathering, passing, chosen, told: telling })
    }

    /// Joins the launch's set, with `roots` as the connections from its other members; returns the address at which ranks reach this
    /// member.
    pub(super) fn enter_set(
        &self,
        here: &Here<'_>,
        terms: MemberTerms,
        communicators: CommunicatorSource,
        roots: mpsc::Receiver<Handed>,
    ) -> Option<Contact> {
        let calls = Arc::new(here.calls.clone());
        let sessions = self.links.clone().map(|links| links as Arc<dyn Sessions>);
        let own = || ClusterSet::new(here.spec, terms, Arc::clone(&calls) as _, sessions, calls, communicators);
        // This is the first call.
        let set = self.set.get_or_init(own);
        task::spawn(set.clone().admit_all(roots));
        let contact = set.listen();
        contact.inspect_err(|error| tracing::warn!("ranks here cannot take part in calls: {error}")).ok()
    }

    /// Path of fences and gets to other nodes: links if there are any, otherwise the agent.
    pub(super) fn nodes(&self, calls: &AgentCalls) -> Arc<dyn Nodes> {
        match &self.links {
            Some(links) => Arc::clone(links) as _,
            None => Arc::new(calls.clone()),
        }
    }

    /// Leaves the launch after the session has ended for this cause. Before that, the sessions agree on the first cause.
    pub(super) async fn leave(mut self, cause: Option<&Cause>) {
        let Some(links) = self.links else { return };
        failures::until_settled(cause, &mut self.failure).await;
        // Callers that wait for an answer receive an error.
        self.gatherer.inspect(JoinHandle::abort);
        self.relay.abort();
        links.close().await;
    }
}
