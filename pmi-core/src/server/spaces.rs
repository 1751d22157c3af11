//! The key-value spaces of a job: its own, and further spaces, created and removed by its ranks.
//!
//! The pairs of further spaces are stored among the job's own. Each key follows the space's name and a NUL, which no key of a rank holds. So gets and
//! fences handle them like all other pairs. The pair with an empty rest after the NUL records that the space exists, or was removed. A
//! removed space cannot be read, but its pairs stay with the job, and still count for the ranks that put them.

use std::collections::HashMap;

use super::facts::Facts;
use super::node::JobNode;
use crate::ids::LocalRank;
use crate::job::Job;
use crate::kvs::Kvs;
use crate::wire::{ErrorCode, Response};

/// Maximum number of spaces that one rank creates.
const MADE_MAX: u32 = 1024;

/// Values of the pair that records the state of a space.
const THERE: &[u8] = b"there";
const REMOVED: &[u8] = b"removed";

/// The key-value space of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Space<'a> {
    /// The job's own space.
    Job,
    /// A space that a rank has created.
    Made(&'a [u8]),
}

impl Space<'_> {
    /// Returns the key under which a pair of the space is stored.
    fn stored(self, key: &[u8]) -> Vec<u8> {
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

/// The key-value spaces of a job, as stored on this node.
pub(super) struct Spaces {
    /// Pairs of all spaces.
    pub(super) kvs: Kvs,
    indices: Indices,
}

impl Spaces {
    /// Creates the job's own space with its initial pairs.
    pub(super) fn new(job: &Job) -> Self {
        let mut kvs = Kvs::default();
        kvs.preput(job.preput.iter().map(|(key, value)| (key, value)));
        Self { kvs, indices: Indices::default() }
    }

    /// Finds the space of this name; without a name it is the job's.
    fn find<'a>(&self, job: &Job, name: Option<&'a [u8]>) -> Option<Space<'a>> {
        match name {
            None | Some(b"") => Some(Space::Job),
            Some(name) if name == job.id.as_str().as_bytes() => Some(Space::Job),
            Some(name) => {
                let made = Space::Made(name);
                (!name.contains(&0) && self.kvs.get(&made.stored(b"")) == Some(THERE)).then_some(made)
            }
        }
    }

    /// Stores a pair in the space of this name.
    pub(super) fn put(
        &mut self,
        node: &mut JobNode,
        local: LocalRank,
        name: Option<&[u8]>,
        key: &[u8],
        value: &[u8],
    ) -> Response<'static> {
        let invalid = |text: &'static str| Response::Error { code: ErrorCode::InvalidArgument, text: text.into() };
        let Some(space) = self.find(&node.job, name) else { return unknown() };
        if space == Space::Job && is_reserved(key) {
            return invalid("keys with PMI_ are reserved");
        }
        if key.contains(&0) {
            return invalid("a key has no NUL");
        }
        if let Some(refusal) = node.refuse_pair(local, key, value) {
            return refusal;
        }
        match space {
            Space::Job => self.kvs.put(key, value),
            Space::Made(_) => self.kvs.put(&space.stored(key), value),
        }
        Response::Done
    }

    /// PMI-1 has one `get` for pairs and for facts about the job; the names of facts are reserved.
    pub(super) fn get<'s>(
        &'s self,
        node: &'s JobNode,
        facts: &'s Facts,
        local: LocalRank,
        name: Option<&[u8]>,
        key: &[u8],
    ) -> Response<'s> {
        let Some(space) = self.find(&node.job, name) else { return unknown() };
        if key.contains(&0) || (space != Space::Job && key.is_empty()) {
            return Response::Value(None);
        }
        match (space, self.kvs.get(key)) {
            (Space::Made(_), _) => Response::Value(self.kvs.get(&space.stored(key))),
            (Space::Job, Some(value)) if !is_reserved(key) => Response::Value(Some(value)),
            (Space::Job, _) => facts.get(node, local, key),
        }
    }

    /// The next pair of a space from this index on.
    pub(super) fn indexed(&mut self, job: &Job, name: Option<&[u8]>, index: usize) -> Response<'_> {
        let Some(space) = self.find(job, name) else { return unknown() };
        self.indices.look_at_new(&self.kvs);
        let next = self.indices.next(space, index);
        let pair = next.and_then(|index| Some((index, self.kvs.nth(index)?)));
        Response::Indexed(pair.map(|(index, (stored, value))| (index + 1, space.shown(stored), value)))
    }

    /// Creates a space. Other ranks of this node can use it at once, ranks of other nodes after the next fence.
    pub(super) fn create(&mut self, node: &mut JobNode, local: LocalRank) -> Response<'static> {
        let state = &mut node.ranks[local];
        let Some(number) = state.quota.take_space(MADE_MAX) else {
            let text = format!("this rank has made {MADE_MAX} key-value spaces");
            return Response::Error { code: ErrorCode::NoMemory, text: text.into() };
        };
        let name = format!("{}.k{}.{number}", node.job.id, state.rank);
        self.kvs.put(&Space::Made(name.as_bytes()).stored(b""), THERE);
        Response::Space(name)
    }

    /// Removes a space that a rank has created.
    pub(super) fn destroy(&mut self, job: &Job, name: &[u8]) -> Response<'static> {
        match self.find(job, Some(name)) {
            Some(made @ Space::Made(_)) => {
                self.kvs.put(&made.stored(b""), REMOVED);
                Response::Done
            }
            Some(Space::Job) => {
                Response::Error { code: ErrorCode::InvalidArgument, text: "the space of the job stays".into() }
            }
            None => unknown(),
        }
    }
}

/// Returns true if the key is reserved for a fact about the job; Hydra also refuses puts of such keys.
fn is_reserved(key: &[u8]) -> bool {
    key.starts_with(b"PMI_")
}

fn unknown() -> Response<'static> {
    Response::Error { code: ErrorCode::Failed, text: "unknown kvsname".into() }
}

/// Indices of the pairs of each space, as far as a rank has requested pairs by index. A job may have millions of pairs, and a space only
/// a few.
#[derive(Default)]
struct Indices {
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
