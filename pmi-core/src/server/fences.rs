//! Fences of the whole job, of groups, and rings: arrival of ranks, exchange with other nodes, and release of the ranks.

use std::collections::HashSet;
use std::sync::Arc;

use super::action::Action;
use super::node::{JobNode, Origin, Waiter};
use super::ring::Ring;
use crate::fence::{FenceError, FenceId, Merged, Scope};
use crate::gathering::{Gathering, Groups};
use crate::ids::{Epoch, LocalRank, Rank};
use crate::kvs::Kvs;
use crate::report::EndReason;
use crate::roster::Roster;
use crate::segment::Segment;
use crate::wire::request::{Group, RingValue};
use crate::wire::{ErrorCode, Response};

/// Names of fences in the data of a restart; names of groups follow `GROUP`.
const WORLD: &[u8] = b"world";
const RING: &[u8] = b"ring";
const GROUP: u8 = b'g';

/// Result of the arrival of a rank in a fence: true if the fence has begun, or a refusal.
type Arrival = Result<bool, Response<'static>>;

/// The fences of this node's ranks.
///
/// Methods that may begin a fence return true if it has begun. Otherwise ranks wait for other ranks of this node, which may have left.
pub(super) struct Fences {
    pub(super) world: Gathering<LocalRank, Waiter>,
    pub(super) groups: Groups<LocalRank, Waiter>,
    pub(super) ring: Ring,
    /// True if the host requests the results of fences.
    pub(super) reports_merged: bool,
}

impl Fences {
    pub(super) fn new(ranks: &Roster) -> Self {
        Self {
            world: Gathering::new(ranks.locals()),
            groups: Groups::default(),
            ring: Ring::new(ranks),
            reports_merged: false,
        }
    }

    /// Returns true while a fence is in exchange with other nodes.
    pub(super) fn are_exchanging(&self) -> bool {
        [&self.world, &self.ring.gathering].into_iter().chain(self.groups.iter()).any(Gathering::is_exchanging)
    }

    /// Adds a rank to the fence of the whole job.
    pub(super) fn arrive(&mut self, node: &mut JobNode, kvs: &mut Kvs, origin: Origin<'_>) -> Arrival {
        let tag = node.conversations[origin.connection].has_tags().then_some(0);
        if !self.world.arrive(origin.local, origin.waiter(tag)) {
            return Err(too_many());
        }
        Ok(self.begin_world(node, kvs))
    }

    /// Begins the exchange of the next fence of all ranks, if no needed rank is missing.
    pub(super) fn begin_world(&mut self, node: &mut JobNode, kvs: &mut Kvs) -> bool {
        let epoch = self.world.begin(|local| node.is_dispensable(local));
        if let Some(epoch) = epoch {
            self.exchange_world(node, kvs, epoch);
        }
        epoch.is_some()
    }

    fn exchange_world(&self, node: &mut JobNode, kvs: &mut Kvs, epoch: Epoch) {
        node.exchange(FenceId { scope: Scope::World, epoch }, kvs.contribute());
        self.end_if_node_is_missed(node);
    }

    /// Ends the job if all ranks of this node are in the first fence of all ranks, and a node without living ranks is missing there.
    pub(super) fn end_if_node_is_missed(&self, node: &mut JobNode) {
        if !self.world.leaving().is_empty() {
            node.end_if_node_is_missed();
        }
    }

    /// Adds a rank to a PMI-1.2 fence of some ranks.
    pub(super) fn arrive_in_group(
        &mut self,
        node: &mut JobNode,
        kvs: &mut Kvs,
        origin: Origin<'_>,
        group: &Group<'_>,
        tag: u32,
        name: &str,
    ) -> Arrival {
        let refused = |code, text| Err(Response::FenceRefused { tag, code, text });
        let members = members_of(group);
        if !members.as_ref().is_none_or(|members| members.contains(&node.ranks[origin.local].rank)) {
            return refused(ErrorCode::InvalidArgument, "not a member of this group");
        }
        let Some(gathering) = self.open_group(node, name, members.as_ref()) else {
            return refused(ErrorCode::NoMemory, TOO_MANY);
        };
        if !gathering.arrive(origin.local, origin.waiter(Some(tag))) {
            return refused(ErrorCode::NoMemory, TOO_MANY);
        }
        Ok(match self.begin_group(node, name) {
            Some(epoch) => self.exchange_group(node, kvs, name, group, epoch),
            None => false,
        })
    }

