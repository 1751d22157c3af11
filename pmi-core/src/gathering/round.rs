//! One fence, round after round.

use std::collections::VecDeque;

use crate::ids::Epoch;

/// One fence of some of this node's ranks, round after round. `R` identifies a rank, and `W` is the state of a waiter.
#[derive(Debug)]
pub struct Gathering<R, W> {
    members: Vec<Member<R, W>>,
    /// Number of members without a waiter.
    missing: usize,
    /// All members before this one have a waiter.
    first_missing: usize,
    /// The waiters of the round that is in exchange with the other nodes.
    leaving: Option<Vec<W>>,
    epoch: Epoch,
}

#[derive(Debug)]
struct Member<R, W> {
    rank: R,
    queue: VecDeque<W>,
}

impl<R, W> Member<R, W> {
    /// Returns true if it has a waiter.
    fn is_present(&self) -> bool {
        !self.queue.is_empty()
    }
}

impl<R: Copy + Ord, W> Gathering<R, W> {
    /// Maximum number of open fences of one rank; real clients open one for each thread.
    pub const QUEUE_MAX: usize = 256;

    /// Creates a fence of `members`, in rank order.
    pub fn new(members: impl IntoIterator<Item = R>) -> Self {
        let member = |rank| Member { rank, queue: VecDeque::new() };
        let members: Vec<_> = members.into_iter().map(member).collect();
        Self { missing: members.len(), first_missing: 0, members, leaving: None, epoch: Epoch(0) }
    }

    /// Continues the fence from a later epoch.
    pub fn resume(self, epoch: Epoch) -> Self {
        Self { epoch, ..self }
    }

    /// The epoch of the next round.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Adds a waiter. Returns false when `rank` is no member, or has begun too many fences.
    pub fn arrive(&mut self, rank: R, waiter: W) -> bool {
        let Ok(position) = self.members.binary_search_by_key(&rank, |member| member.rank) else { return false };
        let member = &mut self.members[position];
        if member.queue.len() >= Self::QUEUE_MAX {
            return false;
        }
        self.missing -= usize::from(!member.is_present());
        member.queue.push_back(waiter);
        true
    }

    /// Begins the exchange of a round when no indispensable member is missing, and returns its epoch. Only one round is in exchange at a
    /// time.
    ///
    /// A node without members takes no part, and a node with only dispensable members stops taking part. While all members are needed,
    /// the calls for a round check each member once.
    pub fn begin(&mut self, is_dispensable: impl Fn(R) -> bool) -> Option<Epoch> {
        if self.leaving.is_some() || !self.has_waiter() {
            return None;
        }
        let present = self.members[self.first_missing..].iter().take_while(|member| member.is_present()).count();
        self.first_missing += present;
        let mut absent = self.members[self.first_missing..].iter().filter(|member| !member.is_present());
        if !absent.all(|member| is_dispensable(member.rank)) {
            return None;
        }
        self.begin_as_it_is()
    }

    /// Begins the exchange of the next round with the current waiters, possibly none, and returns its epoch. It is for rounds that other
    /// nodes have begun; absent members are not waited for. Returns `None` while a round is in exchange.
    pub fn begin_as_it_is(&mut self) -> Option<Epoch> {
        if self.leaving.is_some() {
            return None;
        }
        self.first_missing = 0;
        let waiters = self.members.iter_mut().filter_map(|member| member.queue.pop_front()).collect();
        self.missing = self.members.iter().filter(|member| !member.is_present()).count();
        self.leaving = Some(waiters);
        let epoch = self.epoch;
        self.epoch = epoch.next();
        Some(epoch)
    }

    /// Removes the waiters of all rounds that have not begun. A round in exchange continues.
    pub fn dismiss(&mut self) {
        self.members.iter_mut().for_each(|member| member.queue.clear());
        (self.missing, self.first_missing) = (self.members.len(), 0);
    }

    /// Returns true while a round is in exchange.
    pub fn is_exchanging(&self) -> bool {
        self.leaving.is_some()
    }

    /// Returns the waiters of the round in exchange.
    pub fn leaving(&self) -> &[W] {
        self.leaving.as_deref().unwrap_or_default()
    }

    /// Returns the mutable waiter at the head of a member's queue; `None` if the queue is empty.
    pub fn waiter_mut(&mut self, rank: R) -> Option<&mut W> {
        let position = self.members.binary_search_by_key(&rank, |member| member.rank).ok()?;
        self.members[position].queue.front_mut()
    }

    /// Returns the mutable waiters of the round in exchange.
    pub fn leaving_mut(&mut self) -> &mut [W] {
        self.leaving.as_deref_mut().unwrap_or_default()
    }

    /// Ends the exchange of the round, and returns its waiters.
    pub fn complete(&mut self) -> Vec<W> {
        self.leaving.take().unwrap_or_default()
    }

