//! Turns a request into an allocation: checks the caller, and selects the id and nodes that are ready and free.

use std::collections::HashSet;
use std::num::NonZeroU64;

use bytes::Bytes;
use lattice_daemon::MIN_UID;
use lattice_session::count::{count_is, counted};
use pmi_transport::identity::{Caller, is_node_name};
use serde::Deserialize;

use super::allocation::{Allocation, AllocationState, RequeuePolicy};
use super::batch::BatchRequest;
use super::queue::{Decision, NodeChoice, Wish};
use super::{Allocations, NodesNow};
use crate::nodes::Unready;

/// The most allocations that have not ended.
const LIVE_MAX: usize = 1 << 16;
/// The longest name of a batch job, in bytes.
const BATCH_NAME_MAX: usize = 256;
/// The most bytes of a batch job's launch request: its script and its environment.
const BATCH_MAX: u64 = 1 << 20;
/// The most bytes of all batch jobs of one user that have not been released.
const BATCH_PER_USER: u64 = 64 << 20;
/// The most bytes of the node lists in the allocations of one user. Each user can name all nodes of the largest cluster once.
const NAMED_PER_USER: usize = 16 << 20;
/// The longest id that an administrator may choose.
const ID_MAX: usize = 64;

/// Settings of every allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AllocationSettings {
    pub creators: Creators,
    /// The most allocations of one user that have not been released; administrators may create more.
    pub per_user: usize,
    /// Users below this number get no allocation. Root is an exception: the agents decide about root.
    pub min_uid: u32,
}

impl Default for AllocationSettings {
    fn default() -> Self {
        Self { creators: Creators::default(), per_user: 1000, min_uid: MIN_UID }
    }
}

/// Users that may create allocations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Creators {
    /// Every user, for the same user.
    #[default]
    Users,
    /// Administrators, for any user.
    Admins,
}

/// A request for a new allocation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AllocationRequest {
    pub nodes: NodeChoice,
    pub requeue: RequeuePolicy,
    /// The user of the allocation; `None` for the caller.
    pub uid: Option<u32>,
    /// The requested id; `None` for a new one.
    pub id: Option<String>,
    pub when_busy: WhenBusy,
    /// Seconds for which it may run; `None` for no limit.
    pub time_limit: Option<NonZeroU64>,
    /// The batch job of the allocation.
    pub batch: Option<BatchRequest>,
    /// Certificate of the caller, in DER; empty if none was required.
    pub certificate: Bytes,
}

/// Treatment of a request that cannot have its nodes now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WhenBusy {
    /// The request is refused.
    Refuse,
    /// The request waits in the queue.
    Queue,
}

/// Reason why a request for an allocation is refused.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum PlanError {
    #[error("{name:?} cannot be a node's name")]
    NodeName { name: String },
    #[error("node {node} is listed twice")]
    Twice { node: String },
    #[error(
        "{} asked for, and {} up and free{}",
        nodes_were(*asked),
        count_is(*free),
        but_drained(*drained)
    )]
    TooFew { asked: u32, free: usize, drained: usize },
    #[error("node {node} {why}")]
    Unready { node: String, why: Unready },
    #[error("node {node} belongs to allocation {owner}")]
    Taken { node: String, owner: String },
    #[error(
        "the nodes are kept for allocation {head}, which has waited longer; wait in the queue as well, or give a time limit that ends \
         before they are needed"
    )]
    Kept { head: String },
    #[error("{} asked for, and this cluster has {there}", nodes_were(*asked))]
    TooMany { asked: u32, there: usize },
    #[error("the name of a batch job has up to {BATCH_NAME_MAX} bytes")]
    BatchName,
    #[error("the script of a batch job takes {bytes} bytes with its environment; {BATCH_MAX} are possible")]
    BatchSize { bytes: u64 },
    #[error(
        "the batch jobs of user {uid} would take {bytes} bytes; {BATCH_PER_USER} are possible; wait until some have ended"
    )]
    BatchesOfUser { uid: u32, bytes: u64 },
    #[error(
        "the allocations of user {uid} would name nodes in {bytes} bytes; {NAMED_PER_USER} are possible; ask for a number of nodes, or \
         wait until some have ended"
    )]
    NamedByUser { uid: u32, bytes: usize },
    #[error("something of a launch that is over may be left on node {node}")]
    Unclean { node: String },
    #[error(
        "node {node} could not be reached for a launch just now, or was busy; leave it out, or try again in half a minute"
    )]
    Avoided { node: String },
    #[error(
        "no allocation is made, and no job queued, from within another one by the socket of its node; do that where you log in, or by a certificate in the home"
    )]
    Inside,
    #[error("only administrators may {what}")]
    AdminsOnly { what: &'static str },
    #[error("name the user of the allocation; an administrator's certificate names none")]
    ForWhom,
    #[error("user {uid} is below {min_uid}, the lowest user number with allocations here (min_uid)")]
    SystemUser { uid: u32, min_uid: u32 },
    #[error("allocation {id} exists already")]
    Exists { id: String },
    #[error("{id:?} cannot be an allocation's id: up to {ID_MAX} letters, digits, '-', '_' and '.' can")]
    Id { id: String },
    #[error("there are {LIVE_MAX} allocations already; release some")]
    Full,
    #[error("user {uid} has {} already, as many as one may have here; release some", counted(*most, "allocation"))]
    FullForUser { uid: u32, most: usize },
}

