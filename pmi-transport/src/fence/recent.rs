//! A bounded memory of the newest entries.

use std::collections::VecDeque;
use std::hash::Hash;

use super::fast_map::FastMap;

/// Stores a value for each of the last `room` keys.
#[derive(Debug)]
pub(crate) struct Recent<K, V> {
    values: FastMap<K, V>,
    order: VecDeque<K>,
    room: usize,
}

impl<K: Clone + Eq + Hash, V> Recent<K, V> {
    pub(crate) fn new(room: usize) -> Self {
        Self { values: FastMap::default(), order: VecDeque::new(), room }
    }

    /// Adds `key`, and drops the oldest key if the memory is full.
    pub(crate) fn insert(&mut self, key: K, value: V) {
        if self.values.insert(key.clone(), value).is_some() {
            return;
        }
        self.order.push_back(key);
        if self.order.len() > self.room
            && let Some(oldest) = self.order.pop_front()
        {
            self.values.remove(&oldest);
        }
    }

    pub(crate) fn get(&self, key: &K) -> Option<&V> {
        self.values.get(key)
    }

    /// Removes `key`.
    pub(crate) fn forget(&mut self, key: &K) {
        if self.values.remove(key).is_some() {
            self.order.retain(|kept| kept != key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_makes_room() {
        let mut recent = Recent::new(2);
        for key in [1, 2, 1, 3] {
            recent.insert(key, key * 10);
        }
        assert_eq!([1, 2, 3].map(|key| recent.get(&key).copied()), [None, Some(20), Some(30)]);
        recent.forget(&2);
        recent.insert(4, 40);
        assert_eq!([2, 3, 4].map(|key| recent.get(&key).copied()), [None, Some(30), Some(40)]);
    }
}
