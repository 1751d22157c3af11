//! The ranks of one job on one node, as every server sees them: connections, dialogue states, ends, and the remaining share of each rank
//! in the server's memory.
//!
//! ```text
//!               message                finalize
//! Silent ───────────────> Open ─────────────────────> Finalized
//!   │ exit                 │ exit  ^                      │ exit: in order
//!   v                      v       └──────────────────────┘ message (a restarted program, MPI sessions)
//! LeftBeforeInit           LeftWithoutFinalize
//! ```
//!
//! Pure: after each input, a server checks whether a rank [left before `init`](Roster::left_before_init) while other ranks wait.

use std::borrow::Cow;

use bytes::Bytes;

use crate::connections::ConnectionId;
use crate::deaths::{Death, DeathKind};
use crate::gathering::Gathering;
use crate::ids::{LocalRank, Rank};
use crate::report::{EndReason, Phase, Progress};
use crate::services::{SpawnApp, SpawnRequest};

/// The ranks of one job on one node, in rank order.
#[derive(Debug, Default)]
pub struct Roster {
    ranks: Vec<RankState>,
}

/// State of one rank.
#[derive(Debug)]
pub struct RankState {
    /// The rank.
    pub rank: Rank,
    /// Phase of its dialogue.
    pub phase: Phase,
    /// Number of times that it has begun: once, and again after each `finalize`, or at a restart of all ranks.
    pub lives: u32,
    /// Its connection, if any.
    pub connection: Option<ConnectionId>,
    /// Its last command.
    pub last_command: Option<Cow<'static, str>>,
    /// True after its process has ended with status 0, or in a way that the host tolerates.
    pub exited: bool,
    /// Kind of its end, if it died during its dialogue and the host tolerates that.
    pub died: Option<DeathKind>,
    /// True after a second process has sent messages as this rank.
    pub has_second: bool,
    /// Server memory that it has used.
    pub quota: Quota,
}

/// A rank's use of its server's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Quota {
    /// Bytes of keys and values put so far, including the memory of their places.
    bytes: usize,
    /// Unanswered questions.
    questions: usize,
    /// Key-value spaces created so far.
    spaces: u32,
}

impl Quota {
    /// Bytes of a pair in addition to its key and value: about the memory of its place. Without it, a million pairs of one byte would
    /// count as one megabyte.
    pub const PAIR_COST: usize = 64;

    /// Counts a pair. Returns false, and counts nothing, if it would exceed `limit`. A replaced value is not credited.
    pub fn take_pair(&mut self, key: usize, value: usize, limit: usize) -> bool {
        self.take_bytes(key + value + Self::PAIR_COST, limit)
    }

    /// Counts `bytes`. Returns false, and counts nothing, if they would exceed `limit`.
    pub fn take_bytes(&mut self, bytes: usize, limit: usize) -> bool {
        let fits = self.bytes.checked_add(bytes).is_some_and(|sum| sum <= limit);
        if fits {
            self.bytes += bytes;
        }
        fits
    }

    /// Counts `bytes` in place of `replaced`, which were counted before. Returns false if that would exceed `limit`. A value that is not
    /// longer than before always fits.
    pub fn replace_bytes(&mut self, replaced: usize, bytes: usize, limit: usize) -> bool {
        let kept = self.bytes.saturating_sub(replaced);
        let fits = bytes <= replaced || kept.checked_add(bytes).is_some_and(|sum| sum <= limit);
        if fits {
            self.bytes = kept.saturating_add(bytes);
        }
        fits
    }

    /// Resets the bytes and the number of spaces. Unanswered questions stay counted.
    pub fn forget_pairs(&mut self) {
        (self.bytes, self.spaces) = (0, 0);
    }

    /// Credits bytes that were counted but not stored.
    pub fn give_back_bytes(&mut self, bytes: usize) {
        self.bytes = self.bytes.saturating_sub(bytes);
    }

    /// Returns the bytes counted so far.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Bytes of a question that count as one more question.
    const QUESTION_BYTES: usize = 64 * 1024;

    /// Returns the number of questions that a question of `bytes` stored bytes counts for.
    pub fn questions_of(bytes: usize) -> usize {
        1 + bytes / Self::QUESTION_BYTES
    }

    /// Returns the bytes that a spawn stores until it is answered.
    pub fn bytes_of_spawn(request: &SpawnRequest) -> usize {
        let texts = |texts: &[Bytes]| texts.iter().map(|text| text.len() + Self::PAIR_COST).sum::<usize>();
        let pairs = |pairs: &[(Bytes, Bytes)]| {
            pairs.iter().map(|(key, value)| key.len() + value.len() + Self::PAIR_COST).sum::<usize>()
        };
        let of_app = |app: &SpawnApp| app.program.len() + texts(&app.args) + pairs(&app.info) + pairs(&app.variables);
        pairs(&request.preput) + request.apps.iter().map(of_app).sum::<usize>()
    }

