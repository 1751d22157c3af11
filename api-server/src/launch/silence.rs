//! Notices of ranks that are silent, put together: every node tells of its own, and the client is to hear of all at once.

use std::time::Duration;

use pmi_transport::proto::v1::SilentRanks;
use tokio::time::Instant;

/// How long nodes may take to tell of their ranks after the first did.
const COLLECT: Duration = Duration::from_millis(500);

/// Notices that were not passed on: of ranks that run, and of ranks that have ended.
#[derive(Debug, Default)]
pub(crate) struct Silence {
    collected: [Option<(Instant, SilentRanks)>; 2],
}

impl Silence {
    /// A node tells of its ranks.
    pub(crate) fn add(&mut self, told: SilentRanks, now: Instant) {
        match &mut self.collected[usize::from(told.ended)] {
            Some((_, all)) => {
                all.ranks.extend(&told.ranks);
                all.library = all.library.take().or(told.library);
            }
            none => *none = Some((now, told)),
        }
    }

    /// What is to be passed on now; `all` at the end of the launch.
    pub(crate) fn take(&mut self, now: Instant, all: bool) -> Vec<SilentRanks> {
        let due = |slot: &mut Option<(Instant, SilentRanks)>| {
            slot.take_if(|(since, _)| all || now >= *since + COLLECT).map(|(_, mut told)| {
                told.ranks.sort_unstable();
                told.ranks.dedup();
                told
            })
        };
        self.collected.iter_mut().filter_map(due).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn ranks_of_all_nodes_are_told_together() {
        let told = |ranks: &[u32], ended| SilentRanks { ranks: ranks.to_vec(), ended, ..Default::default() };
        let (mut silence, now) = (Silence::default(), Instant::now());
        silence.add(told(&[2, 3], true), now);
        silence.add(told(&[0, 1], true), now);
        silence.add(told(&[5], false), now + COLLECT);
        assert!(silence.take(now, false).is_empty());
        assert_eq!(silence.take(now + COLLECT, false), [told(&[0, 1, 2, 3], true)]);
        assert_eq!(silence.take(now + COLLECT, true), [told(&[5], false)]);
        assert!(silence.take(now + 2 * COLLECT, true).is_empty());
    }
}
