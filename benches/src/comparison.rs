//! Comparisons of two programs for tables, and the rule for goals.
//!
//! Goals assume a core for each rank. On a machine with fewer cores than ranks the ratio depends on how the ranks share the cores. Such a ratio
//! is shown, but is not compared with a goal. [`sample`](crate::sample) has samples and intervals, [`turns`](crate::turns) has turns.

use std::fmt;

use crate::machine;
use crate::sample::Ratio;

/// Ratio of two sets of samples, measured with a certain number of ranks on this machine.
#[derive(Clone, Copy, Debug)]
pub struct Comparison {
    ratio: Ratio,
    /// Number of ranks on all nodes, which run on this machine at the same time.
    ranks: usize,
    /// Number of cores that this process may use.
    cores: usize,
}

/// Result of a comparison with a goal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The interval of the ratio reaches the goal.
    Met,
    /// The whole interval of the ratio is above the goal.
    Missed,
    /// There are more ranks than cores.
    NotJudged,
}

impl Comparison {
    /// Compares samples of `ranks` ranks in total (the product of nodes and ranks per node).
    ///
    /// # Panics
    /// Panics if one of the sets is empty.
    pub fn of(over: &[f64], under: &[f64], ranks: usize) -> Self {
        Self { ratio: Ratio::of(over, under), ranks, cores: machine::cores() }
    }

    /// Compares the ratio with an upper limit.
    pub fn verdict(&self, goal: f64) -> Verdict {
        if !self.has_cores_for_all() {
            Verdict::NotJudged
        } else if self.ratio.low <= goal {
            Verdict::Met
        } else {
            Verdict::Missed
        }
    }

    fn has_cores_for_all(&self) -> bool {
        self.ranks <= self.cores
    }
}

/// Formats the columns `ratio` and `95 % interval` of a table, with a remark if the ratio cannot be compared with a goal.
impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Ratio { value, low, high } = self.ratio;
        write!(f, "{value:>6.3}  {low:.3} to {high:.3}")?;
        if self.has_cores_for_all() {
            Ok(())
        } else {
            write!(f, "  no goal: {} ranks, {} cores", self.ranks, self.cores)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HALF: Ratio = Ratio { value: 0.5, low: 0.45, high: 0.55 };

    #[track_caller]
    fn check(ranks: usize, cores: usize, goal: f64, verdict: Verdict, shown: &str) {
        let comparison = Comparison { ratio: HALF, ranks, cores };
        assert_eq!(
            (comparison.verdict(goal), &*comparison.to_string()),
            (verdict, shown),
            "{ranks} ranks, {cores} cores"
        );
    }

    #[test]
    fn a_ratio_of_more_ranks_than_cores_is_no_goal() {
        let shown = " 0.500  0.450 to 0.550";
        check(16, 16, 0.5, Verdict::Met, shown);
        check(16, 16, 0.4, Verdict::Missed, shown);
        for (ranks, cores) in [(17, 16), (64, 16), (3, 2)] {
            let marked = format!("{shown}  no goal: {ranks} ranks, {cores} cores");
            // Neither met nor missed.
            check(ranks, cores, 0.9, Verdict::NotJudged, &marked);
            check(ranks, cores, 0.1, Verdict::NotJudged, &marked);
        }
    }

    #[test]
    fn a_goal_within_the_interval_is_met() {
        check(1, 2, 0.45, Verdict::Met, " 0.500  0.450 to 0.550");
        check(1, 2, 0.449, Verdict::Missed, " 0.500  0.450 to 0.550");
    }

    #[test]
    fn a_comparison_counts_the_cores_of_this_machine() {
        let cores = machine::cores();
        assert_eq!(Comparison::of(&[1.0; 3], &[2.0; 3], cores).verdict(0.5), Verdict::Met);
        assert_eq!(Comparison::of(&[1.0; 3], &[2.0; 3], cores + 1).verdict(0.5), Verdict::NotJudged);
    }
}
