//! Allocations: whose they are, which nodes they have, and what happens to them when launches fail. Pure; the server makes
//! every change durable before it takes effect.
//!
//! ```text
//!  its nodes are ready          release             its launches have ended
//! ────────────────────> Running ──────────────> Releasing ────────────────────> Released
//!                       │ ^   └──node lost, without a policy for it──> Failed
//!     requeue: as the   v │
//!          policy     Pending   until its nodes are ready again
//! ```
//! A node is ready when it is up and not drained. It belongs to one allocation at a time, until that is released.

use std::collections::{BTreeMap, HashSet};

use hostlist::HostlistError;
use lattice_session::count::{count_is, counted};
use lattice_session::unix_time;
use pmi_transport::identity::{Caller, is_node_name};
use pmi_transport::proto::v1::{Allocation, AllocationState, CreateAllocationRequest, RequeuePolicy};
use serde::Deserialize;
use tonic::{Code, Status};

use super::nodes::{NODES_MAX, Registry, Unready};
use crate::allocation_state;

/// The most allocations that have not ended.
const LIVE_MAX: usize = 1 << 16;
/// The longest id that an administrator may choose.
const ID_MAX: usize = 64;

/// Settings of every allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AllocationSettings {
    pub creators: Creators,
    /// The most allocations of one user that have not been released; administrators may create more.
    pub per_user: usize,
}

impl Default for AllocationSettings {
    fn default() -> Self {
        Self { creators: Creators::default(), per_user: 1000 }
    }
}

/// Users who may create allocations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Creators {
    /// Every user, for itself.
    #[default]
    Users,
    /// Administrators, for anybody.
    Admins,
}

/// All allocations.
#[derive(Debug, Default)]
pub(crate) struct Allocations {
    all: BTreeMap<String, Allocation>,
    /// By node, the allocation that it belongs to.
    owners: BTreeMap<String, String>,
}

/// An allocation that cannot be had, or cannot be used as was asked.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AllocationError {
    #[error("there is no allocation {id}, or it was released")]
    Unknown { id: String },
    #[error("allocation {id} belongs to another user")]
    NotYours { id: String },
    #[error("allocation {id} is {state}, not running{reason}")]
    NotRunning { id: String, state: &'static str, reason: String },
    #[error("the list of nodes cannot be read")]
    Hostlist(#[from] HostlistError),
    #[error("{name:?} cannot be a node's name")]
    NodeName { name: String },
    #[error("node {node} is listed twice")]
    Twice { node: String },
    #[error("name the nodes, or how many there shall be: one of the two")]
    NodesOrNumber,
    #[error(
        "{} asked for, and {} up and free{}",
        if *asked == 1 { "1 node was".to_owned() } else { format!("{asked} nodes were") },
        count_is(*free),
        but_drained(*drained)
    )]
    TooFew { asked: u32, free: usize, drained: usize },
    #[error("node {node} {why}")]
    Unready { node: String, why: Unready },
    #[error("node {node} belongs to allocation {owner}")]
    Taken { node: String, owner: String },
    #[error("only administrators may {what}")]
    AdminsOnly { what: &'static str },
    #[error("say for which user the allocation is; an administrator's certificate names none")]
    ForWhom,
    #[error("allocation {id} exists already")]
    Exists { id: String },
    #[error("{id:?} cannot be an allocation's id: up to {ID_MAX} letters, digits, '-', '_' and '.' can")]
    Id { id: String },
    #[error("there are {LIVE_MAX} allocations already; release some")]
    Full,
    #[error("user {uid} has {} already, as many as one may have here; release some", counted(*most, "allocation"))]
    FullForUser { uid: u32, most: usize },
    #[error("requeue policy {number} is unknown; there are 0 (never), 1 (on node failure) and 2 (on any failure)")]
    Policy { number: i32 },
}

/// The nodes that are missed in a count, if there are any.
fn but_drained(drained: usize) -> String {
    if drained == 0 { String::new() } else { format!("; {} drained", count_is(drained)) }
}

