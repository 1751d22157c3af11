//! Call stacks that nodes report of their ranks, put together: those that are equal are shown once.

use std::time::Duration;

use lattice_session::call_stacks::{CallStacks, RankStack};
use lattice_session::event::Notice;
use tokio::time::Instant;

use super::silent_ranks::Passing;

/// Time that nodes have to report their ranks after the first did: debuggers are not equally fast everywhere.
const COLLECT: Duration = Duration::from_secs(2);

/// Stacks that were not passed on.
#[derive(Debug, Default)]
pub(crate) struct LateStacks {
    collected: Option<(Instant, CallStacks)>,
}

impl LateStacks {
    /// Takes in a node's report.
    pub(crate) fn add(&mut self, stacks: Vec<RankStack>, now: Instant) {
        let (_, all) = self.collected.get_or_insert_with(|| (now, CallStacks::default()));
        stacks.into_iter().for_each(|stack| all.add(stack.ranks, stack.text));
    }

    /// The notice that is to be passed on now, if one is.
    pub(crate) fn take(&mut self, now: Instant, passing: Passing) -> Option<Notice> {
        let (_, stacks) = self.collected.take_if(|(since, _)| passing == Passing::All || now >= *since + COLLECT)?;
        (!stacks.is_empty()).then(|| Notice::Stacks { stacks: stacks.into_stacks() })
    }
}

#[cfg(test)]
mod tests {
    use pmi_core::ids::Rank;

    use super::*;

    #[test]
    fn equal_stacks_of_several_nodes_are_told_once() {
        let stack = |ranks: &[u32], text: &str| RankStack {
            ranks: ranks.iter().copied().map(Rank).collect(),
            text: text.to_owned(),
        };
        let (mut late, now) = (LateStacks::default(), Instant::now());
        late.add(vec![stack(&[2, 3], "solve"), stack(&[4], "wait")], now);
        late.add(vec![stack(&[0, 1], "solve")], now + COLLECT / 2);
        assert_eq!(late.take(now + COLLECT / 2, Passing::Due), None);
        let stacks = vec![stack(&[0, 1, 2, 3], "solve"), stack(&[4], "wait")];
        assert_eq!(late.take(now + COLLECT, Passing::Due), Some(Notice::Stacks { stacks }));
        assert_eq!(late.take(now + COLLECT, Passing::All), None);
    }
}
