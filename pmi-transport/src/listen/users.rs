//! Count of each user's connections at one Unix socket.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::limits::CONNECTIONS_PER_USER;

/// Counts connections by uid. The lock is held for one look into the map.
#[derive(Debug, Default)]
pub(super) struct Users {
    connections: Mutex<HashMap<u32, usize>>,
}

/// A user has too many connections.
#[derive(Debug, thiserror::Error)]
#[error("user {uid} has {CONNECTIONS_PER_USER} connections already")]
pub(super) struct TooManyConnections {
    uid: u32,
}

impl Users {
    /// A place for one more connection of the user, taken until it is dropped. Root is not counted.
    pub(super) fn admit(self: &Arc<Self>, uid: u32) -> Result<Place, TooManyConnections> {
        let mut connections = self.connections.lock();
        let count = connections.entry(uid).or_default();
        if *count >= CONNECTIONS_PER_USER && uid != 0 {
            return Err(TooManyConnections { uid });
        }
        *count += 1;
        Ok(Place { users: Arc::clone(self), uid })
    }
}

/// One connection's place among those of its user.
#[derive(Debug)]
pub(super) struct Place {
    users: Arc<Users>,
    uid: u32,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut connections = self.users.connections.lock();
        if let Some(count) = connections.get_mut(&self.uid) {
            *count -= 1;
            if *count == 0 {
                connections.remove(&self.uid);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_gets_so_many_places_and_no_other_user_suffers() {
        let users = Arc::new(Users::default());
        let mut places: Vec<Place> = (0..CONNECTIONS_PER_USER).map(|_| users.admit(1000).unwrap()).collect();
        assert_eq!(users.admit(1000).unwrap_err().to_string(), "user 1000 has 256 connections already");
        assert!(users.admit(1001).is_ok());
        places.pop();
        assert!(users.admit(1000).is_ok());
        places.clear();
        assert!(users.connections.lock().is_empty());
    }
}
