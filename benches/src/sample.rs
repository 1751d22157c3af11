//! Repeated measurements of one quantity, and the comparison of two quantities.

/// Number of draws of the bootstrap.
const DRAWS: usize = 4000;

/// The ratio of two medians, and the interval that holds it with 95 % confidence.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Ratio {
    /// The first median over the second.
    pub(crate) value: f64,
    /// The lower end of the interval.
    pub(crate) low: f64,
    /// The upper end of the interval.
    pub(crate) high: f64,
}

/// Returns the middle value. For an even number of values, returns the mean of the two middle values.
///
/// # Panics
/// Panics if there is no value.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    if sorted.len() % 2 == 1 { sorted[middle] } else { f64::midpoint(sorted[middle - 1], sorted[middle]) }
}

impl Ratio {
    /// Compares two sets of samples by the percentile bootstrap. It draws both sets again, with replacement and a fixed
    /// seed. The interval excludes the lowest and the highest 2.5 % of the resulting ratios.
    ///
    /// # Panics
    /// Panics if one of the sets is empty.
    pub(crate) fn of(over: &[f64], under: &[f64]) -> Self {
        let mut random = Random(0x9e37_79b9_7f4a_7c15);
        let mut ratios: Vec<_> =
            (0..DRAWS).map(|_| median(&random.redraw(over)) / median(&random.redraw(under))).collect();
        ratios.sort_by(f64::total_cmp);
        let tail = DRAWS / 40;
        Self { value: median(over) / median(under), low: ratios[tail], high: ratios[DRAWS - 1 - tail] }
    }
}

/// xorshift64: sufficient to draw samples, and reproducible.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) as usize % bound
    }

    fn redraw(&mut self, values: &[f64]) -> Vec<f64> {
        values.iter().map(|_| values[self.below(values.len())]).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_in_the_middle() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
    }

    #[test]
    fn equal_samples_leave_no_doubt() {
        assert_eq!(Ratio::of(&[2.0; 15], &[4.0; 15]), Ratio { value: 0.5, low: 0.5, high: 0.5 });
    }

    #[test]
    fn the_interval_holds_the_ratio_and_grows_with_the_spread() {
        let spread = |by: f64| (0..15).map(|sample| 10.0 + by * f64::from(sample)).collect::<Vec<_>>();
        let under = spread(0.1);
        let (narrow, wide) = (Ratio::of(&spread(0.1), &under), Ratio::of(&spread(1.0), &under));
        for ratio in [narrow, wide] {
            assert!(ratio.low <= ratio.value && ratio.value <= ratio.high, "{ratio:?}");
        }
        assert!(wide.high - wide.low > 2.0 * (narrow.high - narrow.low), "{narrow:?} {wide:?}");
    }
}
