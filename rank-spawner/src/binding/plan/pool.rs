//! Pool of places for ranks, grouped by the objects that ranks are dealt out over.

use std::collections::VecDeque;

use super::{Place, key};
use crate::binding::{Deal, Dealt, Object};

/// Value of a place, in the unit of the ranks' shares.
pub(super) type Worth = fn(&Place<'_>) -> usize;

/// Places that no rank has yet.
#[derive(Debug)]
pub(super) enum Pool<'node> {
    /// Neighbours, in the order in which ranks get them.
    Places(VecDeque<Place<'node>>),
    /// Objects that are dealt out over, in turn.
    Objects {
        /// Places of each object.
        pools: Vec<Self>,
        /// Index of the object that is next.
        next: usize,
        /// Number of ranks that this object has got in its turn.
        got: u32,
        deal: Deal,
    },
}

impl<'node> Pool<'node> {
    /// Pool with all of these places.
    pub(super) fn of(places: Vec<Place<'node>>, deals: &[Option<Deal>]) -> Self {
        let Some((&Some(deal), smaller)) = deals.split_first() else { return Self::Places(places.into()) };
        // Each thread is a place of its own already, and the places are in the order of threads.
        if deal.over == Object::Thread {
            return Self::Places(places.into());
        }
        let mut objects: Vec<Vec<Place<'node>>> = Vec::new();
        for place in places {
            let is_of = |object: &&mut Vec<Place<'node>>| {
                object.first().is_some_and(|first| key(first.at, deal.over) == key(place.at, deal.over))
            };
            match objects.iter_mut().find(is_of) {
                Some(object) => object.push(place),
                None => objects.push(vec![place]),
            }
        }
        if deal.over.is_device() {
            objects.sort_by_key(|places| key(places[0].at, deal.over));
        }
        let pools = objects.into_iter().map(|places| Self::of(places, smaller)).collect();
        Self::Objects { pools, next: 0, got: 0, deal }
    }

    /// Worth of all places in the pool.
    pub(super) fn worth(&self, worth: Worth) -> usize {
        match self {
            Self::Places(places) => places.iter().map(worth).sum(),
            Self::Objects { pools, .. } => pools.iter().map(|pool| pool.worth(worth)).sum(),
        }
    }

    /// Takes places that are worth `wanted` for one rank, or all that are left. Returns their worth. If ranks are dealt out, the places
    /// come from the next object that has enough; if none has, from all objects in turn.
    pub(super) fn take(&mut self, wanted: usize, worth: Worth, parts: &mut Vec<Place<'node>>) -> usize {
        let mut has = 0;
        match self {
            Self::Places(places) => {
                while has < wanted
                    && let Some(place) = places.pop_front()
                {
                    has += worth(&place);
                    parts.push(place);
                }
            }
            Self::Objects { pools, next, got, deal } => {
                let count = pools.len();
                let at_once = match deal.what {
                    Dealt::Ranks => wanted,
                    Dealt::Cpus => 1,
                };
                let mut in_turn = (0..count).map(|turn| (*next + turn) % count);
                let turn = in_turn.find(|&object| pools[object].worth(worth) >= at_once).unwrap_or(*next);
                if turn != *next {
                    (*next, *got) = (turn, 0);
                }
                *got += 1;
                let stays = *got < deal.at_once.get();
                let mut empty = 0;
                while has < wanted && empty < count {
                    let taken = pools[*next].take(at_once.min(wanted - has), worth, parts);
                    empty = if taken == 0 { empty + 1 } else { 0 };
                    has += taken;
                    if !stays || has < wanted {
                        (*next, *got) = ((*next + 1) % count, 0);
                    }
                }
            }
        }
        has
    }
}
