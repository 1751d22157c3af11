//! Barriers of groups (PMI 1.2). A process may have several open barriers, and send other requests in the meantime, because their replies
//! have a tag:
//!
//! ```text
//! rank: barrier_in group=0,2:434711146 ── get ──> server ── get_result ── barrier_out tag=434711146 ──> rank
//! ```

use alloc::borrow::ToOwned;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use super::parse;
use crate::client::RankGroup;
use crate::error::ClientError;
use crate::reply::Reply;

const COMMAND: &str = "barrier_in";
const ANSWER: &str = "barrier_out";

/// Barriers of groups that this process has begun and not left, by tag, with the reply if it has arrived.
#[derive(Debug, Default)]
pub(super) struct GroupBarriers(Vec<(u32, Option<Reply>)>);

impl GroupBarriers {
    /// Opens a barrier. Returns false if a barrier with this tag is open.
    pub(super) fn open(&mut self, tag: u32) -> bool {
        let is_new = self.position(tag).is_none();
        if is_new {
            self.0.push((tag, None));
        }
        is_new
    }

    /// Stores a message if it is the reply to one of these barriers; returns false otherwise.
    pub(super) fn keep(&mut self, message: &[u8]) -> bool {
        if self.0.is_empty() {
            return false;
        }
        let Ok(reply) = Reply::new(COMMAND, ANSWER, message.to_vec(), parse) else { return false };
        let position = reply.number("tag").ok().and_then(|tag| self.position(tag));
        match position.map(|position| &mut self.0[position].1) {
            Some(answer @ None) => {
                *answer = Some(reply);
                true
            }
            _ => false,
        }
    }

    /// Returns the reply to the barrier with this tag if it has arrived, and closes the barrier.
    pub(super) fn take(&mut self, tag: u32) -> Option<Result<(), ClientError>> {
        let position = self.position(tag)?;
        let answer = self.0[position].1.take()?;
        self.0.swap_remove(position);
        Some(answer.accepted().map(drop))
    }

    fn position(&self, tag: u32) -> Option<usize> {
        self.0.iter().position(|(open, _)| *open == tag)
    }
}

/// Returns the group and the tag for a request; `None` for a group of one rank, which need not wait. Hydra 5.0.2 ends a job that sends such a
/// group. The text of a group is the same for all its ranks, in any order of the list.
///
/// # Errors
/// Fails for a list without this rank, and for a list with a rank that the job does not have.
pub(super) fn group_text(
    group: RankGroup<'_>,
    (rank, size): (u32, u32),
    tag: u32,
) -> Result<Option<String>, ClientError> {
    let members = match group {
        RankGroup::World => "WORLD".to_owned(),
        RankGroup::Node => "NODE".to_owned(),
        RankGroup::Ranks(ranks) => {
            let ranks = in_order(ranks);
            if !ranks.contains(&rank) {
                return Err(ClientError::GroupBarrier { needed: "this rank among its members" });
            }
            if ranks.iter().any(|&rank| rank >= size) {
                return Err(ClientError::GroupBarrier { needed: "members that are ranks of the job" });
            }
            if ranks == [rank] {
                return Ok(None);
            }
            let mut list = String::new();
            for rank in ranks {
                list += if list.is_empty() { "" } else { "," };
                list += &rank.to_string();
            }
            list
        }
    };
    Ok(Some(format!("{members}:{tag}")))
}

/// Returns the ranks in ascending order, each once. Most lists are already sorted. The library must be small, and a sort is not.
fn in_order(ranks: &[u32]) -> Vec<u32> {
    let mut ordered = Vec::with_capacity(ranks.len());
    for rank in ranks {
        if let Err(place) = ordered.binary_search(rank) {
            ordered.insert(place, *rank);
        }
    }
    ordered
}

/// Number of a tag in messages: FNV-1a as a positive number, as in MPICH's client.
pub(super) fn tag_number(tag: &str) -> u32 {
    let hash = tag.bytes().fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    hash.cast_signed().unsigned_abs() & 0x7fff_ffff
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_kept_for_the_barrier_whose_tag_it_has() {
        let mut barriers = GroupBarriers::default();
        assert!(!barriers.keep(b"cmd=barrier_out rc=0 tag=7"), "nobody waits");
        assert!(barriers.open(7) && barriers.open(8) && !barriers.open(7));
        assert!(!barriers.keep(b"cmd=barrier_out rc=0"), "of the whole job");
        assert!(!barriers.keep(b"cmd=get_result rc=0 value=tag=7"));
        assert!(barriers.keep(b"cmd=barrier_out rc=-1 tag=8 msg=too_many") && barriers.keep(b"cmd=barrier_out tag=7"));
        assert!(!barriers.keep(b"cmd=barrier_out tag=7"), "its second answer");
        assert!(matches!(barriers.take(8), Some(Err(ClientError::Refused { rc: -1, .. }))));
        assert!(matches!(barriers.take(7), Some(Ok(()))) && barriers.take(7).is_none() && barriers.open(7));
    }

    #[test]
    fn a_group_has_one_name_for_all_its_ranks() {
        let text = |ranks: &[u32]| group_text(RankGroup::Ranks(ranks), (2, 4), 5);
        assert_eq!(text(&[3, 2, 0, 2]).unwrap().as_deref(), Some("0,2,3:5"));
        assert_eq!(text(&[2, 2]).unwrap(), None);
        assert!(text(&[0, 1]).is_err() && text(&[2, 4]).is_err() && text(&[]).is_err());
        assert_eq!(group_text(RankGroup::Node, (0, 1), 0).unwrap().as_deref(), Some("NODE:0"));
    }

    /// The expected numbers are from the macro `HASH_FNV` of MPICH's uthash.h.
    #[test]
    fn tags_have_the_numbers_that_mpich_gives_them() {
        assert_eq!((tag_number("a"), tag_number("thread-1")), (468_965_076, 494_661_247));
    }
}