/// Numbers of unused nodes.
#[derive(Clone, Copy, Debug)]
pub(super) struct FreeNodes {
    free: usize,
    drained: usize,
}

/// A number of nodes, and the verb for it.
fn nodes_were(number: u32) -> String {
    format!("{} {}", counted(number, "node"), if number == 1 { "was" } else { "were" })
}

/// Text about the drained nodes that are missing in a count, if there are any.
fn but_drained(drained: usize) -> String {
    if drained == 0 { String::new() } else { format!("; {} drained", count_is(drained)) }
}

impl Allocations {
    /// The allocation for `request`: running, or in the queue if it may wait there. Its id is `new_id` if the request names none. The
    /// allocation is not stored yet.
    ///
    /// # Errors
    /// See the variants of [`PlanError`].
    pub(crate) fn plan(
        &self,
        request: &AllocationRequest,
        caller: &Caller,
        settings: &AllocationSettings,
        now: &NodesNow<'_>,
        new_id: String,
    ) -> Result<Allocation, PlanError> {
        let (uid, is_admin) = user(request, caller, settings)?;
        let id = self.free_id(request.id.clone().unwrap_or(new_id))?;
        if !is_admin && self.all.values().filter(|other| other.uid == uid).count() >= settings.per_user {
            return Err(PlanError::FullForUser { uid, most: settings.per_user });
        }
        request.batch.as_ref().map(|batch| self.check_batch(batch, uid)).transpose()?;
        if !is_admin {
            self.check_named(&request.nodes, uid)?;
        }
        check_names(&request.nodes)?;
        let queued = Allocation {
            id,
            state: AllocationState::Pending { reason: "has just been queued".to_owned() },
            uid,
            nodes: Vec::new(),
            requeue: request.requeue,
            created_at: now.time,
            requeues: 0,
            wanted: request.nodes.clone(),
            time_limit: request.time_limit,
            began_at: None,
            turn: self.next_turn(),
            batch: request.batch.as_ref().map(BatchRequest::job),
            certificate: request.certificate.clone(),
        };
        match request.when_busy {
            WhenBusy::Queue => possible(&request.nodes, now).map(|()| queued),
            WhenBusy::Refuse => self.nodes_at_once(&queued, now).map(|nodes| queued.begun_on(nodes, now.time)),
        }
    }

    /// Refuses node lists beyond the limit of one user.
    fn check_named(&self, wanted: &NodeChoice, uid: u32) -> Result<(), PlanError> {
        let others = self.all.values().filter(|other| other.uid == uid).map(|other| other.wanted.bytes());
        let bytes = others.sum::<usize>() + wanted.bytes();
        if bytes > NAMED_PER_USER { Err(PlanError::NamedByUser { uid, bytes }) } else { Ok(()) }
    }

    fn check_batch(&self, batch: &BatchRequest, uid: u32) -> Result<(), PlanError> {
        if batch.name.len() > BATCH_NAME_MAX {
            return Err(PlanError::BatchName);
        }
        if batch.bytes > BATCH_MAX {
            return Err(PlanError::BatchSize { bytes: batch.bytes });
        }
        let others = self.all.values().filter(|other| other.uid == uid).filter_map(|other| other.batch.as_ref());
        let bytes = others.map(|batch| batch.bytes).sum::<u64>() + batch.bytes;
        if bytes > BATCH_PER_USER { Err(PlanError::BatchesOfUser { uid, bytes }) } else { Ok(()) }
    }

    /// Nodes for an allocation that does not wait, if they are free and no queued allocation is delayed.
    fn nodes_at_once(&self, asked: &Allocation, now: &NodesNow<'_>) -> Result<Vec<String>, PlanError> {
        self.available(&asked.wanted, self.count_free(now), now)?;
        let mut table = self.timetable(now);
        let decisions = self.decisions(&mut table, now);
        let Decision::Begins(nodes) = table.decide(Wish::of(asked)) else {
            // The nodes are free, but belong to the head of the queue, or to an allocation that takes them now.
            let heads = |decision: &Decision| *decision == Decision::Heads;
            let begins = |decision: &Decision| matches!(decision, Decision::Begins(_));
            let found = |is: fn(&Decision) -> bool| decisions.iter().rev().find(|(_, decision)| is(decision));
            let head = found(heads).or_else(|| found(begins)).map(|(before, _)| before.id.clone());
            return Err(PlanError::Kept { head: head.unwrap_or_default() });
        };
        Ok(nodes)
    }

