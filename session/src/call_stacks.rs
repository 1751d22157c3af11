//! Call stacks of ranks, for the report of a node or of a launch. Each distinct text is stored once, with the ranks
//! that have it.

use pmi_core::ids::Rank;

/// Ranks with the same call stack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankStack {
    /// The ranks, in order.
    pub ranks: Vec<Rank>,
    /// Threads of one of these ranks, with the functions of each thread. Every line has its line end.
    pub text: String,
}

/// Call stacks, in the order in which they were added.
#[derive(Clone, Debug, Default)]
pub struct CallStacks {
    stacks: Vec<RankStack>,
    bytes: usize,
}

/// Text that replaces stacks beyond [`CallStacks::BYTES_MAX`].
const LEFT_OUT: &str = "left out, as so many stacks differ\n";

impl CallStacks {
    /// Maximum number of bytes of all texts together.
    pub const BYTES_MAX: usize = 256 * 1024;

    /// Adds the call stack of some ranks.
    pub fn add(&mut self, ranks: impl IntoIterator<Item = Rank>, text: String) {
        if let Some(stack) = self.stacks.iter_mut().find(|stack| stack.text == text) {
            return stack.ranks.extend(ranks);
        }
        if self.bytes + text.len() > Self::BYTES_MAX {
            match self.stacks.iter_mut().find(|stack| stack.text == LEFT_OUT) {
                Some(left_out) => left_out.ranks.extend(ranks),
                None => self.stacks.push(RankStack { ranks: ranks.into_iter().collect(), text: LEFT_OUT.to_owned() }),
            }
            return;
        }
        self.bytes += text.len();
        self.stacks.push(RankStack { ranks: ranks.into_iter().collect(), text });
    }

    /// Returns true if nothing was added.
    pub fn is_empty(&self) -> bool {
        self.stacks.is_empty()
    }

    /// Returns all stacks, ordered by their lowest rank.
    pub fn into_stacks(self) -> Vec<RankStack> {
        let mut stacks = self.stacks;
        for stack in &mut stacks {
            stack.ranks.sort_unstable();
            stack.ranks.dedup();
        }
        stacks.sort_unstable_by_key(|stack| stack.ranks.first().copied());
        stacks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stack(ranks: &[u32], text: &str) -> RankStack {
        RankStack { ranks: ranks.iter().copied().map(Rank).collect(), text: text.to_owned() }
    }

    #[test]
    fn ranks_in_the_same_functions_are_shown_once() {
        let mut stacks = CallStacks::default();
        for (ranks, text) in [(&[5, 2][..], "solve"), (&[1, 0], "wait"), (&[3, 2], "solve"), (&[7], "read")] {
            stacks.add(ranks.iter().copied().map(Rank), text.to_owned());
        }
        let expected = [stack(&[0, 1], "wait"), stack(&[2, 3, 5], "solve"), stack(&[7], "read")];
        assert_eq!(stacks.into_stacks(), expected);
    }

    #[test]
    fn stacks_that_differ_too_much_are_left_out() {
        let mut stacks = CallStacks::default();
        for rank in 0..1000 {
            stacks.add([Rank(rank)], format!("{rank}\n{}", "x".repeat(16 * 1024)));
        }
        let stacks = stacks.into_stacks();
        let bytes: usize = stacks.iter().map(|stack| stack.text.len()).sum();
        assert!(bytes <= CallStacks::BYTES_MAX + LEFT_OUT.len());
        let last = stacks.last().unwrap();
        assert_eq!((last.text.as_str(), last.ranks.last()), (LEFT_OUT, Some(&Rank(999))));
        assert_eq!(stacks.iter().map(|stack| stack.ranks.len()).sum::<usize>(), 1000);
    }
}