impl From<AllocationError> for Status {
    fn from(error: AllocationError) -> Self {
        use AllocationError as E;
        let code = match &error {
            E::Unknown { .. } => Code::NotFound,
            E::NotYours { .. } | E::AdminsOnly { .. } => Code::PermissionDenied,
            E::NotRunning { .. } => Code::FailedPrecondition,
            // Those who wait try again after these.
            E::Taken { .. } | E::TooFew { .. } | E::Unready { .. } => Code::FailedPrecondition,
            E::Full | E::FullForUser { .. } => Code::ResourceExhausted,
            E::Exists { .. } => Code::AlreadyExists,
            E::Hostlist(_) | E::NodeName { .. } | E::Twice { .. } | E::NodesOrNumber | E::ForWhom => {
                Code::InvalidArgument
            }
            E::Id { .. } | E::Policy { .. } => Code::InvalidArgument,
        };
        Self::new(code, pmi_transport::error_chain::chain(&error))
    }
}

impl Allocations {
    /// Takes over what was kept.
    pub(crate) fn new(kept: Vec<Allocation>) -> Self {
        let mut allocations = Self::default();
        kept.into_iter().for_each(|allocation| allocations.put(allocation));
        allocations
    }

    /// Stores an allocation as it is now. Of those that have ended, only the store knows.
    pub(crate) fn put(&mut self, allocation: Allocation) {
        let id = allocation.id.clone();
        if allocation.state() == AllocationState::Released {
            if let Some(before) = self.all.remove(&id) {
                nodes(&before).iter().for_each(|node| drop(self.owners.remove(node)));
            }
            return;
        }
        if !self.all.contains_key(&id) {
            // It keeps its nodes for as long as it lives.
            self.owners.extend(nodes(&allocation).into_iter().map(|node| (node, id.clone())));
        }
        self.all.insert(id, allocation);
    }

    /// The allocation that a node belongs to.
    pub(crate) fn owner(&self, node: &str) -> Option<&Allocation> {
        self.owners.get(node).and_then(|id| self.all.get(id))
    }

    /// One that has not been released.
    pub(crate) fn find(&self, id: &str) -> Option<&Allocation> {
        self.all.get(id)
    }

    /// All that have not been released.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Allocation> {
        self.all.values()
    }

    /// One of the caller's own; administrators own all.
    pub(crate) fn of(&self, caller: &Caller, id: &str) -> Result<&Allocation, AllocationError> {
        let allocation = self.find(id).ok_or_else(|| AllocationError::Unknown { id: id.to_owned() })?;
        match may_use(caller, allocation.uid) {
            true => Ok(allocation),
            false => Err(AllocationError::NotYours { id: id.to_owned() }),
        }
    }

    /// One of the caller's own in which something may be launched.
    pub(crate) fn running(&self, caller: &Caller, id: &str) -> Result<&Allocation, AllocationError> {
        let allocation = self.of(caller, id)?;
        match allocation.state() {
            AllocationState::Running => Ok(allocation),
            state => {
                let reason = &allocation.reason;
                let reason = if reason.is_empty() { String::new() } else { format!(": {reason}") };
                Err(AllocationError::NotRunning { id: id.to_owned(), state: allocation_state::word(state), reason })
            }
        }
    }

    /// The allocation that `request` asks for, with a new id. It is not among the others yet.
    pub(crate) fn plan(
        &self,
        request: &CreateAllocationRequest,
        caller: &Caller,
        settings: &AllocationSettings,
        registry: &Registry,
        new_id: String,
    ) -> Result<Allocation, AllocationError> {
        let (uid, is_admin) = match caller {
            Caller::Admin(own) => (request.uid.or(*own).ok_or(AllocationError::ForWhom)?, true),
            Caller::User(own) if request.uid.is_none_or(|uid| uid == *own) => (*own, false),
            _ => return Err(AllocationError::AdminsOnly { what: "create allocations for others" }),
        };
        if settings.creators == Creators::Admins && !is_admin {
            return Err(AllocationError::AdminsOnly { what: "create allocations" });
        }
        if !request.id.is_empty() && !is_admin {
            return Err(AllocationError::AdminsOnly { what: "choose an allocation's id" });
        }
        RequeuePolicy::try_from(request.requeue).map_err(|_| AllocationError::Policy { number: request.requeue })?;
        let id = self.free_id(&request.id, new_id)?;
        if !is_admin && self.all.values().filter(|other| other.uid == uid).count() >= settings.per_user {
            return Err(AllocationError::FullForUser { uid, most: settings.per_user });
        }
        let nodes = self.choose(request, registry)?;
        let created_at = unix_time::seconds();
        Ok(Allocation {
            id,
            state: AllocationState::Running.into(),
            uid,
            nodes: hostlist::fold(&nodes),
            requeue: request.requeue,
            created_at,
            ..Allocation::default()
        })
    }

    fn free_id(&self, asked: &str, new: String) -> Result<String, AllocationError> {
        let id = if asked.is_empty() { new } else { asked.to_owned() };
        if self.all.contains_key(&id) {
            return Err(AllocationError::Exists { id });
        }
        if id.len() > ID_MAX || !is_node_name(&id) {
            return Err(AllocationError::Id { id: id.chars().take(ID_MAX).collect() });
        }
        if self.all.len() >= LIVE_MAX {
            return Err(AllocationError::Full);
        }
        Ok(id)
    }

    fn choose(&self, request: &CreateAllocationRequest, registry: &Registry) -> Result<Vec<String>, AllocationError> {
        if request.nodes.is_empty() == (request.num_nodes == 0) {
            return Err(AllocationError::NodesOrNumber);
        }
        if request.nodes.is_empty() {
            let (asked, is_free) = (request.num_nodes, |node: &&String| !self.owners.contains_key(*node));
            let free: Vec<String> = registry.all_ready().filter(is_free).take(asked as usize).cloned().collect();
            if free.len() < asked as usize {
                let drained = registry.all_drained().filter(is_free).count();
                return Err(AllocationError::TooFew { asked, free: free.len(), drained });
            }
            return Ok(free);
        }
        let nodes = hostlist::expand_at_most(&request.nodes, NODES_MAX)?;
        let mut seen = HashSet::new();
        for node in &nodes {
            if !is_node_name(node) {
                return Err(AllocationError::NodeName { name: node.clone() });
            }
            if !seen.insert(node) {
                return Err(AllocationError::Twice { node: node.clone() });
            }
            registry.ready(node).map_err(|why| AllocationError::Unready { node: node.clone(), why })?;
            if let Some(owner) = self.owners.get(node) {
                return Err(AllocationError::Taken { node: node.clone(), owner: owner.clone() });
            }
        }
        Ok(nodes)
    }
}