    /// Fails if nodes are not up and free.
    pub(super) fn available(
        &self,
        wanted: &NodeChoice,
        counts: FreeNodes,
        now: &NodesNow<'_>,
    ) -> Result<(), PlanError> {
        match wanted {
            NodeChoice::Any(number) if counts.free >= number.get() as usize => Ok(()),
            NodeChoice::Any(number) => {
                Err(PlanError::TooFew { asked: number.get(), free: counts.free, drained: counts.drained })
            }
            NodeChoice::These(nodes) => nodes.iter().try_for_each(|node| self.is_available(node, now)),
        }
    }

    fn free_id(&self, id: String) -> Result<String, PlanError> {
        if self.all.contains_key(&id) {
            return Err(PlanError::Exists { id });
        }
        if id.len() > ID_MAX || !is_node_name(&id) {
            return Err(PlanError::Id { id: id.chars().take(ID_MAX).collect() });
        }
        if self.all.len() >= LIVE_MAX {
            return Err(PlanError::Full);
        }
        Ok(id)
    }

    /// Counts the unused nodes.
    pub(super) fn count_free(&self, now: &NodesNow<'_>) -> FreeNodes {
        let is_free = |node: &&String| self.is_free(node, now).is_ok();
        FreeNodes {
            free: now.registry.all_ready().filter(is_free).count(),
            drained: now.registry.all_drained().filter(is_free).count(),
        }
    }

    fn is_available(&self, node: &str, now: &NodesNow<'_>) -> Result<(), PlanError> {
        now.registry.ready(node).map_err(|why| PlanError::Unready { node: node.to_owned(), why })?;
        self.is_free(node, now)
    }

    /// Fails if a node cannot be used, regardless of its agent.
    fn is_free(&self, node: &str, now: &NodesNow<'_>) -> Result<(), PlanError> {
        match self.owners.get(node) {
            Some(owner) => Err(PlanError::Taken { node: node.to_owned(), owner: owner.clone() }),
            None if now.unclean.has_any(node) => Err(PlanError::Unclean { node: node.to_owned() }),
            None if self.postponed.avoided_until(node, now.time).is_some() => {
                Err(PlanError::Avoided { node: node.to_owned() })
            }
            None => Ok(()),
        }
    }
}

/// Refuses names that cannot be nodes, and nodes that are named twice.
fn check_names(wanted: &NodeChoice) -> Result<(), PlanError> {
    let NodeChoice::These(nodes) = wanted else { return Ok(()) };
    let mut seen = HashSet::new();
    for node in nodes {
        if !is_node_name(node) {
            return Err(PlanError::NodeName { name: node.clone() });
        }
        if !seen.insert(node) {
            return Err(PlanError::Twice { node: node.clone() });
        }
    }
    Ok(())
}

/// Refuses a request that would fail even if all nodes were up and free.
fn possible(wanted: &NodeChoice, now: &NodesNow<'_>) -> Result<(), PlanError> {
    match wanted {
        NodeChoice::Any(number) => {
            let (asked, there) = (number.get(), now.registry.count_known());
            if there < asked as usize { Err(PlanError::TooMany { asked, there }) } else { Ok(()) }
        }
        NodeChoice::These(nodes) => {
            match nodes.iter().find(|node| !now.registry.is_known(node) && !now.registry.is_expected(node)) {
                Some(node) => Err(PlanError::Unready { node: node.clone(), why: Unready::Unknown }),
                None => Ok(()),
            }
        }
    }
}

/// The user of an allocation, and whether an administrator requests it.
fn user(request: &AllocationRequest, caller: &Caller, settings: &AllocationSettings) -> Result<(u32, bool), PlanError> {
    let (uid, is_admin) = match caller {
        Caller::Admin(own) => (request.uid.or(*own).ok_or(PlanError::ForWhom)?, true),
        Caller::User(own) if request.uid.is_none_or(|uid| uid == *own) => (*own, false),
        Caller::UserIn { .. } => return Err(PlanError::Inside),
        _ => return Err(PlanError::AdminsOnly { what: "create allocations for others" }),
    };
    if settings.creators == Creators::Admins && !is_admin {
        return Err(PlanError::AdminsOnly { what: "create allocations" });
    }
    if request.id.is_some() && !is_admin {
        return Err(PlanError::AdminsOnly { what: "choose an allocation's id" });
    }
    // An administrator can be the user that runs the server, even a system user.
    if uid != 0 && uid < settings.min_uid && *caller != Caller::Admin(Some(uid)) {
        return Err(PlanError::SystemUser { uid, min_uid: settings.min_uid });
    }
    Ok((uid, is_admin))
}
