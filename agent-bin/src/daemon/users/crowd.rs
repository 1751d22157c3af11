//! Slots for users' connections: a limit for each user, and a limit for all. When all slots are in use, the user with the most connections loses
//! the newest of them to a user with fewer.

use std::collections::HashMap;
use std::sync::Arc;

use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

/// Maximum number of connections, of all users and of one user.
const CONNECTIONS_MAX: usize = 512;
const PER_USER: usize = 64;
/// Maximum number of connections of one user whose path to the API server is being opened. The connections of a user with many wait for each
/// other, and not those of other users for them.
const OPENING_PER_USER: usize = 4;

/// Users' connections.
#[derive(Debug, Default)]
pub(super) struct Crowd {
    by_user: HashMap<u32, User>,
    next: u64,
}

/// A user with connections.
#[derive(Debug)]
struct User {
    /// Oldest first.
    connections: Vec<(u64, CancellationToken)>,
    opening: Arc<Semaphore>,
}

impl Default for User {
    fn default() -> Self {
        Self { connections: Vec::new(), opening: Arc::new(Semaphore::new(OPENING_PER_USER)) }
    }
}

/// An admitted connection.
#[derive(Debug)]
pub(super) struct Admitted {
    pub(super) member: Member,
    /// Cancelled when another user needs the slot.
    pub(super) dismissed: CancellationToken,
    /// Permits of the user to open a path.
    pub(super) opening: Arc<Semaphore>,
}

/// Slot of an admitted connection.
#[derive(Debug)]
pub(super) struct Member {
    uid: u32,
    number: u64,
}

impl Crowd {
    /// Takes a slot for one more connection of a user. `None` if the user has the maximum, or if all slots are in use and no user has at least
    /// two connections more.
    pub(super) fn admit(&mut self, uid: u32) -> Option<Admitted> {
        let own = self.of(uid);
        if own >= PER_USER {
            return None;
        }
        if self.by_user.values().map(|user| user.connections.len()).sum::<usize>() >= CONNECTIONS_MAX {
            let (&crowded, user) = self.by_user.iter().max_by_key(|(_, user)| user.connections.len())?;
            let theirs = &user.connections;
            let (number, dismissed) = theirs.last().filter(|_| theirs.len() > own + 1)?.clone();
            dismissed.cancel();
            self.leave(Member { uid: crowded, number });
        }
        let (number, dismissed) = (self.next, CancellationToken::new());
        self.next += 1;
        let user = self.by_user.entry(uid).or_default();
        user.connections.push((number, dismissed.clone()));
        Some(Admitted { member: Member { uid, number }, dismissed, opening: Arc::clone(&user.opening) })
    }

    /// Releases the slot of a connection that has ended.
    pub(super) fn leave(&mut self, Member { uid, number }: Member) {
        if let Some(own) = self.by_user.get_mut(&uid) {
            own.connections.retain(|(member, _)| *member != number);
            if own.connections.is_empty() {
                self.by_user.remove(&uid);
            }
        }
    }

    fn of(&self, uid: u32) -> usize {
        self.by_user.get(&uid).map_or(0, |user| user.connections.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_with_many_connections_make_room_for_one_with_few() {
        let mut crowd = Crowd::default();
        let users = (CONNECTIONS_MAX / PER_USER) as u32;
        let mut theirs: Vec<_> =
            (0..users).flat_map(|uid| vec![uid; PER_USER]).map(|uid| crowd.admit(uid).unwrap()).collect();
        assert!(crowd.admit(0).is_none(), "it has as many as one user may have");
        let own: Vec<_> = (0..20).map(|_| crowd.admit(1000).unwrap()).collect();
        let dismissed = |of: &[Admitted]| of.iter().filter(|admitted| admitted.dismissed.is_cancelled()).count();
        assert_eq!((dismissed(&theirs), dismissed(&own)), (20, 0));
        theirs.drain(..).chain(own).for_each(|admitted| crowd.leave(admitted.member));
        assert!(crowd.by_user.is_empty());
    }
}