    /// Counts an unanswered question. Returns false if `limit` are open.
    pub fn ask(&mut self, limit: usize) -> bool {
        self.ask_many(1, limit)
    }

    /// Counts several questions at once, all or none.
    pub fn ask_many(&mut self, questions: usize, limit: usize) -> bool {
        let fits = self.questions.checked_add(questions).is_some_and(|sum| sum <= limit);
        if fits {
            self.questions += questions;
        }
        fits
    }

    /// Counts a key-value space and returns its number, from 1; `None` if `limit` exist.
    pub fn take_space(&mut self, limit: u32) -> Option<u32> {
        self.spaces = self.spaces.checked_add(1).filter(|&number| number <= limit)?;
        Some(self.spaces)
    }

    /// Records an answered question.
    pub fn answered(&mut self) {
        self.answered_many(1);
    }

    /// Records several answered questions.
    pub fn answered_many(&mut self, questions: usize) {
        self.questions = self.questions.saturating_sub(questions);
    }

    /// Returns the number of unanswered questions.
    pub fn questions(&self) -> usize {
        self.questions
    }
}

impl RankState {
    fn new(rank: Rank) -> Self {
        Self {
            rank,
            phase: Phase::Silent,
            lives: 0,
            connection: None,
            last_command: None,
            exited: false,
            died: None,
            has_second: false,
            quota: Quota::default(),
        }
    }

    /// Records the rank's first message, or its return after `finalize`. Returns true for the first message.
    pub fn speak(&mut self) -> bool {
        let before = std::mem::replace(&mut self.phase, Phase::Open);
        self.lives += u32::from(before != Phase::Open);
        before == Phase::Silent
    }

    /// Records a second process of this rank. Returns true the first time, if the rank has not finalized.
    pub fn note_second(&mut self) -> bool {
        self.phase == Phase::Open && !std::mem::replace(&mut self.has_second, true)
    }

    /// Records that the rank's program was replaced, in a job with restarts. `life` is the number of the new life.
    pub fn begin_again(&mut self, life: u32) {
        (self.phase, self.lives) = (Phase::Open, life);
    }

    /// Returns the connection that a new one of the rank may replace: its dialogue is over, although it may have unread messages, or a
    /// forked process of the rank may hold it open. `None` without a connection, or while it is in use.
    pub fn former_connection(&self) -> Option<ConnectionId> {
        self.connection.filter(|_| self.phase == Phase::Finalized)
    }

    /// Records that its process has ended in a way that the host tolerates.
    pub fn fail(&mut self, kind: DeathKind) {
        self.exited = true;
        // A rank that had finalized, or had never sent a message, does not count as dead.
        self.died = (self.phase == Phase::Open).then_some(kind);
    }

    /// Returns true if the rank can send nothing more: it has finalized, or its process has ended.
    pub fn is_gone(&self) -> bool {
        self.exited || self.phase == Phase::Finalized
    }

    /// Returns true if the rank can send nothing more to ranks that have begun `lives` times. A finalized rank with a live process may
    /// begin again, as these ranks have.
    pub fn is_gone_for(&self, lives: u32) -> bool {
        self.is_gone() && (self.exited || self.lives >= lives)
    }
}

impl Roster {
    /// Creates a roster of silent ranks, in rank order.
    pub fn new(ranks: impl IntoIterator<Item = Rank>) -> Self {
        Self { ranks: ranks.into_iter().map(RankState::new).collect() }
    }

    /// Returns the number of ranks.
    pub fn len(&self) -> usize {
        self.ranks.len()
    }

    /// Returns true if the node has no rank of the job.
    pub fn is_empty(&self) -> bool {
        self.ranks.is_empty()
    }

