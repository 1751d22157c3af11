//! Slots for users' connections: a limit for each user, and a limit for all. When all slots are in use, the user with the most connections loses
//! the newest of them to a user with fewer.

use std::collections::HashMap;

use tokio_util::sync::CancellationToken;

/// Maximum number of connections, of all users and of one user.
const CONNECTIONS_MAX: usize = 512;
const PER_USER: usize = 64;

/// Users' connections.
#[derive(Debug, Default)]
pub(super) struct Crowd {
    /// Oldest first.
    by_user: HashMap<u32, Vec<(u64, CancellationToken)>>,
    next: u64,
}

/// An admitted connection.
#[derive(Debug)]
pub(super) struct Member {
    uid: u32,
    number: u64,
}

impl Crowd {
    /// Takes a slot for one more connection of a user; the token is cancelled when another user needs the slot. `None` if the user has the
    /// maximum, or if all slots are in use and no user has at least two connections more.
    pub(super) fn admit(&mut self, uid: u32) -> Option<(Member, CancellationToken)> {
        let own = self.of(uid);
        if own >= PER_USER {
            return None;
        }
        if self.by_user.values().map(Vec::len).sum::<usize>() >= CONNECTIONS_MAX {
            let (&crowded, theirs) = self.by_user.iter().max_by_key(|(_, theirs)| theirs.len())?;
            let (number, dismissed) = theirs.last().filter(|_| theirs.len() > own + 1)?.clone();
            dismissed.cancel();
            self.leave(Member { uid: crowded, number });
        }
        let (number, dismissed) = (self.next, CancellationToken::new());
        self.next += 1;
        self.by_user.entry(uid).or_default().push((number, dismissed.clone()));
        Some((Member { uid, number }, dismissed))
    }

    /// Releases the slot of a connection that has ended.
    pub(super) fn leave(&mut self, Member { uid, number }: Member) {
        if let Some(own) = self.by_user.get_mut(&uid) {
            own.retain(|(member, _)| *member != number);
            if own.is_empty() {
                self.by_user.remove(&uid);
            }
        }
    }

    fn of(&self, uid: u32) -> usize {
        self.by_user.get(&uid).map_or(0, Vec::len)
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
        let dismissed = theirs.iter().filter(|(_, token)| token.is_cancelled()).count();
        assert_eq!((dismissed, own.iter().filter(|(_, token)| token.is_cancelled()).count()), (20, 0));
        theirs.drain(..).chain(own).for_each(|(member, _)| crowd.leave(member));
        assert!(crowd.by_user.is_empty());
    }
}
