//! Budget of each peer: connections, calls, bytes of incomplete requests and of unsent responses, over all listeners.
//!
//! A peer is a caller that the kernel or a certificate identifies. All unidentified callers share one budget. A charge ends when its place is
//! dropped. Every bound is per peer, so that one peer cannot take another's share. In addition, all users share one bound on bytes; it refuses
//! the users with few bytes last. A request beyond a bound is refused instead of delayed, because waiting requests occupy memory too. A response
//! stream waits, because its production pauses meanwhile.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::identity::{Caller, Role};
use crate::limits::{self, Pool, Shares};

/// Peer as the key of its budget; `None` for all unidentified callers.
pub(super) type Name = Option<Caller>;

/// Charges of each peer. The lock is held for one lookup.
#[derive(Debug, Default)]
pub(super) struct Budget {
    taken: Mutex<AllTaken>,
}

#[derive(Debug, Default)]
struct AllTaken {
    by_peer: HashMap<Name, Taken>,
    /// Total of all users.
    of_users: Taken,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Taken {
    connections: usize,
    calls: usize,
    unfinished: usize,
    unread: usize,
}

/// Fraction of a peer's share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    Half,
    ThreeQuarters,
}

/// Treatment of bounds when a place grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bounds {
    Kept,
    Overdrawn,
}

/// Kind of charge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Connections,
    Calls,
    Unfinished,
    Unread,
}

/// A peer, or all users together, have reached a bound.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Exhausted {
    #[error("{} has {most} {kind} already; wait until some are over", peer(.name))]
    OfPeer { name: Name, kind: Kind, most: usize },
    #[error("all users together have {all} {kind}, and what is left is for those with less; wait until some are over")]
    OfUsers { kind: Kind, all: usize },
}

/// Charge to a peer's budget; dropping it returns the amount.
#[derive(Debug)]
pub(super) struct Place {
    budget: Arc<Budget>,
    name: Name,
    kind: Kind,
    amount: usize,
}

impl Budget {
    /// Charges one connection to a peer.
    pub(super) fn connection(self: &Arc<Self>, name: Name) -> Result<Place, Exhausted> {
        self.take(name, Kind::Connections, 1)
    }

    /// Charges one call to a peer.
    pub(super) fn call(self: &Arc<Self>, name: Name) -> Result<Place, Exhausted> {
        self.take(name, Kind::Calls, 1)
    }

    /// Empty place for the bytes of a peer's incomplete requests.
    pub(super) fn unfinished(self: &Arc<Self>, name: Name) -> Place {
        Place { budget: Arc::clone(self), name: person(name), kind: Kind::Unfinished, amount: 0 }
    }

    /// Empty place for the bytes of a peer's unsent responses.
    pub(super) fn unread(self: &Arc<Self>, name: Name) -> Place {
        Place { budget: Arc::clone(self), name: person(name), kind: Kind::Unread, amount: 0 }
    }

    fn take(self: &Arc<Self>, name: Name, kind: Kind, amount: usize) -> Result<Place, Exhausted> {
        let mut place = Place { budget: Arc::clone(self), name: person(name), kind, amount: 0 };
        place.resize(amount).map(|()| place)
    }
}

impl Place {
    /// Sets the charge to `amount`. Fails if that exceeds a bound.
    pub(super) fn resize(&mut self, amount: usize) -> Result<(), Exhausted> {
        self.change(amount, Bounds::Kept)
    }

    /// Sets the charge to `amount` regardless of bounds: for bytes that exist already, produced while there was [room](Self::has_room).
    pub(super) fn overdraw(&mut self, amount: usize) {
        // Cannot fail.
        let _ = self.change(amount, Bounds::Overdrawn);
    }

    /// The charged amount.
    pub(super) fn amount(&self) -> usize {
        self.amount
    }

