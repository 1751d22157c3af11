//! Further key-value spaces of a job, made and removed by its ranks.
//!
//! Their pairs lie among the job's own, each key behind the space's name and a NUL, which no key of a rank holds. So they are read and
//! brought by fences as all others are. The pair with nothing behind the NUL says that the space is there, or that it was removed:
//! from then on nothing of it is read, though its pairs stay with the job, counted to those who have put them.

use super::Server;
use crate::ids::LocalRank;
use crate::wire::{ErrorCode, Response};

/// Most spaces that one rank makes.
const MADE_MAX: u32 = 1024;

/// Values of the pair that says what became of a space.
const THERE: &[u8] = b"there";
const REMOVED: &[u8] = b"removed";

/// A key-value space that a request names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Space<'a> {
    /// The job's.
    Job,
    /// One that a rank has made.
    Made(&'a [u8]),
}

impl Space<'_> {
    /// Returns the key under which a pair of the space lies.
    pub(super) fn stored(self, key: &[u8]) -> Vec<u8> {
        match self {
            Self::Job => key.to_vec(),
            Self::Made(name) => [name, b"\0", key].concat(),
        }
    }

    /// Returns the key of a pair as ranks know it; `None` if it is of another space.
    fn shown(self, stored: &[u8]) -> Option<&[u8]> {
        match self {
            Self::Job => Some(stored).filter(|key| !key.contains(&0)),
            Self::Made(name) => stored.strip_prefix(name)?.strip_prefix(b"\0").filter(|key| !key.is_empty()),
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

    /// Makes a space; other ranks may use it as soon as they know its name, those of other nodes after the next fence.
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

    /// Removes a space that some rank has made.
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
    pub(super) fn indexed(&self, space: Space<'_>, index: usize) -> Response<'_> {
        let pair = |index: usize| {
            let (stored, value) = self.kvs.nth(index)?;
            let key = space.shown(stored)?.len();
            Some((index + 1, &stored[stored.len() - key..], value))
        };
        Response::Indexed((index..self.kvs.len()).find_map(pair))
    }
}