    /// Members of the fence on this node, in order.
    pub fn members(&self) -> impl Iterator<Item = R> + '_ {
        self.members.iter().map(|member| member.rank)
    }

    /// Returns true if no rank waits here, for other ranks or for the exchange.
    pub fn is_idle(&self) -> bool {
        self.leaving.is_none() && !self.has_waiter()
    }

    fn has_waiter(&self) -> bool {
        self.missing < self.members.len()
    }

    /// Returns all waiters, both of the round in exchange and of later rounds.
    pub fn waiters(&self) -> impl Iterator<Item = &W> {
        self.leaving().iter().chain(self.members.iter().flat_map(|member| &member.queue))
    }

    /// Returns the round, its waiting members and its missing members; `None` without waiters. A round in exchange has no missing member
    /// on this node.
    pub fn status(&self) -> Option<(Epoch, Vec<R>, Vec<R>)> {
        if self.leaving.is_some() {
            // `begin` has counted this round already.
            return Some((Epoch(self.epoch.0 - 1), self.members().collect(), Vec::new()));
        }
        self.has_waiter().then(|| (self.epoch, self.present().collect(), self.absent().collect()))
    }

    /// Returns the members that wait for other members; none while a round is in exchange.
    pub fn present(&self) -> impl Iterator<Item = R> + '_ {
        self.waiting_for_others().iter().filter(|member| member.is_present()).map(|member| member.rank)
    }

    /// Returns the missing members of the round; none while a round is in exchange.
    pub fn absent(&self) -> impl Iterator<Item = R> + '_ {
        self.waiting_for_others().iter().filter(|member| !member.is_present()).map(|member| member.rank)
    }

    /// All members, while some of them wait for missing ones.
    fn waiting_for_others(&self) -> &[Member<R, W>] {
        if self.leaving.is_some() || !self.has_waiter() { &[] } else { &self.members }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use crate::ids::LocalRank;

    fn nobody(_: LocalRank) -> bool {
        false
    }

    #[test]
    fn trap_15_a_round_counts_ranks_not_messages() {
        let mut fence = Gathering::new([LocalRank(0), LocalRank(1)]);
        assert!(fence.arrive(LocalRank(0), 0));
        assert!(fence.arrive(LocalRank(0), 0));
        assert_eq!(fence.begin(nobody), None);
        assert!(fence.arrive(LocalRank(1), 1));
        assert_eq!(fence.begin(nobody), Some(Epoch(0)));
        // the next round waits for the end of this one, and for rank 1
        assert_eq!(fence.begin(nobody), None);
        assert_eq!(fence.complete().len(), 2);
        assert_eq!(fence.begin(nobody), None);
        assert!(fence.arrive(LocalRank(1), 1));
        assert_eq!(fence.begin(nobody), Some(Epoch(1)));
    }

    #[test]
    fn a_round_begins_with_its_last_member_whatever_the_order() {
        const MEMBERS: u32 = 1000;
        for backwards in [false, true] {
            let mut fence = Gathering::new((0..MEMBERS).map(LocalRank));
            for round in 0..2 {
                for rank in 0..MEMBERS {
                    assert!(fence.arrive(LocalRank(if backwards { MEMBERS - 1 - rank } else { rank }), ()));
                    let is_last = rank == MEMBERS - 1;
                    let begun = fence.begin(nobody);
                    assert_eq!(begun, is_last.then_some(Epoch(round)));
                }
                assert_eq!(fence.complete().len(), MEMBERS as usize);
            }
        }
    }

    #[test]
    fn a_node_without_ranks_begins_no_fence() {
        assert_eq!(Gathering::<LocalRank, u32>::new([]).begin(nobody), None);
    }

    #[test]
    fn the_others_go_on_without_members_that_can_be_done_without() {
        let is_first = |rank| rank == LocalRank(0);
        let mut fence = Gathering::new([LocalRank(0), LocalRank(1), LocalRank(2)]);
        assert_eq!(fence.begin(is_first), None);
        assert!(fence.arrive(LocalRank(2), 2));
        assert_eq!(fence.begin(is_first), None, "one that is needed is missing");
        assert!(fence.arrive(LocalRank(1), 1));
        assert_eq!(fence.begin(nobody), None);
        assert_eq!(fence.begin(is_first), Some(Epoch(0)));
        assert_eq!(fence.complete(), [1, 2]);
        // A dispensable member that arrives before the round begins is part of it.
        for (waiter, rank) in [0, 1, 2].map(LocalRank).into_iter().enumerate() {
            assert!(fence.arrive(rank, waiter));
        }
        assert_eq!(fence.begin(is_first), Some(Epoch(1)));
        assert_eq!(fence.complete(), [0, 1, 2]);
        assert_eq!((fence.begin(|_| true), fence.is_idle()), (None, true), "nobody is left who could begin a round");
    }

    #[test]
    fn a_round_that_others_have_begun_is_begun_without_those_who_waited_for_it() {
        let mut fence = Gathering::new([LocalRank(0), LocalRank(1)]);
        assert!(fence.arrive(LocalRank(0), 'a') && fence.arrive(LocalRank(0), 'b'));
        fence.dismiss();
        assert!(fence.is_idle());
        assert_eq!((fence.begin_as_it_is(), fence.begin_as_it_is()), (Some(Epoch(0)), None));
        assert!(fence.is_exchanging() && fence.arrive(LocalRank(1), 'c'));
        fence.dismiss();
        assert!(fence.complete().is_empty() && !fence.is_exchanging() && fence.is_idle());
        assert!(fence.arrive(LocalRank(0), 'd') && fence.arrive(LocalRank(1), 'e'));
        assert_eq!(fence.waiter_mut(LocalRank(1)).map(|waiter| std::mem::replace(waiter, 'f')), Some('e'));
        assert_eq!((fence.begin(nobody), fence.leaving()), (Some(Epoch(1)), &['d', 'f'][..]));
        assert_eq!(fence.waiter_mut(LocalRank(1)), None);
    }

    #[test]
    fn strangers_and_floods_are_refused() {
        let mut fence = Gathering::new([LocalRank(0), LocalRank(2)]);
        assert!(!fence.arrive(LocalRank(1), 1));
        for _ in 0..Gathering::<LocalRank, u32>::QUEUE_MAX {
            assert!(fence.arrive(LocalRank(0), 0));
        }
        assert!(!fence.arrive(LocalRank(0), 0));
    }
}
