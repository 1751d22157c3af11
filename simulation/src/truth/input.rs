//! Input of ranks: the bytes of the client, each once and in order, and then the end.

use std::collections::BTreeSet;

use pmi_core::ids::Rank;

use super::Truth;
use crate::input::byte;
use crate::scenario::Scenario;

/// The input that ranks have read.
#[derive(Debug)]
pub(crate) struct InputTruth {
    length: usize,
    /// By rank: position of the next byte.
    next: Vec<usize>,
    /// The user received a warning that bytes may be missing.
    pub(crate) may_have_gaps: bool,
    /// Sessions have ended the input early, with a warning.
    is_cut: bool,
    /// Ranks with closed input, because they did not read it.
    closed: BTreeSet<Rank>,
}

impl InputTruth {
    pub(super) fn new(scenario: &Scenario) -> Self {
        Self {
            length: scenario.input.as_ref().map_or(0, |input| input.length),
            next: vec![0; scenario.size() as usize],
            may_have_gaps: false,
            is_cut: false,
            closed: BTreeSet::new(),
        }
    }
}

impl Truth {
    /// A session has ended the input of a rank, or of all its ranks, early.
    pub(crate) fn input_cut(&mut self, rank: Option<Rank>) {
        match rank {
            Some(rank) => drop(self.input.closed.insert(rank)),
            None => self.input.is_cut = true,
        }
    }

    /// A rank has read these bytes.
    pub(crate) fn input_read(&mut self, rank: Rank, bytes: &[u8]) {
        let InputTruth { length, ref next, may_have_gaps, .. } = self.input;
        let mut place = next[rank.index()];
        for &read in bytes {
            let is_next = |at: &usize| byte(*at) == read;
            let found = if may_have_gaps { (place..length).find(is_next) } else { Some(place).filter(is_next) };
            match found.filter(|&found| found < length) {
                Some(found) => place = found + 1,
                None => {
                    return self
                        .wrong(format!("I9: rank {rank} reads {read} at byte {place} of {length} of its input"));
                }
            }
        }
        self.input.next[rank.index()] = place;
    }

    /// A rank has read the end of its input.
    pub(crate) fn input_ended(&mut self, rank: Rank) {
        let InputTruth { length, ref next, may_have_gaps, is_cut, ref closed } = self.input;
        let read = next[rank.index()];
        if read != length && !may_have_gaps && !is_cut && !closed.contains(&rank) && !self.is_ended_by_others {
            self.wrong(format!("I9: the input of rank {rank} ends at byte {read} of {length}"));
        }
    }
}