/// Returns true if a caller may use what belongs to `owner`.
pub(crate) fn may_use(caller: &Caller, owner: u32) -> bool {
    match caller {
        Caller::Admin(_) => true,
        Caller::User(uid) => *uid == owner,
        Caller::Agent(_) | Caller::Api => false,
    }
}

/// The nodes of an allocation.
pub(crate) fn nodes(allocation: &Allocation) -> Vec<String> {
    // It was folded by us.
    hostlist::expand(&allocation.nodes).unwrap_or_default()
}

/// The allocation once it runs, if it is pending and all its nodes are ready; or with another reason why it is not.
pub(crate) fn begun(allocation: &Allocation, registry: &Registry) -> Option<Allocation> {
    if allocation.state() != AllocationState::Pending {
        return None;
    }
    let absent: Vec<String> = nodes(allocation).into_iter().filter(|node| registry.ready(node).is_err()).collect();
    let (state, reason) = match absent.is_empty() {
        true => (AllocationState::Running, String::new()),
        false => (AllocationState::Pending, format!("waits for {}", hostlist::fold(&absent))),
    };
    let next = Allocation { state: state.into(), reason, ..allocation.clone() };
    (next != *allocation).then_some(next)
}

/// A launch that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LaunchFailure {
    /// Why, in words, with the launch's id.
    pub reason: String,
    pub kind: FailureKind,
}

/// Kind of a launch's failure, as far as requeue policies tell one from another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FailureKind {
    /// A node was lost.
    NodeLost,
    /// Anything else.
    Other,
}

/// The allocation after a launch in it failed; `None` if that changes nothing.
pub(crate) fn after_failure(allocation: &Allocation, failure: &LaunchFailure) -> Option<Allocation> {
    if allocation.state() != AllocationState::Running {
        return None;
    }
    let LaunchFailure { reason, kind } = failure;
    let requeued = Allocation {
        state: AllocationState::Pending.into(),
        requeues: allocation.requeues.saturating_add(1),
        reason: format!("queued again: {reason}"),
        ..allocation.clone()
    };
    match (allocation.requeue(), kind) {
        (RequeuePolicy::OnAnyFailure, _) | (RequeuePolicy::OnNodeFailure, FailureKind::NodeLost) => Some(requeued),
        (RequeuePolicy::Never, FailureKind::NodeLost) => {
            Some(Allocation { state: AllocationState::Failed.into(), reason: reason.clone(), ..allocation.clone() })
        }
        (RequeuePolicy::Never | RequeuePolicy::OnNodeFailure, FailureKind::Other) => None,
    }
}