    /// Returns the ranks with their states, in rank order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (LocalRank, &RankState)> {
        self.ranks.iter().enumerate().map(|(local, state)| (LocalRank(local as u32), state))
    }

    /// Returns every local rank.
    pub fn locals(&self) -> impl ExactSizeIterator<Item = LocalRank> + use<> {
        (0..self.ranks.len()).map(|local| LocalRank(local as u32))
    }

    /// Returns the position of `rank` on this node; `None` if it is on another node.
    pub fn local(&self, rank: Rank) -> Option<LocalRank> {
        let position = self.ranks.binary_search_by_key(&rank, |state| state.rank).ok()?;
        Some(LocalRank(position as u32))
    }

    /// Returns the state of a rank; `None` if the node has no such rank.
    pub fn get(&self, local: LocalRank) -> Option<&RankState> {
        self.ranks.get(local.index())
    }

    /// Returns the mutable state of a rank.
    pub fn get_mut(&mut self, local: LocalRank) -> Option<&mut RankState> {
        self.ranks.get_mut(local.index())
    }

    /// Dead ranks, in rank order.
    pub fn deaths(&self) -> impl Iterator<Item = Death> {
        self.ranks.iter().filter_map(|state| Some(Death { rank: state.rank, kind: state.died? }))
    }

    /// Reports the progress of a rank to the host, for a job with `fences` complete fences; `None` if the node has no such rank.
    pub fn progress(&self, local: LocalRank, fences: u64) -> Option<Progress> {
        self.get(local).map(|state| Progress {
            rank: state.rank,
            phase: state.phase,
            last_command: state.last_command.as_deref().map(str::to_owned),
            fences,
        })
    }

    /// Returns the reason to end the job if a rank's process ended without a message, while other ranks wait for it in `MPI_Init`.
    pub fn left_before_init(&self) -> Option<EndReason> {
        let silent = self.ranks.iter().find(|state| state.exited && state.phase == Phase::Silent)?;
        let spoke = self.ranks.iter().filter(|state| state.phase != Phase::Silent);
        let others: Vec<_> = spoke.map(|state| state.rank).collect();
        (!others.is_empty()).then(|| EndReason::LeftBeforeInit { rank: silent.rank, others })
    }
}

/// Returns a missing rank of `fence` that is gone, and the reason to end its job. Returns `None` if each missing rank may still arrive,
/// or is dispensable. See [`RankState::is_gone_for`]. Reads each member twice, and allocates memory only if a rank is gone.
pub fn left_fence<'s, R: Copy + Ord, W>(
    fence: &Gathering<R, W>,
    state: impl Fn(R) -> &'s RankState,
    is_dispensable: impl Fn(R) -> bool,
) -> Option<(R, EndReason)> {
    let lives = fence.present().map(|rank| state(rank).lives).max()?;
    let gone = fence.absent().find(|&rank| state(rank).is_gone_for(lives) && !is_dispensable(rank))?;
    let waiting = fence.present().map(|rank| state(rank).rank).collect();
    Some((gone, EndReason::LeftFence { rank: state(gone).rank, waiting }))
}

impl std::ops::Index<LocalRank> for Roster {
    type Output = RankState;

    fn index(&self, local: LocalRank) -> &RankState {
        &self.ranks[local.index()]
    }
}