    /// Returns the fence of a group: of all ranks of this node, or of the local ranks in `members`. Returns `None` when too many are
    /// open.
    fn open_group(
        &mut self,
        node: &JobNode,
        name: &str,
        members: Option<&HashSet<Rank>>,
    ) -> Option<&mut Gathering<LocalRank, Waiter>> {
        let includes = |rank| members.is_none_or(|members| members.contains(&rank));
        let here = || node.ranks.iter().filter(|(_, state)| includes(state.rank)).map(|(local, _)| local);
        self.groups.open(name, || Gathering::new(here()))
    }

    /// Begins a group's next fence, if no needed rank is missing.
    fn begin_group(&mut self, node: &JobNode, name: &str) -> Option<Epoch> {
        self.groups.get_mut(name)?.begin(|local| node.is_dispensable(local))
    }

    fn exchange_group(
        &mut self,
        node: &mut JobNode,
        kvs: &mut Kvs,
        name: &str,
        group: &Group<'_>,
        epoch: Epoch,
    ) -> bool {
        let nodes = node.nodes_of(group).into();
        let id = FenceId { scope: Scope::Group { name: name.into(), nodes }, epoch };
        self.exchange_scope(node, kvs, id)
    }

    /// Contributes this node's pairs to a group's fence. Pairs are readable at once on their own node, so a group on one node exchanges
    /// nothing.
    fn exchange_scope(&mut self, node: &mut JobNode, kvs: &mut Kvs, id: FenceId) -> bool {
        match &id.scope {
            Scope::Group { nodes, .. } if nodes.len() == 1 => self.leave(node, kvs, &id, Merged::default()),
            _ => {
                node.exchange(id, kvs.share());
                true
            }
        }
    }

    /// Begins a group's next fence, if no needed rank is missing. Returns false if it is complete at once, and the following one waits.
    pub(super) fn begin_waiting_group(&mut self, node: &mut JobNode, kvs: &mut Kvs, name: &str) -> bool {
        if let Some(epoch) = self.begin_group(node, name)
            && let Some((group, _)) = Group::parse(name)
        {
            return self.exchange_group(node, kvs, name, &group, epoch);
        }
        true
    }

    /// Adds a rank to a ring.
    pub(super) fn arrive_in_ring(&mut self, node: &mut JobNode, origin: Origin<'_>, value: &RingValue) -> Arrival {
        if self.ring.arrive(origin, value) { Ok(self.ring.begin(node)) } else { Err(too_many()) }
    }

    /// Begins the exchange of the next ring, if no needed rank is missing.
    pub(super) fn begin_ring(&mut self, node: &mut JobNode) -> bool {
        self.ring.begin(node)
    }

    /// All nodes have arrived: their pairs become readable, and this node's ranks continue. Returns true if the next fence has begun.
    pub(super) fn leave(&mut self, node: &mut JobNode, kvs: &mut Kvs, id: &FenceId, merged: Merged) -> bool {
        match &id.scope {
            Scope::World => {
                let brought = self.reports_merged.then(|| merged.segments.clone());
                kvs.commit(merged);
                node.fences += 1;
                report(node, brought);
                node.release(self.world.complete());
                // The first fence has distributed all data that ranks need from each other.
                node.report_deaths();
                // If none begins: a rank may have finalized after this fence, while other ranks wait for it in the next one.
                self.begin_world(node, kvs)
            }
            Scope::Group { name, nodes } => {
                let brought = match kvs.absorb(&merged) {
                    Ok(brought) => brought,
                    Err(error) => {
                        let error = FenceError::BadSegment { epoch: id.epoch, reason: error.to_string() };
                        node.end(EndReason::Fence(Arc::new(error)));
                        return true;
                    }
                };
                report(node, self.reports_merged.then_some(brought));
                let Some(gathering) = self.groups.get_mut(name) else { return true };
                let waiters = gathering.complete();
                let next = gathering.begin(|local| node.is_dispensable(local));
                if gathering.is_idle() {
                    if nodes.len() > 1 { self.groups.rest(name) } else { self.groups.forget(name) }
                }
                node.release(waiters);
                match next {
                    Some(epoch) => self.exchange_scope(node, kvs, FenceId { scope: id.scope.clone(), epoch }),
                    None => false,
                }
            }
            Scope::Ring => {
                self.ring.leave(node, &merged);
                self.ring.begin(node)
            }
            // No fence of this server's ranks.
            Scope::Foreign { .. } => true,
        }
    }