    /// Returns true if the peer is below this part of its share, and may take more from the users' pool.
    pub(super) fn has_room(&self, part: Part) -> bool {
        let taken = self.budget.taken.lock();
        let own = taken.by_peer.get(&self.name).map_or(0, |of_peer| of_peer.get(self.kind));
        let most = shares(&self.name).get(self.kind);
        let most = match part {
            Part::Half => most / 2,
            Part::ThreeQuarters => most / 4 * 3,
        };
        own < most && self.pool().is_none_or(|pool| pool.allows(own, taken.of_users.get(self.kind)))
    }

    /// The pool of all users for this kind, if the peer is a user.
    fn pool(&self) -> Option<Pool> {
        match self.kind {
            Kind::Unfinished if is_user(&self.name) => Some(limits::ALL_USERS_UNFINISHED),
            Kind::Unread if is_user(&self.name) => Some(limits::ALL_USERS_UNREAD),
            _ => None,
        }
    }

    fn change(&mut self, amount: usize, bounds: Bounds) -> Result<(), Exhausted> {
        if amount == self.amount {
            return Ok(());
        }
        let mut taken = self.budget.taken.lock();
        let AllTaken { by_peer, of_users } = &mut *taken;
        let of_peer = by_peer.entry(self.name.clone()).or_default();
        let changed = |count: usize| (count - self.amount).saturating_add(amount);
        let (sum, most) = (changed(of_peer.get(self.kind)), shares(&self.name).get(self.kind));
        let all = is_user(&self.name).then(|| changed(of_users.get(self.kind)));
        // A response about all nodes of a large cluster exceeds a share. It is allowed as the only one.
        let is_beyond = |sum: usize| !(self.kind == Kind::Unread && sum == amount);
        let refusal = if amount < self.amount || bounds == Bounds::Overdrawn {
            None
        } else if sum > most && is_beyond(sum) {
            Some(Exhausted::OfPeer { name: self.name.clone(), kind: self.kind, most })
        } else {
            let refused = |pool: Pool, all: usize| !pool.allows(sum, all) && is_beyond(all);
            let is_refused = self.pool().zip(all).is_some_and(|(pool, all)| refused(pool, all));
            is_refused.then(|| Exhausted::OfUsers { kind: self.kind, all: of_users.get(self.kind) })
        };
        if refusal.is_none() {
            (*of_peer.of(self.kind), self.amount) = (sum, amount);
            if let Some(all) = all {
                *of_users.of(self.kind) = all;
            }
        }
        if *of_peer == Taken::default() {
            by_peer.remove(&self.name);
        }
        refusal.map_or(Ok(()), Err)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // A decrease cannot fail.
        let _ = self.resize(0);
    }
}

impl Taken {
    fn get(&self, kind: Kind) -> usize {
        match kind {
            Kind::Connections => self.connections,
            Kind::Calls => self.calls,
            Kind::Unfinished => self.unfinished,
            Kind::Unread => self.unread,
        }
    }

    fn of(&mut self, kind: Kind) -> &mut usize {
        match kind {
            Kind::Connections => &mut self.connections,
            Kind::Calls => &mut self.calls,
            Kind::Unfinished => &mut self.unfinished,
            Kind::Unread => &mut self.unread,
        }
    }
}

impl Shares {
    fn get(self, kind: Kind) -> usize {
        match kind {
            Kind::Connections => self.connections,
            Kind::Calls => self.calls,
            Kind::Unfinished => self.unfinished,
            Kind::Unread => self.unread,
        }
    }
}

/// The peer as the key of its budget: a user has one share, over all machines.
fn person(name: Name) -> Name {
    match name {
        Some(Caller::UserIn { uid, .. }) => Some(Caller::User(uid)),
        name => name,
    }
}

fn shares(name: &Name) -> Shares {
    match name.as_ref().map(Caller::role) {
        None | Some(Role::User) => limits::OF_USERS,
        Some(Role::Agent) => limits::OF_AGENTS,
        Some(Role::Api | Role::Admin) => limits::OF_TRUSTED,
    }
}

/// True for users, and for unidentified callers.
fn is_user(name: &Name) -> bool {
    matches!(name.as_ref().map(Caller::role), None | Some(Role::User))
}