impl std::ops::IndexMut<LocalRank> for Roster {
    fn index_mut(&mut self, local: LocalRank) -> &mut RankState {
        &mut self.ranks[local.index()]
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn roster(phases: &[(Phase, bool)]) -> Roster {
        let mut roster = Roster::new((0..phases.len() as u32).map(|rank| Rank(2 * rank + 1)));
        for (state, &(phase, exited)) in roster.ranks.iter_mut().zip(phases) {
            (state.phase, state.exited) = (phase, exited);
        }
        roster
    }

    #[test]
    fn a_rank_that_leaves_without_a_word_deserts_only_those_who_spoke() {
        use Phase::{Finalized, Open, Silent};
        let check = |phases: &[(Phase, bool)], expected: Option<(u32, &[u32])>| {
            let found = roster(phases).left_before_init().map(|reason| match reason {
                EndReason::LeftBeforeInit { rank, others } => (rank.0, others.iter().map(|rank| rank.0).collect()),
                other => panic!("{other:?}"),
            });
            assert_eq!(found, expected.map(|(rank, others)| (rank, others.to_vec())), "{phases:?}");
        };
        check(&[(Silent, true), (Silent, false)], None);
        check(&[(Silent, true), (Silent, true)], None);
        check(&[(Silent, true), (Open, false)], Some((1, &[3])));
        check(&[(Open, false), (Silent, true), (Finalized, true)], Some((3, &[1, 5])));
        check(&[(Open, false), (Silent, false)], None);
        check(&[(Finalized, true), (Open, false)], None);
    }

    fn found(roster: &Roster, fence: &Gathering<LocalRank, ()>) -> Option<EndReason> {
        left_fence(fence, |local| &roster[local], |_| false).map(|(_, reason)| reason)
    }

    #[test]
    fn a_rank_that_is_gone_deserts_those_who_wait_in_a_fence() {
        let mut fence = Gathering::new([LocalRank(0), LocalRank(1), LocalRank(2)]);
        let all_open = roster(&[(Phase::Open, false); 3]);
        assert!(found(&all_open, &fence).is_none(), "an empty fence has no deserter");
        assert!(fence.arrive(LocalRank(2), ()));
        assert!(found(&all_open, &fence).is_none());
        for gone in [(Phase::Finalized, false), (Phase::Finalized, true), (Phase::Silent, true)] {
            let roster = roster(&[(Phase::Open, false), gone, (Phase::Open, false)]);
            assert!(left_fence(&fence, |local| &roster[local], |local| local == LocalRank(1)).is_none());
            let found = found(&roster, &fence);
            let Some(EndReason::LeftFence { rank: Rank(3), waiting }) = found else { panic!("{gone:?}: {found:?}") };
            assert_eq!(waiting, [Rank(5)]);
        }
    }

    #[test]
    fn a_rank_that_finalized_may_return_to_those_who_have_returned_until_its_process_ends() {
        let mut fence = Gathering::new([LocalRank(0), LocalRank(1)]);
        let mut roster = roster(&[(Phase::Silent, false); 2]);
        for local in [0, 1] {
            assert!(roster[LocalRank(local)].speak());
            roster[LocalRank(local)].phase = Phase::Finalized;
        }
        assert!(!roster[LocalRank(0)].speak());
        assert!(fence.arrive(LocalRank(0), ()));
        assert!(found(&roster, &fence).is_none(), "it may return");
        roster[LocalRank(1)].exited = true;
        assert!(found(&roster, &fence).is_some(), "nobody is there who could");
        (roster[LocalRank(1)].exited, roster[LocalRank(1)].lives) = (false, 2);
        assert!(found(&roster, &fence).is_some(), "it has left the same life");
    }

    #[test]
    fn ranks_are_found_by_their_number_in_the_job() {
        let roster = roster(&[(Phase::Silent, false); 3]);
        assert_eq!([1, 3, 5].map(|rank| roster.local(Rank(rank))), [0, 1, 2].map(|local| Some(LocalRank(local))));
        assert_eq!([0, 2, 6].map(|rank| roster.local(Rank(rank))), [None; 3]);
        assert_eq!(roster.progress(LocalRank(3), 0), None);
    }

    proptest! {
        #[test]
        fn a_quota_is_never_exceeded_and_never_wraps(takes in prop::collection::vec(any::<usize>(), 0..20), limit: usize) {
            let mut quota = Quota::default();
            for bytes in takes {
                let before = quota.bytes();
                let taken = quota.take_bytes(bytes, limit);
                prop_assert_eq!(taken, before.checked_add(bytes).is_some_and(|sum| sum <= limit));
                prop_assert_eq!(quota.bytes(), if taken { before + bytes } else { before });
            }
        }

        #[test]
        fn what_takes_the_place_of_other_bytes_counts_the_difference(
            held in 0..1000_usize, replaced in 0..1000_usize, bytes in 0..1000_usize, limit in 0..1000_usize,
        ) {
            let mut quota = Quota { bytes: held, ..Quota::default() };
            let after = held.saturating_sub(replaced) + bytes;
            let fits = quota.replace_bytes(replaced, bytes, limit);
            prop_assert_eq!(fits, bytes <= replaced || after <= limit);
            prop_assert_eq!(quota.bytes(), if fits { after } else { held });
        }

        #[test]
        fn a_pair_counts_for_more_than_its_bytes(key in 1..300_usize, value in 0..300_usize) {
            let mut quota = Quota::default();
            prop_assert!(!quota.take_pair(key, value, key + value + Quota::PAIR_COST - 1));
            prop_assert!(quota.take_pair(key, value, key + value + Quota::PAIR_COST));
        }

        #[test]
        fn a_question_of_many_bytes_counts_as_many(bytes in 0..1_000_000_usize, limit in 0..20_usize) {
            let (mut quota, questions) = (Quota::default(), Quota::questions_of(bytes));
            prop_assert!(bytes < questions * 64 * 1024 && questions <= 1 + bytes / 65_536);
            prop_assert_eq!(quota.ask_many(questions, limit), questions <= limit);
            prop_assert_eq!(quota.questions(), if questions <= limit { questions } else { 0 });
            quota.answered_many(questions);
            prop_assert_eq!(quota.questions(), 0);
        }

        #[test]
        fn open_questions_are_those_asked_and_not_answered(asks in prop::collection::vec(any::<bool>(), 0..40), limit in 0..5_usize) {
            let (mut quota, mut open) = (Quota::default(), 0);
            for asks in asks {
                if asks {
                    prop_assert_eq!(quota.ask(limit), open < limit);
                    open = limit.min(open + 1);
                } else {
                    quota.answered();
                    open = open.saturating_sub(1);
                }
                prop_assert_eq!(quota.questions(), open);
            }
        }
    }
}
