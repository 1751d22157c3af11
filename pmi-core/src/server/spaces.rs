//! Further key-value spaces of a job, created and removed by its ranks.
//!
//! Their pairs are stored among the job's own. Each key follows the space's name and a NUL, which no key of a rank holds. So gets and
//! fences handle them like all other pairs. The pair with an empty rest after the NUL records that the space exists, or was removed. A
//! removed space cannot be read, but its pairs stay with the job, and still count for the ranks that put them.

use std::collections::HashMap;

use super::Server;
use crate::ids::LocalRank;
use crate::kvs::Kvs;
use crate::wire::{ErrorCode, Response};

/// Maximum number of spaces that one rank creates.
const MADE_MAX: u32 = 1024;

/// Values of the pair that records the state of a space.
const THERE: &[u8] = b"there";
const REMOVED: &[u8] = b"removed";

/// The key-value space of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Space<'a> {
    /// The job's own space.
    Job,
    /// A space that a rank has created.
    Made(&'a [u8]),
}

impl Space<'_> {
    /// Returns the key under which a pair of the space is stored.
    pub(super) fn stored(self, key: &[u8]) -> Vec<u8> {
        match self {
            Self::Job => key.to_vec(),
            Self::Made(name) => [name, b"\0", key].concat(),
        }
    }

    /// Returns the key of one of its pairs as ranks use it.
    fn shown(self, stored: &[u8]) -> &[u8] {
        match self {
            Self::Job => stored,
            Self::Made(name) => stored.get(name.len() + 1..).unwrap_or_default(),
        }
    }
}

impl Server {
    /// Finds the space of this name; without a name it is the job's.
    pub(super) fn space<'a>(&self, name: Option<&'a [u8]>) -> Option<Space<'a>> {
        match name {
            None | Some(b"") => Some(Space::Job),
            Some(name) if name == self.job.id.as_str().as_bytes() => Some(Space::Job),
            Some(name) => {
                let made = Space::Made(name);
                (!name.contains(&0) && self.kvs.get(&made.stored(b"")) == Some(THERE)).then_some(made)
            }
        }
    }

    /// Creates a space. Other ranks of this node can use it at once, ranks of other nodes after the next fence.
    pub(super) fn create_space(&mut self, local: LocalRank) -> Response<'static> {
        let rank = self.ranks[local].rank;
        let Some(number) = self.ranks[local].quota.take_space(MADE_MAX) else {
            let text = format!("this rank has made {MADE_MAX} key-value spaces");
            return Response::Error { code: ErrorCode::NoMemory, text: text.into() };
        };
        let name = format!("{}.k{rank}.{number}", self.job.id);
        self.kvs.put(&Space::Made(name.as_bytes()).stored(b""), THERE);
        Response::Space(name)
    }

    /// Removes a space that a rank has created.
    pub(super) fn destroy_space(&mut self, name: &[u8]) -> Response<'static> {
        match self.space(Some(name)) {
            Some(made @ Space::Made(_)) => {
                self.kvs.put(&made.stored(b""), REMOVED);
                Response::Done
            }
            Some(Space::Job) => {
                Response::Error { code: ErrorCode::InvalidArgument, text: "the space of the job stays".into() }
            }
            None => Response::Error { code: ErrorCode::Failed, text: "unknown kvsname".into() },
        }
    }

    /// The next pair of a space from this index on.
    pub(super) fn indexed(&mut self, space: Space<'_>, index: usize) -> Response<'_> {
        self.indices.look_at_new(&self.kvs);
        let next = self.indices.next(space, index);
        let pair = next.and_then(|index| Some((index, self.kvs.nth(index)?)));
        Response::Indexed(pair.map(|(index, (stored, value))| (index + 1, space.shown(stored), value)))
    }
}

/// Indices of the pairs of each space, as far as a rank has requested pairs by index. A job may have millions of pairs, and a space only
/// a few.
#[derive(Default)]
pub(super) struct Indices {
    /// Number of indexed pairs. A key keeps its index, so each pair is indexed once.
    seen: usize,
    of_job: Vec<u32>,
    of_made: HashMap<Vec<u8>, Vec<u32>>,
}

impl Indices {
    fn look_at_new(&mut self, kvs: &Kvs) {
        for index in self.seen..kvs.len() {
            let stored = kvs.nth(index).map_or(&[][..], |(stored, _)| stored);
            match memchr::memchr(0, stored) {
                None => self.of_job.push(index as u32),
                // The pair that records the state of the space.
                Some(end) if end + 1 == stored.len() => {}
                Some(end) => match self.of_made.get_mut(&stored[..end]) {
                    Some(indices) => indices.push(index as u32),
                    None => drop(self.of_made.insert(stored[..end].to_vec(), vec![index as u32])),
                },
            }
        }
        self.seen = kvs.len();
    }

    fn next(&self, space: Space<'_>, from: usize) -> Option<usize> {
        let indices = match space {
            Space::Job => &self.of_job,
            Space::Made(name) => self.of_made.get(name)?,
        };
        indices.get(indices.partition_point(|&index| (index as usize) < from)).map(|&index| index as usize)
    }
}