    /// Removes the waiters of all fences that have not begun.
    pub(super) fn dismiss(&mut self) {
        self.world.dismiss();
        self.ring.dismiss();
        self.groups.iter_mut().for_each(Gathering::dismiss);
    }

    /// Number of fences begun here, for each kind that other nodes may also have to begin.
    pub(super) fn begun(&self) -> Segment {
        let of_groups = self.groups.named().filter(|(_, group)| group.is_exchanging());
        let of_groups = of_groups.map(|(name, group)| ([&[GROUP], name.as_bytes()].concat(), group.epoch()));
        let of_all = [(WORLD, &self.world), (RING, &self.ring.gathering)];
        let of_all = of_all.map(|(name, gathering)| (name.to_vec(), gathering.epoch()));
        of_all.into_iter().chain(of_groups).map(|(name, Epoch(begun))| (name, begun.to_be_bytes())).collect()
    }

    /// Begins the fence of this name, if another node has begun it and this node has not. No node is ahead by two fences, because the
    /// first one waits for this node.
    pub(super) fn catch_up(&mut self, node: &mut JobNode, kvs: &mut Kvs, name: &[u8], begun: Epoch) {
        match name {
            WORLD if self.world.epoch() < begun => {
                if let Some(epoch) = self.world.begin_as_it_is() {
                    self.exchange_world(node, kvs, epoch);
                }
            }
            RING => self.ring.catch_up(node, begun),
            [GROUP, name @ ..] => self.catch_up_with_group(node, kvs, name, begun),
            _ => {}
        }
    }

    fn catch_up_with_group(&mut self, node: &mut JobNode, kvs: &mut Kvs, name: &[u8], begun: Epoch) {
        let Some((name, (group, _))) = str::from_utf8(name).ok().and_then(|name| Some((name, Group::parse(name)?)))
        else {
            return;
        };
        if !node.nodes_of(&group).contains(&node.index) {
            return;
        }
        let members = members_of(&group);
        let Some(gathering) = self.open_group(node, name, members.as_ref()) else { return };
        if gathering.epoch() < begun
            && let Some(epoch) = gathering.begin_as_it_is()
        {
            self.exchange_group(node, kvs, name, &group, epoch);
        }
    }

    /// Closes the fences of an earlier generation of ranks. None is in exchange.
    pub(super) fn restart(&mut self) {
        self.ring.forget_addresses();
        let idle: Vec<Arc<str>> = self.groups.names().cloned().collect();
        for name in idle {
            self.groups.rest(&name);
        }
    }
}

fn report(node: &mut JobNode, brought: Option<Vec<Segment>>) {
    if let Some(segments) = brought {
        node.actions.push_back(Action::Merged { fences: node.fences, segments });
    }
}

/// Ranks of a group that lists single ranks; `None` if it includes all ranks of each of its nodes.
fn members_of(group: &Group<'_>) -> Option<HashSet<Rank>> {
    match group {
        Group::World | Group::Node => None,
        Group::Ranks(ranks) => Some(ranks.iter().collect()),
    }
}

const TOO_MANY: &str = "too many fences begun at once";

fn too_many() -> Response<'static> {
    Response::Error { code: ErrorCode::NoMemory, text: TOO_MANY.into() }
}