/// The allocation in another state, for which there is nothing to say.
pub(crate) fn moved(allocation: &Allocation, state: AllocationState) -> Allocation {
    Allocation { state: state.into(), reason: String::new(), ..allocation.clone() }
}

#[cfg(test)]
mod tests {
    use pmi_transport::proto::v1::{Drain, RegisterNodeRequest};
    use tokio::time::Instant;

    use super::*;

    fn registry(nodes: &[&str]) -> Registry {
        let mut registry = Registry::default();
        for node in nodes {
            let grpc_address = "127.0.0.1:1".to_owned();
            let told = RegisterNodeRequest { node_id: (*node).to_owned(), grpc_address, ..Default::default() };
            registry.register(told, Instant::now()).unwrap();
        }
        registry
    }

    fn on(nodes: &str) -> CreateAllocationRequest {
        CreateAllocationRequest { nodes: nodes.to_owned(), ..Default::default() }
    }

    fn create(
        allocations: &mut Allocations,
        request: &CreateAllocationRequest,
        caller: &Caller,
        nodes: &[&str],
    ) -> Result<Allocation, String> {
        let id = (0..).map(|number| format!("id{number}")).find(|id| allocations.find(id).is_none()).unwrap();
        let settings = AllocationSettings { per_user: 3, ..AllocationSettings::default() };
        let planned = allocations.plan(request, caller, &settings, &registry(nodes), id);
        let planned = planned.map_err(|error| pmi_transport::error_chain::chain(&error))?;
        allocations.put(planned.clone());
        Ok(planned)
    }

    const USER: Caller = Caller::User(1000);

    fn failure(kind: FailureKind) -> LaunchFailure {
        LaunchFailure { reason: "because".to_owned(), kind }
    }

    #[tokio::test]
    async fn nodes_are_given_to_one_allocation_at_a_time() {
        let (mut all, up) = (Allocations::default(), ["a0", "a1", "a2"]);
        let two = CreateAllocationRequest { num_nodes: 2, ..Default::default() };
        assert_eq!(create(&mut all, &two, &USER, &up).unwrap().nodes, "a[0-1]");
        assert_eq!(create(&mut all, &two, &USER, &up).unwrap_err(), "2 nodes were asked for, and 1 is up and free");
        assert_eq!(create(&mut all, &on("a[1-2]"), &USER, &up).unwrap_err(), "node a1 belongs to allocation id0");
        assert_eq!(create(&mut all, &on("a2"), &USER, &up).unwrap().state(), AllocationState::Running);
        let released = moved(all.find("id0").unwrap(), AllocationState::Released);
        all.put(released);
        assert_eq!(create(&mut all, &on("a1"), &USER, &up).unwrap().id, "id0");
    }

    #[tokio::test]
    async fn an_allocation_that_was_queued_again_runs_when_its_nodes_are_ready() {
        let mut all = Allocations::default();
        let request = CreateAllocationRequest { requeue: RequeuePolicy::OnNodeFailure.into(), ..on("a[0-1]") };
        let running = create(&mut all, &request, &USER, &["a0", "a1"]).unwrap();
        let queued = after_failure(&running, &failure(FailureKind::NodeLost)).unwrap();
        let pending = begun(&queued, &registry(&["a0"])).unwrap();
        assert_eq!((pending.state(), pending.reason.as_str()), (AllocationState::Pending, "waits for a1"));
        all.put(pending.clone());
        let refusal = all.running(&USER, "id0").unwrap_err();
        assert_eq!(refusal.to_string(), "allocation id0 is pending, not running: waits for a1");
        assert_eq!(begun(&pending, &registry(&["a0"])), None);
        let mut both = registry(&["a0", "a1"]);
        both.drain(Drain { node: "a0".to_owned(), ..Drain::default() });
        assert_eq!(begun(&pending, &both).unwrap().reason, "waits for a0");
        both.resume("a0");
        assert_eq!(begun(&pending, &both).unwrap().state(), AllocationState::Running);
    }

