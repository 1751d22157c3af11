//! A request for an allocation becomes one: who may ask, which id it gets, and nodes that are ready and free.

use std::collections::HashSet;
use std::num::NonZeroU32;

use lattice_daemon::MIN_UID;
use lattice_session::count::{count_is, counted};
use lattice_session::unix_time;
use pmi_transport::identity::{Caller, is_node_name};
use serde::Deserialize;

use super::Allocations;
use super::allocation::{Allocation, AllocationState, RequeuePolicy};
use crate::nodes::{Registry, Unready};

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
    /// Users below this number get none, root apart, of whom agents judge.
    pub min_uid: u32,
}

impl Default for AllocationSettings {
    fn default() -> Self {
        Self { creators: Creators::default(), per_user: 1000, min_uid: MIN_UID }
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

/// A request for a new allocation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AllocationRequest {
    pub nodes: NodeChoice,
    pub requeue: RequeuePolicy,
    /// The user that it is for; `None` for the caller.
    pub uid: Option<u32>,
    /// The id that it is to get; `None` for a new one.
    pub id: Option<String>,
}

/// Choice of the nodes of an allocation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum NodeChoice {
    /// Exactly these, in this order.
    These(Vec<String>),
    /// So many of those that are ready and free.
    Any(NonZeroU32),
}

/// An allocation that cannot be had.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum PlanError {
    #[error("{name:?} cannot be a node's name")]
    NodeName { name: String },
    #[error("node {node} is listed twice")]
    Twice { node: String },
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
    #[error("user {uid} is below {min_uid}, the first user who gets allocations here (min_uid)")]
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

/// The nodes that are missed in a count, if there are any.
fn but_drained(drained: usize) -> String {
    if drained == 0 { String::new() } else { format!("; {} drained", count_is(drained)) }
}

impl Allocations {
    /// The allocation that `request` asks for, with `new_id` if it names no id. It is not among the others yet.
    ///
    /// # Errors
    /// See the variants of [`PlanError`].
    pub(crate) fn plan(
        &self,
        request: &AllocationRequest,
        caller: &Caller,
        settings: &AllocationSettings,
        registry: &Registry,
        new_id: String,
    ) -> Result<Allocation, PlanError> {
        let (uid, is_admin) = user(request, caller, settings)?;
        let id = self.free_id(request.id.clone().unwrap_or(new_id))?;
        if !is_admin && self.all.values().filter(|other| other.uid == uid).count() >= settings.per_user {
            return Err(PlanError::FullForUser { uid, most: settings.per_user });
        }
        let nodes = match &request.nodes {
            NodeChoice::Any(number) => self.free_nodes(*number, registry)?,
            NodeChoice::These(nodes) => self.check_nodes(nodes, registry).map(|()| nodes.clone())?,
        };
        Ok(Allocation {
            id,
            state: AllocationState::Running,
            uid,
            nodes,
            requeue: request.requeue,
            created_at: unix_time::seconds(),
            requeues: 0,
        })
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

    fn free_nodes(&self, number: NonZeroU32, registry: &Registry) -> Result<Vec<String>, PlanError> {
        let (asked, is_free) = (number.get(), |node: &&String| !self.owners.contains_key(*node));
        let free: Vec<String> = registry.all_ready().filter(is_free).take(asked as usize).cloned().collect();
        if free.len() < asked as usize {
            let drained = registry.all_drained().filter(is_free).count();
            return Err(PlanError::TooFew { asked, free: free.len(), drained });
        }
        Ok(free)
    }

    fn check_nodes(&self, nodes: &[String], registry: &Registry) -> Result<(), PlanError> {
        let mut seen = HashSet::new();
        for node in nodes {
            if !is_node_name(node) {
                return Err(PlanError::NodeName { name: node.clone() });
            }
            if !seen.insert(node) {
                return Err(PlanError::Twice { node: node.clone() });
            }
            registry.ready(node).map_err(|why| PlanError::Unready { node: node.clone(), why })?;
            if let Some(owner) = self.owners.get(node) {
                return Err(PlanError::Taken { node: node.clone(), owner: owner.clone() });
            }
        }
        Ok(())
    }
}

/// The user of an allocation, and whether an administrator asks for it.
fn user(request: &AllocationRequest, caller: &Caller, settings: &AllocationSettings) -> Result<(u32, bool), PlanError> {
    let (uid, is_admin) = match caller {
        Caller::Admin(own) => (request.uid.or(*own).ok_or(PlanError::ForWhom)?, true),
        Caller::User(own) if request.uid.is_none_or(|uid| uid == *own) => (*own, false),
        _ => return Err(PlanError::AdminsOnly { what: "create allocations for others" }),
    };
    if settings.creators == Creators::Admins && !is_admin {
        return Err(PlanError::AdminsOnly { what: "create allocations" });
    }
    if request.id.is_some() && !is_admin {
        return Err(PlanError::AdminsOnly { what: "choose an allocation's id" });
    }
    // An administrator may be the server's own user, whoever runs it.
    if uid != 0 && uid < settings.min_uid && *caller != Caller::Admin(Some(uid)) {
        return Err(PlanError::SystemUser { uid, min_uid: settings.min_uid });
    }
    Ok((uid, is_admin))
}