fn peer(name: &Name) -> String {
    name.as_ref().map_or_else(|| "callers without a name here".to_owned(), ToString::to_string)
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Connections => "connections",
            Self::Calls => "calls",
            Self::Unfinished => "bytes of unfinished requests",
            Self::Unread => "bytes of answers that are not read",
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn user(uid: u32) -> Name {
        Some(Caller::User(uid))
    }

    impl Budget {
        fn is_empty(&self) -> bool {
            let taken = self.taken.lock();
            taken.by_peer.is_empty() && taken.of_users == Taken::default()
        }
    }

    #[test]
    fn a_user_gets_so_many_places_and_no_other_user_suffers() {
        let budget = Arc::new(Budget::default());
        let connect = |name| budget.connection(name);
        let mut places: Vec<Place> = (0..limits::OF_USERS.connections).map(|_| connect(user(1000)).unwrap()).collect();
        let refusal = connect(user(1000)).unwrap_err().to_string();
        assert_eq!(refusal, "user 1000 has 256 connections already; wait until some are over");
        assert!(connect(user(1001)).is_ok() && connect(None).is_ok() && budget.call(user(1000)).is_ok());
        places.pop();
        assert!(connect(user(1000)).is_ok());
        places.clear();
        assert!(budget.is_empty());
    }

    #[test]
    fn bytes_of_unfinished_requests_add_up_over_all_requests_of_a_peer() {
        let budget = Arc::new(Budget::default());
        let most = limits::OF_USERS.unfinished;
        let (mut one, mut other) = (budget.unfinished(user(7)), budget.unfinished(user(7)));
        one.resize(most - 10).unwrap();
        assert!(other.resize(11).unwrap_err().to_string().contains("bytes of unfinished requests already"));
        other.resize(10).unwrap();
        one.resize(0).unwrap();
        other.resize(most).unwrap();
        drop((one, other));
        assert!(budget.is_empty());
    }

    #[test]
    fn users_who_begin_requests_together_leave_room_for_small_ones_and_none_for_theirs() {
        let budget = Arc::new(Budget::default());
        let mut places: Vec<Place> = (0..64).map(|uid| budget.unfinished(user(uid))).collect();
        let fill = |place: &mut Place| (1..100).take_while(|mebibytes| place.resize(mebibytes << 20).is_ok()).count();
        let got: Vec<usize> = places.iter_mut().map(fill).collect();
        assert!(got[0] >= 23 && got.iter().sum::<usize>() <= 36, "{got:?}");
        let (mut small, mut agent) =
            (budget.unfinished(user(100)), budget.unfinished(Some(Caller::Agent("n".to_owned()))));
        let refusal = small.resize(1 << 20).unwrap_err().to_string();
        assert!(
            refusal.starts_with("all users together have ") && refusal.contains("wait until some are over"),
            "{refusal}"
        );
        small.resize(100 << 10).unwrap();
        agent.resize(limits::OF_AGENTS.unfinished).unwrap();
        drop((small, agent, places));
        assert!(budget.is_empty());
    }

    proptest! {
        /// No sequence of charges and returns exceeds a peer's share, and all charges end with their places.
        #[test]
        fn no_peer_has_more_than_its_share(asked in proptest::collection::vec((0..3_u32, 0..8_usize, 0..20_usize), 0..60)) {
            let budget = Arc::new(Budget::default());
            let mut places: Vec<Place> = (0..24).map(|index| budget.unfinished(user(index / 8))).collect();
            for (uid, place, mebibytes) in asked {
                // It may be refused.
                let _ = places[uid as usize * 8 + place].resize(mebibytes << 20);
                let taken = budget.taken.lock();
                prop_assert!(taken.of_users.unfinished <= limits::ALL_USERS_UNFINISHED.all);
                prop_assert!(taken.by_peer.values().all(|taken| taken.unfinished <= limits::OF_USERS.unfinished));
            }
            places.clear();
            prop_assert!(budget.is_empty());
        }
    }
}
