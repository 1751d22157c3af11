//! Histogram of times, in characters.

use std::fmt::Write as _;
use std::time::Duration;

/// Minimum number of times in a histogram.
const TIMES_MIN: usize = 10;
/// Length of the longest bar, in characters.
const BAR: usize = 40;

/// One line for each range of times between steps of 1, 2 and 5, with a bar for its share. Empty if there are too few times.
pub(super) fn picture(times: &[Duration]) -> String {
    let (Some(least), Some(most)) = (times.iter().min(), times.iter().max()) else { return String::new() };
    if times.len() < TIMES_MIN {
        return String::new();
    }
    let (first, last) = (step_below(*least), step_below(*most));
    let mut counts = vec![0; last - first + 1];
    times.iter().for_each(|time| counts[step_below(*time) - first] += 1);
    let longest = counts.iter().copied().max().unwrap_or(1);
    let mut text = String::new();
    for (step, count) in (first..).zip(counts) {
        let bar = "#".repeat((count * BAR).div_ceil(longest));
        let (from, to) = (milliseconds(start(step)), milliseconds(start(step + 1)));
        let line = format!("{from:>9} to {to:>7} ms {count:>7}  {bar}");
        let _ = writeln!(text, "{}", line.trim_end());
    }
    text
}

/// Number of the last step that is not above a time. Step 0 is a nanosecond.
fn step_below(time: Duration) -> usize {
    let nanoseconds = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    (0..).take_while(|&step| start(step) <= nanoseconds && start(step) < u64::MAX).last().unwrap_or(0)
}

/// Nanoseconds of a step: 1, 2, 5, 10, 20, 50 and so on.
fn start(step: usize) -> u64 {
    let decade = u32::try_from(step / 3).ok().and_then(|decade| 10_u64.checked_pow(decade));
    decade.and_then(|decade| decade.checked_mul([1, 2, 5][step % 3])).unwrap_or(u64::MAX)
}

fn milliseconds(nanoseconds: u64) -> f64 {
    nanoseconds as f64 / 1e6
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_counted_between_steps_of_one_two_and_five() {
        let mut times = vec![Duration::from_micros(150); 20];
        times.extend([Duration::from_micros(200), Duration::from_micros(1999)]);
        let expected = "\
            \x20     0.1 to     0.2 ms      20  ########################################\n\
            \x20     0.2 to     0.5 ms       1  ##\n\
            \x20     0.5 to       1 ms       0\n\
            \x20       1 to       2 ms       1  ##\n";
        assert_eq!(picture(&times), expected);
    }

    #[test]
    fn a_few_times_have_no_picture_and_no_time_is_too_short_or_too_long() {
        assert_eq!(picture(&[Duration::ZERO; 9]), "");
        assert!(picture(&[Duration::ZERO; 10]).contains("0.000001 to"));
        assert_eq!(picture(&[Duration::MAX; 10]).lines().count(), 1);
    }
}