    /// By name or by number, one rule: nodes that are up, free and not drained.
    #[tokio::test]
    async fn nodes_that_are_not_ready_are_refused_and_may_be_asked_for_again() {
        let all = Allocations::default();
        let mut up = registry(&["a0", "a1"]);
        up.drain(Drain { node: "a1".to_owned(), reason: "new memory".to_owned(), ..Drain::default() });
        let check = |request: CreateAllocationRequest, code: Code, expected: &str| {
            let settings = AllocationSettings::default();
            let status = Status::from(all.plan(&request, &USER, &settings, &up, "id".to_owned()).unwrap_err());
            assert_eq!((status.code(), status.message()), (code, expected));
        };
        let two = CreateAllocationRequest { num_nodes: 2, ..Default::default() };
        let later = Code::FailedPrecondition;
        check(two, later, "2 nodes were asked for, and 1 is up and free; 1 is drained");
        check(on("a[0,9]"), later, "node a9 has not registered");
        check(on("a[0-1]"), later, "node a1 is drained: new memory");
        let many = "the list of nodes cannot be read: the list \"x[0-1048575]\" stands for more than 65536 names";
        check(on("x[0-1048575]"), Code::InvalidArgument, many);
    }

    #[tokio::test]
    async fn one_user_cannot_take_all() {
        let (mut all, up) = (Allocations::default(), ["a0", "a1", "a2", "a3"]);
        let one = CreateAllocationRequest { num_nodes: 1, ..Default::default() };
        for _ in 0..3 {
            create(&mut all, &one, &USER, &up).unwrap();
        }
        let refusal = create(&mut all, &one, &USER, &up).unwrap_err();
        assert_eq!(refusal, "user 1000 has 3 allocations already, as many as one may have here; release some");
        assert!(create(&mut all, &one, &Caller::User(1001), &up).is_ok());
        all.put(moved(all.find("id0").unwrap(), AllocationState::Released));
        let again = create(&mut all, &one, &USER, &up).unwrap();
        assert_eq!(all.owner("a0"), Some(&again));
    }

    #[tokio::test]
    async fn what_belongs_to_others_is_theirs() {
        let mut all = Allocations::default();
        create(&mut all, &on("a0"), &USER, &["a0"]).unwrap();
        let other = all.running(&Caller::User(1001), "id0").map(drop);
        assert_eq!(Status::from(other.unwrap_err()).code(), Code::PermissionDenied);
        assert!(all.running(&Caller::Admin(None), "id0").is_ok());
        let chosen = CreateAllocationRequest { id: "mine".into(), ..on("b0") };
        assert!(create(&mut all, &chosen, &USER, &["b0"]).unwrap_err().contains("only administrators"));
        let for_another = CreateAllocationRequest { uid: Some(7), ..chosen };
        assert!(create(&mut all, &for_another, &USER, &["b0"]).unwrap_err().contains("for others"));
        let created = create(&mut all, &for_another, &Caller::Admin(None), &["b0"]).unwrap();
        assert_eq!((created.id.as_str(), created.uid), ("mine", 7));
    }

    #[test]
    fn failures_are_answered_as_the_policy_says() {
        let check = |requeue: RequeuePolicy, kind, expected: Option<AllocationState>| {
            let state = AllocationState::Running.into();
            let allocation = Allocation { state, requeue: requeue.into(), ..Default::default() };
            let next = after_failure(&allocation, &failure(kind));
            assert_eq!(next.as_ref().map(Allocation::state), expected, "{requeue:?} {kind:?}");
            assert_eq!(next.map_or(0, |next| next.requeues), u32::from(expected == Some(AllocationState::Pending)));
        };
        check(RequeuePolicy::Never, FailureKind::Other, None);
        check(RequeuePolicy::Never, FailureKind::NodeLost, Some(AllocationState::Failed));
        check(RequeuePolicy::OnNodeFailure, FailureKind::Other, None);
        check(RequeuePolicy::OnNodeFailure, FailureKind::NodeLost, Some(AllocationState::Pending));
        check(RequeuePolicy::OnAnyFailure, FailureKind::Other, Some(AllocationState::Pending));
        check(RequeuePolicy::OnAnyFailure, FailureKind::NodeLost, Some(AllocationState::Pending));
    }
}
